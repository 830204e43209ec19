"""Numbers or labels for sequences from an exported program, with what lies in its folder and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.trials import Failed, Prediction, Row
from workers.recipes.likeliest import likeliest, softmax
from workers.recipes.sequences import export


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    about: dict[str, Any] = json.loads((folder / export.ABOUT).read_text(encoding="utf-8"))
    predict = export.predictor(folder)
    count, longest = len(about["features"]), about["max_length"]

    def predictions(rows: list[Row]) -> list[Prediction]:
        given = [steps(row["text"], about["features"], number) for number, row in enumerate(rows, 1)]
        read = [values[-longest:] for values in given]
        lengths = np.array([len(values) for values in read])
        values = np.zeros((len(read), lengths.max(), count), np.float32)
        for i, one in enumerate(read):
            values[i, : len(one)] = one
        said = predict(values, lengths)
        return [_prediction(about["labels"], said[i], cut=len(given[i]) > longest) for i in range(len(rows))]

    return predictions


def steps(text: str, features: list[str], row: int) -> Any:
    """“3.5,0.1 2.0,4.5” as [[3.5, 0.1], [2.0, 4.5]]. Raises Failed with what is wrong."""
    values = [[float(value) for value in step.split(",")] for step in text.replace(", ", ",").split()]
    for number, step in enumerate(values, 1):
        if len(step) != len(features):
            raise Failed(
                "Row %(row)d: time step %(step)d has %(count)d values, but the model reads %(expected)d in each: %(features)s.",
                row=row,
                step=number,
                count=len(step),
                expected=len(features),
                features=", ".join(features)[:300],
            )
    return np.array(values, np.float32)


def _prediction(labels: list[str], said: Any, *, cut: bool) -> Prediction:
    if not labels:
        return Prediction(value=float(said), cut=cut)
    return Prediction(**likeliest(labels, softmax(said)), cut=cut)
