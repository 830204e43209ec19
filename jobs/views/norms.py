"""The numbers behind the chart of gradient norms by part of the model."""

from __future__ import annotations

import orjson
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from jobs import norms
from jobs.views.rows import Asked, attempt_of, job_for, whole_number


@require_safe
def job_norms(request: Asked, pk: int) -> HttpResponse:
    """`attempt` (default: the newest), `rank`; `first` and `last` zoom."""
    attempt = attempt_of(job_for(request, pk, "newest"), request.GET.get("attempt"))
    rank = whole_number(request.GET.get("rank"), 0)
    first, last = (whole_number(request.GET.get(name), -1) for name in ("first", "last"))
    answer = norms.over_time(attempt, rank, first=max(first, 0), last=last if last >= 0 else None)
    response = HttpResponse(orjson.dumps(answer), content_type="application/json")
    response["Cache-Control"] = "private, no-store"
    return response
