"""The optimizer, with its exclusions from decay and its rates by depth."""

from __future__ import annotations

from typing import Any

import paddle
from paddle.regularizer import L2Decay

from workers.contract.training import OptimizerKind, OptimizerSettings
from workers.trainer import gradients

_NORMS: tuple[Any, ...] = (
    paddle.nn.LayerNorm,
    paddle.nn.GroupNorm,
    paddle.nn.layer.norm._BatchNormBase,
    paddle.nn.layer.norm._InstanceNormBase,
)


def build(model: Any, settings: OptimizerSettings) -> Any:
    named = [(name, parameter) for name, parameter in model.named_parameters() if not parameter.stop_gradient]
    _slow_down(named, settings.layer_decay)
    decayed = _decayed(model, named, settings.undecayed)
    if settings.kind is OptimizerKind.ADAMW:
        return paddle.optimizer.AdamW(
            learning_rate=settings.learning_rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            epsilon=settings.epsilon,
            weight_decay=settings.weight_decay,
            parameters=model.parameters(),
            apply_decay_param_fun=lambda name: name in decayed,
        )
    # Momentum adds what its regularizer says to the gradient, after clipping: coupled decay.
    for _, parameter in named:
        parameter.regularizer = L2Decay(settings.weight_decay) if parameter.name in decayed else None
    return paddle.optimizer.Momentum(
        learning_rate=settings.learning_rate, momentum=settings.momentum, parameters=model.parameters()
    )


def _decayed(model: Any, named: list[tuple[str, Any]], undecayed: str | None) -> set[str]:
    """Paddle's names of the parameters that are decayed."""
    parts = [part.strip() for part in (undecayed or "").split(",") if part.strip()]
    norms: set[str] = set()
    if "norm" in parts:
        layers = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, _NORMS)]
        norms = {parameter.name for layer in layers for parameter in layer.parameters(include_sublayers=False)}
    return {
        parameter.name
        for name, parameter in named
        if parameter.name not in norms and not any(part in name for part in parts)
    }


def _slow_down(named: list[tuple[str, Any]], decay: float) -> None:
    """Layer by layer from the top, the rate is multiplied with `decay` once more."""
    if decay == 1.0:
        return
    depths = depth_of([name for name, _ in named])
    for (_, parameter), depth in zip(named, depths, strict=True):
        parameter.optimize_attr["learning_rate"] *= decay ** (max(depths) - depth)


def depth_of(names: list[str]) -> list[int]:
    """Depth of each parameter: numbered layers count from 1; what comes before the first is 0, what comes after, the top."""
    groups = gradients.groups(names)
    layers = list(dict.fromkeys(group for group in groups if group.rpartition(".")[2].isdecimal()))
    depths, seen = [], False
    for group in groups:
        if group in layers:
            seen = True
            depths.append(layers.index(group) + 1)
        else:
            depths.append(len(layers) + 1 if seen or not layers else 0)
    return depths
