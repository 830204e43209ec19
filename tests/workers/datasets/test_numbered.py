"""What a check says of texts with numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.datasets.test_checking import checked, found, lines  # noqa: F401
from workers.contract.datasets import Reading
from workers.recipes.text_regression.baseline import baselines

NUMBERS = Reading(kind="numbers", format="table", label_column="score", dev_fraction=0.25)
GOOD = "text,score,more\n" + "".join(f"text {i} {'!' * (i % 7)},{i % 7 + 0.5},x\n" for i in range(40))


def test_numbers_are_written_as_numbers_with_what_belongs_to_them(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    outcome = checked(GOOD, reading=NUMBERS)
    assert outcome.fit and outcome.splits == {"train": 30, "dev": 10} and outcome.labels == []
    assert outcome.columns == ["label", "more", "text"]
    row = lines(tmp_path, "train")[0]
    assert isinstance(row["label"], float) and row["more"] == "x"
    numbers = np.array([row["label"] for row in lines(tmp_path, "dev")])
    values = outcome.statistics["target_values"]["dev"]
    assert values["mean"] == pytest.approx(numbers.mean()) and values["max"] == numbers.max()
    trained = np.array([row["label"] for row in lines(tmp_path, "train")])
    expected = np.abs(numbers - np.median(trained)).mean()
    assert outcome.statistics["baselines"] == {"number/median": pytest.approx(expected)}
    simple = baselines(tmp_path / "target")
    assert simple["number/median"] == pytest.approx(expected)
    assert simple["number/ridge_on_characters"] < 0.8 * expected
    assert checked(GOOD, reading=NUMBERS).content_hash == outcome.content_hash
    assert checked(GOOD, reading=NUMBERS.model_copy(update={"seed": 1})).content_hash != outcome.content_hash


def test_rows_that_have_no_number_are_named(checked: Any) -> None:  # noqa: F811
    bad = GOOD + "a,,x\nb,much,x\nc,nan,x\nd,1e39,x\n,1,x\n"
    assert found(checked(bad, reading=NUMBERS)) == {
        "Rows without a number: 1.": [42],
        "Rows whose number is none: 1.": [43],
        "Rows whose number is not finite, or beyond float32: 2.": [44, 45],
        "Rows with an empty text: 1.": [46],
    }
    left = checked(bad, reading=NUMBERS.model_copy(update={"leave_out": True}))
    assert left.fit and "Rows with errors that were left out: 5." in found(left)


def test_rows_may_have_weights(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    weighted = NUMBERS.model_copy(update={"weight_column": "more"})
    outcome = checked(GOOD.replace(",x\n", ",0.5\n") + "a,1,0\nb,2,nan\n", reading=weighted)
    assert outcome.fit and outcome.statistics["weights"].keys() == {"train", "dev"}
    assert found(outcome) == {
        "Rows with the weight 0, from which nothing is learnt: 1.": [42],
        "Rows whose weight is not finite: 1.": [43],
    }
    assert {row["more"] for split in ("train", "dev") for row in lines(tmp_path, split)} == {0.5, 0.0, "nan"}
    assert found(checked(GOOD, reading=weighted))["Rows whose weight is no number of 0 or more: 40."][:2] == [2, 3]


def test_a_number_that_never_changes_teaches_nothing(checked: Any) -> None:  # noqa: F811
    body = "text,score\n" + "".join(f"text {i},1\n" for i in range(20))
    assert "All training rows have the same number: there is nothing to learn." in found(checked(body, reading=NUMBERS))


def test_pairs_have_numbers_too_and_texts_in_both_splits_are_told_of(checked: Any, tmp_path: Path) -> None:  # noqa: F811
    body = "a,b,score,split\nx,y,1,train\nx,z,2,train\nx,y,1,dev\n"
    reading = NUMBERS.model_copy(update={"text_column": "a", "text_b_column": "b", "split_column": "split"})
    outcome = checked(body, reading=reading)
    assert outcome.fit and lines(tmp_path, "dev") == [{"text": "x", "text_b": "y", "label": 1.0, "split": "dev"}]
    assert any("whose text is among the training rows: 1." in text for text in found(outcome))
