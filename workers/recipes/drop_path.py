"""DropPath (stochastic depth, Huang et al. 2016): in training, the branch beside a residual is left out for whole samples."""

from __future__ import annotations

from typing import Any

import paddle


class DropPath(paddle.nn.Layer):  # type: ignore[misc]
    """Each sample's branch becomes zero with probability `rate`, else is divided by 1 − rate, so that its mean stays."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Any) -> Any:
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        kept = (paddle.rand([x.shape[0]] + [1] * (x.ndim - 1)) < keep).astype(x.dtype)
        return x * kept / keep


def rates(highest: float, layers: int) -> list[float]:
    """From 0 at the first layer linearly to `highest` at the last, as the paper has it; one layer alone gets `highest`."""
    return [highest] if layers == 1 else [highest * i / (layers - 1) for i in range(layers)]


def into_transformer(layers: Any, highest: float) -> None:
    """Into both branches of each paddle.nn.TransformerEncoderLayer, after its dropout and before the sum."""
    if highest == 0.0:
        return
    for layer, rate in zip(layers, rates(highest, len(layers)), strict=True):
        layer.dropout1 = paddle.nn.Sequential(layer.dropout1, DropPath(rate))
        layer.dropout2 = paddle.nn.Sequential(layer.dropout2, DropPath(rate))
