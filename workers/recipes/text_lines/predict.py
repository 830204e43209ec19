"""Texts of pictures from an exported program, with what lies in its folder and nothing else."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from workers.contract.trials import Prediction, Row
from workers.images import NoPicture, upright
from workers.recipes.text_lines import ctc, data, export
from workers.recipes.text_lines.model import read_characters

FIELD = "picture"


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    about: dict[str, Any] = json.loads((folder / export.ABOUT).read_text(encoding="utf-8"))
    height, widest, colour = about["height"], about["max_width"], about["colour"]
    characters, predict = read_characters(folder), export.predictor(folder)

    def predictions(rows: list[Row]) -> list[Prediction]:
        pictures = [_picture(row[FIELD], number) for number, row in enumerate(rows, 1)]
        lines, widths = data.side_by_side([data.scaled(one, height, widest, colour=colour) for one in pictures])
        probabilities, steps = predict(lines.astype(np.float32), widths)
        found = []
        for i, picture in enumerate(pictures):
            reading = ctc.read(probabilities[i, : steps[i]], characters)
            squeezed = round(picture.width * height / picture.height) > widest
            found.append(Prediction(text=reading.text, confidence=min(reading.confidence, 1.0), cut=squeezed))
        return found

    return predictions


def _picture(base64_text: str, number: int) -> Image.Image:
    """Raises ValueError with what is wrong."""
    try:
        return upright(base64.b64decode(base64_text, validate=True))
    except (NoPicture, binascii.Error) as error:
        raise ValueError(f"picture {number} cannot be decoded: {error}") from None
