"""Texts, or pairs of texts, with a label each: their rows, split, findings and statistics."""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from workers.contract.datasets import SPLITS, Reading, RowRef
from workers.contract.records import from_json_number, to_json_number
from workers.datasets import parsing, splits, tokens
from workers.datasets.findings import MOST_ROWS, Findings, Level, Outcome, Source, Stage
from workers.datasets.parsing import BadRow, Block, Row, Unreadable, printable, problem
from workers.datasets.splits import DEV, OPEN, OUT, TRAIN, set_apart

Numbers = npt.NDArray[Any]

MOST_LABELS = 1000
HISTOGRAM_BINS = 24
# A block in which something is not plain is halved so far, then its rows are looked at one by one.
FEW_ROWS = 32
DEV_NAMES = {"dev", "valid", "validation", "val", "eval", "验证", "验证集", "开发集"}
TRAIN_NAMES = {"train", "training", "训练", "训练集"}
TEST_NAMES = {"test", "testing", "测试", "测试集"}
# What tables have where a value is missing.
_LONGEST_MISSING = len("infinity")
_MISSING = re.compile(r"(nan|null|none|n/a|na|#n/a|inf|-inf|infinity)", re.IGNORECASE)


# --- the first pass --------------------------------------------------------------------------


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
    _check_splits(rows, codes, findings)
    if not findings.fit:
        return
    stage("looking for duplicates", 0, 0)
    outcome.statistics = _measure(rows, codes, findings)
    outcome.content_hash, first = splits.write(scratch / "rows.jsonl", codes, target, stage)
    outcome.statistics["samples"] = splits.samples(first)
    outcome.labels = sorted(rows.labels) if not reading.labels else list(reading.labels)
    outcome.splits = dict(outcome.statistics["rows"])


# --- the first pass --------------------------------------------------------------------------


