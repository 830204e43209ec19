"""From JSON Lines to numbers in memory, with checks that name the row.

A row is a sequence: {"id": "17", "features": {"amount": [3.5, …], "gap": [0.1, …]}, "target": 1.25 or "label": "fraud"},
perhaps with a "weight".
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.contract.records import from_json_number
from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.sequences.settings import DataSettings, Goal, Scaling
from workers.recipes.weights import weight_of
from workers.trainer.task import Floats, Rows, TrainingFailed

Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sequences:
    """One split as read: all time steps one after another, and where each sequence begins and ends."""

    ids: list[str]
    features: tuple[str, ...]
    values: Values  # [time steps, features]
    begins: Rows  # [sequences + 1]
    targets: Floats  # [sequences], or empty
    classes: Rows  # [sequences], indices into the labels, or empty
    weights: Floats  # [sequences]


@dataclass(frozen=True)
class Samples:
    """What the model is shown, and what it is to say: time steps from `starts` on, `lengths` of them."""

    starts: Rows
    lengths: Rows
    sequences: Rows  # the row in the split that a sample is of
    targets: Floats  # of numbers
    classes: Rows  # of labels

    def __len__(self) -> int:
        return len(self.starts)


def read(path: Path, settings: DataSettings, labels: list[str]) -> Sequences:
    """The rows of one split. BAD_DATA with the row (from 1) for what is missing or of the wrong kind. A NaN or an infinity
    among the values is a number here: it must be seen in training, with its rank and step."""
    index = {label: i for i, label in enumerate(labels)}
    chosen = chosen_features(settings)
    ids: list[str] = []
    parts: list[Values] = []
    targets: list[float] = []
    classes: list[int] = []
    weights: list[float] = []
    try:
        lines = path.open(encoding="utf-8")
    except FileNotFoundError:
        raise TrainingFailed(EndReason.BAD_DATA, Text("The dataset has no %(file)s.", file=path.name)) from None
    with lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                features: dict[str, list[Any]] = row["features"]
                names = chosen or tuple(features)
                missing = [name for name in names if name not in features]
                if missing:
                    known = ", ".join(features)
                    raise TrainingFailed(
                        EndReason.BAD_SETTINGS,
                        Text(
                            "The dataset has no feature “%(feature)s”; it has: %(known)s.",
                            feature=missing[0],
                            known=known,
                        ),
                    )
                chosen = names
                parts.append(_columns([features[name] for name in names]))
                ids.append(str(row.get("id", number)))
                if settings.goal is Goal.REGRESSION:
                    targets.append(float(from_json_number(row["target"])))
                elif settings.goal is Goal.CLASSIFICATION:
                    classes.append(index[str(row["label"])])
                weights.append(weight_of(row, settings.weight_column, {"row": number, "file": path.name}))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise TrainingFailed(
                    EndReason.BAD_DATA,
                    Text(
                        "Row %(row)d of %(file)s is no sequence that can be used for %(goal)s: %(problem)s.",
                        row=number,
                        file=path.name,
                        goal=str(settings.goal),
                        problem=f"{type(error).__name__}: {error}"[:200],
                    ),
                ) from None
    if not parts:
        raise TrainingFailed(EndReason.BAD_DATA, Text("%(file)s has no rows.", file=path.name))
    begins = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Sequences(
        ids,
        chosen,
        np.concatenate(parts),
        begins,
        np.array(targets, np.float64),
        np.array(classes, np.int64),
        np.array(weights, np.float64),
    )


def chosen_features(settings: DataSettings) -> tuple[str, ...]:
    """As the settings name them; empty: all."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, (settings.features or "").split(",")))))


def predicted_feature(settings: DataSettings, features: tuple[str, ...]) -> int:
    """Which of the features is predicted when the goal is the next value. TrainingFailed if it is not read."""
    name = settings.next_of or features[0]
    if name not in features:
        raise TrainingFailed(
            EndReason.BAD_SETTINGS,
            Text(
                "“%(feature)s” is to be predicted, but it is not among the features that are read: %(known)s.",
                feature=name,
                known=", ".join(features),
            ),
        )
    return features.index(name)


