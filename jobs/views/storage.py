"""Storage: what jobs and datasets take up, largest first, and what of it can be freed. Of one's own; staff sees everybody's."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db.models import Count
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from jobs import limits, storage
from jobs.models import Dataset, Job
from jobs.storage import Use
from jobs.views.rows import Asked
from workers.contract.states import ENDED

PER_PAGE = 50
SORTS = ("job", "checkpoints", "artifacts", "records", "total")


@dataclass
class Person:
    user: User
    jobs: int = 0
    jobs_bytes: int = 0
    datasets_bytes: int = 0
    limit: int | None = None

    @property
    def total(self) -> int:
        return self.jobs_bytes + self.datasets_bytes


@dataclass
class Freeable:
    """What nobody would miss at once."""

    checkpoints: int = 0
    archived: int = 0
    dry_runs: int = 0
    datasets: int = 0

    @property
    def any(self) -> int:
        return self.checkpoints + self.archived + self.dry_runs + self.datasets


@require_safe
def storage_list(request: Asked) -> HttpResponse:
    everybody = request.user.is_staff and not request.GET.get("user")
    whose = request.user if not request.user.is_staff else None
    if request.user.is_staff and request.GET.get("user"):
        name = request.GET["user"].replace("\0", "")
        whose = User.objects.filter(username=name).first() or request.user
    jobs, datasets = Job.objects.there(), Dataset.objects.annotate(used=Count("jobs"))
    if not everybody:
        jobs, datasets = jobs.filter(owner=whose), datasets.filter(owner=whose)
    uses = storage.of_jobs(jobs)
    rows = [(job, uses.get(job.pk, Use())) for job in jobs.select_related("owner")]
    sort = request.GET.get("sort", "-total")
    key = sort.lstrip("-")
    if key in SORTS:
        rows.sort(key=lambda row: row[0].pk if key == "job" else getattr(row[1], key), reverse=sort.startswith("-"))
    sets = sorted(datasets.select_related("owner"), key=lambda dataset: -dataset.bytes)
    context: dict[str, Any] = {
        "page": Paginator(rows, PER_PAGE).get_page(request.GET.get("page")),
        "datasets": sets,
        "datasets_bytes": sum(dataset.bytes for dataset in sets),
        "total": _total(list(uses.values())),
        "jobs": len(rows),
        "freeable": _freeable(rows, sets),
        "whose": whose,
        "everybody": everybody,
        "limit": limits.of(whose).storage_bytes if whose and not whose.is_staff else None,
        "query": request.GET,
        "sort": sort,
    }
    if everybody:
        context["people"] = _people(rows, sets)
    return render(request, "storage/list.html", context)


def _total(uses: list[Use]) -> Use:
    return Use(
        sum(use.checkpoints for use in uses), sum(use.artifacts for use in uses), sum(use.records for use in uses)
    )


def _freeable(rows: list[tuple[Job, Use]], datasets: list[Any]) -> Freeable:
    found = Freeable()
    for job, use in rows:
        if job.status not in ENDED or job.pinned:
            continue
        if job.archived_at is not None:
            found.archived += use.total
        elif job.dry_run:
            found.dry_runs += use.total
        else:
            found.checkpoints += use.checkpoints
    found.datasets = sum(dataset.bytes for dataset in datasets if not dataset.used)
    return found


def _people(rows: list[tuple[Job, Use]], datasets: list[Dataset]) -> list[Person]:
    people: dict[int, Person] = {}
    allowed = limits.of_all()
    sizes: dict[int, int] = defaultdict(int)
    for dataset in datasets:
        if dataset.owner is not None:
            sizes[dataset.owner.pk] += dataset.bytes
            people.setdefault(dataset.owner.pk, Person(dataset.owner))
    for job, use in rows:
        person = people.setdefault(job.owner_id, Person(job.owner))
        person.jobs += 1
        person.jobs_bytes += use.total
    for pk, person in people.items():
        person.datasets_bytes = sizes[pk]
        person.limit = allowed[pk].storage_bytes if pk in allowed else None
    return sorted(people.values(), key=lambda person: -person.total)
