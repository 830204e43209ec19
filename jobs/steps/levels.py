"""Levels: buckets of 16, 64 … 4096 sealed records with what a chart needs, so that no record is read for a wide view."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.steps import columns, packed
from jobs.steps.columns import Column

# Each divides the next, and the last divides a block, so that a sealed block has only whole buckets.
LEVELS = (16, 64, 256, 1024, 4096)
# Buckets in one row. Fewer: more rows to read for a chart; more: more to write again at each seal.
ROW = 1024

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass
class Stats:
    """Of one field, per bucket. Extremes and mean are of the finite values: NaN where `finite` is 0."""

    min: Floats
    max: Floats
    mean: Floats
    finite: Ints
    nan: Ints
    pos_inf: Ints
    neg_inf: Ints


@dataclass
class Buckets:
    """Consecutive buckets of records; `start` is the number of the first record of each."""

    start: Ints
    first_step: Ints
    last_step: Ints
    skipped: Ints
    clipped: Ints
    found_inf: Ints
    fields: dict[str, Stats]

    def __len__(self) -> int:
        return len(self.start)


def of_records(matrix: packed.Matrix, start: int, fields: Collection[str] = packed.CHARTED) -> Buckets:
    """Buckets of one record each; lines that are no records are left out."""
    bits = packed.bits(matrix)
    starts = start + np.arange(len(matrix))
    valid = (bits & packed.INVALID) == 0
    if not valid.all():
        matrix, bits, starts = matrix[valid], bits[valid], starts[valid]
    step = matrix[:, packed.STEP].astype(np.int64)
    stats: dict[str, Stats] = {}
    for index, name in enumerate(packed.CHARTED):
        if name in fields:
            value = matrix[:, packed.FIRST_FIELD + index]
            finite = np.isfinite(value)
            kept = np.where(finite, value, np.nan)
            there = (bits & packed.NULL[index]) == 0
            stats[name] = Stats(
                min=kept,
                max=kept,
                mean=kept,
                finite=finite.astype(np.int64),
                nan=(np.isnan(value) & there).astype(np.int64),
                pos_inf=(value == np.inf).astype(np.int64),
                neg_inf=(value == -np.inf).astype(np.int64),
            )
    return Buckets(
        start=starts,
        first_step=step,
        last_step=step,
        skipped=(bits & packed.SKIPPED) // packed.SKIPPED,
        clipped=(bits & packed.CLIPPED) // packed.CLIPPED,
        found_inf=(bits & packed.FOUND_INF) // packed.FOUND_INF,
        fields=stats,
    )


def merged(buckets: Buckets, firsts: npt.NDArray[np.intp]) -> Buckets:
    """Wider buckets: each from one of `firsts` (ascending, beginning with 0) up to the next."""
    if not len(buckets):
        return buckets
    lasts = np.append(firsts[1:], len(buckets)) - 1

    def total(values: Ints) -> Ints:
        return np.add.reduceat(values, firsts)

    def stats(old: Stats) -> Stats:
        finite = total(old.finite)
        with np.errstate(invalid="ignore", over="ignore"):
            # The sum of some large floats is infinite though their mean is not: weigh first.
            weight = old.finite / np.repeat(np.maximum(finite, 1), np.diff(np.append(firsts, len(buckets))))
            mean = np.add.reduceat(np.where(old.finite > 0, old.mean * weight, 0.0), firsts)
            return Stats(
                # fmin and fmax pass over NaN, which stands for "no finite value".
                min=np.fmin.reduceat(old.min, firsts),
                max=np.fmax.reduceat(old.max, firsts),
                mean=np.where(finite > 0, mean, np.nan),
                finite=finite,
                nan=total(old.nan),
                pos_inf=total(old.pos_inf),
                neg_inf=total(old.neg_inf),
            )

    return Buckets(
        start=buckets.start[firsts],
        first_step=buckets.first_step[firsts],
        last_step=buckets.last_step[lasts],
        skipped=total(buckets.skipped),
        clipped=total(buckets.clipped),
        found_inf=total(buckets.found_inf),
        fields={name: stats(old) for name, old in buckets.fields.items()},
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
    return Buckets(
        **{name: getattr(buckets, name)[low:high] for name in _COUNTS},
        fields={
            field: Stats(**{name: getattr(stats, name)[low:high] for name in _STATS})
            for field, stats in buckets.fields.items()
        },
    )


def joined(parts: list[Buckets]) -> Buckets:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]

    def cat(name: str) -> Ints:
        return np.concatenate([getattr(part, name) for part in parts])

    names = list(parts[0].fields)
    return Buckets(
        **{name: cat(name) for name in _COUNTS},
        fields={
            field: Stats(
                **{name: np.concatenate([getattr(part.fields[field], name) for part in parts]) for name in _STATS}
            )
            for field in names
        },
    )


_COUNTS = ("start", "first_step", "last_step", "skipped", "clipped", "found_inf")
_STATS = ("min", "max", "mean", "finite", "nan", "pos_inf", "neg_inf")


def encode(buckets: Buckets) -> bytes:
    stored = {name: Column(getattr(buckets, name)) for name in _COUNTS}
    for field, stats in buckets.fields.items():
        for name in _STATS:
            values = getattr(stats, name)
            if name == "mean":
                # Seven digits are enough for a mean; half the bytes.
                with np.errstate(over="ignore"):
                    single = values.astype(np.float32).astype(np.float64)
                values = np.where(np.isinf(single), values, single)
            stored[f"{field}.{name}"] = Column(values)
    return columns.encode(stored)


def decode(body: bytes, fields: Collection[str] = packed.CHARTED) -> Buckets:
    names = {*_COUNTS, *(f"{field}.{name}" for field in fields for name in _STATS)}
    stored = columns.decode(body, names)
    return Buckets(
        **{name: stored[name].values for name in _COUNTS},
        fields={
            field: Stats(**{name: stored[f"{field}.{name}"].values for name in _STATS})
            for field in packed.CHARTED
            if field in fields
        },
    )
