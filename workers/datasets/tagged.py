"""Tokens with a tag each: their rows, split, findings and statistics. A row is written as {"tokens": […], "tags": […], and its
other columns}; of CoNLL files without others."""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from workers.contract.datasets import SPLITS, Reading, RowRef
from workers.datasets import parsing, splits, tagging, tokens
from workers.datasets.findings import MOST_ROWS, Findings, Level, Outcome, Source, Stage
from workers.datasets.parsing import BadRow, Row, Unreadable, printable, problem
from workers.datasets.splits import DEV, OPEN, OUT, TRAIN, set_apart
from workers.datasets.tagging import OUTSIDE
from workers.datasets.texts import DEV_NAMES, TEST_NAMES, TRAIN_NAMES, Numbers, histogram, ordered, percentiles

MOST_TAGS = 500
LONGEST_TAG = 200
# What the usual models read at most; with its marks a row of so many tokens is cut.
LONG_ROW = 510
SAMPLE_CHARACTERS = 400
_SCHEMES = {"bio": "BIO", "bioes": "BIOES", "none": "—"}


def check(
    sources: list[Source],
    reading: Reading,
    scratch: Path,
    target: Path,
    stage: Stage,
    findings: Findings,
    outcome: Outcome,
) -> None:
    """See checking.py."""
    rows = _Rows(reading, findings, [source.name for source in sources])
    try:
        with (scratch / "rows.jsonl").open("wb") as lines:
            for number, source in enumerate(sources):
                rows.read(number, source, lines, stage)
    finally:
        outcome.columns = sorted(rows.columns)
    splits.check_rows(rows.read_rows, rows.count, rows.bad_rows, reading, findings)
    if not rows.count or not findings.fit:
        return
    stage("deciding the split", 0, 0)
    codes = _split_codes(rows, reading, findings)
    if not splits.check_splits(codes, findings):
        return
    stage("looking for duplicates", 0, 0)
    statistics = _measure(rows, codes, reading, findings)
    if not findings.fit:
        return
    outcome.statistics = statistics
    outcome.content_hash, first = splits.write(scratch / "rows.jsonl", codes, target, stage)
    outcome.statistics["samples"] = {
        split: [_sample(json.loads(line)) for line in of_split] for split, of_split in zip(SPLITS, first, strict=True)
    }
    outcome.labels = list(reading.labels) or tagging.in_order(rows.tags)
    outcome.splits = dict(outcome.statistics["rows"])


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    """Spans as a page shows them."""
    found = tagging.segments(row["tokens"], row["tags"], SAMPLE_CHARACTERS)
    return {"segments": [[printable(text, SAMPLE_CHARACTERS), printable(kind)] for text, kind in found]}


