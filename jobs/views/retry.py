"""Retry: the old settings in a form, the difference shown before it is sent, and where to start from."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from jobs import checks, services
from jobs.forms import SettingsForm
from jobs.models import Dataset, Job
from jobs.views.job_new import models_on_offer
from jobs.views.rows import Asked, attempt_of, job_for, whole_number
from workers.contract.states import ENDED
from workers.recipes.registry import recipe

# Where to start: this, or the key of a checkpoint.
SCRATCH = "scratch"


@require_http_methods(["GET", "HEAD", "POST"])
def job_retry(request: Asked, pk: int) -> HttpResponse:
    job = job_for(request, pk)
    attempt = attempt_of(job, None)
    if attempt.status not in ENDED:
        messages.error(request, _("Attempt %(number)d is still in progress.") % {"number": attempt.number})
        return redirect("job_detail", job.pk)
    checkpoints, doubtful = services.good_checkpoints(job), services.doubtful_checkpoints(job)
    suggested = next((str(checkpoint.pk) for checkpoint in checkpoints if checkpoint.pk not in doubtful), SCRATCH)
    data = request.POST if request.method == "POST" else None
    longer = "longer" in request.GET
    initial = _longer(attempt.settings) if longer else attempt.settings
    offers = {"model.job": models_on_offer(request)}
    form = SettingsForm(recipe(job.recipe), data=data, initial=initial, old=attempt.settings, offers=offers)
    start = suggested if data is None else data.get("start", suggested)
    errors: dict[str, str] = {}
    warned = False
    said = _check(job, form, request)
    if data is not None and "check" in data and request.htmx:
        return render(request, "jobs/retry_check.html", said)
    preview = data is not None and ("preview" in data or "check" in data)
    if data is not None and form.is_valid() and not preview:
        try:
            made = services.retry(
                job,
                actor=request.user,
                settings=form.settings,
                from_checkpoint=start != SCRATCH,
                checkpoint=whole_number(start, 0) if start != SCRATCH else None,
                accepted_warnings=said["anyway"],
            )
        except services.Warned:
            warned = True
        except services.Refused as refused:
            errors = form.add_errors(refused.errors)
        else:
            messages.success(request, _("Attempt %(number)d is queued.") % {"number": made.number})
            return redirect("job_detail", job.pk)
    failed = form.has_errors or bool(errors)
    context = said | {
        "job": job,
        "newer_dataset": _newer_dataset(job),
        "attempt": attempt,
        "longer": longer,
        "form": form,
        "checkpoints": [(checkpoint, doubtful.get(checkpoint.pk, "")) for checkpoint in checkpoints],
        "start": start,
        "errors": errors,
        "failed": failed,
        "warned": warned,
        "preview": preview and not failed,
    }
    return render(request, "jobs/retry.html", context, status=422 if failed or warned else 200)


def _check(job: Job, form: SettingsForm, request: Asked) -> dict[str, Any]:
    """What speaks against a retry with what the form holds; single fields are judged when it is sent."""
    try:
        checked = services.validated(job.recipe, form.raw())
    except services.Refused:
        return checks.judged([], request.POST)
    return checks.judged(checks.findings(job.recipe, checked, job.dataset, job.owner, job), request.POST)


def _newer_dataset(job: Job) -> Dataset | None:
    """A version that its owner may train on and that was not there, or not ready, when the job was submitted."""
    if job.dataset is None:
        return None
    versions = Dataset.objects.ready().visible_to(job.owner).filter(owner=job.dataset.owner_id, name=job.dataset.name)
    return versions.filter(version__gt=job.dataset.version).order_by("-version").first()


def _longer(settings: dict[str, Any]) -> dict[str, Any]:
    """Twice as long, for a job that has ended well and goes on from its last checkpoint."""
    training = dict(settings.get("training") or {})
    for name in ("epochs", "max_steps"):
        if training.get(name):
            training[name] *= 2
    return settings | {"training": training} if training else settings
