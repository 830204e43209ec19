"""Jobs told in lines of a terminal: one per event, and now and then one per running attempt. In English, like logs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jobs import dry_run
from jobs.health import progress
from jobs.models import Attempt, Job, JobEvent
from workers.contract.records import from_json_number
from workers.contract.states import EndReason

PROGRESS_S = 10.0


@dataclass
class Console:
    """`lines()` returns what is new since the last call; of one job if `job` is given."""

    job: Job | None = None
    _last_event: int = 0
    _told: dict[int, tuple[float, str]] = field(default_factory=dict)  # attempt -> when, what

    @classmethod
    def from_now(cls) -> Console:
        newest = JobEvent.objects.order_by("-id").first()
        return cls(_last_event=newest.pk if newest else 0)

    def lines(self) -> list[str]:
        return [*self._events(), *self._progress()]

    def _events(self) -> Iterator[str]:
        new = JobEvent.objects.filter(pk__gt=self._last_event).select_related("job").order_by("pk")
        for event in new.filter(job=self.job) if self.job else new:
            self._last_event = event.pk
            line = event_line(event)
            if line:
                yield line

    def _progress(self) -> Iterator[str]:
        running = Attempt.objects.on_host().filter(attempted__gt=0).select_related("start_from", "job")
        now = time.monotonic()
        for attempt in running.filter(job=self.job) if self.job else running:
            when, what = self._told.get(attempt.pk, (now - PROGRESS_S, ""))
            line = progress_line(attempt)
            if line != what and now - when >= PROGRESS_S:
                self._told[attempt.pk] = (now, line)
                yield line


def event_line(event: JobEvent) -> str:
    """ "" for what other lines say as well."""
    words = _words(event)
    if not words:
        return ""
    step = f"step {event.step} · " if event.step is not None and event.kind not in ("attempt", "status") else ""
    by = f" · by {event.actor_name}" if event.kind in ("attempt", "request") and event.actor_name else ""
    return f"job {event.job_id} · {step}{words}{by}"


def _words(event: JobEvent) -> str:
    data = event.data
    match event.kind:
        case "attempt":
            return f"“{event.job.name}” attempt {data.get('number')} queued"
        case "status" if event.reason:
            return " ".join(filter(None, (f"{event.new}: {EndReason(event.reason).sentence}", event.message)))
        case "status":
            return ": ".join(filter(None, (event.new, event.message)))
        case "request":
            return f"asked to {event.reason}"
        case "evaluation":
            return f"evaluation: {metrics_words(data.get('metrics') or {})}"
        case "scale":
            return f"loss scale {data.get('old')} → {data.get('new')}"
        case "checkpoint_published":
            return "checkpoint stored"
        case "outcome" | "checkpoint" | "artifact":
            return ""
        case "rank_exit" if not data.get("first"):
            return ""
    return event.message or event.kind.replace("_", " ")


def progress_line(attempt: Attempt) -> str:
    record = attempt.newest_record
    start, plan = attempt.start_from, attempt.plan
    if attempt.job.dry_run:
        plan = dry_run.shortened(plan, start.applied if start else 0)
    done = progress(
        status=attempt.status,
        applied=attempt.applied,
        plan=plan,
        newest=record,
        started_from=start.applied if start else 0,
    )
    parts = [
        f"job {attempt.job_id}",
        f"step {attempt.attempted}/{done.total}" if done.total else f"step {attempt.attempted}",
    ]
    for name, label in (("loss_all", "loss"), ("grad_norm", "norm"), ("loss_scale", "scale")):
        value = from_json_number(record.get(name))
        if value is None and name == "loss_all":
            value = from_json_number(record.get("loss"))
        if value is not None:
            parts.append(f"{label} {value:.4g}" if label != "scale" else f"{label} {value:.8g}")
    if attempt.skipped:
        parts.append(f"{attempt.skipped} skipped")
    if done.left_s is not None:
        parts.append(f"{duration(done.left_s)} left")
    return " · ".join(parts)


def dry_run_lines(found: dry_run.Result) -> list[str]:
    """The result of a dry run, with what is worth a sentence at the end."""
    norms, whole, scale = found.norms, found.whole, found.loss_scale
    rows = [("steps", f"{found.made} of {found.planned}, {found.skipped} skipped")]
    if norms.median is not None:
        size = f"median {norms.median:.3g}, 90th percentile {norms.p90:.3g}, greatest {norms.max:.3g}"
        rows.append(("gradient norm", f"{size}, {norms.non_finite} not finite"))
    if found.suggested is not None:
        rows.append(("suggested clip", f"{found.suggested:g}"))
        rows += [
            ("", f"at {clip.max_norm:g}: {100 * clip.share:.0f} % of the steps clipped{' (as set)' * clip.current}")
            for clip in found.clips
        ]
    if scale is not None:
        rows.append(("loss scale", f"{scale.first:g} → {scale.last:g}{', settled' * scale.settled}"))
    for rank in found.memory:
        of = f" of {rank.of_mb:.0f} MiB ({100 * (rank.share or 0):.0f} %)" if rank.of_mb else ""
        rows.append((f"memory, rank {rank.rank}", f"{'' if rank.exact else 'at least '}{rank.peak_mb:.0f} MiB{of}"))
    if found.step_ms is not None:
        rows.append(("time per step", f"{found.step_ms:.3g} ms, {100 * (found.data_share or 0):.0f} % for data"))
    if whole is not None:
        parts = [f"{whole.steps} steps"]
        parts += [f"{whole.evaluations} evaluations"] * (whole.evaluation_s is not None)
        parts += [f"{whole.checkpoints} checkpoints"] * (whole.checkpoint_s is not None)
        rows.append(("the whole", f"about {duration(whole.seconds)} ({', '.join(parts)})"))
    if found.within_warmup:
        rows.append(("note", f"all steps lie within the warm-up of {found.warmup}: norms may still change"))
    return [f"{name:<16}{text}" for name, text in rows] + found.advice()


def metrics_words(metrics: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, int | float))


def duration(seconds: float) -> str:
    """To the minute, or to the second below one."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