class _Rows:
    """The rows that are right, in order, as numbers; their lines are in the scratch file."""

    def __init__(self, reading: Reading, findings: Findings, names: list[str]) -> None:
        self.reading, self.findings, self.names = reading, findings, names
        self.columns: set[str] = set()
        self.tags: dict[str, int] = {tag: i for i, tag in enumerate(reading.labels)}
        self._encode = json.JSONEncoder(ensure_ascii=False).encode
        self.hashes, self.tag_hashes = array("q"), array("q")
        self.lengths, self.tokens = array("I"), array("I")
        self.number_of, self.file_of, self.split_of = array("I"), array("B"), array("B")
        self.outside_only = array("B")
        # Per row how often which tag, and spans of which type, as three columns: the row, what, how often.
        self.tags_of, self.types_of = _Counts(), _Counts()
        self.types: dict[str, int] = {}
        self._uncounted: list[str] = []
        self.read_rows = self.bad_rows = 0
        self._fitting: set[str] = set()

    @property
    def count(self) -> int:
        return len(self.hashes)

    def read(self, number: int, source: Source, lines: BinaryIO, stage: Stage) -> None:
        file = source.file or source.path.open("rb")
        with file:
            size = os.fstat(file.fileno()).st_size
            for row in parsing.rows(file, self.reading, lambda done: stage("reading rows", done, size)):
                self.read_rows += 1
                bad = row if isinstance(row, BadRow) else self._take(row, number, source, lines)
                if bad:
                    self.bad_rows += 1
                    level: Level = "warning" if self.reading.leave_out else "error"
                    self.findings.row(level, bad, source.name)
                if len(self._uncounted) >= 1000:
                    self._count_tokens()
        self._count_tokens()

    def _count_tokens(self) -> None:
        self.tokens.frombytes(tokens.count(self._uncounted).tobytes())
        self._uncounted.clear()

    def _take(self, row: Row, file: int, source: Source, lines: BinaryIO) -> BadRow | None:
        """Stores the row, or says why not."""
        reading, how, values, number = self.reading, self.reading.tagging, row.values, row.number
        for column in (how.tokens_column, how.tags_column, reading.split_column):
            if column and column not in values:
                shown = ", ".join(map(str, values)) or "—"
                return problem("Rows without the column “%(column)s”: %(count)d.", number, shown, column=column)
        found = self._from_spans(row) if how.layout == "spans" else self._from_lists(row)
        if isinstance(found, BadRow):
            return found
        row_tokens, tags = found
        if bad := self._wrong(row_tokens, tags, number):
            return bad
        split = OPEN
        if source.split:
            split = SPLITS.index(source.split)
        elif reading.split_column:
            word = values[reading.split_column]
            word = str(word[0] if isinstance(word, list) and word else word).strip().lower()
            known = ((TRAIN_NAMES, TRAIN), (DEV_NAMES, DEV), (TEST_NAMES, OUT))
            split = next((code for names, code in known if word in names), -1)
            if split < 0:
                return problem("Rows whose split is none of train, dev, test: %(count)d.", number, word)
        self._warn(row_tokens, tags, number, source.name)
        self._store(row_tokens, tags, number, file, split)
        chosen = {how.tokens_column, how.tags_column, "tokens", "tags"}
        rest = (
            {} if reading.format == "conll" else {name: value for name, value in values.items() if name not in chosen}
        )
        written = {"tokens": row_tokens, "tags": tags, **rest}
        if len(self.columns) < parsing.MOST_COLUMNS:
            self.columns.update(map(printable, written))
        lines.write(self._encode(written).encode("utf-8", "replace") + b"\n")
        return None

    def _from_lists(self, row: Row) -> tuple[list[str], list[str]] | BadRow:
        how, values, number = self.reading.tagging, row.values, row.number
        row_tokens, tags = _listed(values[how.tokens_column]), _listed(values[how.tags_column])
        if row_tokens is None or not all(isinstance(token, str) for token in row_tokens):
            shown = f"{values[how.tokens_column]!r:.60}"
            return problem("Rows whose tokens are no list of texts: %(count)d.", number, shown)
        if tags is not None and self.reading.labels and all(type(tag) is int for tag in tags):
            # Numbers of the tags of the label set, as datasets elsewhere have them.
            names = self.reading.labels
            tags = [names[tag] if 0 <= tag < len(names) else str(tag) for tag in tags]
        if tags is None or not all(isinstance(tag, str) for tag in tags):
            shown = f"{values[how.tags_column]!r:.60}"
            return problem(
                "Rows whose tags are no list of texts: %(count)d. If they are numbers, give the label set, in its order.",
                number,
                shown,
            )
        if len(row_tokens) != len(tags):
            shown = f"{len(row_tokens)} ≠ {len(tags)}: {tagging.joined(row_tokens)}"
            return problem("Rows with another number of tags than of tokens: %(count)d.", number, shown)
        return row_tokens, [tag.strip() for tag in tags]

    def _from_spans(self, row: Row) -> tuple[list[str], list[str]] | BadRow:
        how, number = self.reading.tagging, row.number
        text = row.values[how.tokens_column]
        if not isinstance(text, str):
            return problem("Rows whose text is no text: %(count)d.", number, f"{text!r:.60}")
        entities = _entities(row.values[how.tags_column])
        if entities is None:
            return problem(
                "Rows whose entities are no list of objects with “start”, “end” and “label”: %(count)d.",
                number,
                f"{row.values[how.tags_column]!r:.60}",
            )
        entities.sort()
        for first, last, kind in entities:
            if not 0 <= first < last <= len(text) or not text[first:last].strip():
                return problem(
                    "Rows with an entity that begins or ends outside of the text, or is empty: %(count)d.",
                    number,
                    f"{first}–{last} {kind}",
                )
        for one, other in pairwise(entities):
            if one[1] > other[0]:
                shown = f"{text[one[0] : one[1]]} / {text[other[0] : other[1]]}"
                return problem("Rows with entities that overlap: %(count)d.", number, shown)
        # An entity ends a token where a word goes on.
        borders = sorted({border for first, last, _kind in entities for border in (first, last)})
        places = [piece for first, last in tagging.split(text) for piece in _cut(first, last, borders)]
        tags = [OUTSIDE] * len(places)
        for first, last, kind in entities:
            inside = [i for i, place in enumerate(places) if first <= place[0] < last]
            for i in inside:
                tags[i] = _tag(self.reading.tagging.scheme, kind, i == inside[0], i == inside[-1])
        return [text[first:last] for first, last in places], tags

    def _wrong(self, row_tokens: list[str], tags: list[str], number: int) -> BadRow | None:
        reading, scheme = self.reading, self.reading.tagging.scheme
        if not row_tokens:
            return problem("Rows without tokens: %(count)d.", number)
        if not all(row_tokens):
            at = row_tokens.index("")
            shown = f"{at + 1}: {tagging.joined(row_tokens[max(at - 10, 0) : at + 10])}"
            return problem("Rows with an empty token: %(count)d.", number, shown)
        if len(row_tokens) > parsing.MOST_TOKENS:
            limit = parsing.MOST_TOKENS
            return problem(
                "Rows with more than %(limit)d tokens: %(count)d.", number, f"{len(row_tokens)}", limit=limit
            )
        whole = "".join(row_tokens) + "".join(tags)
        try:
            whole.encode("utf-8")
        except UnicodeEncodeError:
            return problem("Rows with characters that are no Unicode (lone surrogates): %(count)d.", number, whole)
        if "\0" in whole:
            return problem("Rows with a NUL character: %(count)d.", number, whole)
        for token, tag in zip(row_tokens, tags, strict=True):
            if tag in self._fitting:
                continue
            shown = f"{token} → {tag or '—'}"
            if not tag:
                return problem("Rows with a token without a tag: %(count)d.", number, shown)
            if not tagging.fits(tag, scheme):
                return problem(
                    "Rows with a tag that is none of the scheme %(scheme)s: %(count)d.",
                    number,
                    shown,
                    scheme=_SCHEMES[scheme],
                )
            if reading.labels and tag not in self.tags:
                return problem("Rows with a tag outside of the label set: %(count)d.", number, shown)
            if len(tag) > LONGEST_TAG:
                return problem(
                    "Rows with a tag longer than %(limit)d characters: %(count)d.",
                    number,
                    f"{len(tag)}: {tag}",
                    limit=LONGEST_TAG,
                )
            if len(self._fitting) >= MOST_TAGS:
                raise Unreadable(
                    "There are more than %(limit)d different tags: is “%(column)s” the right column?",
                    limit=MOST_TAGS,
                    column=reading.tagging.tags_column,
                )
            self._fitting.add(tag)
        return None

    def _warn(self, row_tokens: list[str], tags: list[str], number: int, file: str) -> None:
        """Of what is odd and can be learnt from all the same."""
        found: list[BadRow] = []
        if self.reading.tagging.scheme != "none":
            before: tuple[str, str] | None = None
            pairs = list(map("/".join, zip(row_tokens, tags, strict=True)))
            for i, tag in enumerate([*tags, OUTSIDE]):
                now = tagging.parts(tag) if tag != OUTSIDE else None
                odd = _oddity(before, now, self.reading.tagging.scheme, number)
                if odd and odd.template not in [one.template for one in found]:
                    found.append(replace(odd, shown=printable(" ".join(pairs[max(i - 1, 0) : i + 1]))))
                before = now
        if len(row_tokens) > LONG_ROW:
            found.append(
                problem(
                    "Rows with more than %(limit)d tokens, of which most models read the first only: %(count)d.",
                    number,
                    f"{len(row_tokens)}",
                    limit=LONG_ROW,
                )
            )
        if any(token.isspace() for token in row_tokens):
            found.append(problem("Rows with a blank as a token, which models do not see: %(count)d.", number))
        for bad in found:
            self.findings.row("warning", bad, file)

    def _store(self, row_tokens: list[str], tags: list[str], number: int, file: int, split: int) -> None:
        at = self.count
        for tag in tags:
            self.tags.setdefault(tag, len(self.tags))
        self.tags_of.add(at, Counter(self.tags[tag] for tag in tags))
        kinds = [kind for _first, _last, kind in tagging.spans(tags)]
        if self.reading.tagging.scheme == "none":
            kinds = [tag for tag in tags if tag != OUTSIDE]
        for kind in kinds:
            self.types.setdefault(kind, len(self.types))
        self.types_of.add(at, Counter(self.types[kind] for kind in kinds))
        self.outside_only.append(not kinds)
        self.hashes.append(hash(tuple(row_tokens)))
        self.tag_hashes.append(hash(tuple(tags)))
        self.lengths.append(len(row_tokens))
        self._uncounted.append(" ".join(row_tokens))
        self.number_of.append(number)
        self.file_of.append(file)
        self.split_of.append(split)

    def refs(self, indices: Numbers) -> list[RowRef]:
        return [RowRef(file=self.names[self.file_of[i]], row=self.number_of[i]) for i in indices[:MOST_ROWS]]


