"""Metrics of predicted numbers, from sums that can be added over batches and ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from workers.trainer.task import Floats


def tally(predicted: Floats, actual: Floats, loss_sum: float, origin: float) -> Floats:
    """[loss, rows, |error|, error², actual, actual²], summed; the last two from `origin`, so that a large mean costs no digits."""
    with np.errstate(over="ignore", invalid="ignore"):  # a model that diverged has errors whose squares are infinite
        error, away = predicted - actual, actual - origin
        return np.array(
            [loss_sum, len(error), np.abs(error).sum(), (error**2).sum(), away.sum(), (away**2).sum()], np.float64
        )


def metrics(tally: Floats) -> dict[str, Any]:
    """Loss (as trained), mean absolute error, root of the mean squared error, R² (none if all actual values are the same)."""
    loss, rows, absolute, squared, away, away_squared = map(float, tally)
    variance = away_squared - away**2 / rows
    return {
        "loss": loss / rows,
        "mae": absolute / rows,
        "rmse": math.sqrt(squared / rows),
        **({"r2": 1 - squared / variance} if variance > 0 else {}),
        "rows": int(rows),
    }


def of_constant(actual: Floats, value: float) -> float:
    """Mean absolute error of who always says `value`."""
    return float(np.abs(actual - value).mean())
