"""For the machine room: is the process alive, and can it do its work?"""

from __future__ import annotations

import redis
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from jobs import bus
from workers.contract.messages import CONTROLLER_KEY


@login_not_required
@require_safe
@never_cache
def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers; looks at nothing else, so that a database outage does not restart it."""
    return HttpResponse("ok\n", content_type="text/plain")


@login_not_required
@require_safe
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """503 if the database or Redis cannot be reached. A controller that is away is said, but pages still work."""
    checks = {"database": _database(), "redis": "ok", "controller": "ok"}
    try:
        with bus.client(timeout_s=2) as client:
            if not client.exists(CONTROLLER_KEY):
                checks["controller"] = "not seen for a while"
    except redis.RedisError as error:
        checks["redis"] = checks["controller"] = f"unreachable: {type(error).__name__}"
    ready = checks["database"] == checks["redis"] == "ok"
    return JsonResponse({"ready": ready, **checks}, status=200 if ready else 503)


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return f"unreachable: {type(error).__name__}"
    return "ok"