class _Counts:
    def __init__(self) -> None:
        self.row, self.what, self.times = array("I"), array("H"), array("I")

    def add(self, row: int, counts: Counter[int]) -> None:
        self.row.extend([row] * len(counts))
        self.what.extend(counts.keys())
        self.times.extend(counts.values())

    def of(self, rows: Numbers, size: int) -> Numbers:
        """How often each of `size` things is in the rows of a mask."""
        row, what, times = (np.frombuffer(a, a.typecode) for a in (self.row, self.what, self.times))
        at = rows[row]
        return np.bincount(what[at], times[at], minlength=size).astype(np.int64)


def _oddity(before: tuple[str, str] | None, now: tuple[str, str] | None, scheme: str, number: int) -> BadRow | None:
    goes_on = before is not None and before[0] in "BI"
    if now is not None and now[0] in "IE":
        if not goes_on:
            return problem(
                "Rows with an I- that follows no B- of its type: %(count)d. It counts as the beginning of an entity.",
                number,
            )
        if before is not None and before[1] != now[1]:
            return problem(
                "Rows in which the type changes inside an entity: %(count)d. It counts as two entities.", number
            )
    elif scheme == "bioes" and goes_on:
        return problem("Rows with an entity that has no end (E- or L-): %(count)d.", number)
    return None


