"""Metrics of what was read, from sums that can be added over batches and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from workers.trainer.task import Floats


def edits(read: str, text: str) -> int:
    """Levenshtein's distance: characters to insert, to delete or to change until one is the other."""
    if read == text:
        return 0
    above = list(range(len(text) + 1))
    for i, a in enumerate(read, 1):
        row = [i]
        for j, b in enumerate(text, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


def tally(read: list[str], texts: list[str], loss_sum: float) -> Floats:
    """[loss, rows, rows without a mistake, edits, characters], summed: whole numbers, so that the sums are exact."""
    wrong = [edits(a, b) for a, b in zip(read, texts, strict=True)]
    return np.array([loss_sum, len(texts), wrong.count(0), sum(wrong), sum(map(len, texts))], np.float64)


def metrics(tally: Floats) -> dict[str, Any]:
    """Loss (as trained), character error rate (edits over characters; above 1 if more is read than there is), accuracy of
    whole lines."""
    loss, rows, right, wrong, length = map(float, tally)
    return {"loss": loss / rows, "cer": wrong / max(length, 1.0), "accuracy": right / rows, "rows": int(rows)}