class _Rows:
    """The rows that are right, in order, as numbers (28 bytes each); their lines are in the scratch file.

    A block is taken at once if all of its rows are plain; else it is halved, and in the end `_take` sees them one by
    one, which alone says what is right. So there are two ways to store a row, and a test that they store the same.
    """

    def __init__(self, reading: Reading, findings: Findings, names: list[str]) -> None:
        self.reading, self.findings, self.names = reading, findings, names
        self.labels: dict[str, int] = {label: i for i, label in enumerate(reading.labels)}
        self.columns: set[str] = set()
        # Labels and splits as they were written in rows that were right, so that nobody need look at them again.
        self._label_codes: dict[Any, int] = {}
        self._label_lines: dict[Any, str] = {}
        self._split_codes: dict[str, int] = {}
        self._known_columns: set[tuple[str, ...]] = set()
        self._encode = json.JSONEncoder(ensure_ascii=False).encode
        # Hashes of this process: nobody can know which texts have the same.
        self.hashes, self.label_of = array("q"), array("I")
        self.lengths, self.tokens = array("I"), array("I")
        self.number_of, self.file_of, self.split_of = array("I"), array("B"), array("B")
        self.weightless = array("B")
        self._uncounted: list[str] = []
        self.read_rows = 0
        self.bad_rows = 0

    @property
    def count(self) -> int:
        return len(self.hashes)

    def read(self, number: int, source: Source, lines: BinaryIO, stage: Stage) -> None:
        file = source.file or source.path.open("rb")
        with file:
            size = os.fstat(file.fileno()).st_size
            for item in parsing.blocks(file, self.reading, lambda done: stage("reading rows", done, size)):
                if isinstance(item, Block):
                    self._take_block(item, number, source, lines)
                else:
                    self._take_one(item, number, source, lines)
        self.count_tokens()

    def _take_block(self, block: Block, file: int, source: Source, lines: BinaryIO) -> None:
        if self._take_at_once(block, file, source.split, lines):
            return
        if len(block) <= FEW_ROWS:
            for row in block.rows():
                self._take_one(row, file, source, lines)
        else:
            for half in block.halves():
                self._take_block(half, file, source, lines)

    def _take_one(self, row: Row | BadRow, file: int, source: Source, lines: BinaryIO) -> None:
        self.read_rows += 1
        bad = row if isinstance(row, BadRow) else self._take(row, file, source.split, lines)
        if bad:
            self.bad_rows += 1
            level: Level = "warning" if self.reading.leave_out else "error"
            self.findings.row(level, bad, source.name)

    def count_tokens(self) -> None:
        """Of the rows that came one by one: together it is far cheaper."""
        self.tokens.frombytes(tokens.count(self._uncounted).tobytes())
        self._uncounted.clear()

    def _take_at_once(self, block: Block, file: int, given: str, lines: BinaryIO) -> bool:
        """Stores all rows, or none if one of them is not plain."""
        reading, count = self.reading, len(block)
        if reading.weight_column and reading.weight_column in (
            reading.text_column,
            reading.text_b_column,
            reading.label_column,
            reading.split_column,
            "text",
            "label",
            "text_b",
        ):
            return False
        try:
            texts = block.column(reading.text_column)
            seconds = block.column(reading.text_b_column) if reading.text_b_column else []
            labels = block.column(reading.label_column)
            weights = block.column(reading.weight_column) if reading.weight_column else None
            said = block.column(reading.split_column) if reading.split_column else None
            # Columns that are not there, faults of JSON that no field of a table can have, empty texts, missing values.
            if set(map(type, texts + seconds)) != {str} or set(map(type, labels)) - {str, int}:
                return False
            stripped = list(map(str.strip, texts + seconds))
            shortest = min(map(len, stripped))
            if (
                not shortest
                or "\0" in "".join(texts + seconds)
                or (shortest <= _LONGEST_MISSING and any(map(_MISSING.fullmatch, stripped)))
            ):
                return False
            # KeyError: a label or a split that is new, or worth a word each time.
            label_codes = list(map(self._label_codes.__getitem__, labels))
            split_codes = list(map(self._split_codes.__getitem__, said)) if said and not given else None
            numbers = _plain_weights(weights) if weights is not None else None
            token_counts = tokens.count(texts)
            if seconds:
                token_counts = token_counts + tokens.count(seconds) - np.uint32(1)  # one mark less
        except (KeyError, ValueError, TypeError, OverflowError):
            return False
        body = self._body(block, texts, seconds, labels, numbers)
        if body is None:
            return False
        lines.write(body)
        self.count_tokens()
        self.read_rows += count
        self.hashes.extend(map(hash, zip(texts, seconds, strict=True) if seconds else texts))
        self.label_of.extend(label_codes)
        self.lengths.extend(
            map(sum, zip(map(len, texts), map(len, seconds), strict=True)) if seconds else map(len, texts)
        )
        self.tokens.frombytes(token_counts.tobytes())
        self.number_of.extend(block.numbers)
        self.file_of.frombytes(bytes([file]) * count)
        if split_codes is not None:
            self.split_of.extend(split_codes)
        else:
            self.split_of.frombytes(bytes([SPLITS.index(given) if given else OPEN]) * count)
        if numbers is not None:
            self.weightless.extend(number == 0 for number in numbers)
        return True

    def _body(
        self, block: Block, texts: list[str], seconds: list[str], labels: list[Any], weights: list[float] | None
    ) -> bytes | None:
        """The lines as `_take` writes them. None if their columns are not yet known."""
        reading, chosen = self.reading, self._chosen
        if block.objects:
            if not set(map(tuple, block.objects)) <= self._known_columns:
                return None
            if self._is_kept:
                return b"\n".join(block.lines) + b"\n"
            bodies = [
                {"text": text, "label": label, **{name: value for name, value in values.items() if name not in chosen}}
                for text, label, values in zip(texts, labels, block.objects, strict=True)
            ]
            if seconds:
                bodies = [
                    {"text": body.pop("text"), "text_b": second, **body}
                    for body, second in zip(bodies, seconds, strict=True)
                ]
            if weights is not None:
                for body, weight in zip(bodies, weights, strict=True):
                    body[reading.weight_column] = weight
            return ("\n".join(map(self._encode, bodies)) + "\n").encode("utf-8", "replace")
        if tuple(block.columns) not in self._known_columns:
            return None
        parts = [map(json.encoder.encode_basestring, texts), map(self._label_lines.__getitem__, labels)]
        form = '{{"text": {}, "label": {}'
        if seconds:
            parts.insert(1, map(json.encoder.encode_basestring, seconds))
            form = '{{"text": {}, "text_b": {}, "label": {}'
        for name in block.columns:
            if name not in chosen:
                key = json.encoder.encode_basestring(name).replace("{", "{{").replace("}", "}}")
                form += f", {key}: {{}}"
                if weights is not None and name == reading.weight_column:
                    parts.append(map(repr, weights))
                else:
                    parts.append(map(json.encoder.encode_basestring, block.column(name)))
        return "".join(map((form + "}}\n").format, *parts)).encode("utf-8", "replace")

    @property
    def _is_kept(self) -> bool:
        """Whether lines of JSON stay as they are: text and label have the names that recipes' settings have by default."""
        reading = self.reading
        return (reading.text_column, reading.label_column) == ("text", "label") and reading.text_b_column in (
            "",
            "text_b",
        )

    @property
    def _chosen(self) -> set[str]:
        """Columns that are written by their new names, and those whose names that would take."""
        reading = self.reading
        pair = {reading.text_b_column, "text_b"} if reading.text_b_column else set()
        return {reading.text_column, reading.label_column, "text", "label"} | pair

    def _take(self, row: Row, file: int, given: str, lines: BinaryIO) -> BadRow | None:
        """Stores the row, or says why not."""
        reading, values, number = self.reading, row.values, row.number
        for column in (
            reading.text_column,
            reading.text_b_column,
            reading.label_column,
            reading.weight_column,
            reading.split_column,
        ):
            if column and column not in values:
                shown = ", ".join(map(str, values)) or "—"
                return problem("Rows without the column “%(column)s”: %(count)d.", number, shown, column=column)
        text, label = values[reading.text_column], values[reading.label_column]
        if not isinstance(text, str):
            return problem("Rows whose text is no text: %(count)d.", number, f"{text!r:.60}")
        if not text.strip():
            return problem("Rows with an empty text: %(count)d.", number)
        second = ""
        if reading.text_b_column:
            second = values[reading.text_b_column]
            if not isinstance(second, str):
                return problem("Rows whose second text is no text: %(count)d.", number, f"{second!r:.60}")
            if not second.strip():
                return problem("Rows with an empty second text: %(count)d.", number)
        if label is None or label == "" or (isinstance(label, str) and not label.strip()):
            return problem("Rows without a label: %(count)d.", number)
        if isinstance(label, bool) or not isinstance(label, str | int):
            return problem(
                "Rows whose label is neither a text nor a whole number: %(count)d.", number, f"{label!r:.60}"
            )
        if row.line:
            name = str(label)
        else:
            name = values[reading.label_column] = str(label).strip()
        try:
            text.encode("utf-8")
            second.encode("utf-8")
            name.encode("utf-8")
        except UnicodeEncodeError:
            return problem("Rows with characters that are no Unicode (lone surrogates): %(count)d.", number, text)
        if "\0" in text or "\0" in second or "\0" in name:
            return problem("Rows with a NUL character: %(count)d.", number, text)
        if name not in self.labels:
            if reading.labels:
                return problem("Rows with a label outside of the label set: %(count)d.", number, name)
            if len(self.labels) >= MOST_LABELS:
                raise Unreadable(
                    "There are more than %(limit)d different labels: is “%(column)s” the right column?",
                    limit=MOST_LABELS,
                    column=reading.label_column,
                )
            if len(name) > 200:
                return problem(
                    "Rows with a label longer than %(limit)d characters: %(count)d.",
                    number,
                    f"{len(name)}: {name}",
                    limit=200,
                )
        if reading.weight_column and (bad := self._weight(values, number, self.names[file])):
            return bad
        split = OPEN
        if given:
            split = SPLITS.index(given)
        elif reading.split_column:
            said = str(values[reading.split_column]).strip().lower()
            if said in TRAIN_NAMES:
                split = TRAIN
            elif said in DEV_NAMES:
                split = DEV
            elif said in TEST_NAMES:
                split = OUT
            else:
                shown = str(values[reading.split_column])
                return problem("Rows whose split is none of train, dev, test: %(count)d.", number, shown)
            if isinstance(values[reading.split_column], str) and len(self._split_codes) < MOST_LABELS:
                self._split_codes[values[reading.split_column]] = split
        label_is_missing = _MISSING.fullmatch(name.strip())
        if label_is_missing or _MISSING.fullmatch(text.strip()) or _MISSING.fullmatch(second.strip()):
            bad = problem("Rows whose text or label looks like a missing value: %(count)d.", number, f"{text} → {name}")
            self.findings.row("warning", bad, self.names[file])
        code = self.labels.setdefault(name, len(self.labels))
        if not label_is_missing and len(self._label_codes) < 10 * MOST_LABELS:
            # Of a table as it was in the file, with spaces around it.
            self._label_codes[label] = code
            self._label_lines[label] = json.encoder.encode_basestring(name)
        self.hashes.append(hash((text, second) if second else text))
        self.label_of.append(code)
        self.lengths.append(len(text) + len(second))
        # A mark between two texts is one token, as is any plain character.
        self._uncounted.append(f"{text}.{second}" if second else text)
        if len(self._uncounted) >= 1000:
            self.count_tokens()
        self.number_of.append(number)
        self.file_of.append(file)
        self.split_of.append(split)
        if reading.weight_column:
            self.weightless.append(values[reading.weight_column] == 0)
        before = tuple(values)
        line = row.line
        if not line or not self._is_kept:
            chosen = self._chosen
            rest = {column: value for column, value in values.items() if column not in chosen}
            pair = {"text_b": second} if second else {}
            values = {"text": text, **pair, "label": values[reading.label_column], **rest}
            line = self._encode(values).encode("utf-8", "replace")
        if before not in self._known_columns:
            if len(self.columns) < parsing.MOST_COLUMNS:
                self.columns.update(map(printable, values))
            if len(self._known_columns) < parsing.MOST_COLUMNS:
                self._known_columns.add(before)
        lines.write(line + b"\n")
        return None

    def _weight(self, values: dict[str, Any], number: int, name: str) -> BadRow | None:
        """A NaN stays one: training shows what it does. Fields of tables become numbers."""
        column = self.reading.weight_column
        given = values[column]
        try:
            value = float(from_json_number(given)) if not isinstance(given, bool) else None
        except (TypeError, ValueError, OverflowError):
            value = None
        if value is None or (math.isfinite(value) and value < 0):
            return problem("Rows whose weight is no number of 0 or more: %(count)d.", number, str(given))
        if not math.isfinite(value):
            self.findings.row(
                "warning", problem("Rows whose weight is not finite: %(count)d.", number, str(given)), name
            )
        values[column] = to_json_number(value)
        return None

    def refs(self, indices: Numbers) -> list[RowRef]:
        return [RowRef(file=self.names[self.file_of[i]], row=self.number_of[i]) for i in indices[:MOST_ROWS]]