def _listed(value: Any) -> list[Any] | None:
    """A list, or of a table a JSON list or words with blanks between."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip().startswith("[") else value.split()
        except ValueError:
            value = value.split()
    return value if isinstance(value, list) else None


def _entities(value: Any) -> list[tuple[int, int, str]] | None:
    value = _listed(value)
    if value is None:
        return None
    found = []
    for one in value:
        if isinstance(one, dict):
            one = [one.get("start"), one.get("end"), one.get("label", one.get("type"))]
        if not isinstance(one, list) or len(one) != 3:
            return None
        first, last, kind = one
        if type(first) is not int or type(last) is not int or not isinstance(kind, str) or not kind.strip():
            return None
        found.append((first, last, kind.strip()))
    return found


def _cut(first: int, last: int, borders: list[int]) -> list[tuple[int, int]]:
    inside = [border for border in borders if first < border < last]
    return list(zip([first, *inside], [*inside, last], strict=True))


def _tag(scheme: str, kind: str, is_first: bool, is_last: bool) -> str:
    if scheme == "none":
        return kind
    if scheme == "bioes":
        return f"{'S' if is_first and is_last else 'B' if is_first else 'E' if is_last else 'I'}-{kind}"
    return f"{'B' if is_first else 'I'}-{kind}"


# --- split and statistics --------------------------------------------------------------------


def _split_codes(rows: _Rows, reading: Reading, findings: Findings) -> Numbers:
    """0 train, 1 dev, 2 left out, per row. Rows without entities apart, so that both splits have the same share of them."""
    outside = np.frombuffer(rows.outside_only, np.uint8).astype(bool)
    codes = set_apart(np.frombuffer(rows.split_of, np.uint8), [~outside, outside], reading)
    out = int((codes == OUT).sum())
    if out:
        findings.found_note("Rows of the test split, which are not used: %(count)d.", count=out)
    return codes


def _measure(rows: _Rows, codes: Numbers, reading: Reading, findings: Findings) -> dict[str, Any]:
    """What pages show: as of texts, with lengths in tokens of the dataset and `label_counts` of entities, by type (without a
    scheme of tags); `tag_counts`, `tokens` {split: how many}, `only_outside` {split: rows}."""
    lengths, token_counts = (np.frombuffer(a, np.uint32) for a in (rows.lengths, rows.tokens))
    of = {split: codes == code for code, split in enumerate(SPLITS)}
    names, types = list(rows.tags), list(rows.types)
    tags = {split: rows.tags_of.of(at, len(names)) for split, at in of.items()}
    spans = {split: rows.types_of.of(at, len(types)) for split, at in of.items()}
    outside = np.frombuffer(rows.outside_only, np.uint8).astype(bool)
    only = {split: int(outside[at].sum()) for split, at in of.items()}
    _judge(rows, codes, tags, spans, only, findings)
    commonest = int(tags["train"].argmax())
    baselines = {}
    if reading.tagging.scheme == "none":
        baselines["tags/majority"] = int(tags["dev"][commonest]) / int(lengths[of["dev"]].sum())
    return {
        "rows": {split: int(at.sum()) for split, at in of.items()},
        "tokens": {split: int(lengths[at].sum()) for split, at in of.items()},
        "tag_counts": {split: _named(tags[split], names) for split in SPLITS},
        "label_counts": {split: _named(spans[split], types) for split in SPLITS},
        "only_outside": only,
        "text_length": {split: percentiles(lengths[at]) for split, at in of.items()},
        "length_histogram": histogram(lengths, codes, of),
        "token_lengths": {
            "percentiles": {split: ordered(token_counts[at], 100) for split, at in of.items()},
            "mean": {split: round(float(token_counts[at].mean()), 3) for split, at in of.items()},
            "histogram": histogram(token_counts, codes, of),
        },
        "duplicates": _duplicates(rows, codes, findings),
        "baselines": baselines,
    }


def _named(counts: Numbers, names: list[str]) -> dict[str, int]:
    return {names[i]: int(counts[i]) for i in np.argsort(-counts, kind="stable") if counts[i]}


def _judge(
    rows: _Rows,
    codes: Numbers,
    tags: dict[str, Numbers],
    spans: dict[str, Numbers],
    only: dict[str, int],
    findings: Findings,
) -> None:
    names, types = list(rows.tags), list(rows.types)
    if int((tags["train"] > 0).sum()) < 2:
        known = ", ".join(name for name, count in zip(names, tags["train"], strict=True) if count)
        findings.found_error(
            "There must be two tags at least; the training rows have: %(labels)s.", labels=printable(known, 200)
        )
        return
    if not spans["dev"].any():
        findings.found_error("No dev row has an entity: there is nothing to measure a model by.")
    unknown = [name for i, name in enumerate(names) if tags["dev"][i] and not tags["train"][i]]
    if unknown:
        findings.found_warning(
            "Tags of dev rows that no training row has, so that no model can learn them: %(labels)s.",
            labels=printable(", ".join(sorted(unknown)), 200),
        )
    missing = [name for i, name in enumerate(types) if spans["train"][i] and not spans["dev"][i]]
    if missing:
        findings.found_warning(
            "Labels without rows for evaluation: %(labels)s.", labels=printable(", ".join(sorted(missing)), 200)
        )
    unused = [name for i, name in enumerate(names) if not tags["train"][i] and not tags["dev"][i]]
    if unused:
        findings.found_warning(
            "Labels of the label set without training rows: %(labels)s.", labels=printable(", ".join(unused), 200)
        )
    count = sum(only.values())
    if OUTSIDE in rows.tags and count:
        used = np.flatnonzero(np.frombuffer(rows.outside_only, np.uint8).astype(bool) & (codes != OUT))
        findings.found_note("Rows in which every tag is O: %(count)d.", rows.refs(used), count=count)


def _duplicates(rows: _Rows, codes: Numbers, findings: Findings) -> dict[str, int]:
    """Rows whose tokens occur again, and those that are tagged otherwise there. Equal 8-byte hashes are taken for equal."""
    hashes, tag_hashes = np.frombuffer(rows.hashes, np.int64), np.frombuffer(rows.tag_hashes, np.int64)
    found: dict[str, int] = {}
    for code, split in enumerate(SPLITS):
        of_split = np.flatnonzero(codes == code)
        _values, first = np.unique(hashes[of_split], return_index=True)
        again = np.delete(of_split, first)
        found[split] = len(again)
        if len(again):
            findings.found_warning(
                "Rows of %(split)s whose text occurs earlier in it: %(count)d.",
                rows.refs(again),
                split=split,
                count=len(again),
            )
    leaked = np.flatnonzero((codes == DEV) & np.isin(hashes, hashes[codes == TRAIN]))
    found["dev_in_train"] = len(leaked)
    if len(leaked):
        findings.found_warning(
            "Rows of dev whose text is among the training rows: %(count)d. The evaluation looks better than it is.",
            rows.refs(leaked),
            count=len(leaked),
        )
    used = np.flatnonzero(codes != OUT)
    order = used[np.lexsort((tag_hashes[used], hashes[used]))]
    same = (hashes[order][1:] == hashes[order][:-1]) & (tag_hashes[order][1:] != tag_hashes[order][:-1])
    contradicting = np.sort(order[1:][same])
    found["contradicting"] = len(contradicting)
    if len(contradicting):
        findings.found_warning(
            "Rows whose tokens are tagged otherwise elsewhere: %(count)d.",
            rows.refs(contradicting),
            count=len(contradicting),
        )
    return found
