"""Norm and clipping, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from workers.trainer import gradients


def parameters(*values: Any) -> list[Any]:
    """One parameter per array, which then is its gradient."""
    made = []
    for value in values:
        array = np.asarray(value, np.float32)
        parameter = paddle.create_parameter(list(array.shape), "float32")
        (parameter * paddle.to_tensor(array)).sum().backward()
        made.append(parameter)
    return made


def test_the_norm_is_that_of_all_gradients_together() -> None:
    draw = np.random.default_rng(0)
    arrays = [draw.normal(size=shape) * 10.0**k for k, shape in enumerate([(300, 70), (70,), (1,), (4, 5, 6)])]
    expected = np.sqrt(sum((array.astype(np.float32).astype(np.float64) ** 2).sum() for array in arrays))
    assert gradients.global_norm(gradients.of(parameters(*arrays))) == pytest.approx(expected, rel=1e-6)


def test_it_does_not_overflow_in_sums_over_tensors() -> None:
    assert gradients.global_norm(gradients.of(parameters([1.5e19], [1.5e19]))) == pytest.approx(2.1213e19, rel=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_element_shows(bad: float) -> None:
    assert not np.isfinite(gradients.global_norm(gradients.of(parameters(np.ones((50, 50)), [0.0, bad]))))


def test_shortening_multiplies_the_gradients_the_optimizer_will_see() -> None:
    made = parameters([3.0, 0.0], [4.0])
    grads = gradients.of(made)
    gradients.shorten(grads, 2.0 / gradients.global_norm(grads))
    assert made[0].grad.numpy() == pytest.approx([1.2, 0.0])
    assert made[1].grad.numpy() == pytest.approx([1.6])


def test_clipping_equals_paddles_own() -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.array([7.0])]
    ours = gradients.of(parameters(*arrays))
    gradients.shorten(ours, 1.5 / gradients.global_norm(ours))
    theirs = parameters(*arrays)
    clipped = paddle.nn.ClipGradByGlobalNorm(1.5)([(parameter, parameter.grad) for parameter in theirs])
    for mine, (_, other) in zip(ours, clipped, strict=True):
        assert mine.numpy() == pytest.approx(other.numpy(), rel=1e-6)


def test_parameters_without_a_gradient_are_left_out() -> None:
    assert gradients.global_norm(gradients.of([paddle.create_parameter([2], "float32"), *parameters([2.0])])) == 2.0
