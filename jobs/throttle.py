"""Guessing passwords is slowed down: after so many refused logins of one name from one address, and after ten times as
many from one address, nothing is tried for a while. What is counted is what was typed, so that an account that does not
exist answers like one that does.

A name that is guessed from many addresses (ten times as many refused logins as one address may have) gets one try from
each, and no more for a while; an address from which that name has been logged in before keeps its own count. So the
guessing is slowed down however many addresses it has, and nobody's own login ever waits for what others do.

A login is written down as refused before the password is looked at, and cleared when it was right: who tries many at the
same time is counted all the same.
"""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Max, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from jobs.models import LoginFailure, PeopleEvent

# For one address more, as many people may come through it.
ADDRESS_FACTOR = 10
KEPT = timedelta(days=90)


class Locked(Exception):
    def __init__(self, until: datetime) -> None:
        super().__init__(until)
        self.until = until


def begin(name: str, address: str) -> None:
    """Raises Locked; else the login counts as refused until `succeeded`."""
    failure = LoginFailure.objects.create(name=name[:150], address=address)
    until = locked_until(name, address, before=failure)
    if until is not None:
        # What was not tried is not counted, or the lock would never end.
        failure.delete()
        raise Locked(until)


def succeeded(name: str, address: str) -> None:
    _counted().filter(name=name[:150], address=address).update(cleared_at=timezone.now())


def locked_until(name: str, address: str, *, before: LoginFailure | None = None) -> datetime | None:
    """None: it may be tried."""
    counted = _counted()
    if before is not None:
        counted = counted.filter(pk__lt=before.pk)
    mine = counted.filter(address=address)
    ends = []
    tries = 1 if _is_guessed(name, address, counted) else _most()
    for failures, most in ((mine.filter(name=name[:150]), tries), (mine, ADDRESS_FACTOR * _most())):
        # The one that makes it too many: when it is long enough ago, one more may be tried.
        times = list(failures.order_by("-at").values_list("at", flat=True)[:most])
        if len(times) == most:
            ends.append(times[-1] + _for())
    return max(ends, default=None)


def _is_guessed(name: str, address: str, counted: QuerySet[LoginFailure]) -> bool:
    """From many addresses, and this is none of its own."""
    most = ADDRESS_FACTOR * _most()
    if len(counted.filter(name=name[:150]).values_list("pk")[:most]) < most:
        return False
    return not LoginFailure.objects.filter(name=name[:150], address=address, cleared_at__isnull=False).exists()


def locked() -> list[dict[str, object]]:
    """What is locked now: {"name", "address", "count", "until"}; a name of "" is a whole address."""
    found: list[dict[str, object]] = []
    pairs = _counted().values("name", "address").annotate(count=Count("pk"), newest=Max("at")).order_by("-newest")
    for pair in pairs.filter(count__gte=_most())[:100]:
        until = locked_until(pair["name"], pair["address"])
        found.append({"name": pair["name"], "address": pair["address"], "count": pair["count"], "until": until})
    addresses = _counted().values("address").annotate(count=Count("pk"), newest=Max("at")).order_by("-newest")
    for row in addresses.filter(count__gte=ADDRESS_FACTOR * _most())[:100]:
        until = locked_until("", row["address"])
        found.append({"name": "", "address": row["address"], "count": row["count"], "until": until})
    return found


def lift(name: str, address: str, *, actor: User) -> bool:
    """Staff lets them try again; with a name of "" all from the address. The refused logins stay written down."""
    with transaction.atomic():
        failures = _counted().filter(address=address)
        if name:
            failures = failures.filter(name=name)
        if not failures.update(cleared_at=timezone.now()):
            return False
        PeopleEvent.objects.create(
            kind=PeopleEvent.Kind.UNLOCKED,
            actor=actor,
            actor_name=actor.get_username(),
            person=User.objects.filter(username=name).first() if name else None,
            person_name=name,
            changes={"address": [address, ""]},
        )
    return True


def prune() -> None:
    LoginFailure.objects.filter(at__lt=timezone.now() - KEPT).delete()


def address_of(request: HttpRequest) -> str:
    """Of the browser. What a proxy says of it is believed only where there is one (HTTPS), and only its own last word:
    what stands before that came from outside."""
    address = request.META.get("REMOTE_ADDR", "")
    forwarded = request.headers.get("X-Forwarded-For", "")
    if settings.HTTPS and forwarded:
        address = forwarded.rpartition(",")[2].strip()
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return ""
    # One customer has a /64 of IPv6 addresses at least.
    return str(ipaddress.ip_network((found, 64), strict=False).network_address) if found.version == 6 else str(found)


def _counted() -> QuerySet[LoginFailure]:
    return LoginFailure.objects.filter(cleared_at__isnull=True, at__gt=timezone.now() - _for())


def _most() -> int:
    most: int = settings.LOGIN_FAILURES
    return most


def _for() -> timedelta:
    return timedelta(seconds=settings.LOGIN_LOCK_S)
