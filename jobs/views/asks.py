"""What people ask of a job with one button each. All are POST, and come back to the job page."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from jobs import services
from jobs.models import Job
from jobs.views.rows import Asked, job_for
from workers.contract.messages import Request


def _ask(request: Asked, pk: int, verb: Callable[[Job], object], done: str, done_at_once: str = "") -> HttpResponse:
    job = job_for(request, pk)
    try:
        verb(job)
    except services.Refused as refused:
        for text in refused.errors.values():
            messages.error(request, text)
    else:
        messages.success(request, done_at_once if done_at_once and Job.objects.get(pk=pk).ended_at else done)
    return redirect("job_detail", job.pk)


@require_POST
def job_cancel(request: Asked, pk: int) -> HttpResponse:
    done = _("Cancellation is asked for; the job ends after its current step.")
    at_once = _("The job is cancelled.")
    return _ask(request, pk, lambda job: services.ask_to_leave(job, Request.CANCEL, actor=request.user), done, at_once)


@require_POST
def job_pause(request: Asked, pk: int) -> HttpResponse:
    done = _("A pause is asked for; the job saves a checkpoint and frees its devices.")
    at_once = _("The job is paused.")
    return _ask(request, pk, lambda job: services.ask_to_leave(job, Request.PAUSE, actor=request.user), done, at_once)


@require_POST
def job_finish(request: Asked, pk: int) -> HttpResponse:
    done = _("An early finish is asked for; the model is evaluated and exported.")
    return _ask(request, pk, lambda job: services.ask_to_leave(job, Request.FINISH, actor=request.user), done)


@require_POST
def job_resume(request: Asked, pk: int) -> HttpResponse:
    if services.newest_good_checkpoint(job_for(request, pk)):
        done = _("The job is queued again and goes on from its last good checkpoint.")
    else:
        done = _("The job is queued again and begins anew: there is no good checkpoint.")
    return _ask(request, pk, lambda job: services.resume(job, actor=request.user), done)


@require_POST
def job_checkpoint(request: Asked, pk: int) -> HttpResponse:
    done = _("A checkpoint is asked for.")
    return _ask(request, pk, lambda job: services.ask_for_checkpoint(job, actor=request.user), done)
