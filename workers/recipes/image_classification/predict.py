"""Labels for pictures from an exported program, with what lies in its folder and nothing else: what is tried in the
browser is what is downloaded."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.trials import Prediction, Row, Score
from workers.images import NoPicture, Pixels
from workers.recipes.image_classification import data, export
from workers.recipes.image_classification.settings import Fit

# An answer has an end, however many labels there are.
MOST_LABELS = 500


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    """Takes about as long as importing Paddle if that is not done yet."""
    about: dict[str, Any] = json.loads((folder / export.ABOUT).read_text(encoding="utf-8"))
    labels: list[str] = about["labels"]
    logits_of = export.predictor(folder)

    def predict(rows: list[Row]) -> list[Prediction]:
        pictures = [
            picture(row["picture"], number, about["size"], Fit(about["fit"])) for number, row in enumerate(rows, 1)
        ]
        return [
            Prediction(
                scores=[
                    Score(label=labels[i], probability=float(shares[i]))
                    for i in np.argsort(-shares, kind="stable")[:MOST_LABELS]
                ]
            )
            for shares in _softmax(logits_of(np.stack(pictures)))
        ]

    return predict


def picture(base64_text: str, number: int, size: int, fit: Fit) -> Pixels:
    """Raises ValueError with what is wrong."""
    try:
        return data.square(base64.b64decode(base64_text, validate=True), size, fit)
    except (NoPicture, binascii.Error) as error:
        raise ValueError(f"picture {number} cannot be decoded: {error}") from None


def _softmax(logits: Any) -> Any:
    raised = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.minimum(raised / raised.sum(axis=-1, keepdims=True), 1.0)
