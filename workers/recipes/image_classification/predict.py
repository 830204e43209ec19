"""Labels for pictures from an exported program, with what lies in its folder and nothing else: what is tried in the
browser is what is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.trials import Prediction, Row
from workers.images import Pixels
from workers.recipes.image_classification import data, export
from workers.recipes.image_classification.settings import Fit
from workers.recipes.likeliest import likeliest, softmax
from workers.trials.pictures import decoded


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    """Takes about as long as importing Paddle if that is not done yet."""
    about: dict[str, Any] = json.loads((folder / export.ABOUT).read_text(encoding="utf-8"))
    labels: list[str] = about["labels"]
    logits_of = export.predictor(folder)

    def square(picture: bytes) -> Pixels:
        return data.square(picture, about["size"], Fit(about["fit"]))

    def predict(rows: list[Row]) -> list[Prediction]:
        pictures = [decoded(row["picture"], number, square) for number, row in enumerate(rows, 1)]
        return [Prediction(**likeliest(labels, shares)) for shares in softmax(logits_of(np.stack(pictures)))]

    return predict
