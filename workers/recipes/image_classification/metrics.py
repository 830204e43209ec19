"""Metrics of pictures with one label each, from sums that can be added over batches and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from workers.trainer.task import Floats, Rows

TOP = 5
# With more labels only what macro F1 needs is counted, and not what was taken for what.
MOST_CONFUSED = 200


def of_nothing(classes: int) -> Floats:
    return np.zeros(2 + classes + (classes * classes if classes <= MOST_CONFUSED else 2 * classes))


def tally(logits: Floats, actual: Rows, loss_sum: float) -> Floats:
    """[loss sum, rows whose label is among the five likeliest, rows of each label, then the confusion counts row by row: actual ×
    predicted; of many labels: right and predicted ones of each]. Logits that are not finite predict nothing: their row is wrong."""
    classes = logits.shape[1]
    said = np.isfinite(logits).all(axis=1)
    logits, labels = logits[said], actual[said]
    predicted = logits.argmax(axis=1)
    top = ((logits > logits[np.arange(len(labels)), labels][:, None]).sum(axis=1) < TOP).sum()
    if classes <= MOST_CONFUSED:
        counts = [np.bincount(labels * classes + predicted, minlength=classes * classes)]
    else:
        counts = [np.bincount(one, minlength=classes) for one in (labels[labels == predicted], predicted)]
    sums: Floats = np.concatenate([[loss_sum, top], np.bincount(actual, minlength=classes), *counts]).astype(np.float64)
    return sums


def metrics(tally: Floats, labels: list[str]) -> dict[str, Any]:
    """Loss, accuracy, macro F1 (a class that neither occurs nor is predicted counts as 0, as in scikit-learn), and with more than
    five labels the share of rows whose own is among the five likeliest."""
    classes = len(labels)
    (loss, top), actual, counts = tally[:2], tally[2 : 2 + classes], tally[2 + classes :]
    total = float(actual.sum())
    found: dict[str, Any] = {"rows": int(total)}
    if classes <= MOST_CONFUSED:
        table = counts.reshape(classes, classes)
        right, predicted = np.diag(table), table.sum(axis=0)
        found |= {"labels": labels, "confusion": table.astype(int).tolist()}
    else:
        right, predicted = counts.reshape(2, classes)
    if classes > TOP:
        found["top5_accuracy"] = float(top / total)
    f1 = 2 * right / np.maximum(actual + predicted, 1)
    return {
        "loss": float(loss / total),
        "accuracy": float(right.sum() / total),
        "macro_f1": float(f1.mean()),
        **found,
    }
