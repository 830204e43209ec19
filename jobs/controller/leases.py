"""Leases: whether the supervisors of live attempts are still there.

A lease ages by the controller's own clock, and only while Redis can be read: after an outage, or a start
of the controller, every lease is new. A supervisor that cannot renew kills its ranks before the lease
is over, so when it is over nothing of the attempt runs, or will for long; its devices stay in quarantine
until the host reports without it.
"""

from __future__ import annotations

import logging
from typing import cast

import redis
from django.conf import settings
from django.db import transaction
from pydantic import ValidationError

from jobs import services
from jobs.controller.reports import all_running
from jobs.models import Attempt, Placement
from workers.contract.messages import UNRESPONSIVE_S, AttemptBeat, Request, beat_key
from workers.contract.states import ON_HOST, EndReason, Status
from workers.contract.texts import Text

logger = logging.getLogger(__name__)


class Leases:
    def __init__(self) -> None:
        self._seen: dict[int, tuple[object, float]] = {}  # placement -> (sign of life, when it was new)

    def forget(self) -> None:
        self._seen.clear()

    def run(self, client: redis.Redis, now: float) -> None:
        placements = list(
            Placement.objects.holding()
            .filter(ended_at__isnull=True, quarantined=False, attempt__status__in=[s.value for s in ON_HOST])
            .select_related("attempt", "host")
        )
        keys = [beat_key(placement.attempt.uid, placement.node) for placement in placements]
        beats = cast("list[bytes | None]", client.mget(keys)) if keys else []
        ages: dict[int, list[tuple[float, Placement]]] = {}
        for placement, body in zip(placements, beats, strict=True):
            ages.setdefault(placement.attempt_id, []).append((self._age(placement, body, now), placement))
        for of_attempt in ages.values():
            _judge(of_attempt)
        self._seen = {placement.pk: self._seen[placement.pk] for placement in placements}

    def _age(self, placement: Placement, body: bytes | None, now: float) -> float:
        sign = _sign_of_life(placement, body)
        last, seen = self._seen.get(placement.pk, (None, now))
        if placement.pk not in self._seen or (sign is not None and sign != last):
            seen, last = now, sign
        self._seen[placement.pk] = (last, seen)
        return now - seen


def _sign_of_life(placement: Placement, body: bytes | None) -> object:
    """Something that is new with each beat: the supervisor's own, or, before there is one, its host's."""
    if body is not None:
        try:
            beat = AttemptBeat.model_validate_json(body)
        except ValidationError as error:
            logger.warning("A beat of %s makes no sense: %s", placement.attempt, error)
        else:
            return ("supervisor", beat.seq)
    if placement.claimed_at is None:
        return ("host", placement.host.boot, placement.host.beat_seq)
    return None


def _judge(of_attempt: list[tuple[float, Placement]]) -> None:
    age, worst = max(of_attempt, key=lambda pair: pair[0])
    attempt, host = worst.attempt, worst.host.name
    if age > settings.LEASE_S:
        lost = [placement for age, placement in of_attempt if age > settings.LEASE_S]
        detail = Text(
            "%(host)s has not been heard of for %(age).0f s; the lease is %(lease)g s.",
            host=host,
            age=age,
            lease=settings.LEASE_S,
        )
        _lose(attempt, lost, detail)
    elif age > UNRESPONSIVE_S and attempt.status != Status.UNRESPONSIVE:
        services.transition(
            attempt,
            Status.UNRESPONSIVE,
            detail=Text("%(host)s has not been heard of for %(age).0f s.", host=host, age=age),
            actor_name="controller",
        )
    elif age <= UNRESPONSIVE_S and attempt.status == Status.UNRESPONSIVE:
        back = Status.RUNNING if attempt.started_at or all_running(attempt) else Status.STARTING
        services.transition(
            attempt, back, detail=Text("%(host)s was heard of again.", host=host), actor_name="controller"
        )


def _lose(attempt: Attempt, lost: list[Placement], detail: str) -> None:
    """Ends the attempt. Should its supervisor live after all, it is told to leave: see mirror."""
    reason = EndReason.CANCELLED if attempt.leave == Request.CANCEL else EndReason.HOST_LOST
    with transaction.atomic():
        if services.transition(attempt, reason.status, reason=reason, detail=detail, actor_name="controller"):
            Placement.objects.filter(pk__in=[placement.pk for placement in lost]).update(quarantined=True)
