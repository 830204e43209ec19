"""Health of an attempt in one word, and its progress: pure functions of what the row already knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from workers.contract.records import from_json_number
from workers.contract.states import EndReason, Status

# Healthy is about one skip per growth interval of the loss scale (0.05 % at 2000); above 0.2 % is
# worth a look, above 2 % over at least 500 steps is not healthy.
WATCH_SKIPS, UNHEALTHY_SKIPS, ENOUGH_STEPS = 0.002, 0.02, 500
# From 2^16 down to the scale that fits takes up to so many skips at the start; they are no bad sign. Without loss scaling
# there is nothing to look for.
SEARCHING_SKIPS = 16
SKIPS_IN_A_ROW = 10
# Above this share of clipped steps a lower learning rate is better than clipping.
WATCH_CLIPS, ENOUGH_CLIPS = 0.5, 50
UNSTABLE_ENDS = {
    EndReason.NON_FINITE,
    EndReason.LOSS_SCALE_COLLAPSED,
    EndReason.DIVERGED,
    EndReason.RANKS_DIFFER,
}


@dataclass(frozen=True)
class Health:
    word: str  # healthy, watch, unhealthy, or "" when there is nothing to judge yet
    why: str = ""
    over: bool = False  # what ended it came from elsewhere

    @property
    def label(self) -> str:
        if self.over and self.word == "healthy":
            return _("numbers were healthy")
        return {"healthy": _("healthy"), "watch": _("watch"), "unhealthy": _("unhealthy")}.get(self.word, "—")


def health(
    *,
    status: str,
    end_reason: str,
    attempted: int,
    skipped: int,
    clipped: int,
    newest: Mapping[str, Any],
    started_at: datetime | None,
    now: datetime,
) -> Health:
    """The first rule that fires decides; the worst come first."""
    if status == Status.UNRESPONSIVE:
        return Health("unhealthy", _("Its host has not been heard of for a while."))
    if end_reason in {reason.value for reason in UNSTABLE_ENDS}:
        return Health("unhealthy", _(EndReason(end_reason).sentence))
    if not attempted or not newest:
        return Health("")
    if _non_finite(newest, "loss") or (_non_finite(newest, "grad_norm") and not newest.get("loss_scale")):
        return Health("unhealthy", _("The newest loss or gradient is not finite."))
    scale = from_json_number(newest.get("loss_scale"))
    if scale is not None and scale < 1:
        return Health("unhealthy", _("The loss scale has fallen below 1."))
    in_a_row = newest.get("skips_in_a_row") or 0
    if in_a_row >= SKIPS_IN_A_ROW:
        return Health("unhealthy", _("%(count)d steps in a row were skipped.") % {"count": in_a_row})

    share = skipped / attempted
    if attempted >= ENOUGH_STEPS and share > UNHEALTHY_SKIPS:
        return Health("unhealthy", _("%(share).1f %% of the steps were skipped.") % {"share": 100 * share})
    stuck = _silent_for(status, newest, started_at, now)
    if stuck is not None:
        return Health("watch", _("No step for %(minutes)d min.") % {"minutes": stuck.total_seconds() // 60})
    if share > WATCH_SKIPS and (skipped > SEARCHING_SKIPS or scale is None):
        return Health("watch", _("%(share).1f %% of the steps were skipped.") % {"share": 100 * share})
    if attempted >= ENOUGH_CLIPS and clipped / attempted > WATCH_CLIPS:
        return Health(
            "watch",
            _("%(share).0f %% of the steps were clipped: a lower learning rate may do better.")
            % {"share": 100 * clipped / attempted},
        )
    if status == Status.FAILED:
        return Health(
            "healthy", _("Losses and gradients were fine to the end: what ended it lies elsewhere."), over=True
        )
    return Health("healthy")


def _non_finite(record: Mapping[str, Any], name: str) -> bool:
    return record.get(name) in ("nan", "inf", "-inf")


def _silent_for(status: str, newest: Mapping[str, Any], started_at: datetime | None, now: datetime) -> timedelta | None:
    """How long a running attempt has made no step, if that is far longer than its steps take."""
    if status != Status.RUNNING or started_at is None:
        return None
    t, step_ms = from_json_number(newest.get("t")), from_json_number(newest.get("step_ms"))
    if not isinstance(t, float | int) or not isinstance(step_ms, float | int):
        return None
    silent = now - started_at - timedelta(seconds=t)
    # Evaluations and checkpoints make honest pauses.
    return silent if silent > timedelta(seconds=max(120.0, step_ms / 1000 * 50)) else None


@dataclass(frozen=True)
class Progress:
    done: int
    total: int | None
    left_s: float | None

    @property
    def fraction(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None


def progress(
    *, status: str, applied: int, plan: Mapping[str, Any], newest: Mapping[str, Any], started_from: int = 0
) -> Progress:
    """Applied steps of those planned, and the seconds left at the average pace of this attempt."""
    total = plan.get("total_steps")
    left = None
    t = from_json_number(newest.get("t"))
    made = applied - started_from
    if total and status == Status.RUNNING and isinstance(t, float | int) and t > 0 and made > 0:
        left = max(0.0, (total - applied) * t / made)
    return Progress(applied, total, left)
