"""What follows from facts that are all there: requests that need no host, ends, completeness, successors."""

from __future__ import annotations

import logging

from django.db import transaction
from django.utils import timezone

from jobs import services
from jobs.controller.mirror import LISTEN
from jobs.controller.reports import conclude, release
from jobs.models import Attempt, Cursor, Host, Job
from workers.contract.messages import Request
from workers.contract.states import ENDED, EndReason, Status

logger = logging.getLogger(__name__)

_AT_ONCE = {Request.CANCEL: EndReason.CANCELLED, Request.PAUSE: EndReason.PAUSED, Request.DRAIN: EndReason.DRAINED}


def run() -> list[Attempt]:
    """Returns the attempts that changed."""
    return [*_unsent(), *_ended(), *_complete(), *_drained()]


def _unsent() -> list[Attempt]:
    """Asked to leave before any host was told of them: end at once."""
    changed = []
    waiting = Attempt.objects.filter(status=Status.STARTING.value, leave__in=[r.value for r in _AT_ONCE])
    for attempt in waiting.filter(placements__released_at__isnull=True, placements__sent_at__isnull=True).distinct():
        with transaction.atomic():
            placements = list(attempt.placements.select_for_update().filter(released_at__isnull=True))
            if any(placement.sent_at for placement in placements):
                continue
            reason = _AT_ONCE[Request(attempt.leave)]
            if services.transition(attempt, reason.status, reason=reason, actor_name="controller"):
                for placement in placements:
                    release(placement)
                changed.append(attempt)
    return changed


def _ended() -> list[Attempt]:
    """All nodes have said that they ended, yet the attempt goes on: only if something came in between."""
    changed = []
    for attempt in Attempt.objects.on_host().exclude(placements__released_at__isnull=True):
        conclude(attempt)
        if attempt.status in ENDED:
            changed.append(attempt)
    return changed


def _complete() -> list[Attempt]:
    """Every byte that the hosts had is stored."""
    changed = []
    now = timezone.now()
    awaited = Attempt.objects.filter(ended_at__gt=now - LISTEN, complete_at__isnull=True)
    for attempt in awaited.prefetch_related("placements"):
        # Refused placements had nothing; a lost one may still come.
        placements = [p for p in attempt.placements.all() if p.sent_at and not (p.released_at and not p.verdict)]
        if any(not placement.complete_said for placement in placements):
            continue
        stored = {
            f"{rank}/{kind}": offset
            for rank, kind, offset in Cursor.objects.filter(attempt=attempt).values_list("rank", "kind", "offset")
        }
        wanted = {name: size for placement in placements for name, size in placement.complete_bytes.items()}
        if all(stored.get(name, 0) >= size for name, size in wanted.items()):
            # What it takes up is measured once more, for the last time.
            Attempt.objects.filter(pk=attempt.pk).update(complete_at=now, stored_bytes=None)
            changed.append(attempt)
    return changed


def _drained() -> list[Attempt]:
    """Hosts that are being shut down, and what goes on elsewhere, or later."""
    for host in Host.objects.filter(draining=True):
        services.ask_drained_to_leave(host, actor_name="controller")
    changed = []
    for job in Job.objects.filter(status=Status.PAUSED.value, end_reason=EndReason.DRAINED.value):
        successor = services.continue_drained(job)
        if successor is not None:
            logger.info("Attempt %s goes on where %s was interrupted.", successor, job)
            changed.append(successor)
    return changed
