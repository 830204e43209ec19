"""The list of jobs: filter, sort, progress, health, newest numbers; its table refreshes itself while something runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from jobs import tags
from jobs.dry_run import shortened
from jobs.health import Health, Progress, health, progress
from jobs.models import END_REASON_CHOICES, STATUS_CHOICES, Attempt, Job
from jobs.views.rows import Asked, whole_number
from workers.contract.states import ACTIVE, ENDED

PER_PAGE = 25
SORTS = {
    "id": ["id"],
    "name": ["name", "id"],
    "status": ["status", "id"],
    "owner": ["owner__username", "id"],
    "steps": ["newest__applied", "id"],
    "created": ["created_at", "id"],
}


@dataclass(frozen=True)
class Row:
    job: Job
    attempt: Attempt | None
    health: Health
    progress: Progress | None

    @property
    def loss(self) -> Any:
        newest = self.attempt.newest_record if self.attempt else {}
        return newest.get("loss") if newest.get("loss_all") is None else newest["loss_all"]


@require_safe
def job_list(request: Asked) -> HttpResponse:
    jobs = Job.objects.visible_to(request.user)
    total = jobs.exists()
    # Dry runs have a place of their own.
    kind = request.GET.get("kind", "")
    if kind != "all":
        jobs = jobs.filter(dry_run=kind == "dry")
    # So have archived ones.
    shelf = request.GET.get("shelf", "")
    if shelf != "all":
        jobs = jobs.filter(archived_at__isnull=shelf != "archived")
    # No column of PostgreSQL holds a NUL, nor may one be looked for.
    text, status, reason, owner, tag = (
        request.GET.get(name, "").replace("\0", "").strip() for name in ("q", "status", "reason", "owner", "tag")
    )
    if status == "active":
        jobs = jobs.filter(status__in=[s.value for s in ACTIVE])
    elif status:
        jobs = jobs.filter(status=status)
    if reason:
        jobs = jobs.filter(end_reason=reason)
    if owner and request.user.is_staff:
        jobs = jobs.filter(owner__username=owner)
    if tag:
        jobs = jobs.filter(tags__name=tag)
    if text:
        found = Q(name__icontains=text) | Q(dataset__name__icontains=text)
        jobs = jobs.filter(found | Q(pk=whole_number(text.lstrip("#"), 0)))

    sort = request.GET.get("sort", "-id")
    order = SORTS.get(sort.lstrip("-"), SORTS["id"])
    jobs = jobs.order_by(*(f"-{name}" if sort.startswith("-") else name for name in order))
    shown = jobs.select_related("owner", "dataset", "newest__start_from").prefetch_related("tags")
    page = Paginator(shown, PER_PAGE).get_page(request.GET.get("page"))
    rows = [_row(job) for job in page]
    context = {
        "page": page,
        "rows": rows,
        "any": total,
        "sort": sort,
        "filtered": bool(text or status or reason or owner or kind or shelf or tag),
        "live": any(job.status in ACTIVE for job in page),
        "statuses": STATUS_CHOICES,
        "reasons": END_REASON_CHOICES,
        "query": request.GET,
        "ended": [s.value for s in ENDED],
        "any_ended": any(job.status in ENDED for job in page),
    }
    if request.htmx:
        return render(request, "jobs/list_table.html", context)
    context["tags"] = tags.known(request.user)
    if request.user.is_staff:
        context["owners"] = User.objects.filter(jobs__isnull=False).distinct().order_by("username")
    return render(request, "jobs/list.html", context)


def _row(job: Job) -> Row:
    attempt = job.newest
    if attempt is None:
        return Row(job, None, Health(""), None)
    return Row(job, attempt, health_of(attempt), progress_of(attempt, job.dry_run))


def health_of(attempt: Attempt) -> Health:
    return health(
        status=attempt.status,
        end_reason=attempt.end_reason,
        attempted=attempt.attempted - (attempt.start_from.step if attempt.start_from else 0),
        skipped=attempt.skipped,
        clipped=attempt.clipped,
        newest=attempt.newest_record,
        started_at=attempt.started_at,
        now=timezone.now(),
    )


def progress_of(attempt: Attempt, dry_run: bool = False) -> Progress:
    plan, before = attempt.plan, attempt.start_from.applied if attempt.start_from else 0
    if dry_run:
        plan = shortened(plan, before)
    return progress(
        status=attempt.status, applied=attempt.applied, plan=plan, newest=attempt.newest_record, started_from=before
    )
