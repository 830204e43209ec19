"""Parts of the results section that can be asked for on their own: confusion of any evaluation, the worst dev rows by pair and page."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from jobs import results
from jobs.views.rows import Asked, attempt_of, job_for, whole_number


@require_safe
def job_confusion(request: Asked, pk: int) -> HttpResponse:
    """`evaluation` is the step of one."""
    job = job_for(request, pk)
    attempt = attempt_of(job, request.GET.get("attempt"))
    step = whole_number(request.GET.get("evaluation"), -1)
    context = {"job": job, "attempt": attempt, **results.confusion_part(job, attempt, step)}
    return render(request, _template(request, "confusion"), context)


@require_safe
def job_worst(request: Asked, pk: int) -> HttpResponse:
    job = job_for(request, pk)
    attempt = attempt_of(job, request.GET.get("attempt"))
    context = {
        "job": job,
        "attempt": attempt,
        "query": request.GET,
        **results.worst_part(job, attempt, request.user, request.GET.get("pair", ""), request.GET.get("page")),
    }
    return render(request, _template(request, "worst"), context)


def _template(request: Asked, part: str) -> str:
    return f"jobs/detail_{part}.html" if request.htmx else f"jobs/{part}.html"
