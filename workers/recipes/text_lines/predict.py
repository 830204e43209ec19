"""Texts of pictures from an exported program, with what lies in its folder and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.trials import Prediction, Row
from workers.images import upright
from workers.recipes.text_lines import ctc, data, export
from workers.recipes.text_lines.model import read_characters
from workers.trials.pictures import decoded

FIELD = "picture"


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    about: dict[str, Any] = json.loads((folder / export.ABOUT).read_text(encoding="utf-8"))
    height, widest, colour = about["height"], about["max_width"], about["colour"]
    characters, predict = read_characters(folder), export.predictor(folder)

    def predictions(rows: list[Row]) -> list[Prediction]:
        scaled, squeezed = [], []
        for number, row in enumerate(rows, 1):
            # One by one: decoded, sixteen large ones would fill the memory.
            picture = decoded(row[FIELD], number, upright)
            scaled.append(data.scaled(picture, height, widest, colour=colour))
            squeezed.append(round(picture.width * height / picture.height) > widest)
        lines, widths = data.side_by_side(scaled)
        probabilities, steps = predict(lines.astype(np.float32), widths)
        found = []
        for i, cut in enumerate(squeezed):
            reading = ctc.read(probabilities[i, : steps[i]], characters)
            found.append(Prediction(text=reading.text, confidence=min(reading.confidence, 1.0), cut=cut))
        return found

    return predictions
