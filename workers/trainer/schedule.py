"""The learning rate as a function of applied steps: nothing to save, and skipped steps cannot move it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workers.contract.training import Decay, OptimizerSettings, ScheduleSettings


@dataclass(frozen=True)
class Schedule:
    peak: float
    warmup: int
    total: int
    decay: Decay
    power: float
    final: float  # a share of the peak

    @classmethod
    def of(cls, optimizer: OptimizerSettings, schedule: ScheduleSettings, total: int) -> Schedule:
        warmup = schedule.warmup_steps
        if warmup is None:
            warmup = round(schedule.warmup_fraction * total)
        return cls(optimizer.learning_rate, warmup, total, schedule.decay, schedule.power, schedule.final_fraction)

    def rate(self, applied: int) -> float:
        """Rate of the step after `applied` applied ones. The first of the warm-up is not zero, and
        the last planned step still moves."""
        if applied < self.warmup:
            return self.peak * (applied + 1) / (self.warmup + 1)
        if self.decay is Decay.CONSTANT:
            return self.peak
        left = max(0, self.total - applied) / max(1, self.total - self.warmup)  # from 1 to 0
        if self.decay is Decay.COSINE:
            left = (1 - math.cos(math.pi * left)) / 2
        elif self.decay is Decay.POLYNOMIAL:
            left = left**self.power
        return self.peak * (self.final + (1 - self.final) * left)
