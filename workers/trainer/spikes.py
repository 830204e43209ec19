"""Loss spikes: a loss or gradient norm far above what the latest steps had (OLMo's rule: six deviations, over 128 steps)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from workers.contract.training import SpikeAction, SpikeSettings


@dataclass(frozen=True)
class Spike:
    what: str  # loss or grad_norm
    value: float
    mean: float
    deviation: float

    @property
    def sigmas(self) -> float:
        return (self.value - self.mean) / self.deviation if self.deviation else math.inf


class Window:
    """The latest values, with their mean and deviation."""

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self.values: list[float] = []  # the oldest is the next to be overwritten

    def add(self, value: float) -> None:
        if len(self.values) < self.size:
            self.values.append(value)
        else:
            self.values[self.seen % self.size] = value
        self.seen += 1

    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    def deviation(self, mean: float) -> float:
        count = len(self.values)
        return math.dist(self.values, [mean] * count) / math.sqrt(count)

    def state(self) -> dict[str, Any]:
        return {"values": list(self.values), "seen": self.seen}

    def restore(self, state: dict[str, Any]) -> None:
        values, seen = state["values"], state["seen"]
        if len(values) in (seen, self.size) and len(values) <= self.size:
            # In the very same places: another order of addition would differ in the last bit.
            self.values, self.seen = list(values), seen
            return
        # The window has another size today: the latest, oldest first.
        start = seen % len(values) if seen > len(values) else 0
        self.values, self.seen = [], 0
        for value in values[start:] + values[:start]:
            self.add(value)


class Spikes:
    """Fed with what all ranks agreed on, so that all find the same spikes."""

    def __init__(self, settings: SpikeSettings) -> None:
        self.settings = settings
        self.windows = {name: Window(settings.window) for name in ("loss", "grad_norm")}
        self.in_a_row = 0

    def check(self, loss: float, norm: float) -> Spike | None:
        """Of a step whose numbers are finite. Spikes stay out of the window, unless they go on for as long as it takes to
        begin: then that is what is normal now, and the window starts anew."""
        if self.settings.action is SpikeAction.IGNORE:
            return None
        found = None
        for (name, window), value in zip(self.windows.items(), (loss, norm), strict=True):
            if window.seen >= self.settings.active_after and found is None:
                mean = window.mean()
                if value > mean and value > mean + self.settings.sigmas * (deviation := window.deviation(mean)):
                    found = Spike(name, value, mean, deviation)
        self.in_a_row = self.in_a_row + 1 if found else 0
        if self.in_a_row > self.settings.active_after:
            self.windows = {name: Window(self.settings.window) for name in self.windows}
            self.in_a_row, found = 0, None
        if found is None:
            self.windows["loss"].add(loss)
            self.windows["grad_norm"].add(norm)
        return found

    def state(self) -> dict[str, Any]:
        return {"in_a_row": self.in_a_row, **{name: window.state() for name, window in self.windows.items()}}

    def restore(self, state: dict[str, Any] | None) -> None:
        if state:
            self.in_a_row = state["in_a_row"]
            for name, window in self.windows.items():
                window.restore(state[name])
