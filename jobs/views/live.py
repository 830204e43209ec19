"""The one stream of an open job page."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from jobs.live import hub, is_live
from jobs.streaming import event_stream
from jobs.views.rows import Asked, attempt_of, job_for, whole_number


@require_GET
async def job_live(request: Asked, pk: int) -> HttpResponseBase:
    """Records of `attempt` and `rank` after step `after`, or after the Last-Event-ID of a page that comes back."""
    found = await sync_to_async(_look_up)(request, pk)
    if found is None:
        # 204 tells an EventSource not to come again.
        return HttpResponse(status=204)
    job_pk, attempt_pk = found
    if hub().is_full_for(request.user.pk):
        return HttpResponse(status=429)
    rank = whole_number(request.GET.get("rank"), 0)
    after = whole_number(request.headers.get("Last-Event-ID"), whole_number(request.GET.get("after"), 0))
    return event_stream(hub().watch(job_pk, attempt_pk, rank, after, request.user.pk))


def _look_up(request: Asked, pk: int) -> tuple[int, int] | None:
    try:
        job = job_for(request, pk)
        attempt = attempt_of(job, request.GET.get("attempt"))
        return (job.pk, attempt.pk) if is_live(attempt) else None
    finally:
        # The stream is held open for hours and must not hold a connection with it.
        close_old_connections()
