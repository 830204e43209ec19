"""Numbers for texts from an exported program, with what lies in its folder and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workers.contract.trials import Prediction, Row
from workers.recipes.text_classification import export
from workers.recipes.text_classification.predict import reader


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    read, values_of = reader(folder), export.predictor(folder)

    def predict(rows: list[Row]) -> list[Prediction]:
        said, arrays = read([row["text"] for row in rows])
        values = values_of(*arrays)
        return [Prediction(value=float(value), **about) for value, about in zip(values, said, strict=True)]

    return predict
