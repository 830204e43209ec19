"""The box to try a job's exported model in: ask, and look for the answer. Without JavaScript both are pages."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from jobs import trials
from jobs.models import Artifact, Trial
from jobs.services import Refused
from jobs.views.rows import Asked, job_for

LOOK_AGAIN_S = 2  # of a browser without JavaScript


@require_POST
def job_try(request: Asked, pk: int, artifact_pk: int) -> HttpResponse:
    job = job_for(request, pk)
    artifact = get_object_or_404(Artifact.objects.select_related("attempt__job"), pk=artifact_pk, attempt__job=job)
    typed = request.POST.get("text", "")
    try:
        trial = trials.ask(artifact, typed, user=request.user)
    except Refused as refused:
        context: dict[str, Any] = {"job": job, "try_errors": list(refused.errors.values())}
        if request.htmx:
            return render(request, "jobs/detail_try_answer.html", context, status=422)
        context = trials.part(job, artifact.attempt) | context | {"try_artifact": artifact, "try_typed": typed}
        return render(request, "jobs/trial.html", context, status=422)
    if request.htmx:
        return render(request, "jobs/detail_try_answer.html", {"job": job} | trials.answer(trial))
    return redirect("trial", job.pk, trial.pk)


@require_safe
def trial(request: Asked, pk: int, trial_pk: int) -> HttpResponse:
    """Only for who asked: what they typed is nobody else's."""
    job = job_for(request, pk)
    mine = Trial.objects.visible_to(request.user).select_related("artifact__attempt")
    found = get_object_or_404(mine, pk=trial_pk, artifact__attempt__job=job)
    context: dict[str, Any] = {"job": job} | trials.answer(found)
    if request.htmx:
        response = render(request, "jobs/detail_try_answer.html", context)
    else:
        typed = "\n".join(next(iter(row.values())) for row in found.rows)
        context |= trials.part(job, found.artifact.attempt) | {"try_artifact": found.artifact, "try_typed": typed}
        response = render(request, "jobs/trial.html", context)
        if context["try_waits"]:
            response["Refresh"] = str(LOOK_AGAIN_S)
    response["Cache-Control"] = "private, no-store"
    return response
