"""Levels: buckets of 16, 64 … 4096 sealed records with what a chart needs, so that no record is read for a wide view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from jobs.steps import packed

# Each divides the next, and the last divides a block, so that a sealed block has only whole buckets.
LEVELS = (16, 64, 256, 1024, 4096)
# Buckets in one row. Fewer: more rows to read for a chart; more: more to write again at each seal.
ROW = 1024

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_COUNTS = ("start", "first_step", "last_step", "skipped", "clipped", "found_inf")
_EXTREMES = ("min", "max", "mean")
_KINDS = ("finite", "nan", "pos_inf", "neg_inf")


@dataclass
class Buckets:
    """Consecutive buckets of records; `start` is the number of the first record of each.

    Arrays have one value per bucket; the last seven one row per field of `fields` as well. Extremes and
    mean are of the finite values: NaN where `finite` is 0. Null values count nowhere.
    """

    fields: tuple[str, ...]
    start: Ints
    first_step: Ints
    last_step: Ints
    skipped: Ints
    clipped: Ints
    found_inf: Ints
    min: Floats
    max: Floats
    mean: Floats
    finite: Ints
    nan: Ints
    pos_inf: Ints
    neg_inf: Ints

    def __len__(self) -> int:
        return len(self.start)


def of_records(matrix: packed.Matrix, start: int, fields: Sequence[str] = packed.CHARTED) -> Buckets:
    """Buckets of one record each; lines that are no records are left out."""
    bits = packed.bits(matrix)
    starts = start + np.arange(len(matrix))
    valid = (bits & packed.INVALID) == 0
    if not valid.all():
        matrix, bits, starts = matrix[valid], bits[valid], starts[valid]
    step = matrix[:, packed.STEP].astype(np.int64)
    indices = [packed.CHARTED.index(name) for name in fields]
    value = matrix[:, [packed.FIRST_FIELD + index for index in indices]].T
    there = (bits & np.array([packed.NULL[index] for index in indices])[:, None]) == 0
    finite = np.isfinite(value)
    kept = np.where(finite, value, np.nan)
    return Buckets(
        fields=tuple(fields),
        start=starts,
        first_step=step,
        last_step=step,
        skipped=(bits & packed.SKIPPED) // packed.SKIPPED,
        clipped=(bits & packed.CLIPPED) // packed.CLIPPED,
        found_inf=(bits & packed.FOUND_INF) // packed.FOUND_INF,
        min=kept,
        max=kept,
        mean=kept,
        finite=finite.astype(np.int64),
        nan=(np.isnan(value) & there).astype(np.int64),
        pos_inf=(value == np.inf).astype(np.int64),
        neg_inf=(value == -np.inf).astype(np.int64),
    )


def merged(buckets: Buckets, firsts: npt.NDArray[np.intp]) -> Buckets:
    """Wider buckets: each from one of `firsts` (ascending, beginning with 0) up to the next."""
    if not len(buckets):
        return buckets
    ends = np.append(firsts[1:], len(buckets))

    def total(values: Ints) -> Ints:
        return np.add.reduceat(values, firsts, axis=-1)

    finite = total(buckets.finite)
    with np.errstate(invalid="ignore", over="ignore"):
        # The sum of some large floats is infinite though their mean is not: weigh first.
        weight = buckets.finite / np.repeat(np.maximum(finite, 1), ends - firsts, axis=-1)
        mean = np.add.reduceat(np.where(buckets.finite > 0, buckets.mean * weight, 0.0), firsts, axis=-1)
        return Buckets(
            fields=buckets.fields,
            start=buckets.start[firsts],
            first_step=buckets.first_step[firsts],
            last_step=buckets.last_step[ends - 1],
            skipped=total(buckets.skipped),
            clipped=total(buckets.clipped),
            found_inf=total(buckets.found_inf),
            # fmin and fmax pass over NaN, which stands for "no finite value".
            min=np.fmin.reduceat(buckets.min, firsts, axis=-1),
            max=np.fmax.reduceat(buckets.max, firsts, axis=-1),
            mean=np.where(finite > 0, mean, np.nan),
            finite=finite,
            nan=total(buckets.nan),
            pos_inf=total(buckets.pos_inf),
            neg_inf=total(buckets.neg_inf),
        )


def of_block(matrix: packed.Matrix, start: int) -> dict[int, Buckets]:
    """The buckets of every level for one sealed block."""
    result: dict[int, Buckets] = {}
    buckets = of_records(matrix, start)
    for level in LEVELS:
        buckets = result[level] = by_width(buckets, level)
    return result


def by_width(buckets: Buckets, width: int) -> Buckets:
    """Merged into buckets whose starts are multiples of `width`, as far as there is something in them."""
    number = buckets.start // width
    merge = merged(buckets, np.flatnonzero(np.diff(number, prepend=-1)))
    merge.start = merge.start // width * width
    return merge


def sliced(buckets: Buckets, low: int, high: int) -> Buckets:
    return _each(lambda name: getattr(buckets, name)[..., low:high], buckets.fields)


def joined(parts: list[Buckets]) -> Buckets:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    return _each(lambda name: np.concatenate([getattr(part, name) for part in parts], axis=-1), parts[0].fields)


def _each(make: Any, fields: tuple[str, ...]) -> Buckets:
    return Buckets(fields=fields, **{name: make(name) for name in (*_COUNTS, *_EXTREMES, *_KINDS)})


# --- bytes ---------------------------------------------------------------------------------
#
# A line of JSON says what follows, then one compressed piece for the counts and one for each field, so
# that a chart of two fields decompresses two. (Arrow, which the blocks are in, takes ten times as long
# for so many short columns, and its schema is larger than most rows.)

_CODEC = pa.Codec("zstd", compression_level=3)


def encode(buckets: Buckets) -> bytes:
    arrays = {name: _narrow(getattr(buckets, name)[None]) for name in _COUNTS}
    # Seven digits are enough for a mean.
    stats = {name: _single(getattr(buckets, name), exactly=name != "mean") for name in _EXTREMES}
    stats |= {name: _narrow(getattr(buckets, name)) for name in _KINDS}
    parts = {"": [arrays[name][0] for name in _COUNTS]}
    for row, field in enumerate(buckets.fields):
        parts[field] = [stats[name][row] for name in (*_EXTREMES, *_KINDS)]
    head: dict[str, Any] = {"count": len(buckets), "parts": {}}
    pieces: list[bytes] = []
    for part, columns in parts.items():
        plain = b"".join(column.tobytes() for column in columns)
        piece = _CODEC.compress(plain, asbytes=True)
        # Type, and number of values: one stands for all.
        types = [[column.dtype.str, len(column)] for column in columns]
        head["parts"][part] = [types, len(plain), len(piece)]
        pieces.append(piece)
    return orjson.dumps(head) + b"\n" + b"".join(pieces)


def decode(body: bytes, fields: Sequence[str] = packed.CHARTED) -> Buckets:
    end = body.index(b"\n")
    head = orjson.loads(body[:end])
    count = head["count"]
    names = tuple(name for name in head["parts"] if name in fields)
    counts: dict[str, npt.NDArray[Any]] = {name: np.empty(count, np.int64) for name in _COUNTS}
    stats: dict[str, npt.NDArray[Any]] = {name: np.empty((len(names), count)) for name in _EXTREMES}
    stats |= {name: np.empty((len(names), count), np.int64) for name in _KINDS}
    at = end + 1
    for part, (types, plain_size, size) in head["parts"].items():
        if part in names:
            row = names.index(part)
            targets = [stats[name][row] for name in (*_EXTREMES, *_KINDS)]
        else:
            targets = list(counts.values()) if part == "" else []
        if targets:
            plain = _CODEC.decompress(body[at : at + size], decompressed_size=plain_size, asbytes=True)
            position = 0
            for target, (dtype, length) in zip(targets, types, strict=True):
                values = np.frombuffer(plain, dtype, length, position)
                target[:] = values
                position += values.nbytes
        at += size
    return Buckets(fields=names, **counts, **stats)


def _narrow(values: Ints) -> list[npt.NDArray[Any]]:
    """Each row in the fewest bytes; one value if all are the same."""
    lows, highs = values.min(axis=1).tolist(), values.max(axis=1).tolist()
    rows: list[npt.NDArray[Any]] = []
    for row, low, high in zip(values, lows, highs, strict=True):
        kept: npt.NDArray[Any] = row[:1] if low == high else row
        width = "<u1" if high < 2**8 else "<u2" if high < 2**16 else "<u4"
        rows.append(kept.astype(width) if low >= 0 and high < 2**32 else kept)
    return rows


def _single(values: Floats, *, exactly: bool) -> list[npt.NDArray[Any]]:
    """Each row as float32 if that is the same, or `exactly` is not asked for. NaN stands for "no finite value"."""
    with np.errstate(over="ignore"):
        singles = values.astype("<f4")
    wide = singles.astype(np.float64)
    fits = ((wide == values) | np.isnan(values)).all(axis=1) if exactly else ~np.isinf(wide).any(axis=1)
    same = (singles.view("<i4") == singles.view("<i4")[:, :1]).all(axis=1) & fits
    return [
        single[:1] if one else single if fit else row
        for row, single, fit, one in zip(values, singles, fits.tolist(), same.tolist(), strict=True)
    ]