# --- the split -------------------------------------------------------------------------------


def _split_codes(rows: _Rows, reading: Reading, findings: Findings) -> Numbers:
    """0 train, 1 dev, 2 left out, per row. Label by label, so that both splits have the same shares of labels."""
    labels = np.frombuffer(rows.label_of, np.uint32)
    of_label = (labels == rows.labels[label] for label in sorted(rows.labels))
    codes = set_apart(np.frombuffer(rows.split_of, np.uint8), of_label, reading)
    out = int((codes == OUT).sum())
    if out:
        findings.found_note("Rows of the test split, which are not used: %(count)d.", count=out)
    return codes


def _check_splits(rows: _Rows, codes: Numbers, findings: Findings) -> None:
    if not splits.check_splits(codes, findings):
        return
    labels = np.frombuffer(rows.label_of, np.uint32)
    if rows.weightless:
        weightless = np.frombuffer(rows.weightless, np.uint8).astype(bool)
        if weightless[codes == TRAIN].all():
            findings.found_error("All training rows have the weight 0: nothing would be learnt from them.")
        elif weightless.any():
            findings.found_warning(
                "Rows with the weight 0, from which nothing is learnt: %(count)d.",
                rows.refs(np.flatnonzero(weightless)),
                count=int(weightless.sum()),
            )
    splits.check_labels(rows.labels, labels, codes, rows.refs, findings)


