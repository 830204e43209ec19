"""Metrics of predicted numbers with the two correlations, from sums that can be added over batches and ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.recipes.sequences import metrics as of_numbers
from workers.trainer.task import Floats

SUMS = 9


def tally(
    predicted: Floats, actual: Floats, loss_sum: float, origin: float, slots: npt.NDArray[Any], size: int
) -> Floats:
    """[six sums of sequences.metrics, Σ predicted, Σ predicted², Σ predicted × actual; then whether there is a row in each of
    `size` slots, what was predicted there, and what is actual], all from `origin`. A slot of −1: the row has none."""
    with np.errstate(over="ignore", invalid="ignore"):
        said, away = predicted - origin, actual - origin
        sums = [said.sum(), (said**2).sum(), (said * away).sum()]
    placed = np.zeros((3, size))
    here = slots >= 0
    placed[:, slots[here]] = np.ones(here.sum()), said[here], away[here]
    return np.concatenate([of_numbers.tally(predicted, actual, loss_sum, origin), sums, placed.ravel()])


def nothing(size: int) -> Floats:
    return np.zeros(SUMS + 3 * size)


def metrics(tally: Floats) -> dict[str, Any]:
    """Those of sequences.metrics; Pearson's and Spearman's correlation, which are left out where one side is constant."""
    found = of_numbers.metrics(tally[:6])
    rows, away, away_squared = (float(tally[i]) for i in (1, 4, 5))
    said, said_squared, both = map(float, tally[6:SUMS])
    there, predicted, actual = tally[SUMS:].reshape(3, -1)
    with np.errstate(over="ignore", invalid="ignore"):
        spread = (away_squared - away**2 / rows) * (said_squared - said**2 / rows)
        found["pearson"] = (both - said * away / rows) / math.sqrt(spread) if spread > 0 else None
        found["spearman"] = spearman(predicted[there > 0], actual[there > 0])
    return {name: value for name, value in found.items() if value is not None}


def spearman(one: Floats, other: Floats) -> float | None:
    """Pearson's correlation of the ranks, equal values sharing theirs. None if one side is constant or not finite."""
    if len(one) < 2 or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    spread = float((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / math.sqrt(spread)) if spread > 0 else None


def _ranks(values: Floats) -> Floats:
    _values, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