def _columns(columns: list[list[Any]]) -> Values:
    if len({len(column) for column in columns}) != 1 or not columns[0]:
        raise ValueError("its features have different numbers of time steps, or none")
    try:
        return np.array(columns, np.float32).T
    except (ValueError, TypeError):
        # Texts for what is not finite, or what is no number at all.
        return np.array([[float(from_json_number(value)) for value in column] for column in columns], np.float32).T


def samples(sequences: Sequences, settings: DataSettings) -> Samples:
    """One per sequence, or for next values one for every `next_every`-th time step; the oldest steps are cut."""
    begins, ends = sequences.begins[:-1], sequences.begins[1:]
    rows = np.arange(len(begins))
    targets = sequences.targets
    if settings.goal is Goal.NEXT_VALUE:
        # The time step that is predicted; at least one lies before it.
        if settings.next_every is None:
            rows = rows[ends - begins >= 2]
            at = ends[rows] - 1
        else:
            steps = [
                np.arange(end - 1, begin, -settings.next_every)[::-1] for begin, end in zip(begins, ends, strict=True)
            ]
            rows = np.repeat(rows, [len(of_one) for of_one in steps])
            at = np.concatenate(steps)
        feature = predicted_feature(settings, sequences.features)
        targets, ends = sequences.values[at, feature].astype(np.float64), at
        begins = begins[rows]
    starts = np.maximum(begins, ends - settings.max_length)
    return Samples(starts, ends - starts, rows, targets, sequences.classes)


def gather(values: Values, starts: Rows, lengths: Rows) -> Values:
    """[samples, longest, features], zeros after the end of each."""
    steps = np.arange(lengths.max())
    there = steps < lengths[:, None]
    picked: Values = values[np.where(there, starts[:, None] + steps, 0)]
    picked[~there] = 0.0
    return picked


@dataclass(frozen=True)
class Normalisation:
    """What is taken off, and what it is then divided by: of each feature, and of the number that is predicted."""

    shift: list[float]
    scale: list[float]
    target_shift: float = 0.0
    target_scale: float = 1.0


def normalisation(sequences: Sequences, found: Samples, settings: DataSettings) -> Normalisation:
    """Measured on the training rows that are given, in float64, over what is finite."""
    count = len(sequences.features)
    if settings.normalisation is Scaling.NONE:
        return Normalisation([0.0] * count, [1.0] * count)
    measure = middle_and_spread if settings.normalisation is Scaling.ROBUST else mean_and_deviation
    measured = [measure(sequences.values[:, i].astype(np.float64)) for i in range(count)]
    shift, scale = [mean for mean, _ in measured], [deviation for _, deviation in measured]
    if settings.goal is Goal.CLASSIFICATION:
        return Normalisation(shift, scale)
    return Normalisation(shift, scale, *measure(found.targets))


# The middle half of a normal distribution is so many deviations wide.
_NORMAL = 1.349


def middle_and_spread(values: Floats) -> tuple[float, float]:
    """Median, and the width of the middle half, as a standard deviation if the values were normal. Where more than half of
    them are the same, the width is nothing, and the deviation takes its place."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low, median, high = (float(value) for value in np.percentile(finite, [25, 50, 75]))
    spread = (high - low) / _NORMAL
    return (median, spread) if spread > 1e-6 * abs(median) else (median, mean_and_deviation(finite)[1])


def mean_and_deviation(values: Floats) -> tuple[float, float]:
    """(0, 1) for nothing. A deviation of nothing, or so small beside the mean that it is rounding, is 1."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    mean, deviation = float(finite.mean()), float(finite.std())
    if not math.isfinite(deviation) or deviation <= 1e-6 * abs(mean) or deviation == 0.0:
        return (mean, 1.0) if math.isfinite(mean) else (0.0, 1.0)
    return mean, deviation
