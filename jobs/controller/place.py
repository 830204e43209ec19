"""Which queued attempt goes where: by priority, then to whoever uses the fewest devices, then by age; all its nodes at
once, or none. What a host's shutdown has interrupted goes before what was only waiting. Who has all that their limits
allow waits, and holds nobody up.

An attempt goes to GPU hosts if there are any, else to CPU hosts, and never to both. One that must wait for
devices keeps for itself the hosts it could use, so that smaller ones behind it do not starve it; one that
is too large for every host there is holds nobody up.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from jobs import limits, services
from jobs.models import Attempt, DeviceHold, Host, Placement
from workers.contract.states import Status
from workers.contract.texts import Text

logger = logging.getLogger(__name__)

# A host that has refused an attempt (a device is still locked there) is not asked again at once.
REFUSED_S = 15.0


@dataclass
class Room:
    """Devices of one kind on one host."""

    host: Host
    kind: str
    all: list[int]
    free: list[int]


def run() -> int:
    """Places what can be placed now; returns how many."""
    queue = _Queue()
    if not queue.waiting:
        return 0
    rooms = _rooms()
    placed = 0
    while (attempt := queue.next()) is not None:
        candidates = [room for room in rooms if len(room.all) >= attempt.devices_per_node]
        refused = _refused_by(attempt)
        ready = [
            room for room in candidates if len(room.free) >= attempt.devices_per_node and room.host.pk not in refused
        ]
        # The fullest first: large gaps stay for large attempts.
        ready.sort(key=lambda room: (len(room.free), room.host.name))
        if len(ready) >= attempt.nodes:
            chosen = [(room, room.free[: attempt.devices_per_node]) for room in ready[: attempt.nodes]]
            if _place(attempt, chosen):
                placed += 1
                queue.takes(attempt)
                for room, devices in chosen:
                    room.free = [index for index in room.free if index not in devices]
        elif len(candidates) >= attempt.nodes:
            rooms = [room for room in rooms if room not in candidates]
    return placed


class _Queue:
    """The queued attempts in fair order: each that is placed puts its owner behind those who use less."""

    def __init__(self) -> None:
        queued = Attempt.objects.queued().filter(leave="").select_related("job")
        self.waiting: dict[int, deque[Attempt]] = {}
        for attempt in sorted(queued, key=_rank):
            self.waiting.setdefault(attempt.job.owner_id, deque()).append(attempt)
        if self.waiting:
            self.allowed = limits.of_all(self.waiting)
            self.use = limits.use_of_all()

    def next(self) -> Attempt | None:
        """The next that its owner's limits let through."""
        while self.waiting:
            owner = min(self.waiting, key=lambda owner: self._turn(self.waiting[owner][0]))
            attempt = self.waiting[owner].popleft()
            if not self.waiting[owner]:
                del self.waiting[owner]
            if not limits.holds_back(attempt, self.allowed.get(owner, limits.Allowed()), self._use(owner)):
                return attempt
        return None

    def takes(self, attempt: Attempt) -> None:
        use = self.use.setdefault(attempt.job.owner_id, limits.Use())
        use.devices += attempt.nodes * attempt.devices_per_node
        use.running += 1

    def _turn(self, attempt: Attempt) -> tuple[int, int, int, int]:
        priority, interrupted, age = _rank(attempt)
        return priority, interrupted, self._use(attempt.job.owner_id).devices, age

    def _use(self, owner: int) -> limits.Use:
        return self.use.get(owner) or limits.Use()


def _rank(attempt: Attempt) -> tuple[int, int, int]:
    """Among those of one owner."""
    return -attempt.job.priority, int(attempt.cause != Attempt.Cause.DRAIN), attempt.pk


def _rooms() -> list[Room]:
    hosts = list(Host.objects.filter(enabled=True))
    kind = "gpu" if any(device["kind"] == "gpu" for host in hosts for device in host.devices) else "cpu"
    held = set(DeviceHold.objects.values_list("host_id", "kind", "index"))
    rooms = []
    for host in Host.objects.accepting():
        indices = sorted(device["index"] for device in host.devices if device["kind"] == kind)
        free = [index for index in indices if (host.pk, kind, index) not in held]
        rooms.append(Room(host, kind, indices, free))
    return rooms


def _refused_by(attempt: Attempt) -> set[int]:
    since = timezone.now() - timedelta(seconds=REFUSED_S)
    return set(attempt.placements.filter(released_at__gt=since).values_list("host_id", flat=True))


def _place(attempt: Attempt, chosen: list[tuple[Room, list[int]]]) -> bool:
    """One transaction. The unique rule of DeviceHold stands behind the choice: who comes second gets nothing."""
    try:
        with transaction.atomic():
            where = ", ".join(f"{room.host.name} ({room.kind} {', '.join(map(str, d))})" for room, d in chosen)
            detail = Text("On %(where)s.", where=where)
            if not services.transition(attempt, Status.STARTING, detail=detail, actor_name="controller"):
                return False
            for node, (room, devices) in enumerate(chosen):
                # As it is now: a drain may have begun since the host was read.
                if not Host.objects.select_for_update().accepting().filter(pk=room.host.pk).exists():
                    raise _TooLate
                placement = Placement.objects.create(
                    attempt=attempt, host=room.host, node=node, device_kind=room.kind, devices=devices
                )
                DeviceHold.objects.bulk_create(
                    DeviceHold(placement=placement, host=room.host, kind=room.kind, index=index) for index in devices
                )
    except (IntegrityError, _TooLate):
        attempt.refresh_from_db()
        return False
    logger.info("Attempt %s is placed on %s.", attempt, where)
    return True


class _TooLate(Exception):
    pass
