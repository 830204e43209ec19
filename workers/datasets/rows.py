"""Datasets with a line for each row: the first pass over their files, the split, and what is measured of all of them alike."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from workers.contract.datasets import SPLITS, RowRef
from workers.contract.records import to_json_number
from workers.datasets import measures, parsing, splits, tokens, weights
from workers.datasets.findings import MOST_ROWS, Level, Source, Stage, Work
from workers.datasets.measures import Duplicates, Numbers
from workers.datasets.parsing import BadRow, Row, printable, problem
from workers.datasets.splits import OPEN, OUT, set_apart

# Tokens of so many rows are counted together, which is far cheaper.
TOGETHER = 1000


def check(rows: Rows, work: Work) -> None:
    """See checking.py."""
    findings, outcome, scratch, stage = work.findings, work.outcome, work.scratch, work.stage
    try:
        with (scratch / "rows.jsonl").open("wb") as lines:
            for number, source in enumerate(work.sources):
                rows.read(number, source, lines, stage)
    finally:
        outcome.columns = sorted(rows.columns)
    splits.check_rows(rows.read_rows, rows.count, rows.bad_rows, work.reading, findings)
    if not rows.count or not findings.fit:
        return
    stage("deciding the split", 0, 0)
    codes = set_apart(np.frombuffer(rows.split_of, np.uint8), rows.strata(), work.reading)
    out = int((codes == OUT).sum())
    if out:
        findings.found_note("Rows of the test split, which are not used: %(count)d.", count=out)
    if not splits.check_splits(codes, findings):
        return
    row_weights = np.frombuffer(rows.weights, np.float64)
    if len(row_weights):
        weights.judge(row_weights, codes, rows.refs, findings)
    rows.judge(codes)
    if not findings.fit:
        return
    stage("looking for duplicates", 0, 0)
    outcome.statistics = rows.measure(codes)
    if len(row_weights):
        outcome.statistics |= weights.statistics(row_weights, measures.of_splits(codes))
    outcome.content_hash, first = splits.write(scratch / "rows.jsonl", codes, work.target, stage)
    outcome.statistics["samples"] = {
        split: [rows.sample(json.loads(line)) for line in of_split]
        for split, of_split in zip(SPLITS, first, strict=True)
    }
    outcome.labels = rows.label_set()
    outcome.splits = dict(outcome.statistics["rows"])


class Place(NamedTuple):
    """Where a row stands, where it goes, and what it counts for."""

    file: int
    number: int
    split: int
    weight: float


class Rows(ABC):
    """The rows that are right, in order, as numbers; their lines are in the scratch file."""

    def __init__(self, work: Work) -> None:
        self.reading, self.findings = work.reading, work.findings
        self.names = [source.name for source in work.sources]
        self.columns: set[str] = set()
        self.encode = json.JSONEncoder(ensure_ascii=False).encode
        # Hashes of this process: nobody can know which texts have the same.
        self.hashes = array("q")
        self.lengths, self.tokens = array("I"), array("I")
        self.number_of, self.file_of, self.split_of = array("I"), array("B"), array("B")
        self.weights = array("d")  # empty if no column has them
        self._uncounted: list[str] = []
        self.read_rows = self.bad_rows = 0

    # --- what each kind does in its own way --------------------------------------------------

    @abstractmethod
    def take(self, row: Row, file: int, source: Source, lines: BinaryIO) -> BadRow | None:
        """Stores the row and writes its line, or says why not."""

    def strata(self) -> Iterable[Numbers | bool]:
        """Groups of rows, as masks, of which both splits get the same share."""
        return [True]

    @abstractmethod
    def judge(self, codes: Numbers) -> None:
        """Whether the splits are fit, but for what is so of all kinds."""

    @abstractmethod
    def measure(self, codes: Numbers) -> dict[str, Any]:
        """What pages show, see CheckResult."""

    def label_set(self) -> list[str]:
        return []

    @abstractmethod
    def sample(self, row: dict[str, Any]) -> dict[str, Any]:
        """A written row, as a page shows it."""

    # --- the first pass ----------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self.hashes)

    def read(self, number: int, source: Source, lines: BinaryIO, stage: Stage) -> None:
        file = source.file or source.path.open("rb")
        with file:
            size = os.fstat(file.fileno()).st_size
            for row in parsing.rows(file, self.reading, lambda done: stage("reading rows", done, size)):
                self.take_or_report(row, number, source, lines)
        self.count_tokens()

    def take_or_report(self, row: Row | BadRow, file: int, source: Source, lines: BinaryIO) -> None:
        self.read_rows += 1
        bad = row if isinstance(row, BadRow) else self.take(row, file, source, lines)
        if bad:
            self.bad_rows += 1
            level: Level = "warning" if self.reading.leave_out else "error"
            self.findings.row(level, bad, source.name)

    def store(self, place: Place, value: Any, length: int, text: str) -> None:
        """`value`: what makes two rows the same; `text`: its tokens are counted."""
        self.hashes.append(hash(value))
        self.lengths.append(length)
        self.number_of.append(place.number)
        self.file_of.append(place.file)
        self.split_of.append(place.split)
        if self.reading.weight_column:
            self.weights.append(place.weight)
        self._uncounted.append(text)
        if len(self._uncounted) >= TOGETHER:
            self.count_tokens()

    def count_tokens(self) -> None:
        """Of the rows that came one by one."""
        self.tokens.frombytes(tokens.count(self._uncounted).tobytes())
        self._uncounted.clear()

    def write(self, written: dict[str, Any], lines: BinaryIO) -> None:
        if len(self.columns) < parsing.MOST_COLUMNS:
            self.columns.update(map(printable, written))
        lines.write(self.encode(written).encode("utf-8", "replace") + b"\n")

    def place(self, row: Row, file: int, source: Source) -> Place | BadRow:
        weight = self._weight_of_row(row)
        if isinstance(weight, BadRow):
            return weight
        split = self._split_of_row(row, source)
        return split if isinstance(split, BadRow) else Place(file, row.number, split, weight)

    def _split_of_row(self, row: Row, source: Source) -> int | BadRow:
        if source.split:
            return SPLITS.index(source.split)
        if not self.reading.split_column:
            return OPEN
        word = row.values[self.reading.split_column]
        if isinstance(word, list) and word:  # of CoNLL: the same with each token
            word = word[0]
        code = splits.named(str(word))
        if code is None:
            return problem("Rows whose split is none of train, dev, test: %(count)d.", row.number, str(word))
        return code

    def _weight_of_row(self, row: Row) -> float | BadRow:
        """1 where no column has them. In `row` it is a number of JSON from here on, whatever the file had."""
        column = self.reading.weight_column
        if not column:
            return 1.0
        weight = weights.read(row.values[column], row.number)
        if not isinstance(weight, BadRow):
            row.values[column] = to_json_number(weight)
        return weight

    def refs(self, indices: Numbers) -> list[RowRef]:
        return [RowRef(file=self.names[self.file_of[i]], row=self.number_of[i]) for i in indices[:MOST_ROWS]]

    # --- measuring ---------------------------------------------------------------------------

    def sizes(self, codes: Numbers) -> dict[str, Any]:
        """How many rows, and how long they are."""
        lengths, token_counts = (np.frombuffer(a, np.uint32) for a in (self.lengths, self.tokens))
        of = measures.of_splits(codes)
        return {
            "rows": {split: int(at.sum()) for split, at in of.items()},
            "text_length": {split: measures.percentiles(lengths[at]) for split, at in of.items()},
            "length_histogram": measures.histogram(lengths, codes),
            "token_lengths": {
                "percentiles": {split: measures.ordered(token_counts[at], 100) for split, at in of.items()},
                "mean": {split: round(float(token_counts[at].mean()), 3) for split, at in of.items()},
                "histogram": measures.histogram(token_counts, codes),
            },
        }

    def duplicates(self, codes: Numbers, said: Numbers | None = None) -> Duplicates:
        """Texts that occur again, with a warning of each kind but for the contradicting."""
        found = measures.duplicates(np.frombuffer(self.hashes, np.int64), codes, said)
        for split, again in found.again.items():
            if len(again):
                self.findings.found_warning(
                    "Rows of %(split)s whose text occurs earlier in it: %(count)d.",
                    self.refs(again),
                    split=split,
                    count=len(again),
                )
        if len(found.leaked):
            self.findings.found_warning(
                "Rows of dev whose text is among the training rows: %(count)d. The evaluation looks better than it is.",
                self.refs(found.leaked),
                count=len(found.leaked),
            )
        return found


def without(row: Row, columns: Iterable[str]) -> BadRow | None:
    """Of the first column that the row does not have."""
    for column in columns:
        if column and column not in row.values:
            shown = ", ".join(map(str, row.values)) or "—"
            return problem("Rows without the column “%(column)s”: %(count)d.", row.number, shown, column=column)
    return None


def unwritable(number: int, shown: str, *texts: str) -> BadRow | None:
    """Of characters that no file can have."""
    whole = "".join(texts)
    try:
        whole.encode("utf-8")
    except UnicodeEncodeError:
        return problem("Rows with characters that are no Unicode (lone surrogates): %(count)d.", number, shown)
    if "\0" in whole:
        return problem("Rows with a NUL character: %(count)d.", number, shown)
    return None
