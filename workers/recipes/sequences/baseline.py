"""What a model has to beat, on the dev split: who always says the same, who says that nothing will change, and a linear
model on a few numbers per sequence (mean, deviation, least, greatest, last; of each feature).

    python -m workers.recipes.sequences.baseline FOLDER

prints {"<goal>/<name>": mean absolute error, or accuracy of labels} for a folder with train.jsonl and dev.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import RobustScaler

from workers.recipes.sequences import data, metrics
from workers.recipes.sequences.settings import DataSettings, Goal
from workers.trainer.task import Floats


def baselines(folder: Path) -> dict[str, float]:
    """Of every goal that the dataset has what is needed for."""
    found: dict[str, float] = {}
    with (folder / "train.jsonl").open(encoding="utf-8") as lines:
        first = json.loads(lines.readline())
    if "target" in first:
        train, dev = _read(folder, Goal.REGRESSION, [])
        found["regression/median"] = metrics.of_constant(dev.targets, float(np.median(train.targets)))
        model = make_pipeline(RobustScaler(), Ridge()).fit(summaries(train), train.targets)
        found["regression/summaries"] = float(np.abs(model.predict(summaries(dev)) - dev.targets).mean())
    elif "label" in first:
        with (folder / "train.jsonl").open(encoding="utf-8") as lines:
            labels = sorted({str(json.loads(line)["label"]) for line in lines})
        train, dev = _read(folder, Goal.CLASSIFICATION, labels)
        found["classification/majority"] = float((dev.classes == np.bincount(train.classes).argmax()).mean())
        classifier = make_pipeline(RobustScaler(), LogisticRegression(max_iter=1000))
        found["classification/summaries"] = float(
            classifier.fit(summaries(train), train.classes).score(summaries(dev), dev.classes)
        )
    train, dev = _read(folder, Goal.NEXT_VALUE, [])
    settings = DataSettings(goal=Goal.NEXT_VALUE)
    of_train, of_dev = data.samples(train, settings), data.samples(dev, settings)
    if len(of_train) and len(of_dev):
        found["next_value/median"] = metrics.of_constant(of_dev.targets, float(np.median(of_train.targets)))
        last = dev.values[of_dev.starts + of_dev.lengths - 1, 0]
        found["next_value/last_value"] = float(np.abs(of_dev.targets - last).mean())
    return found


def _read(folder: Path, goal: Goal, labels: list[str]) -> tuple[data.Sequences, data.Sequences]:
    settings = DataSettings(goal=goal)
    return data.read(folder / "train.jsonl", settings, labels), data.read(folder / "dev.jsonl", settings, labels)


def summaries(sequences: data.Sequences) -> Floats:
    """[sequences, 5 × features]"""
    rows = []
    for begin, end in zip(sequences.begins[:-1], sequences.begins[1:], strict=True):
        values = sequences.values[begin:end].astype(np.float64)
        parts = (values.mean(0), values.std(0), values.min(0), values.max(0), values[-1])
        rows.append(np.concatenate(parts))
    return np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    json.dump(baselines(parser.parse_args().folder), sys.stdout)


if __name__ == "__main__":
    main()
