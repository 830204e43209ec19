from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jobs.health import health, progress
from workers.contract.states import EndReason, Status

NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
RECORD = {"loss": 0.5, "grad_norm": 1.2, "loss_scale": 65536.0, "t": 100.0, "step_ms": 100.0}


def word(**changes: Any) -> str:
    facts: dict[str, Any] = {
        "status": Status.RUNNING,
        "end_reason": "",
        "attempted": 1000,
        "skipped": 0,
        "clipped": 100,
        "newest": RECORD,
        "started_at": NOW - timedelta(seconds=101),
        "now": NOW,
    }
    return health(**facts | changes).word


def test_an_ordinary_run_is_healthy() -> None:
    assert word() == "healthy"


def test_ranks_that_differed_are_unhealthy_and_one_that_was_killed_had_healthy_numbers() -> None:
    assert word(status=Status.FAILED, end_reason="ranks_differ") == "unhealthy"
    facts: dict[str, Any] = {"attempted": 1000, "skipped": 0, "clipped": 0, "newest": RECORD}
    times = {"started_at": NOW - timedelta(seconds=101), "now": NOW}
    killed = health(status=Status.FAILED, end_reason="crashed_by_signal", **facts, **times)
    assert (killed.word, killed.label) == ("healthy", "numbers were healthy") and "lies elsewhere" in killed.why
    assert health(status=Status.RUNNING, end_reason="", **facts, **times).label == "healthy"


def test_before_the_first_step_there_is_nothing_to_judge() -> None:
    assert word(attempted=0, newest={}) == ""


@pytest.mark.parametrize(
    ("attempted", "skipped", "expected"),
    [
        (1000, 2, "healthy"),  # 0.2 %
        (100, 16, "healthy"),  # the scale is still looking for its place
        (10_000, 15, "healthy"),
        (10_000, 21, "watch"),  # 0.21 %
        (1000, 20, "watch"),  # 2 %
        (1000, 21, "unhealthy"),
        (499, 100, "watch"),  # too few steps for a verdict
        (499, 11, "healthy"),
        (500, 11, "unhealthy"),
    ],
)
def test_skipped_steps_by_their_share(attempted: int, skipped: int, expected: str) -> None:
    assert word(attempted=attempted, skipped=skipped, clipped=0) == expected


def test_without_loss_scaling_no_skip_is_part_of_a_search() -> None:
    plain = RECORD | {"loss_scale": None}
    assert word(attempted=100, skipped=1, clipped=0, newest=plain) == "watch"
    assert word(attempted=1000, skipped=2, clipped=0, newest=plain) == "healthy"


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ({"loss": "nan"}, "unhealthy"),
        ({"loss": "inf"}, "unhealthy"),
        ({"grad_norm": "nan", "loss_scale": None}, "unhealthy"),
        ({"grad_norm": "inf"}, "healthy"),  # an overflow that loss scaling is there for
        ({"loss_scale": 0.5}, "unhealthy"),
        ({"loss_scale": 1.0}, "healthy"),
        ({"loss_scale": None}, "healthy"),
        ({"skips_in_a_row": 9}, "healthy"),
        ({"skips_in_a_row": 10}, "unhealthy"),
    ],
)
def test_the_newest_record_decides(newest: dict[str, Any], expected: str) -> None:
    assert word(newest=RECORD | newest) == expected


def test_mostly_clipped_is_worth_a_look() -> None:
    assert word(clipped=500) == "healthy"
    assert word(clipped=501) == "watch"
    assert word(attempted=49, clipped=49) == "healthy"
    assert word(attempted=50, clipped=26) == "watch"


def test_a_run_without_steps_for_long_is_worth_a_look() -> None:
    started = NOW - timedelta(seconds=100)
    assert word(started_at=started - timedelta(seconds=119)) == "healthy"
    assert word(started_at=started - timedelta(seconds=121)) == "watch"
    # Fifty of its own steps are no long silence.
    slow = RECORD | {"step_ms": 10_000.0}
    assert word(newest=slow, started_at=started - timedelta(seconds=400)) == "healthy"
    assert word(status=Status.SUCCEEDED, started_at=started - timedelta(hours=9)) == "healthy"


def test_unresponsive_or_ended_by_instability_is_unhealthy() -> None:
    assert word(status=Status.UNRESPONSIVE) == "unhealthy"
    for reason in (EndReason.NON_FINITE, EndReason.DIVERGED, EndReason.LOSS_SCALE_COLLAPSED):
        assert word(status=Status.FAILED, end_reason=reason.value) == "unhealthy"
    assert word(status=Status.FAILED, end_reason=EndReason.HOST_LOST.value) == "healthy"


def test_progress_and_the_time_left_at_the_pace_so_far() -> None:
    made = progress(status=Status.RUNNING, applied=250, plan={"total_steps": 1000}, newest={"t": 50.0})
    assert (made.fraction, made.left_s) == (0.25, 150.0)


def test_the_pace_of_a_continued_run_counts_its_own_steps() -> None:
    made = progress(
        status=Status.RUNNING, applied=600, plan={"total_steps": 1000}, newest={"t": 50.0}, started_from=500
    )
    assert made.left_s == 200.0


def test_without_a_plan_or_pace_nothing_is_promised() -> None:
    assert progress(status=Status.RUNNING, applied=5, plan={}, newest={"t": 1.0}).fraction is None
    assert progress(status=Status.RUNNING, applied=0, plan={"total_steps": 9}, newest={}).left_s is None
    assert progress(status=Status.PAUSED, applied=5, plan={"total_steps": 9}, newest={"t": 1.0}).left_s is None
    assert progress(status=Status.RUNNING, applied=12, plan={"total_steps": 9}, newest={"t": 1.0}).fraction == 1.0
