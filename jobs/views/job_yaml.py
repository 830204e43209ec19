"""Jobs as files: a form filled from a YAML file, and a job's own file for download."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_safe

from jobs import job_file, services
from jobs.job_file import MOST_BYTES, JobFile
from jobs.views.job_new import Draft, form_page, yaml_file
from jobs.views.rows import Asked, attempt_of, job_for
from workers.recipes.registry import RECIPES


@require_http_methods(["GET", "HEAD", "POST"])
def job_import(request: Asked) -> HttpResponse:
    """Nothing is submitted here: what the file says is shown in the form, to be looked at."""
    if request.method != "POST":
        return render(request, "jobs/import.html", {"most_kib": MOST_BYTES // 1024})
    upload = request.FILES.get("file")
    body = upload.read(MOST_BYTES + 1) if upload else request.POST.get("text", "").encode()
    try:
        if not body.strip():
            raise services.Refused({"": _("Choose a file, or paste its text.")})
        draft = _read(request, body)
    except services.Refused as refused:
        text = body[:MOST_BYTES].decode("utf-8", "replace")
        context = {"errors": refused.errors, "text": text, "most_kib": MOST_BYTES // 1024}
        return render(request, "jobs/import.html", context, status=422)
    return form_page(request, draft)


def _read(request: Asked, body: bytes) -> Draft:
    file = JobFile.parse(body)
    errors: dict[str, str] = {}
    draft = Draft(RECIPES.get(file.recipe) or next(iter(RECIPES.values())), file.name, tags=", ".join(file.tags))
    try:
        dataset = file.dataset_of(request.user)
        draft.dataset = dataset.pk if dataset else 0
    except services.Refused as refused:
        errors |= refused.errors
    if file.recipe not in RECIPES:
        known = ", ".join(sorted(RECIPES))
        said = _("There is no recipe “%(recipe)s”; known: %(known)s.") % {"recipe": file.recipe, "known": known}
        errors["recipe"] = said
    else:
        try:
            draft.settings = services.validated(file.recipe, file.settings).model_dump(mode="json")
        except services.Refused as refused:
            errors |= refused.errors
    if errors:
        raise services.Refused(job_file.with_lines(errors, file.lines))
    return draft


@require_safe
def job_export(request: Asked, pk: int) -> HttpResponse:
    job = job_for(request, pk)
    attempt = attempt_of(job, request.GET.get("attempt"))
    text = job_file.dump(
        name=job.name,
        recipe=job.recipe,
        dataset=job.dataset,
        settings=attempt.settings,
        priority=job.priority,
        tags=list(job.tags.values_list("name", flat=True)),
    )
    return yaml_file(text, f"job-{job.pk}-{attempt.number}-{job.name}")
