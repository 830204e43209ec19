"""The learning rate by applied steps."""

from __future__ import annotations

import pytest

from workers.contract.training import OptimizerSettings, ScheduleSettings
from workers.trainer.schedule import Schedule


def schedule(total: int = 100, **changes: object) -> Schedule:
    return Schedule.of(
        OptimizerSettings(learning_rate=1.0), ScheduleSettings.model_validate({"warmup_steps": 10, **changes}), total
    )


def test_it_rises_linearly_to_the_peak_and_falls_linearly_to_the_last_step() -> None:
    rates = [schedule().rate(applied) for applied in range(100)]
    assert rates[0] == pytest.approx(1 / 11)
    assert rates[10] == 1.0
    assert rates[:11] == sorted(rates[:11])
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(1 / 90)


def test_the_warm_up_is_a_fraction_unless_a_number_of_steps_is_given() -> None:
    assert schedule(warmup_steps=None, warmup_fraction=0.2).warmup == 20
    assert schedule(warmup_steps=0, warmup_fraction=0.2).rate(0) == 1.0


def test_without_decay_it_stays_at_its_peak() -> None:
    assert schedule(linear_decay=False).rate(99) == 1.0


def test_beyond_the_plan_the_rate_is_zero_never_negative() -> None:
    assert schedule().rate(150) == 0.0
