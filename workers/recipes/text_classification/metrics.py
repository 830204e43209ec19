"""Metrics of single-label classification, from sums that can be added over batches and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from workers.trainer.task import Floats, Rows


def tally(predicted: Rows, actual: Rows, loss_sum: float, classes: int) -> Floats:
    """[loss sum, then the confusion counts row by row: actual × predicted]."""
    counts = np.bincount(actual * classes + predicted, minlength=classes * classes)
    return np.concatenate([[loss_sum], counts.astype(np.float64)])


def metrics(tally: Floats, labels: list[str]) -> dict[str, Any]:
    """Loss, accuracy, macro F1 (a class that neither occurs nor is predicted counts as 0, as in scikit-learn)."""
    classes = len(labels)
    counts = tally[1:].reshape(classes, classes)
    right, actual, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    total = float(counts.sum())
    f1 = 2 * right / np.maximum(actual + predicted, 1)
    return {
        "loss": float(tally[0] / total),
        "accuracy": float(right.sum() / total),
        "macro_f1": float(f1.mean()),
        "rows": int(total),
        "labels": labels,
        "confusion": counts.astype(int).tolist(),
    }
