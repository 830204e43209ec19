"""Norms and what is done to gradients, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from workers.trainer import gradients
from workers.trainer.gradients import Gradients


def parameters(*values: Any) -> list[Any]:
    """One parameter per array, which then is its gradient."""
    made = []
    for value in values:
        array = np.asarray(value, np.float32)
        parameter = paddle.create_parameter(list(array.shape), "float32")
        (parameter * paddle.to_tensor(array)).sum().backward()
        made.append(parameter)
    return made


def norms(grads: Gradients) -> Any:
    return gradients.norms(grads, paddle.concat(gradients.squares(grads)).tolist())


def norm_of(*values: Any) -> float:
    return gradients.total(norms(gradients.of(parameters(*values))))


def reference(*values: Any) -> float:
    return float(np.sqrt(sum((np.asarray(value, np.float32).astype(np.float64) ** 2).sum() for value in values)))


def test_the_norm_is_that_of_all_gradients_together() -> None:
    draw = np.random.default_rng(0)
    arrays = [draw.normal(size=shape) * 10.0**k for k, shape in enumerate([(300, 70), (70,), (1,), (4, 5, 6)])]
    assert norm_of(*arrays) == pytest.approx(reference(*arrays), rel=1e-6)
    each = norms(gradients.of(parameters(*arrays)))
    assert each == pytest.approx([reference(array) for array in arrays], rel=1e-6)


def test_norms_that_overflow_float32_are_right() -> None:
    """Squares above 3.4e38, sums of them, and at last a norm that float32 itself cannot hold."""
    for arrays in ([[1.5e19], [1.5e19]], [[1e30, -2e30], [3.0]], [[3e38] * 7, np.full((40, 50), 3e38)]):
        assert norm_of(*arrays) == pytest.approx(reference(*arrays), rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_element_shows(bad: float) -> None:
    assert not np.isfinite(norm_of(np.ones((50, 50)), [0.0, bad]))
    assert not np.isfinite(norm_of([1e38, bad], [1e38]))


def test_zero_gradients_have_a_norm_of_zero() -> None:
    assert norm_of([0.0, 0.0], [[0.0]]) == 0.0


def test_parameters_without_a_gradient_are_left_out() -> None:
    made = [paddle.create_parameter([2], "float32"), *parameters([2.0]), paddle.create_parameter([3], "float32")]
    grads = gradients.of(made)
    assert grads.numbers == [1]
    assert gradients.total(norms(grads)) == 2.0


def test_embeddings_give_dense_gradients_in_which_rows_seen_twice_count_twice() -> None:
    layer = paddle.nn.Embedding(10, 3, sparse=True)
    gradients.dense(paddle.nn.Sequential(layer))
    weight = np.array([[1.0], [10.0], [100.0]], np.float32)
    (layer(paddle.to_tensor([4, 4, 7])) * paddle.to_tensor(weight)).sum().backward()
    grads = gradients.of([layer.weight])
    expected = np.zeros((10, 3))
    expected[4], expected[7] = 11.0, 100.0
    assert gradients.total(norms(grads)) == pytest.approx(reference(expected))
    assert np.array_equal(grads.tensors[0].numpy(), expected)


def test_a_sparse_gradient_is_refused_not_mismeasured() -> None:
    weight = paddle.create_parameter([5, 2], "float32")
    paddle.nn.functional.embedding(paddle.to_tensor([1]), weight, sparse=True).sum().backward()
    with pytest.raises(TypeError, match="sparse=False"):
        gradients.of([weight])


def test_shortening_multiplies_the_gradients_the_optimizer_will_see() -> None:
    made = parameters([3.0, 0.0], [4.0])
    gradients.shorten(gradients.of(made).tensors, 2.0 / 5.0)
    assert made[0].grad.numpy() == pytest.approx([1.2, 0.0])
    assert made[1].grad.numpy() == pytest.approx([1.6])


def test_a_factor_that_float32_cannot_hold_shortens_all_the_same() -> None:
    made = parameters([3e38, 3e38])
    gradients.shorten(gradients.of(made).tensors, 1e-42)
    assert made[0].grad.numpy() == pytest.approx([3e-4, 3e-4])


def test_zeros_are_counted_over_all_gradients() -> None:
    grads = gradients.of(parameters([0.0, 1.0, 0.0], [[-0.0, -2.0]]))
    assert gradients.zeros(grads).item() == 3.0
    assert gradients.elements(grads) == 5


def test_groups_are_the_layers_and_what_is_around_them() -> None:
    names = [
        "ernie.embeddings.word_embeddings.weight",
        "ernie.embeddings.layer_norm.bias",
        "ernie.encoder.layers.0.linear1.weight",
        "ernie.encoder.layers.11.norm2.bias",
        "ernie.pooler.dense.weight",
        "classifier.bias",
        "scale",
    ]
    found = gradients.groups(names)
    assert list(dict.fromkeys(found)) == [
        "ernie.embeddings",
        "ernie.encoder.layers.0",
        "ernie.encoder.layers.11",
        "ernie.pooler",
        "classifier",
        "scale",
    ]
    by_group = gradients.by_group([3.0, 4.0, 2.0], [0, 1, 5], found)
    assert by_group == {"ernie.embeddings": pytest.approx(5.0), "classifier": 2.0}
