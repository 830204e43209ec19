"""An attempt's metrics as a file."""

from __future__ import annotations

from django.http import Http404
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from jobs.exports import files
from jobs.streaming import generated
from jobs.views.rows import Asked, attempt_of, job_for, whole_number


@require_safe
def job_metrics(request: Asked, pk: int) -> HttpResponseBase:
    """`what` is steps or evaluations, `format` one of its formats, `rank` a number, or nothing for all ranks."""
    job = job_for(request, pk, "newest")
    attempt = attempt_of(job, request.GET.get("attempt"))
    rank = request.GET.get("rank", "")
    try:
        file = files.of(
            attempt,
            request.GET.get("what", files.STEPS),
            request.GET.get("format", "csv"),
            whole_number(rank, -1) if rank else None,
        )
    except files.Nothing:
        raise Http404 from None
    return generated(file.chunks, filename=file.name, content_type=file.content_type)
