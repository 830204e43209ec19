"""An exponential moving average of the weights: smoother than the weights themselves, and often better.

It is what is evaluated, kept as the best weights and exported; training itself never sees it. Buffers (statistics of
BatchNorm) are not averaged: they are averages already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle

from workers.trainer.checkpoint import Arrays


class WeightAverage:
    """In float32, one more copy of the weights. `memory` None: there is none, and `in_place` does nothing."""

    def __init__(self, named: list[tuple[str, Any]], memory: float | None, masters: dict[str, Any]) -> None:
        """`masters`: weights in float32 by Paddle's name, where the model's own are in half precision."""
        self.memory, self.named, self.masters = memory, named, masters
        self.averages: list[Any] = []
        if memory is not None:
            self.averages = [parameter.detach().astype("float32").clone() for _, parameter in named]

    def follow(self, applied: int) -> None:
        """After applied step number `applied`. The first steps count for more, so that the initial weights are forgotten."""
        if self.memory is None:
            return
        memory = min(self.memory, (1 + applied) / (10 + applied))
        with paddle.no_grad():
            for average, (_, parameter) in zip(self.averages, self.named, strict=True):
                weight = self.masters.get(parameter.name, parameter)
                average.lerp_(weight.detach().astype("float32"), 1 - memory)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights meanwhile."""
        kept = [parameter.detach().clone() for _, parameter in self.named] if self.memory is not None else []
        self._put(self.averages)
        try:
            yield
        finally:
            self._put(kept)

    def install(self) -> None:
        """The model has them for good: training is over."""
        self._put(self.averages)

    def _put(self, values: list[Any]) -> None:
        for value, (_, parameter) in zip(values, self.named, strict=False):
            parameter.set_value(value.astype(parameter.dtype))

    def state(self) -> Arrays | None:
        if self.memory is None:
            return None
        return {name: np.array(average.numpy()) for (name, _), average in zip(self.named, self.averages, strict=True)}

    def restore(self, state: Arrays | None) -> None:
        """Of a checkpoint; one without an average begins with its weights, which the model has by now."""
        for average, (name, parameter) in zip(self.averages, self.named, strict=False):
            average.set_value(state[name] if state else parameter.detach().astype("float32"))
