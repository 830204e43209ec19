"""A job's results for download, as one archive each."""

from __future__ import annotations

from django.conf import settings
from django.http import Http404
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from jobs.models import Artifact
from jobs.streaming import file_download
from jobs.views.rows import Asked, job_for


@require_safe
def artifact_download(request: Asked, pk: int, artifact_pk: int) -> HttpResponseBase:
    job = job_for(request, pk)
    artifact = get_object_or_404(Artifact.objects.select_related("attempt"), pk=artifact_pk, attempt__job=job)
    root = settings.STORAGE_ROOT.resolve()
    path = (root / f"{artifact.key}.tar").resolve()
    if not path.is_relative_to(root):
        raise Http404
    try:
        return file_download(
            request,
            path,
            filename=f"job-{job.pk}-{artifact.attempt.number}-{artifact.name}.tar",
            content_type="application/x-tar",
            etag=artifact.sha256,
        )
    except FileNotFoundError:
        raise Http404 from None
