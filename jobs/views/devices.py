"""The numbers behind the charts of devices: what an attempt's hosts, ranks and GPUs used, over time."""

from __future__ import annotations

import math

import orjson
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from jobs import device_samples
from jobs.views.rows import Asked, attempt_of, job_for, whole_number

POINTS = 240


@require_safe
def job_devices(request: Asked, pk: int) -> HttpResponse:
    """`attempt` (default: the newest); `after`, in seconds since 1970, for what is newer than what one has."""
    attempt = attempt_of(job_for(request, pk, "newest"), request.GET.get("attempt"))
    points = min(max(whole_number(request.GET.get("points"), POINTS), 10), 2000)
    answer = device_samples.chart(attempt, points=points, after=_seconds(request.GET.get("after")))
    response = HttpResponse(orjson.dumps(answer), content_type="application/json")
    response["Cache-Control"] = "private, no-store"
    return response


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
