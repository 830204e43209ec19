"""The learning rate by applied steps."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from workers.contract.training import Decay, OptimizerSettings, ScheduleSettings
from workers.trainer.schedule import Schedule

PEAK = 0.5


def schedule(total: int = 100, **changes: object) -> Schedule:
    return Schedule.of(
        OptimizerSettings(learning_rate=PEAK), ScheduleSettings.model_validate({"warmup_steps": 10, **changes}), total
    )


def test_it_rises_linearly_to_the_peak_and_falls_linearly_to_the_last_step() -> None:
    rates = [schedule().rate(applied) for applied in range(100)]
    assert rates[:10] == pytest.approx([PEAK * (i + 1) / 11 for i in range(10)])
    assert rates[10] == PEAK
    assert rates[55] == pytest.approx(PEAK / 2)
    assert rates[99] == pytest.approx(PEAK / 90)


def test_the_warm_up_is_a_fraction_unless_a_number_of_steps_is_given() -> None:
    assert schedule(warmup_steps=None, warmup_fraction=0.2).warmup == 20
    assert schedule(total=109, warmup_steps=None, warmup_fraction=0.1).warmup == 11
    assert schedule(total=104, warmup_steps=None, warmup_fraction=0.1).warmup == 10
    assert schedule(warmup_steps=0, warmup_fraction=0.2).rate(0) == PEAK


def test_a_warm_up_of_the_whole_plan_ends_below_the_peak_and_what_follows_has_the_final_rate() -> None:
    whole = schedule(total=10, final_fraction=0.1)
    assert whole.rate(9) == pytest.approx(PEAK * 10 / 11)
    assert whole.rate(10) == whole.rate(11) == pytest.approx(PEAK * 0.1)


def test_without_decay_it_stays_at_its_peak() -> None:
    assert schedule(decay="constant").rate(99) == PEAK


def test_cosine_and_polynomial_fall_as_their_formulas_say() -> None:
    for applied in (10, 37, 55, 80, 99):
        left = (100 - applied) / 90
        cosine = 0.5 * (1 + math.cos(math.pi * (1 - left)))
        assert schedule(decay="cosine").rate(applied) == pytest.approx(PEAK * cosine)
        assert schedule(decay="polynomial", power=3.0).rate(applied) == pytest.approx(PEAK * left**3)
    assert schedule(decay="cosine").rate(55) == pytest.approx(PEAK / 2)


@pytest.mark.parametrize("decay", ["linear", "cosine", "polynomial"])
def test_decay_ends_at_the_final_rate(decay: str) -> None:
    ends = schedule(decay=decay, power=2.0, final_fraction=0.1)
    assert ends.rate(10) == PEAK
    assert ends.rate(100) == pytest.approx(PEAK * 0.1)
    half = {"linear": 0.5, "cosine": 0.5, "polynomial": 0.25}[decay]
    assert ends.rate(55) == pytest.approx(PEAK * (0.1 + 0.9 * half)), "it is approached, not cut off at"
    rates = [schedule(decay=decay).rate(applied) for applied in range(10, 101)]
    assert rates == sorted(rates, reverse=True)


def test_settings_of_before_there_were_several_kinds_of_decay_are_read() -> None:
    assert schedule(linear_decay=True).decay is Decay.LINEAR
    assert schedule(linear_decay=False).decay is Decay.CONSTANT
    assert schedule(linear_decay=True, decay="cosine").decay is Decay.COSINE
    with pytest.raises(ValidationError, match="linear_decay is true or false"):
        schedule(linear_decay="perhaps")


def test_beyond_the_plan_the_rate_is_zero_never_negative() -> None:
    assert schedule().rate(150) == 0.0
