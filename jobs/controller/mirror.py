"""Requests and cursors, written to Redis again and again: it may have lost them, and nobody would notice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import redis
from django.db.models import Q
from django.utils import timezone

from jobs.models import Attempt, Cursor
from workers.contract.messages import Control, Request, ack_key, request_key
from workers.contract.states import ENDED, ON_HOST, EndReason, Status

AGAIN_S = 2.0
KEPT_S = 86_400
# A host that was away comes back with what it still has; after this nobody listens any more.
LISTEN = timedelta(days=14)


class Mirror:
    def __init__(self) -> None:
        self._told: dict[str, str] = {}
        self._all_at = float("-inf")

    def forget(self) -> None:
        self._told.clear()
        self._all_at = float("-inf")

    def run(self, client: redis.Redis, now: float) -> None:
        """Changed requests at once, everything every AGAIN_S."""
        everything = now - self._all_at >= AGAIN_S
        listened = Attempt.objects.filter(complete_at__isnull=True, placements__isnull=False).filter(
            Q(ended_at__isnull=True) | Q(ended_at__gt=timezone.now() - LISTEN)
        )
        attempts = list(listened.distinct().prefetch_related("placements"))
        pipe = client.pipeline(transaction=False)
        told: dict[str, str] = {}
        for attempt in attempts:
            control = told[attempt.uid] = control_of(attempt).model_dump_json(exclude_none=True)
            if everything or self._told.get(attempt.uid) != control:
                pipe.set(request_key(attempt.uid), control, ex=KEPT_S)
        if everything:
            for uid, offsets in _acks(attempts).items():
                pipe.hset(ack_key(uid), mapping=cast(Any, offsets))
                pipe.expire(ack_key(uid), KEPT_S)
        if len(pipe):
            pipe.execute()
        self._told = told
        if everything:
            self._all_at = now


def control_of(attempt: Attempt) -> Control:
    """What the supervisors of `attempt` are to do, from the facts."""
    leave = Request(attempt.leave) if attempt.leave else None
    placements = [p for p in attempt.placements.all() if not (p.released_at and not p.verdict)]
    if attempt.status in ENDED and any(p.ended_at is None for p in placements):
        # The fence: for the database it has ended (its lease was lost), yet something may still run.
        leave = Request.SUPERSEDE
    elif attempt.status in ON_HOST and any(
        p.verdict and EndReason(p.verdict["end_reason"]).status is Status.FAILED for p in placements
    ):
        # One node has failed: the others would wait for it for ever.
        leave = Request.SUPERSEDE
    return Control(leave=leave, checkpoint=attempt.checkpoint_asked, time_limit_s=attempt.time_limit_asked_s)


def _acks(attempts: list[Attempt]) -> dict[str, dict[str, int]]:
    uids = {attempt.pk: attempt.uid for attempt in attempts}
    offsets: dict[str, dict[str, int]] = {}
    for attempt, rank, kind, offset in Cursor.objects.filter(attempt__in=list(uids)).values_list(
        "attempt_id", "rank", "kind", "offset"
    ):
        offsets.setdefault(uids[attempt], {})[f"{rank}/{kind}"] = offset
    return offsets
