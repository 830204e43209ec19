"""The recipe for texts with numbers: real ranks, from rows to an exported program."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.recipes.examples import LARGE, write_numbers
from tests.workers.trainer.conftest import Attempt, Ranks, make_attempt
from workers.recipes.text_regression import metrics


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    write_numbers(tmp_path / "numbered")
    return tmp_path / "numbered"


def test_correlations_are_those_of_numpy_and_of_ranks_by_hand_however_the_rows_are_divided() -> None:
    draw = np.random.default_rng(3)
    actual = np.round(draw.normal(size=40), 1) + LARGE  # with equal values among them
    predicted = actual + draw.normal(size=40)
    whole = metrics.nothing(40)
    for part in (np.arange(0, 13), np.arange(13, 14), np.arange(14, 40)):
        whole = whole + metrics.tally(predicted[part], actual[part], 1.0, LARGE, part, 40)
    found = metrics.metrics(whole)
    assert found["pearson"] == pytest.approx(np.corrcoef(predicted, actual)[0, 1], rel=1e-9)

    def ranks(values: Any) -> Any:
        return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])

    assert found["spearman"] == pytest.approx(np.corrcoef(ranks(predicted), ranks(actual))[0, 1], rel=1e-9)
    assert found["mae"] == pytest.approx(np.abs(predicted - actual).mean())
    assert found["rmse"] == pytest.approx(np.sqrt(((predicted - actual) ** 2).mean()))
    assert metrics.spearman(np.array([1.0, 2, 3]), np.array([2.0, 2, 2])) is None
    assert metrics.spearman(np.array([1.0, 2, 3]), np.array([10.0, 200, 3000])) == pytest.approx(1)
    constant = metrics.tally(np.full(4, 5.0), np.arange(4.0), 1.0, 0.0, np.arange(4), 4)
    assert not {"pearson", "spearman"} & metrics.metrics(constant).keys()


def test_numbers_are_learnt_and_the_exported_program_says_them_in_the_units_of_the_data(
    train: Any, zygote: Any, numbered: Path, tmp_path: Path
) -> None:
    from workers.recipes.text_regression import predict

    options = {"training": {"batch_size": 16, "epochs": 30, "max_steps": None}, "optimizer": {"learning_rate": 1e-2}}
    attempt: Attempt = train("numbers", data=numbered, recipe="text_regression", **options)
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    (plan,) = attempt.events("plan")
    assert (plan["best_by"], plan["lower_is_better"]) == ("mae", True)
    best = [line for line in attempt.events("evaluation") if line["best"]][-1]["metrics"]
    assert best["mae"] < 0.7 * plan["baselines"]["median"] and best["pearson"] > 0.6 and best["spearman"] > 0.6
    assert best["train"]["spearman"] > 0.6

    inference = attempt.folder.artifacts / "inference"
    rows = [json.loads(line) for line in (numbered / "dev.jsonl").read_text().splitlines()]
    ask = predict.load(inference)
    said = np.array([ask([{"text": row["text"]}])[0].value for row in rows])
    actual = np.array([row["label"] for row in rows])
    assert np.abs(said - actual).mean() == pytest.approx(best["mae"], rel=1e-3)
    assert np.corrcoef(said, actual)[0, 1] == pytest.approx(best["pearson"], rel=1e-3)
    (worst,) = attempt.events("worst")
    assert {"text", "label", "predicted", "loss"} <= set(worst["rows"][0])
    for name in ("inference", "model"):
        _run_readme(attempt.folder.artifacts / name)

    # Another job goes on from it under another normalisation, and begins where it was.
    again = make_attempt(
        tmp_path / "again", numbered, recipe="text_regression",
        model={"source": "job", "job": 1}, data={"max_length": 16, "normalise": False},
        optimizer={"learning_rate": 1e-30}, training={"batch_size": 4, "max_steps": 1},
    )  # fmt: skip
    shutil.copytree(attempt.folder.artifacts / "model", again.folder.model)
    ended = Ranks(zygote, again, {}).wait()
    assert ended.outcome()["end_reason"] == "completed", ended.log()
    assert ended.events("evaluation")[-1]["metrics"]["mae"] == pytest.approx(best["mae"], rel=1e-2)


def _run_readme(folder: Path) -> dict[str, Any]:
    lines = [line[4:] for line in (folder / "README.md").read_text().splitlines() if line.startswith("    ")]
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec("\n".join(lines).replace("path/of/this/folder", str(folder)), names)  # noqa: S102
    return names


def test_one_rank_with_twice_the_batch_does_the_same_as_two_ranks(train: Any, numbered: Path) -> None:
    options: dict[str, Any] = {
        "export": False,
        "data": numbered,
        "recipe": "text_regression",
        "regularisation": {"dropout": 0.0},
    }
    one = train("one", world=1, training={"batch_size": 12, "max_steps": 7}, **options)
    two = train("two", world=2, training={"batch_size": 6, "max_steps": 7}, **options)
    for a, b in zip(one.steps(), two.steps(), strict=True):
        assert a["loss_all"] == pytest.approx(b["loss_all"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
    last = [attempt.events("evaluation")[-1]["metrics"] for attempt in (one, two)]
    assert last[0]["spearman"] == pytest.approx(last[1]["spearman"], abs=0.02)
