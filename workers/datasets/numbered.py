"""Texts, or pairs of texts, with a number each: their rows, split, findings and statistics. A row is written as
{"text": …, "text_b": … (of pairs), "label": number, and its other columns}."""

from __future__ import annotations

import json
import os
from array import array
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from workers.contract.datasets import SPLITS, Reading, RowRef
from workers.datasets import parsing, splits, tokens
from workers.datasets.findings import MOST_ROWS, Findings, Level, Outcome, Source, Stage
from workers.datasets.parsing import BadRow, Row, printable, problem
from workers.datasets.splits import DEV, OPEN, OUT, TRAIN, set_apart
from workers.datasets.texts import (
    DEV_NAMES,
    TEST_NAMES,
    TRAIN_NAMES,
    Numbers,
    histogram,
    ordered,
    percentiles,
)

LARGEST = 3.0e38  # of float32


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
    outcome.statistics = _measure(rows, codes, findings)
    outcome.content_hash, first = splits.write(scratch / "rows.jsonl", codes, target, stage)
    outcome.statistics["samples"] = splits.samples(first)
    outcome.splits = dict(outcome.statistics["rows"])


class _Rows:
    """The rows that are right, in order, as numbers; their lines are in the scratch file."""

    def __init__(self, reading: Reading, findings: Findings, names: list[str]) -> None:
        self.reading, self.findings, self.names = reading, findings, names
        self.columns: set[str] = set()
        self._encode = json.JSONEncoder(ensure_ascii=False).encode
        self.hashes, self.targets = array("q"), array("d")
        self.lengths, self.tokens = array("I"), array("I")
        self.number_of, self.file_of, self.split_of = array("I"), array("B"), array("B")
        self._uncounted: list[str] = []
        self.read_rows = self.bad_rows = 0

    @property
    def count(self) -> int:
        return len(self.hashes)

    def read(self, number: int, source: Source, lines: BinaryIO, stage: Stage) -> None:
        file = source.file or source.path.open("rb")
        with file:
            size = os.fstat(file.fileno()).st_size
            for row in parsing.rows(file, self.reading, lambda done: stage("reading rows", done, size)):
                self.read_rows += 1
                bad = row if isinstance(row, BadRow) else self._take(row, number, source.split, lines)
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

    def _take(self, row: Row, file: int, given: str, lines: BinaryIO) -> BadRow | None:
        """Stores the row, or says why not."""
        reading, values, number = self.reading, row.values, row.number
        for column in (reading.text_column, reading.text_b_column, reading.label_column, reading.split_column):
            if column and column not in values:
                shown = ", ".join(map(str, values)) or "—"
                return problem("Rows without the column “%(column)s”: %(count)d.", number, shown, column=column)
        text, second = values[reading.text_column], values[reading.text_b_column] if reading.text_b_column else None
        if not isinstance(text, str):
            return problem("Rows whose text is no text: %(count)d.", number, f"{text!r:.60}")
        if not text.strip():
            return problem("Rows with an empty text: %(count)d.", number)
        if reading.text_b_column and not isinstance(second, str):
            return problem("Rows whose second text is no text: %(count)d.", number, f"{second!r:.60}")
        if reading.text_b_column and not str(second).strip():
            return problem("Rows with an empty second text: %(count)d.", number)
        both = text if second is None else f"{text}.{second}"  # a mark between is one token, as any plain character
        try:
            both.encode("utf-8")
        except UnicodeEncodeError:
            return problem("Rows with characters that are no Unicode (lone surrogates): %(count)d.", number, text)
        if "\0" in both:
            return problem("Rows with a NUL character: %(count)d.", number, text)
        said = values[reading.label_column]
        if said is None or (isinstance(said, str) and not said.strip()):
            return problem("Rows without a number: %(count)d.", number)
        target = _number(said)
        if target is None:
            return problem("Rows whose number is none: %(count)d.", number, f"{said!r:.60}")
        if not abs(target) <= LARGEST:
            return problem("Rows whose number is not finite, or beyond float32: %(count)d.", number, str(said))
        split = OPEN
        if given:
            split = SPLITS.index(given)
        elif reading.split_column:
            word = str(values[reading.split_column]).strip().lower()
            known = ((TRAIN_NAMES, TRAIN), (DEV_NAMES, DEV), (TEST_NAMES, OUT))
            split = next((code for names, code in known if word in names), -1)
            if split < 0:
                return problem("Rows whose split is none of train, dev, test: %(count)d.", number, word)
        self.hashes.append(hash((text, second)))
        self.targets.append(target)
        self.lengths.append(len(text) + len(second or ""))
        self._uncounted.append(both)
        self.number_of.append(number)
        self.file_of.append(file)
        self.split_of.append(split)
        chosen = {reading.text_column, reading.text_b_column, reading.label_column, "text", "text_b", "label"}
        rest = {column: value for column, value in values.items() if column not in chosen}
        written = {"text": text, **({} if second is None else {"text_b": second}), "label": target, **rest}
        if len(self.columns) < parsing.MOST_COLUMNS:
            self.columns.update(map(printable, written))
        lines.write(self._encode(written).encode("utf-8", "replace") + b"\n")
        return None

    def refs(self, indices: Numbers) -> list[RowRef]:
        return [RowRef(file=self.names[self.file_of[i]], row=self.number_of[i]) for i in indices[:MOST_ROWS]]


