"""The box to try a job's exported model in: ask, and look for the answer. Without JavaScript both are pages."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from jobs import trial_pictures, trials
from jobs.models import Artifact, Job, Trial
from jobs.services import Refused
from jobs.views.rows import Asked, job_for

LOOK_AGAIN_S = 2  # of a browser without JavaScript


@require_POST
def job_try(request: Asked, pk: int, artifact_pk: int) -> HttpResponse:
    job = job_for(request, pk)
    artifact = get_object_or_404(Artifact.objects.select_related("attempt__job"), pk=artifact_pk, attempt__job=job)
    typed = request.POST.get("text", "")
    try:
        trial = trials.ask(artifact, typed, request.FILES.getlist("pictures"), user=request.user)
    except Refused as refused:
        context: dict[str, Any] = {"job": job, "try_errors": list(refused.errors.values())}
        if request.htmx:
            return render(request, "jobs/detail_try_answer.html", context, status=422)
        context = trials.part(job, artifact.attempt) | context | {"try_artifact": artifact, "try_typed": typed}
        return render(request, "jobs/trial.html", context, status=422)
    if request.htmx:
        return render(request, "jobs/detail_try_answer.html", {"job": job} | trials.answer(trial))
    return redirect("trial", job.pk, trial.pk)


def _mine(request: Asked, job: Job, pk: int) -> Trial:
    # Rows may hold pictures, and the page asks every second: only who needs them reads them.
    mine = Trial.objects.visible_to(request.user).select_related("artifact__attempt__job__dataset").defer("rows")
    found: Trial = get_object_or_404(mine, pk=pk, artifact__attempt__job=job)
    return found


@require_safe
def trial_picture(request: Asked, pk: int, trial_pk: int, number: int) -> HttpResponse:
    """A picture that a model was asked about. Only for who asked."""
    trial = _mine(request, job_for(request, pk), trial_pk)
    form = trials.form_of(trial.artifact.attempt.job)
    found = trial_pictures.picture(trial.rows, form.fields[0], number) if form and trials.of_pictures(trial) else None
    if found is None:
        raise Http404
    response = HttpResponse(found[0], content_type=found[1])
    # Whatever a browser would take it for: nothing of it runs.
    response["Content-Security-Policy"] = "default-src 'none'; sandbox"
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Disposition"] = "inline"
    response["Cache-Control"] = "private, no-store"
    return response


@require_safe
def trial(request: Asked, pk: int, trial_pk: int) -> HttpResponse:
    """Only for who asked: what they typed is nobody else's."""
    job = job_for(request, pk)
    found = _mine(request, job, trial_pk)
    context: dict[str, Any] = {"job": job} | trials.answer(found)
    if request.htmx:
        response = render(request, "jobs/detail_try_answer.html", context)
    else:
        typed = "" if context["try_pictures"] else "\n".join(next(iter(row.values())) for row in found.rows)
        context |= trials.part(job, found.artifact.attempt) | {"try_artifact": found.artifact, "try_typed": typed}
        response = render(request, "jobs/trial.html", context)
        if context["try_waits"]:
            response["Refresh"] = str(LOOK_AGAIN_S)
    response["Cache-Control"] = "private, no-store"
    return response
