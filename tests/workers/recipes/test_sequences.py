"""The recipe for numeric sequences: real ranks, from rows to an exported program."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.trainer.conftest import Attempt, settings, write_sequences

STEADY = {"recipe": "sequences", "regularisation": {"dropout": 0.0}}


@pytest.fixture
def sequences(tmp_path: Path) -> Path:
    write_sequences(tmp_path / "sequences")
    return tmp_path / "sequences"


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    write_sequences(tmp_path / "labelled", label=True)
    return tmp_path / "labelled"


def test_numbers_are_learnt_and_the_exported_program_says_them_in_the_units_of_the_data(
    train: Any, sequences: Path, tmp_path: Path
) -> None:
    from workers.recipes.sequences import data, export
    from workers.recipes.sequences.settings import SequencesSettings

    options = {"training": {"batch_size": 16, "epochs": 40, "max_steps": None}, "optimizer": {"learning_rate": 2e-2}}
    attempt: Attempt = train("numbers", data=sequences, recipe="sequences", **options)
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    (plan,) = attempt.events("plan")
    assert (plan["best_by"], plan["lower_is_better"]) == ("mae", True)
    evaluations = attempt.events("evaluation")
    best = [line for line in evaluations if line["best"]][-1]
    assert best["metrics"]["mae"] == min(line["metrics"]["mae"] for line in evaluations)
    assert best["metrics"]["mae"] < 0.7 * plan["baselines"]["median"]
    assert {record["tokens"] for record in attempt.steps()} == {None}

    read = data.read(sequences / "dev.jsonl", SequencesSettings().data, [])
    found = data.samples(read, settings("sequences").data)
    predict = export.predictor(attempt.folder.artifacts / "inference")
    said = predict(data.gather(read.values, found.starts, found.lengths), found.lengths)
    error = np.abs(said - read.targets)
    assert error.mean() == pytest.approx(best["metrics"]["mae"], rel=1e-4)
    assert math.sqrt((error**2).mean()) == pytest.approx(best["metrics"]["rmse"], rel=1e-4)
    variance = ((read.targets - read.targets.mean()) ** 2).sum()
    assert best["metrics"]["r2"] == pytest.approx(1 - (error**2).sum() / variance, rel=1e-3)
    about = json.loads((attempt.folder.artifacts / "inference" / "inference.json").read_text())
    assert about["features"] == ["x", "same"] and about["normalisation"]["scale"][1] == 1.0
