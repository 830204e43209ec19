from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from jobs import confusion


def test_figures_per_label_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(1)
    actual = draw.integers(0, 4, 500)
    predicted = np.where(draw.random(500) < 0.6, actual, draw.integers(0, 4, 500))
    counts = confusion_matrix(actual, predicted)
    found = confusion.of({"confusion": counts.tolist(), "labels": list("abcd")})
    assert found is not None and [row.label for row in found.rows] == list("abcd")
    wanted = precision_recall_fscore_support(actual, predicted)
    for place, name in enumerate(("precision", "recall", "f1", "support")):
        assert [getattr(label, name) for label in found.labels] == pytest.approx(list(wanted[place]))
    for row, numbers in zip(found.rows, counts, strict=True):
        assert sum(cell.share for cell in row.cells) == pytest.approx(1)
        assert [cell.count for cell in row.cells] == numbers.tolist()
    off = counts - np.diag(np.diag(counts))
    assert [pair.count for pair in found.pairs] == sorted(off[off > 0].tolist(), reverse=True)


def test_shades_go_by_tenths_of_the_row() -> None:
    found = confusion.of({"confusion": [[0, 1, 99], [50, 50, 0], [0, 0, 100]]})
    assert found is not None
    assert [[cell.tenth for cell in row.cells] for row in found.rows] == [[0, 1, 10], [6, 6, 0], [0, 0, 10]]
    assert [row.label for row in found.rows] == ["0", "1", "2"]


def test_a_label_that_never_occurs_or_is_never_predicted_has_no_share_of_nothing() -> None:
    found = confusion.of({"confusion": [[3, 0, 0], [2, 0, 0], [0, 0, 0]]}, ["a", "b", "c"])
    assert found is not None
    a, b, c = found.labels
    assert (a.precision, a.recall) == (0.6, 1.0) and (b.precision, b.recall, b.f1) == (None, 0.0, 0.0)
    assert (c.precision, c.recall, c.f1, c.support) == (None, None, None, 0)


def test_of_many_labels_there_is_no_table_but_the_worst_labels_and_pairs() -> None:
    counts = (np.eye(400, dtype=int) * 50).tolist()
    counts[7][9], counts[7][7], counts[300][2] = 40, 10, 3
    found = confusion.of({"confusion": counts})
    assert found is not None and found.too_many and found.label_count == 400
    assert [(pair.label, pair.predicted, pair.count) for pair in found.pairs] == [("7", "9", 40), ("300", "2", 3)]
    assert found.labels[0].name == "7" and len(found.labels) == confusion.MOST_LABELS


def test_other_recipes_have_none() -> None:
    assert confusion.of({"loss": 1.0, "mae": 2.0}) is None
