"""Evaluation by several ranks is that of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from tests.workers.recipes.examples import write_texts


def test_it_is_exact_for_shards_of_unequal_size(tmp_path: Path, train: Any) -> None:
    write_texts(tmp_path / "uneven", dev=23)  # over three ranks: 8, 8 and 7 rows, in batches of 4
    options = {"data": tmp_path / "uneven", "training": {"max_steps": 30, "batch_size": 4}}
    trained = train("trained", **options)
    start = trained.checkpoints()[-1]
    (one,) = train("one", start_from=start, **options).events("evaluation")
    (three,) = train("three", start_from=start, world=3, **options).events("evaluation")
    assert one["metrics"]["rows"] == three["metrics"]["rows"] == 23
    for of_one, of_three in (
        (one["metrics"], three["metrics"]),
        (one["metrics"].pop("train"), three["metrics"].pop("train")),
    ):
        assert of_one.pop("loss") == pytest.approx(of_three.pop("loss"), rel=1e-6)
        assert of_one == of_three
    assert one["metrics"]["accuracy"] == trained.events("evaluation")[-1]["metrics"]["accuracy"]


def test_a_split_smaller_than_the_ranks_is_evaluated_too(tmp_path: Path, train: Any) -> None:
    write_texts(tmp_path / "two", dev=2)
    (line,) = train("run", world=3, data=tmp_path / "two", training={"max_steps": 2}).events("evaluation")
    assert line["metrics"]["rows"] == 2


def test_a_sample_of_the_training_rows_is_measured_too_without_dropout(tmp_path: Path, train: Any) -> None:
    write_texts(tmp_path / "few", train=16, dev=21)  # fewer than the dev rows: all of them are the sample
    options = {"data": tmp_path / "few", "regularisation": {"dropout": 0.5}, "optimizer": {"learning_rate": 1e-2}}
    run = train("run", training={"max_steps": 60}, checkpoints={"evaluate_every_steps": 30}, **options)
    first, last = (line["metrics"]["train"] for line in run.events("evaluation"))
    assert last.keys() == {"loss", "accuracy", "macro_f1", "rows"} and last["rows"] == 16
    assert last["loss"] < first["loss"] and last["accuracy"] > 0.9
    # Dropout of a half would not let a step's loss come this low.
    assert last["loss"] < min(record["loss_all"] for record in run.steps()[-5:])


def test_the_sample_is_always_the_same_and_never_larger_than_the_dev_split() -> None:
    from types import SimpleNamespace

    import numpy as np

    from workers.trainer.evaluation import MOST_TRAIN_ROWS, train_sample

    def sample(train: int, dev: int, lengths: Any = None) -> Any:
        return train_sample(SimpleNamespace(rows={"train": train, "dev": dev}, lengths=lengths))  # type: ignore[arg-type]

    rows = sample(50_000, 9_000)
    assert len(set(rows.tolist())) == MOST_TRAIN_ROWS and (rows == sample(50_000, 9_000)).all()
    assert len(sample(50_000, 30)) == 30 and sample(10, 30).tolist() == list(range(10))
    lengths = np.arange(1000)[::-1]
    assert (np.diff(lengths[sample(1000, 200, lengths)]) > 0).all()


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
