"""Texts of pictures from an exported program, with what lies in its folder and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.trials import Prediction, Row
from workers.images import upright
from workers.recipes.text_lines import ctc, data, export
from workers.recipes.text_lines.model import read_characters

FIELD = "picture"


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    about: dict[str, Any] = json.loads((folder / export.ABOUT).read_text(encoding="utf-8"))
    height, widest, colour = about["height"], about["max_width"], about["colour"]
    characters, predict = read_characters(folder), export.predictor(folder)

    def predictions(rows: list[Row]) -> list[Prediction]:
        files = [base64.b64decode(row[FIELD], validate=True) for row in rows]
        lines = [data.scaled(file, height, widest, colour=colour) for file in files]
        pictures, widths = data.side_by_side(lines)
        probabilities, steps = predict(pictures.astype(np.float32), widths)
        found = []
        for i, file in enumerate(files):
            reading = ctc.read(probabilities[i, : steps[i]], characters)
            width, high = upright(file).size
            squeezed = round(width * height / high) > widest
            found.append(Prediction(text=reading.text, confidence=min(reading.confidence, 1.0), cut=squeezed))
        return found

    return predictions
