"""What people do with a job beside running it: time limit, notes and tags, keeping, archiving, deleting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST

from jobs import life, storage, tags
from jobs.models import Attempt, Job
from jobs.services import Refused
from jobs.views.rows import Asked, attempt_of, job_for, whole_number
from workers.contract.states import ENDED

MOST_AT_ONCE = 200


# --- what the job page shows ---------------------------------------------------------------


def time_limit(job: Job, attempt: Attempt) -> dict[str, Any]:
    """The limit of an attempt, what is left of it, and whether it can be changed."""
    limit, ran = attempt.time_limit_s, life.ran_s(attempt)
    live = attempt.pk == job.newest_id and attempt.status not in ENDED
    left = None if limit is None or ran is None else max(limit - ran, 0)
    return {
        "limit_s": limit,
        "hours": "" if limit is None else f"{limit / 3600:.6g}",
        "asked": attempt.time_limit_asked_s is not None,
        "left_s": left if live else None,
        "until": timezone.now() + timedelta(seconds=left) if live and left is not None else None,
        "may_change": live,
    }


def storage_part(job: Job, attempt: Attempt) -> dict[str, Any]:
    return {"use": storage.of_job(job), **may_go(job)}


def may_go(job: Job) -> dict[str, bool]:
    """What the page offers to do with a job that is not wanted any more."""
    ended = job.status in ENDED
    return {
        "may_archive": ended and job.archived_at is None,
        "may_unarchive": job.archived_at is not None,
        "may_delete": ended,
    }


def notes_part(job: Job, attempt: Attempt) -> dict[str, Any]:
    return {"tags": list(job.tags.values_list("name", flat=True))}


# --- one job -------------------------------------------------------------------------------


@require_POST
def job_time_limit(request: Asked, pk: int) -> HttpResponse:
    job = job_for(request, pk)
    try:
        changed = life.set_time_limit(job, _hours(request.POST.get("hours", "")), actor=request.user)
    except Refused as refused:
        for text in refused.errors.values():
            messages.error(request, _("The time limit stays as it was. %(why)s") % {"why": text})
    else:
        messages.success(request, _("The time limit is changed.") if changed else _("The time limit was so already."))
    return redirect("job_detail", job.pk)


def _hours(text: str) -> float | None:
    """As typed; empty is none."""
    text = text.strip().replace(",", ".")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        shown = text[:30]
        raise Refused({"hours": _("“%(value)s” is not a number of hours.") % {"value": shown}}) from None


@require_http_methods(["GET", "HEAD", "POST"])
def job_notes(request: Asked, pk: int) -> HttpResponse:
    """Read on the job page, edited in its place; a page of its own without JavaScript."""
    job = job_for(request, pk)
    attempt = attempt_of(job, None)
    context: dict[str, Any] = {"job": job, **notes_part(job, attempt)}
    status = 200
    if request.method == "POST":
        notes, typed = request.POST.get("notes", ""), request.POST.get("tags", "")
        try:
            life.annotate(job, notes=notes, names=tags.split(typed), actor=request.user)
        except Refused as refused:
            status = 422
            context |= {"errors": refused.errors, "notes": notes, "typed": typed}
        else:
            if request.htmx:
                job.refresh_from_db()
                return render(request, "jobs/detail_notes.html", {"job": job, "saved": True} | notes_part(job, attempt))
            messages.success(request, _("Notes and tags are saved."))
            return redirect("job_detail", job.pk)
    elif request.htmx and "cancel" in request.GET:
        return render(request, "jobs/detail_notes.html", context)
    else:
        context |= {"notes": job.notes, "typed": ", ".join(context["tags"])}
    context |= {
        "known": tags.known(request.user),
        "longest_notes": life.LONGEST_NOTES,
        "longest_tag": tags.LONGEST,
        "most_tags": tags.MOST,
    }
    template = "jobs/detail_notes_form.html" if request.htmx else "jobs/notes.html"
    return render(request, template, context, status=status)


@require_POST
def job_pin(request: Asked, pk: int) -> HttpResponse:
    job = job_for(request, pk)
    keep = request.POST.get("keep") == "on"
    life.pin(job, keep, actor=request.user)
    if keep:
        messages.success(request, _("The job is kept: no rule removes anything of it."))
    else:
        messages.success(request, _("The rules of retention hold for the job again."))
    return redirect("job_detail", job.pk)


@require_POST
def job_archive(request: Asked, pk: int) -> HttpResponse:
    job = job_for(request, pk)
    try:
        life.archive(job, actor=request.user, free_checkpoints=request.POST.get("free") == "on")
    except Refused as refused:
        messages.error(request, " ".join(refused.errors.values()))
    else:
        messages.success(request, _("The job is archived; the list shows it when you ask for archived jobs."))
    return redirect("job_detail", job.pk)


@require_POST
def job_unarchive(request: Asked, pk: int) -> HttpResponse:
    job = job_for(request, pk)
    life.unarchive(job, actor=request.user)
    messages.success(request, _("The job is back in the list."))
    return redirect("job_detail", job.pk)


@require_http_methods(["GET", "HEAD", "POST"])
def job_delete(request: Asked, pk: int) -> HttpResponse:
    """What it frees and what it means first, then the word."""
    job = job_for(request, pk)
    if request.method == "POST":
        try:
            life.delete(job, actor=request.user)
        except Refused as refused:
            messages.error(request, " ".join(refused.errors.values()))
            return redirect("job_delete", job.pk)
        messages.success(request, _("Job %(number)d is deleted.") % {"number": job.pk})
        return redirect("job_list")
    return render(request, "jobs/delete.html", _confirmation([job]))


# --- many at once --------------------------------------------------------------------------


@require_POST
def job_bulk(request: Asked) -> HttpResponse:
    """Checked in the list. Deletion is confirmed on a page that says what goes."""
    numbers = [whole_number(text, 0) for text in request.POST.getlist("job")[:MOST_AT_ONCE]]
    jobs = list(Job.objects.visible_to(request.user).filter(pk__in=numbers).select_related("owner").order_by("pk"))
    back = request.POST.get("back", "")
    if not url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}):
        back = "job_list"
    do = request.POST.get("do")
    if not jobs:
        messages.error(request, _("No job was checked."))
        return redirect(back)
    if do == "delete":
        return render(request, "jobs/delete.html", _confirmation(jobs) | {"back": back})
    verbs: dict[str | None, Callable[[Job], bool]] = {
        "delete_now": lambda job: life.delete(job, actor=request.user),
        "archive": lambda job: life.archive(job, actor=request.user),
        "unarchive": lambda job: life.unarchive(job, actor=request.user),
    }
    done = 0
    if do in verbs:
        for job in jobs:
            try:
                done += verbs[do](job)
            except Refused as refused:
                why = " ".join(refused.errors.values())
                messages.error(request, _("Job %(number)d is left as it is. %(why)s") % {"number": job.pk, "why": why})
    if done:
        messages.success(request, _done(do, done))
    return redirect(back)


def _done(do: str | None, count: int) -> str:
    if do == "delete_now":
        text = ngettext("%(count)d job is deleted.", "%(count)d jobs are deleted.", count)
    elif do == "archive":
        text = ngettext("%(count)d job is archived.", "%(count)d jobs are archived.", count)
    else:
        text = ngettext("%(count)d job is back in the list.", "%(count)d jobs are back in the list.", count)
    return text % {"count": count}


def _confirmation(jobs: list[Job]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for job in jobs:
        use = storage.of_job(job)
        began = life.started_from(job)
        rows.append(
            {
                "job": job,
                "use": use,
                "obstacle": life.obstacle(job),
                "began": life.numbers(began),
                "attempts": job.attempts.count(),
                "events": job.events.count(),
            }
        )
    going: list[storage.Use] = [row["use"] for row in rows if not row["obstacle"]]
    total = storage.Use(
        sum(use.checkpoints for use in going),
        sum(use.artifacts for use in going),
        sum(use.records for use in going),
        sum(use.logs for use in going),
    )
    return {"rows": rows, "total": total, "may": bool(going), "only": jobs[0] if len(jobs) == 1 else None}
