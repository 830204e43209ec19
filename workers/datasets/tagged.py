"""Tokens with a tag each: their rows, findings and statistics. A row is written as {"tokens": […], "tags": […], and its
other columns}; of CoNLL files with no other than “weight”."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from workers.contract.datasets import SPLITS, WEIGHT
from workers.datasets import measures, parsing, tagging
from workers.datasets import rows as reading_rows
from workers.datasets.findings import Source, Work
from workers.datasets.measures import Numbers
from workers.datasets.parsing import BadRow, Row, Unreadable, printable, problem
from workers.datasets.rows import Rows, unwritable, without
from workers.datasets.splits import OUT
from workers.datasets.tagging import OUTSIDE

MOST_TAGS = 500
LONGEST_TAG = 200
# What the usual models read at most; with its marks a row of so many tokens is cut.
LONG_ROW = 510
SAMPLE_CHARACTERS = 400
_SCHEMES = {"bio": "BIO", "bioes": "BIOES", "none": "—"}


def check(work: Work) -> None:
    """See checking.py."""
    reading_rows.check(_Rows(work), work)


class _Rows(Rows):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.tags: dict[str, int] = {tag: i for i, tag in enumerate(work.reading.labels)}
        self.tag_hashes = array("q")
        self.outside_only = array("B")
        # Per row how often which tag, and spans of which type, as three columns: the row, what, how often.
        self.tags_of, self.types_of = _Counts(), _Counts()
        self.types: dict[str, int] = {}
        self._fitting: set[str] = set()

    # --- the first pass ----------------------------------------------------------------------

    def take(self, row: Row, file: int, source: Source, lines: BinaryIO) -> BadRow | None:
        how, values, number = self.reading.tagging, row.values, row.number
        if bad := without(
            row, (how.tokens_column, how.tags_column, self.reading.weight_column, self.reading.split_column)
        ):
            return bad
        found = self._from_spans(row) if how.layout == "spans" else self._from_lists(row)
        if isinstance(found, BadRow):
            return found
        row_tokens, tags = found
        if bad := self._wrong(row_tokens, tags, number):
            return bad
        place = self.place(row, file, source)
        if isinstance(place, BadRow):
            return place
        self._warn(row_tokens, tags, number, source.name)
        self._count(tags)
        self.store(place, tuple(row_tokens), len(row_tokens), " ".join(row_tokens))
        chosen = {how.tokens_column, how.tags_column, "tokens", "tags"}
        rest = {name: value for name, value in values.items() if name not in chosen}
        if self.reading.format == "conll":
            rest = {WEIGHT: values[WEIGHT]} if self.reading.weight_column == WEIGHT else {}
        self.write({"tokens": row_tokens, "tags": tags, **rest}, lines)
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
        if bad := unwritable(number, tagging.joined(row_tokens), *row_tokens, *tags):
            return bad
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

    def _count(self, tags: list[str]) -> None:
        """Of the row that is stored next."""
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
        self.tag_hashes.append(hash(tuple(tags)))

    # --- the split, and measuring ------------------------------------------------------------

    @property
    def _outside(self) -> Numbers:
        """Mask of the rows without entities."""
        return np.frombuffer(self.outside_only, np.uint8).astype(bool)

    def strata(self) -> Iterable[Numbers]:
        return [~self._outside, self._outside]

    def judge(self, codes: Numbers) -> None:
        names, types, findings = list(self.tags), list(self.types), self.findings
        tags, spans = self.tags_of.of_splits(codes, len(names)), self.types_of.of_splits(codes, len(types))
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
        used = np.flatnonzero(self._outside & (codes != OUT))
        if OUTSIDE in self.tags and len(used):
            findings.found_note("Rows in which every tag is O: %(count)d.", self.refs(used), count=len(used))

    def measure(self, codes: Numbers) -> dict[str, Any]:
        """As of texts, with lengths in tokens of the dataset and `label_counts` of entities, by type (without a scheme, of
        tags); `tag_counts`, `tokens` {split: how many}, `only_outside` {split: rows}."""
        lengths, of = np.frombuffer(self.lengths, np.uint32), measures.of_splits(codes)
        tags = self.tags_of.of_splits(codes, len(self.tags))
        spans = self.types_of.of_splits(codes, len(self.types))
        baselines = {}
        if self.reading.tagging.scheme == "none":
            commonest = int(tags["train"].argmax())
            baselines["tags/majority"] = int(tags["dev"][commonest]) / int(lengths[of["dev"]].sum())
        duplicates = self.duplicates(codes, np.frombuffer(self.tag_hashes, np.int64))
        if len(duplicates.contradicting):
            self.findings.found_warning(
                "Rows whose tokens are tagged otherwise elsewhere: %(count)d.",
                self.refs(duplicates.contradicting),
                count=len(duplicates.contradicting),
            )
        return {
            **self.sizes(codes),
            "tokens": {split: int(lengths[at].sum()) for split, at in of.items()},
            "tag_counts": {split: _named(tags[split], list(self.tags)) for split in SPLITS},
            "label_counts": {split: _named(spans[split], list(self.types)) for split in SPLITS},
            "only_outside": {split: int(self._outside[at].sum()) for split, at in of.items()},
            "duplicates": duplicates.counted,
            "baselines": baselines,
        }

    def label_set(self) -> list[str]:
        return list(self.reading.labels) or tagging.in_order(self.tags)

    def sample(self, row: dict[str, Any]) -> dict[str, Any]:
        """Spans as a page shows them."""
        found = tagging.segments(row["tokens"], row["tags"], SAMPLE_CHARACTERS)
        return {"segments": [[printable(text, SAMPLE_CHARACTERS), printable(kind)] for text, kind in found]}


class _Counts:
    def __init__(self) -> None:
        self.row, self.what, self.times = array("I"), array("H"), array("I")

    def add(self, row: int, counts: Counter[int]) -> None:
        self.row.extend([row] * len(counts))
        self.what.extend(counts.keys())
        self.times.extend(counts.values())

    def of_splits(self, codes: Numbers, size: int) -> dict[str, Numbers]:
        """Split -> how often each of `size` things is in its rows."""
        row, what, times = (np.frombuffer(a, a.typecode) for a in (self.row, self.what, self.times))
        masks = {split: at[row] for split, at in measures.of_splits(codes).items()}
        return {split: np.bincount(what[at], times[at], minlength=size).astype(np.int64) for split, at in masks.items()}


def _named(counts: Numbers, names: list[str]) -> dict[str, int]:
    return {names[i]: int(counts[i]) for i in np.argsort(-counts, kind="stable") if counts[i]}


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
            value = parsing.from_json(value) if value.lstrip().startswith("[") else value.split()
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
