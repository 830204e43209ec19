"""Sequences made up like transactions of accounts, with heavy tails: for the demo, benchmarks and trying things out.

python -m workers.recipes.sequences.sample > transactions.csv
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

STEPS, LAST = 40, 5
COLUMNS = ("account", "step", "amount", "gap", "mean_of_last_5")


def transactions(
    count: int, seed: int, *, tail: float = 1.5, share: float = 0.1, size: float = 10.0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """([count, STEPS, 2], [count]): log-normal amounts, of which `share` have a Pareto spike on top (`size` times one whose tail
    is the heavier the smaller `tail`), the hours since the one before, and as target the mean of the last five amounts."""
    random = np.random.Generator(np.random.PCG64(seed))
    amounts = random.lognormal(1.0, 0.8, (count, STEPS))
    spikes = (random.random((count, STEPS)) < share) * size * random.pareto(tail, (count, STEPS))
    amounts += spikes
    gaps = random.exponential(6.0, (count, STEPS))
    return np.stack([amounts, gaps], axis=-1), amounts[:, -LAST:].mean(axis=1)


def rows(count: int = 2000, seed: int = 2026, *, tail: float = 1.5) -> Iterator[tuple[Any, ...]]:
    """A row per time step, as in COLUMNS."""
    values, targets = transactions(count, seed, tail=tail)
    for i in range(count):
        for step in range(STEPS):
            amount, gap = values[i, step]
            yield f"a{i + 1:04d}", step + 1, round(float(amount), 2), round(float(gap), 3), round(float(targets[i]), 4)


def write(file: TextIO, **options: Any) -> None:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(rows(**options))


if __name__ == "__main__":
    write(sys.stdout)
