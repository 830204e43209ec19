"""What tries of several recipes have in common: labels of an answer, and pictures of a question."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from workers.contract.trials import LARGEST_ANSWER_BYTES, MOST_SCORES, Failed, Prediction
from workers.images import upright
from workers.recipes.likeliest import likeliest, softmax
from workers.trials.pictures import decoded


def test_of_the_largest_label_set_the_likeliest_are_answered_and_the_rest_is_counted() -> None:
    """10,000 labels of 200 Chinese characters are what a dataset may have; 16 rows are what may be tried at once."""
    labels = [f"{i:05d}".ljust(200, "类") for i in range(10_000)]
    logits = np.random.default_rng(1).normal(size=(16, len(labels))).astype(np.float32)
    said = [Prediction(**likeliest(labels, shares)) for shares in softmax(logits)]
    for prediction, row in zip(said, logits, strict=True):
        assert [score.label for score in prediction.scores] == [labels[i] for i in np.argsort(-row)[:MOST_SCORES]]
        assert prediction.less_likely == len(labels) - MOST_SCORES
    body = json.dumps([one.model_dump(mode="json") for one in said], ensure_ascii=False).encode()
    assert len(body) < LARGEST_ANSWER_BYTES / 8


def test_few_labels_are_all_answered() -> None:
    said = Prediction(**likeliest(["a", "b", "c"], softmax(np.array([0.0, 2.0, 2.0], np.float32))))
    assert [score.label for score in said.scores] == ["b", "c", "a"] and said.less_likely == 0
    assert sum(score.probability for score in said.scores) == pytest.approx(1)


def picture(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_a_picture_that_cannot_be_taken_is_named_with_its_size_and_the_limit() -> None:
    assert decoded(picture(80, 20), 1, upright).size == (80, 20)
    with pytest.raises(Failed) as large:
        decoded(picture(8001, 8000), 2, upright)
    assert str(large.value) == ("Picture 2 has 8001 × 8000 pixels, and at most 64 million are taken: make it smaller.")
    for broken, why in (
        (picture(80, 20)[:40], "a broken PNG"),
        ("YWJj", "not a picture; it begins with b'abc'"),
        ("%", ""),
    ):
        with pytest.raises(Failed, match="Picture 3 cannot be decoded") as failed:
            decoded(broken, 3, upright)
        assert why in str(failed.value)
