"""Clipping: how long a gradient may be at most, and what is done to one that is longer.

The adaptive modes learn the limit from the norms of the job's own applied steps. ZClip (Kumar et al. 2025) keeps a
running mean and variance, which are fed with the norm *after* clipping, so that a spike does not raise what is taken
for normal. AutoClip (Seetharaman et al. 2020) takes a percentile of the latest norms; those go in unclipped, since a
percentile of clipped norms could only ever fall, and one spike among many does not move it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Any

from workers.contract.training import ClipMode, ClippingSettings
from workers.trainer import gradients
from workers.trainer.gradients import Gradients, Norms

# Keeps the z-score finite while all norms are equal.
_EPSILON = 1e-6


class Clipper:
    """`limit` is the threshold in force for the next step; None: nothing is clipped."""

    def __init__(self, settings: ClippingSettings, parameters: list[Any]) -> None:
        self.settings = settings
        # Paddle's own mark of parameters that clipping leaves alone; they do not count in its norm either.
        self.spared = {i for i, parameter in enumerate(parameters) if not getattr(parameter, "need_clip", True)}
        self.history: ZClip | AutoClip | None = None
        if settings.mode is ClipMode.ZCLIP:
            self.history = ZClip(settings)
        elif settings.mode is ClipMode.AUTOCLIP:
            self.history = AutoClip(settings)

    @property
    def limit(self) -> float | None:
        mode, most = self.settings.mode, self.settings.max_norm
        if mode is ClipMode.NONE:
            return None
        if mode is ClipMode.VALUE:
            return self.settings.max_value
        learnt = self.history.limit if self.history else None
        return min((limit for limit in (learnt, most) if limit is not None), default=None)

    def clip(self, grads: Gradients, norms: Norms) -> bool:
        """Clip the finite gradients of a step that will be applied; whether anything was changed."""
        limit, tensors = self.limit, grads.tensors
        if self.spared:
            kept = [i for i, number in enumerate(grads.numbers) if number not in self.spared]
            tensors, norms = [tensors[i] for i in kept], [norms[i] for i in kept]
        if self.settings.mode is ClipMode.VALUE:
            return limit is not None and bool(tensors) and gradients.clamp(tensors, limit)
        if self.settings.mode is ClipMode.PER_TENSOR:
            return limit is not None and _each(tensors, norms, limit)
        norm = gradients.total(norms)
        length = norm
        if limit is not None and norm > limit:
            length = limit
            if isinstance(self.history, ZClip):
                length = min(limit, self.history.length(norm))
            gradients.shorten(tensors, length / norm)
        if self.history:
            self.history.feed(norm, length)
        return length < norm

    def state(self) -> dict[str, Any] | None:
        return {"mode": str(self.settings.mode), **self.history.state()} if self.history else None

    def restore(self, state: dict[str, Any] | None) -> None:
        """What was learnt before, if it was learnt in the same way."""
        if self.history and state and state["mode"] == self.settings.mode:
            self.history.restore(state)


def _each(tensors: list[Any], norms: Norms, limit: float) -> bool:
    clipped = False
    for tensor, norm in zip(tensors, norms, strict=True):
        if norm > limit:
            gradients.shorten([tensor], limit / norm)
            clipped = True
    return clipped


class ZClip:
    """Mean and variance of the norm as exponential moving averages; longer than z standard deviations above the mean is
    a spike. The further above, the more it is cut: to mean + z²·σ/its own z."""

    def __init__(self, settings: ClippingSettings) -> None:
        self.z, self.memory, self.warmup = settings.z_limit, settings.memory, settings.adaptive_warmup
        self.first: list[float] = []  # until warmed up
        self.mean = self.variance = 0.0

    @property
    def limit(self) -> float | None:
        if len(self.first) < self.warmup:
            return None
        return self.mean + self.z * (math.sqrt(self.variance) + _EPSILON)

    def length(self, norm: float) -> float:
        if len(self.first) < self.warmup:
            return norm
        deviation = math.sqrt(self.variance)
        z = (norm - self.mean) / (deviation + _EPSILON)
        return norm if z <= self.z else self.mean + self.z * deviation * self.z / z

    def feed(self, norm: float, length: float) -> None:
        if len(self.first) < self.warmup:
            self.first.append(length)
            self.mean = math.fsum(self.first) / len(self.first)
            self.variance = math.fsum((value - self.mean) ** 2 for value in self.first) / len(self.first)
            return
        self.mean = self.memory * self.mean + (1 - self.memory) * length
        self.variance = self.memory * self.variance + (1 - self.memory) * (length - self.mean) ** 2

    def state(self) -> dict[str, Any]:
        return {"first": self.first, "mean": self.mean, "variance": self.variance}

    def restore(self, state: dict[str, Any]) -> None:
        self.first, self.mean, self.variance = list(state["first"]), state["mean"], state["variance"]


class AutoClip:
    """A percentile of the norms of the latest applied steps, linear between neighbours."""

    def __init__(self, settings: ClippingSettings) -> None:
        self.percentile, self.warmup = settings.percentile, settings.adaptive_warmup
        self.latest: deque[float] = deque(maxlen=settings.history)
        self.ordered: list[float] = []

    @property
    def limit(self) -> float | None:
        if len(self.ordered) < self.warmup:
            return None
        place = (len(self.ordered) - 1) * self.percentile / 100
        low = math.floor(place)
        high = min(low + 1, len(self.ordered) - 1)
        return self.ordered[low] + (self.ordered[high] - self.ordered[low]) * (place - low)

    def feed(self, norm: float, length: float) -> None:
        if len(self.latest) == self.latest.maxlen:
            del self.ordered[bisect_left(self.ordered, self.latest[0])]
        self.latest.append(norm)
        insort(self.ordered, norm)

    def state(self) -> dict[str, Any]:
        return {"latest": list(self.latest)}

    def restore(self, state: dict[str, Any]) -> None:
        self.latest.clear()
        self.latest.extend(state["latest"])
        self.ordered = sorted(self.latest)
