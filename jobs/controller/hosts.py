"""Hosts as their beats describe them, and which of them are online, by the controller's own clock."""

from __future__ import annotations

import logging
from typing import Any, cast

import redis
from django.utils import timezone
from pydantic import ValidationError

from jobs.controller.reports import release
from jobs.models import Host, Placement
from workers.contract.messages import HOST_KEY_PATTERN, UNRESPONSIVE_S, HostBeat

logger = logging.getLogger(__name__)


class Hosts:
    def __init__(self) -> None:
        # Host -> when its last new beat was seen. Only ages while Redis can be read: see `forget`.
        self._seen: dict[str, float] = {}

    def forget(self) -> None:
        """After a time without Redis: every host gets its whole time again."""
        self._seen.clear()

    def run(self, client: redis.Redis, now: float) -> None:
        keys = list(client.scan_iter(match=HOST_KEY_PATTERN, count=500))
        beats = cast("list[bytes | None]", client.mget(keys)) if keys else []
        known = {host.name: host for host in Host.objects.all()}
        for body in beats:
            beat = _read(body)
            if beat is None:
                continue
            host = known.get(beat.name)
            # Only a number that has changed is a sign of life: the key outlives its host for a while.
            if host is None or (host.boot, host.beat_seq) != (beat.boot, beat.seq):
                self._seen[beat.name] = now
                known[beat.name] = _update(beat, was_online=bool(host and host.online))
                _end_quarantine(known[beat.name], beat)
        for host in known.values():
            seen = self._seen.setdefault(host.name, now)
            if host.online and now - seen > UNRESPONSIVE_S:
                Host.objects.filter(pk=host.pk).update(online=False)
                logger.warning("Host %s has not been heard of for %.0f s.", host.name, now - seen)


def _read(body: bytes | None) -> HostBeat | None:
    if body is None:
        return None
    try:
        # PostgreSQL keeps no NUL in texts.
        return HostBeat.model_validate_json(body.replace(b"\\u0000", b"\\ufffd"))
    except ValidationError as error:
        logger.warning("A host's beat makes no sense: %s", error)
        return None


def _update(beat: HostBeat, *, was_online: bool) -> Host:
    shown: dict[str, Any] = beat.model_dump(mode="json", exclude={"name", "seq", "attempts"})
    host, created = Host.objects.update_or_create(
        name=beat.name, defaults=shown | {"beat_seq": beat.seq, "last_seen_at": timezone.now(), "online": True}
    )
    if created or not was_online:
        logger.info("Host %s is online with %d devices.", host.name, len(host.devices))
    return host


def _end_quarantine(host: Host, beat: HostBeat) -> None:
    """The host has reported, without the attempt whose lease was lost: its devices are free."""
    for placement in Placement.objects.holding().filter(host=host, quarantined=True).select_related("attempt"):
        if placement.attempt.uid not in beat.attempts:
            release(placement)
            logger.info("Devices of %s on %s are out of quarantine.", placement.attempt, host.name)
