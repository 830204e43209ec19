"""The learning rate as a function of applied steps: nothing to save, and skipped steps cannot move it."""

from __future__ import annotations

from dataclasses import dataclass

from workers.contract.training import OptimizerSettings, ScheduleSettings


@dataclass(frozen=True)
class Schedule:
    peak: float
    warmup: int
    total: int
    decay: bool

    @classmethod
    def of(cls, optimizer: OptimizerSettings, schedule: ScheduleSettings, total: int) -> Schedule:
        warmup = schedule.warmup_steps
        if warmup is None:
            warmup = round(schedule.warmup_fraction * total)
        return cls(optimizer.learning_rate, warmup, total, schedule.linear_decay)

    def rate(self, applied: int) -> float:
        """Rate of the step after `applied` applied ones. The first of the warm-up is not zero, and
        the last planned step still moves."""
        if applied < self.warmup:
            return self.peak * (applied + 1) / (self.warmup + 1)
        if not self.decay:
            return self.peak
        return self.peak * max(0, self.total - applied) / max(1, self.total - self.warmup)