def _number(said: Any) -> float | None:
    if isinstance(said, bool) or not isinstance(said, str | int | float):
        return None
    try:
        return float(said)
    except (ValueError, OverflowError):
        return None


def _split_codes(rows: _Rows, reading: Reading, findings: Findings) -> Numbers:
    """0 train, 1 dev, 2 left out, per row."""
    codes = set_apart(np.frombuffer(rows.split_of, np.uint8), [True], reading)
    out = int((codes == OUT).sum())
    if out:
        findings.found_note("Rows of the test split, which are not used: %(count)d.", count=out)
    return codes


def _measure(rows: _Rows, codes: Numbers, findings: Findings) -> dict[str, Any]:
    """What pages show; as of texts with labels, with `target_values` and `target_histogram` instead of their counts."""
    targets = np.frombuffer(rows.targets, np.float64)
    lengths, token_counts = (np.frombuffer(a, np.uint32) for a in (rows.lengths, rows.tokens))
    of = {split: codes == code for code, split in enumerate(SPLITS)}
    trained = targets[of["train"]]
    if np.ptp(trained) == 0:
        findings.found_error("All training rows have the same number: there is nothing to learn.")
    hashes = np.frombuffer(rows.hashes, np.int64)
    leaked = np.flatnonzero(of["dev"] & np.isin(hashes, hashes[of["train"]]))
    if len(leaked):
        findings.found_warning(
            "Rows of dev whose text is among the training rows: %(count)d. The evaluation looks better than it is.",
            rows.refs(leaked),
            count=len(leaked),
        )
    for split, at in of.items():
        again = int(at.sum()) - len(np.unique(hashes[at]))
        if again:
            findings.found_warning(
                "Rows of %(split)s whose text occurs earlier in it: %(count)d.", split=split, count=again
            )
    return {
        "rows": {split: int(at.sum()) for split, at in of.items()},
        "target": "number",
        "target_values": {split: _summary(targets[at]) for split, at in of.items()},
        "text_length": {split: percentiles(lengths[at]) for split, at in of.items()},
        "length_histogram": histogram(lengths, codes, of),
        "token_lengths": {
            "percentiles": {split: ordered(token_counts[at], 100) for split, at in of.items()},
            "mean": {split: round(float(token_counts[at].mean()), 3) for split, at in of.items()},
            "histogram": histogram(token_counts, codes, of),
        },
        "baselines": {"number/median": float(np.abs(targets[of["dev"]] - np.median(trained)).mean())},
    }


def _summary(values: Numbers) -> dict[str, float]:
    low, p1, median, p99, high = (float(value) for value in np.percentile(values, [0, 1, 50, 99, 100]))
    return {
        "min": low, "p1": p1, "median": median, "p99": p99, "max": high,
        "mean": float(values.mean()), "deviation": float(values.std()),
    }  # fmt: skip
