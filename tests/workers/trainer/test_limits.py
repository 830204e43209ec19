"""When an attempt gives up, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from workers.contract.training import LimitSettings
from workers.trainer.limits import Limits, StepFacts
from workers.trainer.task import TrainingFailed

NAN = float("nan")


def facts(step: int, **changes: Any) -> StepFacts:
    values = {
        "step": step,
        "loss": 0.7,
        "losses": [0.6, 0.8],
        "bad_inputs": [],
        "bad_losses": [],
        "bad_gradients": [],
        "grad_norm": 1.0,
        "loss_scale": None,
        "skipped": None,
    }
    return StepFacts(**{**values, **changes})


def limits(**changes: Any) -> Limits:
    return Limits(LimitSettings.model_validate({"skip_limit": 3, **changes}))


def feed(limits: Limits, *steps: StepFacts) -> TrainingFailed:
    for step in steps[:-1]:
        limits.check(step)
    with pytest.raises(TrainingFailed) as caught:
        limits.check(steps[-1])
    return caught.value


def test_skips_in_a_row_end_the_attempt_and_the_first_one_is_explained() -> None:
    bad = {"loss": NAN, "losses": [0.6, NAN], "bad_losses": [1], "grad_norm": NAN, "skipped": "non_finite_loss"}
    end = feed(limits(), facts(341, **bad), facts(342, **bad), facts(343, **bad))
    assert (end.reason, end.rank, end.step) == ("non_finite", 1, 341)
    assert end.detail == (
        "At step 341 the loss of rank 1 was nan. All 3 steps from 341 to 343 were skipped. "
        "The weights are those of the step before."
    )


def test_one_good_step_in_between_starts_the_count_anew() -> None:
    several = limits()
    for step in range(1, 20):
        several.check(facts(step, skipped="non_finite_grad" if step % 3 else None, grad_norm=NAN if step % 3 else 1.0))


def test_overflow_at_every_scale_is_a_collapse() -> None:
    end = feed(limits(), *(facts(i, loss_scale=2.0 ** (4 - i), skipped="found_inf", grad_norm=NAN) for i in (1, 2, 3)))
    assert end.reason == "loss_scale_collapsed"
    assert "gradients overflowed at a loss scale of 8" in end.detail
    assert "The loss scale went from 8 to 2." in end.detail


def test_one_non_finite_loss_among_overflows_is_no_collapse() -> None:
    steps = [facts(i, loss_scale=8.0, skipped="found_inf", grad_norm=NAN) for i in (1, 2)]
    last = facts(3, loss_scale=2.0, skipped="non_finite_loss", losses=[NAN, NAN], bad_losses=[0, 1])
    assert feed(limits(), *steps, last).reason == "non_finite"


def test_a_broken_input_is_named_with_its_rank() -> None:
    bad = {"bad_inputs": [0], "bad_losses": [0], "losses": [NAN, 0.8], "skipped": "non_finite_input"}
    end = feed(limits(skip_limit=1), facts(5, **bad))
    assert end.rank == 0
    assert end.detail.startswith("At step 5 the input of rank 0 held a number that is not finite (its loss: nan).")


def test_no_single_rank_is_blamed_when_all_were_bad() -> None:
    bad = {"bad_losses": [0, 1], "losses": [NAN, NAN], "skipped": "non_finite_loss"}
    end = feed(limits(skip_limit=1), facts(5, **bad))
    assert end.rank is None
    assert "the loss of every rank was nan, nan" in end.detail


def test_a_high_loss_that_stays_is_divergence() -> None:
    end = feed(limits(loss_limit=10.0), *(facts(i, loss=10.0 + i) for i in (1, 2, 3)))
    assert (end.reason, end.step) == ("diverged", 1)
    assert "above its limit of 10 in 3 applied steps in a row: 11 at step 1, 13 at step 3" in end.detail


def test_a_high_gradient_norm_that_stays_is_divergence() -> None:
    end = feed(limits(grad_norm_limit=5.0), *(facts(i, grad_norm=6.0) for i in (1, 2, 3)))
    assert end.reason == "diverged"
    assert "gradient norm" in end.detail


def test_a_loss_or_norm_at_its_limit_is_not_above_it() -> None:
    at = limits(loss_limit=10.0, grad_norm_limit=5.0)
    for step in range(1, 20):
        at.check(facts(step, loss=10.0, grad_norm=5.0))


def test_a_skipped_step_neither_adds_to_high_losses_in_a_row_nor_ends_them() -> None:
    high, bad = {"loss": 11.0}, {"skipped": "spike", "loss": 99.0, "grad_norm": 99.0}
    end = feed(limits(loss_limit=10.0), facts(1, **high), facts(2, **bad), facts(3, **high), facts(4, **high))
    assert end.reason == "diverged" and "in 3 applied steps in a row: 11 at step 1, 11 at step 4" in end.detail
    several = limits(loss_limit=10.0, grad_norm_limit=5.0)
    for step in range(1, 20):
        several.check(facts(step, **(bad if step % 3 == 0 else high if step % 3 == 1 else {})))


def test_no_limit_means_none() -> None:
    without = limits(loss_limit=None, grad_norm_limit=None)
    for step in range(1, 50):
        without.check(facts(step, loss=1e30, grad_norm=1e30))
