"""Gradients of a step: their norms before clipping, and what is done to them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import paddle
from paddle import _C_ops
from paddle.base import core

# Plain lists: for a handful of numbers they are several times as fast as arrays.
Norms = list[float]

_grads_lists: Any = core.eager.get_grads_lists
_squared_l2_norm: Any = vars(_C_ops)["squared_l2_norm"]
_scale_: Any = vars(_C_ops)["scale_"]
_clip_: Any = vars(_C_ops)["clip_"]
# A factor below this would be flushed to zero in float32.
_SMALLEST = 1e-30


class Gradients(NamedTuple):
    tensors: list[Any]  # the very ones that the optimizer will read
    numbers: list[int]  # which of the parameters each belongs to
    half: bool = False  # whether some are in half precision


def dense(model: Any) -> None:
    """Have embeddings give dense gradients: neither AdamW nor any norm or scaling kernel on CPU takes sparse ones."""
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, paddle.nn.Embedding):
            layer._sparse = False


def of(parameters: list[Any]) -> Gradients:
    """The gradients of those parameters that have one."""
    half, brain, single = _grads_lists(parameters)
    in_half = bool(half or brain)  # level O2 without master gradients, on a GPU
    if in_half:
        single = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for tensor in single:
        if tensor.is_selected_rows():
            raise TypeError("a sparse gradient: call embedding with sparse=False, as nn.Embedding layers are made to")
    numbers = list(range(len(parameters)))
    if len(single) < len(parameters):
        numbers = [i for i in numbers if parameters[i].grad is not None]
    return Gradients(single, numbers, in_half)


def squares(gradients: Gradients) -> list[Any]:
    """Squared L2 norm of each gradient, [1], float32, still on the device."""
    with paddle.no_grad():
        tensors = [tensor.astype("float32") for tensor in gradients.tensors] if gradients.half else gradients.tensors
        return [_squared_l2_norm(tensor) for tensor in tensors]


def norms(gradients: Gradients, squares: list[float]) -> Norms:
    """L2 norm of each gradient [n] from its `squares` on the host, in float64.

    A square that overflowed float32, though the elements may well be finite, is taken again in float64: only then does
    it cost anything."""
    result = [math.sqrt(square) for square in squares]
    if math.inf in result:
        with paddle.no_grad():
            for i, norm in enumerate(result):
                if norm == math.inf:
                    result[i] = math.sqrt(_squared_l2_norm(gradients.tensors[i].astype("float64")).item())
    return result


def total(norms: Norms) -> float:
    """The norm of all together. NaN or infinite if any element is."""
    # Correct to the last bit, and fast: a sum of thousands of squares would round at each.
    return math.hypot(*norms)


def norm_of(parameters: list[Any]) -> float:
    """Measured and read at once: the host waits for the device."""
    gradients = of(parameters)
    return total(norms(gradients, paddle.concat(squares(gradients)).tolist()))


def zeros(gradients: Gradients) -> Any:
    """Number of zero elements over all gradients, [1], float32, still on the device: a pass over all of them."""
    with paddle.no_grad():
        counts = [(tensor == 0).astype("float32").sum().reshape([1]) for tensor in gradients.tensors]
        return paddle.concat(counts).sum().reshape([1])


def elements(gradients: Gradients) -> int:
    return sum(math.prod(tensor.shape) for tensor in gradients.tensors)


def shorten(tensors: list[Any], factor: float) -> None:
    """Multiply every gradient in place."""
    factors = [factor] if factor >= _SMALLEST else [math.sqrt(factor)] * 2
    with paddle.no_grad():
        for tensor in tensors:
            for one in factors:
                _scale_(tensor, one, 0.0, True)


def clamp(tensors: list[Any], limit: float) -> bool:
    """Bring every element within ±limit, in place; whether any was outside. One read from the device."""
    with paddle.no_grad():
        largest = max(float(value) for value in paddle.stack([tensor.abs().max() for tensor in tensors]).numpy())
        if largest <= limit:
            return False
        for tensor in tensors:
            _clip_(tensor, -limit, limit)
        return True


def groups(names: list[str]) -> list[str]:
    """Which part of the model each parameter belongs to, by its name: `encoder.layers.3` up to the first number,
    else the two outermost names (`ernie.embeddings`, `classifier`)."""
    found = []
    for name in names:
        path = name.split(".")[:-1]
        number = next((i for i, part in enumerate(path) if part.isdecimal()), None)
        path = path[: number + 1] if number is not None else path[:2]
        found.append(".".join(path) or name)
    return found


def by_group(norms: Norms, numbers: list[int], group_of: list[str]) -> dict[str, float]:
    """Group -> norm, in the order of the model."""
    members: dict[str, list[float]] = {}
    for norm, number in zip(norms, numbers, strict=True):
        members.setdefault(group_of[number], []).append(norm)
    return {group: total(values) for group, values in members.items()}
