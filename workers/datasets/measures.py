"""What pages show of a dataset, whatever it is made of: how lengths and numbers are spread, and what occurs twice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.contract.datasets import SPLITS
from workers.datasets.splits import DEV, OUT, TRAIN

Numbers = npt.NDArray[Any]

HISTOGRAM_BINS = 24
# A largest value so many times the 99th percentile is a heavy tail.
HEAVY_TAIL = 20.0


def of_splits(codes: Numbers) -> dict[str, Numbers]:
    """Split -> mask of its rows."""
    return {split: codes == code for code, split in enumerate(SPLITS)}


def counts(labels: Numbers, codes: Numbers, names: dict[str, int]) -> dict[str, dict[str, int]]:
    """Split -> label -> its rows, in the order of the alphabet; those without are left out. `labels` [rows]: codes of labels."""
    found = {split: np.bincount(labels[at], minlength=len(names)) for split, at in of_splits(codes).items()}
    return {
        split: {name: int(of_split[names[name]]) for name in sorted(names) if of_split[names[name]]}
        for split, of_split in found.items()
    }


def majority(label_counts: dict[str, dict[str, int]]) -> float:
    """Accuracy on dev of always saying what is commonest in the training rows."""
    train, dev = label_counts["train"], label_counts["dev"]
    return dev.get(max(train, key=train.__getitem__), 0) / sum(dev.values())


# --- how lengths and numbers are spread ------------------------------------------------------


def histogram(lengths: Numbers, codes: Numbers) -> dict[str, Any]:
    edges = _edges(lengths[codes != OUT])
    return {
        "edges": edges,
        "counts": {split: np.histogram(lengths[at], edges)[0].tolist() for split, at in of_splits(codes).items()},
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


def summary(values: Numbers) -> dict[str, float]:
    low, p1, median, p99, high = (float(value) for value in np.percentile(values, [0, 1, 50, 99, 100]))
    return {
        "min": low, "p1": p1, "median": median, "p99": p99, "max": high,
        "mean": float(values.mean()), "deviation": float(values.std()),
    }  # fmt: skip


@dataclass(frozen=True)
class Tail:
    """The largest of values by size, where it is, and what 99 of 100 are below."""

    largest: float
    at: int
    usual: float


def heavy_tail(values: Numbers) -> Tail | None:
    """If the largest is far beyond the others."""
    size = np.abs(values)
    at, usual = int(size.argmax()), float(np.percentile(size, 99))
    return Tail(float(size[at]), at, usual) if 0 < HEAVY_TAIL * usual < size[at] else None


# --- what occurs twice -----------------------------------------------------------------------


@dataclass(frozen=True)
class Duplicates:
    """Indices of rows, in order."""

    again: dict[str, Numbers]  # split -> what occurs earlier in it
    leaked: Numbers  # of dev, among the training rows too
    contradicting: Numbers  # of what something else is said than of its first row

    @property
    def counted(self) -> dict[str, int]:
        again = {split: len(rows) for split, rows in self.again.items()}
        return {**again, "dev_in_train": len(self.leaked), "contradicting": len(self.contradicting)}


def duplicates(hashes: Numbers, codes: Numbers, said: Numbers | None = None) -> Duplicates:
    """`said` [rows]: what should be the same where `hashes` are. Equal 8-byte hashes are taken for equal rows."""
    at = _shared(hashes, codes != OUT)
    hashes, codes = hashes[at], codes[at]  # from here on only of rows that have a hash in common with another one
    # Training rows first, so that it is dev that contradicts them.
    order = np.lexsort((np.arange(len(at)), codes, hashes))
    begins = np.ones(len(order), bool)
    begins[1:] = hashes[order][1:] != hashes[order][:-1]
    again = {split: _again(np.flatnonzero(codes == code), hashes) for code, split in enumerate(SPLITS)}
    dev = np.flatnonzero(codes == DEV)
    contradicting = np.empty(0, np.int64)
    if said is not None:
        of_first = said[at][order[begins]][np.cumsum(begins) - 1]
        contradicting = np.sort(order[said[at][order] != of_first])
    return Duplicates(
        again={split: at[rows] for split, rows in again.items()},
        leaked=at[dev[np.isin(hashes[dev], hashes[codes == TRAIN])]],
        contradicting=at[contradicting],
    )


def _shared(values: Numbers, used: Numbers) -> Numbers:
    """Indices of those `used` that occur more than once, in order. Sorts a copy, and that only."""
    in_order = np.sort(values[used])
    twice = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    del in_order
    found: Numbers = np.flatnonzero(used & np.isin(values, twice)) if len(twice) else np.empty(0, np.int64)
    return found


def _again(rows: Numbers, hashes: Numbers) -> Numbers:
    """All of `rows` but the first of each hash, in order."""
    of_rows = hashes[rows]
    order = np.argsort(of_rows, kind="stable")
    found: Numbers = rows[np.sort(order[1:][of_rows[order][1:] == of_rows[order][:-1]])]
    return found
