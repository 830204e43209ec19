"""The charted fields of a batch of lines as one matrix of float64: what charts and levels are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from workers.contract.records import FIELDS

Matrix = npt.NDArray[np.float64]

CHARTED = ("t", "loss", "loss_all", "lr", "grad_norm", "clip_norm", "loss_scale", "step_ms", "data_ms", "mem_mb")
STEP, SEG, BITS = 0, 1, 2
FIRST_FIELD = 3
WIDTH = FIRST_FIELD + len(CHARTED)

SKIPPED, CLIPPED, FOUND_INF, INVALID = 1, 2, 4, 8
# A null, which is not a NaN: bit of field i.
NULL = tuple(16 << i for i in range(len(CHARTED)))

_get = itemgetter(*FIELDS)

# Of each name of FIELDS the values of all records, as JSON has them: NaN and infinities are strings.
Columns = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Batch:
    """Whole lines with what has been made of them, so that none is parsed twice."""

    body: bytes
    ends: npt.NDArray[np.intp]  # where the newline of each line is
    matrix: Matrix
    columns: Columns | None  # None if not all lines are step records, or if nobody has looked

    def __len__(self) -> int:
        return len(self.ends)

    def record(self, index: int) -> dict[str, Any]:
        """The JSON value of a line that is a step record."""
        start = self.ends[index - 1] + 1 if index else 0
        record: dict[str, Any] = orjson.loads(self.body[start : self.ends[index]])
        return record

    def part(self, low: int, high: int) -> Batch:
        """Lines `low` to `high` (not included), at least one."""
        start = int(self.ends[low - 1]) + 1 if low else 0
        columns = self.columns and {name: values[low:high] for name, values in self.columns.items()}
        return Batch(
            self.body[start : self.ends[high - 1] + 1], self.ends[low:high] - start, self.matrix[low:high], columns
        )


def parse(body: bytes) -> Batch:
    """A line that is no step record has INVALID set and the step of the line before."""
    try:
        columns = columns_of(body)
        return Batch(body, _ends(body), matrix_of(columns), columns)
    except UNUSUAL:
        return Batch(body, _ends(body), _one_by_one(body), None)


def stored(body: bytes, matrix: Matrix) -> Batch:
    """Lines whose matrix is known; it counts, whatever the lines look like."""
    try:
        return Batch(body, _ends(body), matrix, columns_of(body))
    except UNUSUAL:
        return Batch(body, _ends(body), matrix, None)


def unreadable(body: bytes) -> Batch:
    """Lines that no one could make sense of."""
    ends = _ends(body)
    matrix = np.full((len(ends), WIDTH), np.nan)
    matrix[:, BITS] = INVALID
    return Batch(body, ends, matrix, None)


def joined(batches: Sequence[Batch]) -> Batch:
    """One after the other."""
    if len(batches) == 1:
        return batches[0]
    body = b"".join(batch.body for batch in batches)
    matrix = np.concatenate([batch.matrix for batch in batches])
    known = [batch.columns for batch in batches if batch.columns is not None]
    if len(known) < len(batches):
        return Batch(body, _ends(body), matrix, None)
    return Batch(body, _ends(body), matrix, {name: sum((part[name] for part in known), ()) for name in FIELDS})


# What a line that is no record, or an unusual one, makes of columns.
UNUSUAL = (ValueError, TypeError, KeyError, OverflowError, AttributeError)


def columns_of(body: bytes) -> Columns:
    """Of lines that are all step records; one of UNUSUAL if one is none."""
    # One call for all lines: three times as fast as one each.
    records = orjson.loads(b"[" + body[:-1].replace(b"\n", b",") + b"]")
    if len(records) != body.count(b"\n"):
        raise ValueError("not one value in each line")
    return transposed(records)


def transposed(records: Sequence[Any]) -> Columns:
    # Column by column everything else is fast; the records go at once, and their memory is used again while it is near.
    return dict(zip(FIELDS, zip(*map(_get, records), strict=True), strict=True))


def _ends(body: bytes) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n"))


def matrix_of(columns: Columns) -> Matrix:
    """KeyError, TypeError or ValueError if a value is none of its field."""
    skipped = columns["skipped"]
    matrix = np.empty((len(skipped), WIDTH))
    matrix[:, STEP] = columns["step"]
    matrix[:, SEG] = columns["seg"]
    bits = np.array(columns["clipped"], dtype=bool) * CLIPPED + np.array(columns["found_inf"], dtype=bool) * FOUND_INF
    if any(skipped):
        bits += np.array([reason is not None for reason in skipped]) * SKIPPED
    for index, (name, null) in enumerate(zip(CHARTED, NULL, strict=True), FIRST_FIELD):
        column = columns[name]
        matrix[:, index] = np.array(column, dtype=np.float64)  # reads "nan", and makes None a NaN
        if None in column:
            bits += np.array([value is None for value in column]) * null
    matrix[:, BITS] = bits
    return matrix


def _one_by_one(body: bytes) -> Matrix:
    rows: list[Matrix] = []
    for line in body[:-1].split(b"\n"):
        try:
            value = orjson.loads(line)
            if type(value["step"]) is not int or type(value["seg"]) is not int:
                raise TypeError
            row = matrix_of(transposed([dict.fromkeys(FIELDS) | value]))
        except UNUSUAL:
            row = np.full((1, WIDTH), np.nan)
            row[0, [STEP, SEG]] = rows[-1][0, [STEP, SEG]] if rows else np.nan
            row[0, BITS] = INVALID
        rows.append(row)
    return np.concatenate(rows)


def to_bytes(matrix: Matrix) -> bytes:
    return matrix.astype("<f8").tobytes()


def from_bytes(body: bytes) -> Matrix:
    return np.frombuffer(body, dtype="<f8").reshape(-1, WIDTH)


def bits(matrix: Matrix) -> npt.NDArray[np.int64]:
    return matrix[:, BITS].astype(np.int64)
