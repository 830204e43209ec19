"""Rows as this user may see them."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404
from django_htmx.middleware import HtmxDetails

from jobs.models import Attempt, Dataset, Job


class Asked(HttpRequest):
    """What the middleware makes of a request, for the type checker."""

    user: User
    htmx: HtmxDetails


def job_for(request: Asked, pk: int, *related: str) -> Job:
    """With `related` rows; by default all that a page shows."""
    jobs = Job.objects.visible_to(request.user).select_related(*related or ("owner", "dataset", "newest"))
    job: Job = get_object_or_404(jobs, pk=pk)
    return job


def dataset_for(request: Asked, pk: int) -> Dataset:
    visible = Dataset.objects.visible_to(request.user).select_related("owner")
    dataset: Dataset = get_object_or_404(visible, pk=pk)
    return dataset


def attempt_of(job: Job, number: str | None) -> Attempt:
    """The attempt with that number; the newest without one."""
    attempts = job.attempts.select_related("start_from__attempt", "asked_by", "leave_asked_by")
    if number:
        attempts = attempts.filter(number=whole_number(number, 0))
    attempt = attempts.order_by("number").last()
    if attempt is None:
        raise Http404
    return attempt


def whole_number(text: str | None, default: int) -> int:
    """From a query string; anything else than a whole number that a database can hold is the default."""
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,18}", text) else default
