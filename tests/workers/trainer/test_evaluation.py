"""Evaluation by several ranks is that of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from tests.workers.trainer.conftest import write_dataset


def test_it_is_exact_for_shards_of_unequal_size(tmp_path: Path, train: Any) -> None:
    write_dataset(tmp_path / "uneven", dev=23)  # over three ranks: 8, 8 and 7 rows, in batches of 4
    options = {"data": tmp_path / "uneven", "training": {"max_steps": 30, "batch_size": 4}}
    trained = train("trained", **options)
    start = trained.checkpoints()[-1]
    (one,) = train("one", start_from=start, **options).events("evaluation")
    (three,) = train("three", start_from=start, world=3, **options).events("evaluation")
    assert one["metrics"]["rows"] == three["metrics"]["rows"] == 23
    assert one["metrics"]["loss"] == pytest.approx(three["metrics"]["loss"], rel=1e-6)
    assert {k: v for k, v in one["metrics"].items() if k != "loss"} == {
        k: v for k, v in three["metrics"].items() if k != "loss"
    }
    assert one["metrics"]["accuracy"] == trained.events("evaluation")[-1]["metrics"]["accuracy"]


def test_a_split_smaller_than_the_ranks_is_evaluated_too(tmp_path: Path, train: Any) -> None:
    write_dataset(tmp_path / "two", dev=2)
    (line,) = train("run", world=3, data=tmp_path / "two", training={"max_steps": 2}).events("evaluation")
    assert line["metrics"]["rows"] == 2


def test_metrics_are_those_of_scikit_learn() -> None:
    import numpy as np

    from workers.recipes.text_classification.metrics import metrics, tally

    draw = np.random.default_rng(3)
    actual, predicted = draw.integers(0, 3, 200), draw.integers(0, 3, 200)
    halves = [tally(predicted[part], actual[part], 10.0, 4) for part in (slice(0, 77), slice(77, None))]
    result = metrics(halves[0] + halves[1], ["a", "b", "c", "never"])
    assert result["loss"] == 0.1
    assert result["accuracy"] == pytest.approx(accuracy_score(actual, predicted))
    assert result["macro_f1"] == pytest.approx(
        f1_score(actual, predicted, labels=[0, 1, 2, 3], average="macro", zero_division=0)
    )
    assert result["confusion"] == confusion_matrix(actual, predicted, labels=[0, 1, 2, 3]).tolist()


def test_it_happens_after_each_epoch_unless_a_number_of_steps_is_set(train: Any) -> None:
    epochs = train("epochs", training={"epochs": 2, "max_steps": None, "batch_size": 16})
    assert [line["step"] for line in epochs.events("evaluation")] == [4, 8]
    steps = train("steps", training={"max_steps": 7}, checkpoints={"evaluate_every_steps": 3})
    assert [line["step"] for line in steps.events("evaluation")] == [3, 6, 7]


def test_the_model_is_in_training_mode_again_afterwards(train: Any) -> None:
    """With dropout, a step after an evaluation equals that step of a run without the evaluation."""
    often = train("often", training={"max_steps": 6}, checkpoints={"evaluate_every_steps": 1})
    never = train("never", training={"max_steps": 6}, checkpoints={"evaluate_every_steps": 1000})
    assert [record["loss"] for record in often.steps()] == [record["loss"] for record in never.steps()]