# --- measuring -------------------------------------------------------------------------------


def _measure(rows: _Rows, codes: Numbers, findings: Findings) -> dict[str, Any]:
    """What pages show of a dataset, see CheckResult."""
    labels, lengths, token_counts = (np.frombuffer(a, np.uint32) for a in (rows.label_of, rows.lengths, rows.tokens))
    of = {split: codes == code for code, split in enumerate(SPLITS)}
    names = sorted(rows.labels)
    counts = {split: np.bincount(labels[at], minlength=len(names)) for split, at in of.items()}
    commonest = int(counts["train"].argmax())
    return {
        "rows": {split: int(at.sum()) for split, at in of.items()},
        "label_counts": {
            split: {name: count for name in names if (count := int(counts[split][rows.labels[name]]))}
            for split in SPLITS
        },
        "text_length": {split: percentiles(lengths[at]) for split, at in of.items()},
        "length_histogram": histogram(lengths, codes, of),
        "token_lengths": {
            "percentiles": {split: ordered(token_counts[at], 100) for split, at in of.items()},
            "mean": {split: round(float(token_counts[at].mean()), 3) for split, at in of.items()},
            "histogram": histogram(token_counts, codes, of),
        },
        **_weights(rows, of),
        "duplicates": _duplicates(rows, codes, findings),
        "baselines": {"majority": int(counts["dev"][commonest]) / int(of["dev"].sum())},
    }


