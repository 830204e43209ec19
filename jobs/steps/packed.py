"""The charted fields of a batch of lines as one matrix of float64: what charts and levels are made from."""

from __future__ import annotations

from collections.abc import Sequence
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

_get = itemgetter("step", "seg", "skipped", "clipped", "found_inf", *CHARTED)


def parse(body: bytes) -> tuple[list[Any], Matrix]:
    """The JSON values of the lines of `body`, and their matrix.

    A line that is no step record has INVALID set and the step of the line before; NaN and infinities
    are strings in the values, and numbers in the matrix.
    """
    lines = body.count(b"\n")
    try:
        # One call for all lines: three times as fast as one each.
        values = orjson.loads(b"[" + body[:-1].replace(b"\n", b",") + b"]")
        if len(values) == lines:
            return values, matrix_of(values)
    except (ValueError, TypeError, KeyError, OverflowError):
        pass
    return _one_by_one(body)


def matrix_of(values: Sequence[Any]) -> Matrix:
    """Of JSON values that are all step records; KeyError, TypeError or ValueError if one is none."""
    step, seg, skipped, clipped, found_inf, *fields = zip(*map(_get, values), strict=True)
    matrix = np.empty((len(values), WIDTH))
    matrix[:, STEP] = step
    matrix[:, SEG] = seg
    bits = np.array(clipped, dtype=bool) * CLIPPED + np.array(found_inf, dtype=bool) * FOUND_INF
    if any(skipped):
        bits += np.array([reason is not None for reason in skipped]) * SKIPPED
    for index, (column, null) in enumerate(zip(fields, NULL, strict=True), FIRST_FIELD):
        matrix[:, index] = np.array(column, dtype=np.float64)  # reads "nan", and makes None a NaN
        if None in column:
            bits += np.array([value is None for value in column]) * null
    matrix[:, BITS] = bits
    return matrix


def _one_by_one(body: bytes) -> tuple[list[Any], Matrix]:
    values: list[Any] = []
    rows: list[Matrix] = []
    for line in body[:-1].split(b"\n"):
        try:
            value = orjson.loads(line)
            if type(value["step"]) is not int or type(value["seg"]) is not int:
                raise TypeError
            row = matrix_of([dict.fromkeys(FIELDS) | value])
        except (ValueError, TypeError, KeyError, OverflowError):
            value = None
            row = np.full((1, WIDTH), np.nan)
            row[0, [STEP, SEG]] = rows[-1][0, [STEP, SEG]] if rows else np.nan
            row[0, BITS] = INVALID
        values.append(value)
        rows.append(row)
    return values, np.concatenate(rows)


def to_bytes(matrix: Matrix) -> bytes:
    return matrix.astype("<f8").tobytes()


def from_bytes(body: bytes) -> Matrix:
    return np.frombuffer(body, dtype="<f8").reshape(-1, WIDTH)


def bits(matrix: Matrix) -> npt.NDArray[np.int64]:
    return matrix[:, BITS].astype(np.int64)


def unreadable(lines: int) -> Matrix:
    """The matrix of so many lines that no one could make sense of."""
    matrix = np.full((lines, WIDTH), np.nan)
    matrix[:, BITS] = INVALID
    return matrix
