"""The global norm of the gradient, before clipping, and clipping by it."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import _C_ops
from paddle.base import core

_grads_lists: Any = core.eager.get_grads_lists
_scale_: Any = vars(_C_ops)["scale_"]


def of(parameters: list[Any]) -> list[Any]:
    """Gradients as float32 tensors, in place (O1 keeps weights, and so gradients, in float32)."""
    half, brain, single = _grads_lists(parameters)
    if half or brain:
        raise TypeError("gradients must be float32: this trainer runs AMP level O1 only")
    return list(single)


def global_norm(gradients: list[Any]) -> float:
    """L2 norm over all tensors: one pass, squares summed in float32 per tensor and in float64 over
    tensors. NaN or infinite if any element is."""
    with paddle.no_grad():
        squares = [_C_ops.squared_l2_norm(gradient).reshape([1]) for gradient in gradients]
        return float(paddle.concat(squares).astype("float64").sum().sqrt())


def shorten(gradients: list[Any], factor: float) -> None:
    """Multiply every gradient in place."""
    with paddle.no_grad():
        for gradient in gradients:
            _scale_(gradient, factor, 0.0, True)
