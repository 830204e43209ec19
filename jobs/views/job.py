"""The job page. Each section is a partial that a live update fetches alone with `?part=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from jobs import device_samples, dry_run, limits, norms, reproduction, results, services, trials
from jobs.forms import SettingGroup, SettingsForm
from jobs.live import is_live
from jobs.models import Artifact, Attempt, Checkpoint, DeviceSamples, Host, Job, JobEvent, Placement
from jobs.views import life
from jobs.views.job_list import health_of, progress_of
from jobs.views.log import log_context
from jobs.views.rows import Asked, attempt_of, job_for, whole_number
from workers.contract.messages import Request
from workers.contract.states import ENDED, ON_HOST, EndReason, Status
from workers.recipes.registry import RECIPES

EVENTS_SHOWN = 150
# Training is over then: only a cancellation still counts.
AFTER_TRAINING = ("looking for the worst dev rows", "exporting")
# With less than this a host cannot even take an attempt (workers/supervisor/supervise.py keeps as much for its own end).
FULL_DISK_BYTES = 2**20


@require_safe
def job_detail(request: Asked, pk: int) -> HttpResponse:
    job = job_for(request, pk)
    attempt = attempt_of(job, request.GET.get("attempt"))
    ranks = list(range(max(attempt.nodes * attempt.devices_per_node, 1)))
    rank = whole_number(request.GET.get("rank"), 0)
    context = {
        "job": job,
        "attempt": attempt,
        "ranks": ranks,
        "rank": rank if rank in ranks else 0,
        "pinned": "attempt" in request.GET,
        "query": request.GET,
    }
    part = request.GET.get("part")
    if part:
        if part not in PARTS:
            raise Http404
        context |= PARTS[part](job, attempt)
        return render(request, f"jobs/detail_{part}.html", context)
    for make in PARTS.values():
        context |= make(job, attempt)
    context["parts"] = list(PARTS)
    context |= results.worst_part(job, attempt, request.user)
    context |= log_context(attempt, request)
    context["live"] = is_live(attempt)
    # Records may arrive after the end, but not of what never started.
    over = not context["live"] or bool(attempt.ended_at and not attempt.started_at)
    context["never_stepped"] = over and not job.attempts.filter(attempted__gt=0).exists()
    context["words"] = {
        "nothing": _("No step yet."),
        "loading": _("Loading…"),
        "unused": _("Loss scaling is not used."),
        "live": _("live"),
        "polling": _("looking every few seconds"),
        "paused": _("paused while hidden"),
        "ended": _("complete"),
    }
    # The script of the charts fetches them when their section is seen, so that one must be there for it.
    context["device_charts"] = not over or DeviceSamples.objects.filter(attempt=attempt).exists()
    # Other limits are of single elements or tensors, and mean nothing beside the norm of the whole.
    context["clips_the_norm"] = norms.is_of_the_norm(attempt.settings)
    context["norm_words"] = norms.words()
    context["device_words"] = device_samples.words()
    return render(request, "jobs/detail.html", context)


# --- the parts -----------------------------------------------------------------------------


def _status(job: Job, attempt: Attempt) -> dict[str, Any]:
    reason = EndReason(attempt.end_reason) if attempt.end_reason else None
    newest = attempt.pk == job.newest_id
    status = attempt.status
    trained = attempt.stage in AFTER_TRAINING
    runs = newest and status in ON_HOST and not attempt.leave and not trained
    real = newest and not job.dry_run
    placements = Placement.objects.filter(attempt=attempt, released_at__isnull=True).select_related("host")
    unclaimed = [p.host for p in placements if p.claimed_at is None and p.host.disk_total_bytes]
    return {
        "full_disk": next((host.name for host in unclaimed if host.disk_free_bytes < FULL_DISK_BYTES), "")
        if status == Status.STARTING
        else "",
        "health": health_of(attempt),
        "time_limit": life.time_limit(job, attempt),
        "progress": progress_of(attempt, job.dry_run),
        "recipe": RECIPES.get(job.recipe),
        "ran_s": (attempt.ended_at - attempt.started_at).total_seconds()
        if attempt.started_at and attempt.ended_at
        else None,
        "reason": reason,
        "placements": placements,
        "most_devices": max((len(host.devices) for host in Host.objects.filter(enabled=True)), default=0)
        if status == Status.QUEUED
        else None,
        "nobody_takes_it": status == Status.QUEUED and not Host.objects.accepting().exists(),
        "held_back": limits.why_it_waits(attempt) if status == Status.QUEUED else "",
        "may": {
            # A request to stop may be asked for again in a stronger form, never in a weaker one.
            "cancel": newest and status not in ENDED and attempt.leave != Request.CANCEL,
            "pause": real and status not in ENDED and not attempt.leave and not trained,
            "resume": real and status == Status.PAUSED,
            "finish": real and runs and status == Status.RUNNING,
            "checkpoint": real and runs and status == Status.RUNNING,
            "retry": real and status in ENDED,
            "longer": real and status == Status.SUCCEEDED,
        },
        "checkpoint": services.newest_good_checkpoint(job) if newest and status in ENDED else None,
        "doubtful": services.good_checkpoints(job) if newest and status == Status.FAILED else [],
        "tags": list(job.tags.values_list("name", flat=True)),
        **life.may_go(job),
    }


def _numbers(job: Job, attempt: Attempt) -> dict[str, Any]:
    record = attempt.newest_record
    before = attempt.start_from.step if attempt.start_from else 0
    return {
        "record": record,
        "made": max(attempt.attempted - before, 0),
        "loss": record.get("loss") if record.get("loss_all") is None else record["loss_all"],
        "emulated": record.get("emulated") or attempt.plan.get("emulated"),
        "peak": device_samples.peak_of(attempt),
    }


def _events(job: Job, attempt: Attempt) -> dict[str, Any]:
    events = JobEvent.objects.filter(job=job).select_related("actor", "attempt").order_by("-id")
    shown = list(events[: EVENTS_SHOWN + 1])
    return {"events": shown[:EVENTS_SHOWN], "more_events": len(shown) > EVENTS_SHOWN}


def _configuration(job: Job, attempt: Attempt) -> dict[str, Any]:
    recipe = RECIPES.get(job.recipe)
    changed = {change["name"]: change["old"] for change in attempt.settings_changed}
    groups: list[SettingGroup] = []
    if recipe is not None:
        form = SettingsForm(recipe, initial=attempt.settings)
        groups = form.groups
        for item in form.fields():
            item.changed = item.name in changed
            item.old = changed.get(item.name)
    return {"setting_groups": groups, "recipe": recipe}


def _attempts(job: Job, attempt: Attempt) -> dict[str, Any]:
    rows = job.attempts.select_related("asked_by", "start_from__attempt").order_by("-number")
    return {"attempts": list(rows)}


def _ranks(job: Job, attempt: Attempt) -> dict[str, Any]:
    states = attempt.rank_states or {}
    return {
        "rank_states": [
            (int(rank), states[rank], attempt.peak_memory.get(f"rank{rank}")) for rank in sorted(states, key=int)
        ]
    }


def _checkpoints(job: Job, attempt: Attempt) -> dict[str, Any]:
    saved = Checkpoint.objects.filter(attempt__job=job).select_related("attempt").order_by("-attempt__number", "-step")
    doubtful = services.doubtful_checkpoints(job)
    return {"checkpoints": [(checkpoint, doubtful.get(checkpoint.pk, "")) for checkpoint in saved[:50]]}


def _artifacts(job: Job, attempt: Attempt) -> dict[str, Any]:
    return {
        "artifacts": Artifact.objects.filter(attempt__job=job)
        .select_related("attempt")
        .order_by("-attempt__number", "name")
    }


PARTS: dict[str, Callable[[Job, Attempt], dict[str, Any]]] = {
    "status": _status,
    "numbers": _numbers,
    "dry_run": dry_run.part,
    "norms": norms.part,
    "evaluations": results.evaluations_part,
    "confusion": results.confusion_part,
    "events": _events,
    "ranks": _ranks,
    "attempts": _attempts,
    "artifacts": _artifacts,
    "try": trials.part,
    "notes": life.notes_part,
    "storage": life.storage_part,
    "checkpoints": _checkpoints,
    "configuration": _configuration,
    "environment": reproduction.part,
}
