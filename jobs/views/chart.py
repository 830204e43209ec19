"""The numbers behind the charts: all attempts of a job for one rank, in the shape of jobs.steps.chart."""

from __future__ import annotations

from typing import Any

import orjson
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from jobs.models import Evaluation, JobEvent
from jobs.steps import chart
from jobs.steps.packed import CHARTED
from jobs.views.rows import Asked, attempt_of, job_for, whole_number

# The attempts beside the viewed one are there to compare with, and need fewer points.
POINTS, POINTS_BESIDE, MOST_BESIDE = 1000, 300, 5
# Events that are marked on the charts; there are some hundred of them at most (jobs/controller/reports.py).
HAPPENED = ("spike", "rewind")


@require_safe
def job_chart(request: Asked, pk: int) -> HttpResponse:
    """`attempt` is the viewed one (default: the newest), `first` and `last` zoom, `fields` chooses what is charted,
    `only` leaves the other attempts out."""
    # The page asks often, and mostly for the newest attempt: one query for both.
    job = job_for(request, pk, "newest")
    number = request.GET.get("attempt")
    newest = job.newest
    viewed = newest if newest and number in {None, "", str(newest.number)} else attempt_of(job, number)
    rank = whole_number(request.GET.get("rank"), 0)
    first, last = (whole_number(request.GET.get(name), -1) for name in ("first", "last"))
    points = min(max(whole_number(request.GET.get("points"), POINTS), 10), 5000)
    fields = [name for name in request.GET.get("fields", "").split(",") if name in CHARTED]
    attempts = [viewed]
    # Nothing beside a first attempt that is the newest.
    if "only" not in request.GET and not (viewed is newest and viewed.number == 1):
        others = job.attempts.exclude(pk=viewed.pk).order_by("-number").only("uid", "number")
        attempts += others[:MOST_BESIDE]
    numbers = {attempt.pk: attempt.number for attempt in attempts}
    answer: dict[str, Any] = {
        "viewed": viewed.number,
        "attempts": [
            chart.series(
                attempt,
                rank,
                first=first if first >= 0 else None,
                last=last if last >= 0 else None,
                points=points if attempt is viewed else min(points, POINTS_BESIDE),
                fields=fields or None,
            )
            for attempt in attempts
        ],
        "happened": [
            {"attempt": numbers[pk], "step": step, "kind": kind}
            for pk, step, kind in JobEvent.objects.filter(attempt__in=numbers, kind__in=HAPPENED)
            .order_by("id")
            .values_list("attempt", "step", "kind")
        ],
        "evaluations": [
            {"attempt": numbers[pk], "step": step, "loss": metrics.get("loss", metrics.get("dev_loss"))}
            for pk, step, metrics in Evaluation.objects.filter(attempt__in=numbers).values_list(
                "attempt", "step", "metrics"
            )
        ],
    }
    # Series and metrics are JSON values already, NaN as strings: looking at each number again would
    # take longer than all the rest.
    response = HttpResponse(orjson.dumps(answer), content_type="application/json")
    response["Cache-Control"] = "private, no-store"
    return response