def _weights(rows: _Rows, of: dict[str, Numbers]) -> dict[str, Any]:
    if not rows.weightless:
        return {}
    weightless = np.frombuffer(rows.weightless, np.uint8).astype(bool)
    return {"weights": {split: {"zero": int(weightless[at].sum())} for split, at in of.items()}}


def histogram(lengths: Numbers, codes: Numbers, of: dict[str, Numbers]) -> dict[str, Any]:
    edges = _edges(lengths[codes != OUT])
    return {
        "edges": edges,
        "counts": {split: np.histogram(lengths[at], edges)[0].tolist() for split, at in of.items()},
    }


def _edges(lengths: Numbers) -> list[int]:
    """Whole numbers; the last bin takes the longest hundredth."""
    longest, most = int(lengths.max()), max(int(np.percentile(lengths, 99)), 1)
    width = max(math.ceil(most / HISTOGRAM_BINS), 1)
    edges = list(range(0, most + width, width))
    return edges if edges[-1] > longest else [*edges, longest + 1]


def percentiles(lengths: Numbers) -> dict[str, int]:
    whole = ordered(lengths, 100)
    return dict(zip(("min", "p50", "p90", "p99", "max"), (whole[p] for p in (0, 50, 90, 99, 100)), strict=True))


def ordered(lengths: Numbers, parts: int) -> list[int]:
    """The shortest, the longest, and between them what is longer than 1, 2 … of `parts`."""
    in_order = np.sort(lengths)
    last = len(in_order) - 1
    return [int(in_order[round(last * part / parts)]) for part in range(parts + 1)]


def _duplicates(rows: _Rows, codes: Numbers, findings: Findings) -> dict[str, int]:
    """Texts that occur again, and those that carry different labels. Equal 8-byte hashes are taken for equal texts."""
    at = _shared(np.frombuffer(rows.hashes, np.int64), codes != OUT)
    # From here on only of rows that have a hash in common with another one.
    hashes, labels = np.frombuffer(rows.hashes, np.int64)[at], np.frombuffer(rows.label_of, np.uint32)[at]
    codes = codes[at]
    found: dict[str, int] = {}
    for code, split in enumerate(SPLITS):
        of_split = np.flatnonzero(codes == code)
        again = of_split[_again(hashes[of_split])]
        found[split] = len(again)
        if len(again):
            findings.found_warning(
                "Rows of %(split)s whose text occurs earlier in it: %(count)d.",
                rows.refs(at[again]),
                split=split,
                count=len(again),
            )
    dev = np.flatnonzero(codes == DEV)
    leaked = dev[np.isin(hashes[dev], hashes[codes == TRAIN])]
    found["dev_in_train"] = len(np.unique(hashes[leaked]))
    if len(leaked):
        findings.found_warning(
            "Rows of dev whose text is among the training rows: %(count)d. The evaluation looks better than it is.",
            rows.refs(at[leaked]),
            count=len(leaked),
        )
    # Training rows first, as they are looked up first; then by label.
    used = np.concatenate([np.flatnonzero(codes == code) for code in range(len(SPLITS))])
    order = used[np.lexsort((labels[used], hashes[used]))]
    same = (hashes[order][1:] == hashes[order][:-1]) & (labels[order][1:] != labels[order][:-1])
    contradicting = np.sort(order[1:][same])
    found["contradicting"] = len(contradicting)
    if len(contradicting):
        findings.found_warning(
            "Rows whose text has another label elsewhere: %(count)d.",
            rows.refs(at[contradicting]),
            count=len(contradicting),
        )
    return found


def _shared(values: Numbers, used: Numbers) -> Numbers:
    """Indices of those `used` that occur more than once, in order. Sorts a copy, and that only."""
    ordered = np.sort(values[used])
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    found: Numbers = np.flatnonzero(used & np.isin(values, twice)) if len(twice) else np.empty(0, np.int64)
    return found


def _again(hashes: Numbers) -> Numbers:
    """Indices of all but the first of each value, in order."""
    order = np.argsort(hashes, kind="stable")
    return np.sort(order[1:][hashes[order][1:] == hashes[order][:-1]])


def _plain_weights(given: list[Any]) -> list[float]:
    """Raises ValueError or TypeError if one is not a finite number of 0 or more."""
    if set(map(type, given)) - {str, int, float}:
        raise TypeError
    weights = list(map(float, given))
    if not all(0 <= weight < math.inf for weight in weights):
        raise ValueError
    return weights
