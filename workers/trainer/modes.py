"""Training and evaluation mode, and the statistics that layers gather in the one and use in the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paddle

from workers.trainer.ranks import Ranks


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """No dropout, no DropPath, statistics used and left alone, no gradients. Afterwards the mode is what it was."""
    was_training = model.training
    model.eval()
    try:
        with paddle.no_grad():
            yield
    finally:
        if was_training:
            model.train()


class Statistics:
    """Means and variances of BatchNorm. A forward pass moves them, also one whose step is then left out. So it may any other
    buffer, but for those that a model names as its `constants`: a copy of one takes 10 µs of each step.

    Every rank gathers those of its own samples; rank 0's are the model's, in checkpoints and in evaluations."""

    def __init__(self, model: Any) -> None:
        layers = model.sublayers(include_self=True)
        norms = [layer for layer in layers if isinstance(layer, paddle.nn.layer.norm._BatchNormBase)]
        constants = getattr(model, "constants", ())
        buffers = [buffer for name, buffer in model.named_buffers() if name not in constants]
        buffers = [buffer for buffer in buffers if buffer.dtype in (paddle.float32, paddle.float64)]
        of_norms = [tensor for norm in norms for tensor in (norm._mean, norm._variance)]
        names = {tensor.name for tensor in of_norms}
        self.tensors = of_norms + [buffer for buffer in buffers if buffer.name not in names]
        self._kept: list[Any] = []

    def remember(self) -> None:
        """Before the forward passes of a step."""
        self._kept = [tensor.detach().clone() for tensor in self.tensors]

    def put_back(self) -> None:
        """The step is not applied: as if there had been none."""
        for tensor, value in zip(self.tensors, self._kept, strict=True):
            tensor.set_value(value)

    def take_from_first(self, ranks: Ranks) -> None:
        """Before an evaluation, which all ranks make together."""
        ranks.take_from_first(self.tensors)
