"""From logits to the labels that an answer names, when an exported model is tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workers.contract.trials import MOST_SCORES, Score


def softmax(logits: Any) -> Any:
    """Over the last axis, in float64."""
    raised = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.minimum(raised / raised.sum(axis=-1, keepdims=True), 1.0)


def likeliest(labels: Sequence[str], shares: Any) -> dict[str, Any]:
    """What a `Prediction` says of one row's probabilities [labels]; among equals the first."""
    order = np.argsort(-shares, kind="stable")[:MOST_SCORES]
    scores = [Score(label=labels[i], probability=float(shares[i])) for i in order]
    return {"scores": scores, "less_likely": len(labels) - len(scores)}
