"""The reproduction record of an attempt, as a file."""

from __future__ import annotations

import json

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from jobs import reproduction
from jobs.views.rows import Asked, attempt_of, job_for
from workers.contract.records import jsonable


@require_safe
def job_record(request: Asked, pk: int) -> HttpResponse:
    job = job_for(request, pk)
    attempt = attempt_of(job, request.GET.get("attempt"))
    body = json.dumps(jsonable(reproduction.record(job, attempt)), ensure_ascii=False, indent=2, allow_nan=False)
    return HttpResponse(
        body + "\n",
        content_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="job-{job.pk}-attempt-{attempt.number}.json"'},
    )
