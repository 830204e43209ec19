"""What the trainer says of spikes, rewinds and loss scales, as lines on the page."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.controller import reports
from jobs.models import Attempt, JobEvent
from jobs.templatetags.evenkeel import in_words

pytestmark = pytest.mark.django_db
AT = "2026-03-01T10:00:00Z"


def told(attempt: Attempt, **line: Any) -> JobEvent:
    reports.apply(attempt, 0, {"at": AT, **line}, {})
    return JobEvent.objects.latest("id")


def test_a_spike_says_what_rose_and_how_far(attempt: Attempt) -> None:
    spike = {"kind": "spike", "step": 90, "value": 7.5, "mean": 0.5, "deviation": 0.1, "sigmas": 70.0}
    event = told(attempt, **spike, what="loss", skipped=False)
    assert (event.step, in_words(event)) == (90, "Spike: loss 7.5, 70 deviations above the mean of 0.5")
    event = told(attempt, **spike | {"sigmas": "inf"}, what="grad_norm", skipped=True)
    assert in_words(event) == "Spike: gradient norm 7.5, ∞ deviations above the mean of 0.5; the step was skipped"


def test_a_rewind_says_where_to_and_why(attempt: Attempt) -> None:
    event = told(attempt, kind="rewind", step=95, to_step=50, to_applied=49, segment=1, why="non_finite_loss")
    assert event.step == 95
    assert in_words(event) == "Went back to the checkpoint of step 50 and on with the next batch (loss not finite)."


def test_a_loss_scale_names_the_ranks_that_overflowed_where_that_is_known(attempt: Attempt) -> None:
    scale = {"kind": "scale", "step": 3, "old": 1024.0, "new": 512.0}
    assert in_words(told(attempt, **scale)).endswith("2⁹")
    assert in_words(told(attempt, **scale, ranks=[1])).endswith("2⁹; overflowed on rank 1")


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "scale", "old": {}, "new": 1},
        {"kind": "scale", "old": 2, "new": 1, "ranks": True},
        {"kind": "rewind", "why": True, "to_step": "x"},
        {"kind": "spike", "value": [], "sigmas": {}, "mean": "nan"},
    ],
)
def test_an_event_of_nonsense_is_still_a_line(attempt: Attempt, line: dict[str, Any]) -> None:
    assert in_words(told(attempt, step=7, **line))
