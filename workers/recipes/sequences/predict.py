"""Numbers or labels for sequences from an exported program, with what lies in its folder and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.trials import Prediction, Row, Score
from workers.recipes.sequences import export


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    about: dict[str, Any] = json.loads((folder / export.ABOUT).read_text(encoding="utf-8"))
    predict = export.predictor(folder)
    count, longest = len(about["features"]), about["max_length"]

    def predictions(rows: list[Row]) -> list[Prediction]:
        given = [steps(row["text"], about["features"]) for row in rows]
        read = [values[-longest:] for values in given]
        lengths = np.array([len(values) for values in read])
        values = np.zeros((len(read), lengths.max(), count), np.float32)
        for i, one in enumerate(read):
            values[i, : len(one)] = one
        said = predict(values, lengths)
        return [_prediction(about["labels"], said[i], cut=len(given[i]) > longest) for i in range(len(rows))]

    return predictions


def steps(text: str, features: list[str]) -> Any:
    """“3.5,0.1 2.0,4.5” as [[3.5, 0.1], [2.0, 4.5]]. Raises ValueError with what is wrong."""
    values = [[float(value) for value in step.split(",")] for step in text.replace(", ", ",").split()]
    for number, step in enumerate(values, 1):
        if len(step) != len(features):
            raise ValueError(
                f"time step {number} has {len(step)} values, but the model reads {len(features)} in each: {', '.join(features)}"
            )
    return np.array(values, np.float32)


def _prediction(labels: list[str], said: Any, *, cut: bool) -> Prediction:
    if not labels:
        return Prediction(value=float(said), cut=cut)
    raised = np.exp(said.astype(np.float64) - said.max())
    shares = np.minimum(raised / raised.sum(), 1.0)
    scores = [Score(label=labels[i], probability=float(shares[i])) for i in np.argsort(-shares, kind="stable")]
    return Prediction(scores=scores, cut=cut)
