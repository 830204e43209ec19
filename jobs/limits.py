"""What a user may have at once, and how much of it is in use.

A user has limits of their own or, where they have none, those of everybody; staff has none. New jobs and uploads are
refused when they go beyond them; a queued attempt whose owner has all devices or running jobs that they may have waits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Count, F, Sum
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from jobs.models import Account, Artifact, Attempt, Checkpoint, Dataset, DefaultLimits, Limits
from workers.contract.states import Status

NAMES = ("devices", "running", "queued", "priority", "storage_bytes", "time_limit_hours")
HIGHEST_PRIORITY = 100


@dataclass(frozen=True)
class Allowed:
    """None is no limit."""

    devices: int | None = None
    running: int | None = None
    queued: int | None = None
    priority: int | None = None
    storage_bytes: int | None = None
    time_limit_hours: float | None = None


@dataclass
class Use:
    devices: int = 0
    running: int = 0


def of(user: User) -> Allowed:
    return of_all([user.pk]).get(user.pk) or Allowed()


def of_all(users: Collection[int] | None = None) -> dict[int, Allowed]:
    """Of these users, or of all that are no staff; staff is left out, and has no limits."""
    everybody = of_everybody()
    plain = User.objects.filter(is_staff=False)
    if users is not None:
        plain = plain.filter(pk__in=users)
    own = {account.pk: account for account in Account.objects.filter(user__in=plain)}
    return {pk: _allowed(own.get(pk), everybody) for pk in plain.values_list("pk", flat=True)}


def of_everybody() -> dict[str, Any]:
    """Name -> limit; None is none."""
    row = DefaultLimits.objects.first() or DefaultLimits()
    found = {name: getattr(row, name) for name in NAMES}
    if found["storage_bytes"] is None:
        found["storage_bytes"] = settings.UPLOAD_QUOTA_BYTES
    return {name: None if value == Limits.NONE else value for name, value in found.items()}


def _allowed(own: Limits | None, everybody: dict[str, Any]) -> Allowed:
    values = {}
    for name in NAMES:
        value = getattr(own, name) if own else None
        values[name] = everybody[name] if value is None else None if value == Limits.NONE else value
    return Allowed(**values)


# --- use -------------------------------------------------------------------------------------


def use_of_all() -> dict[int, Use]:
    """Of everybody who has attempts on hosts."""
    rows = Attempt.objects.on_host().values("job__owner").annotate(n=Count("pk"), devices=Sum(_DEVICES))
    return {row["job__owner"]: Use(row["devices"], row["n"]) for row in rows.order_by()}


def use_of(user: User) -> Use:
    found = Attempt.objects.on_host().filter(job__owner=user).aggregate(n=Count("pk"), devices=Sum(_DEVICES))
    return Use(found["devices"] or 0, found["n"])


def queued_of(user: User) -> int:
    waiting = [Status.QUEUED.value, Status.CHECKING.value]
    return Attempt.objects.filter(job__owner=user, status__in=waiting).count()


def stored_bytes(user: User) -> int:
    return stored_bytes_of([user.pk]).get(user.pk, 0)


def stored_bytes_of(users: Collection[int]) -> dict[int, int]:
    """Datasets, uploads that are not yet checked included, checkpoints and results on the shared storage."""
    total: dict[int, int] = dict.fromkeys(users, 0)
    kept = Checkpoint.objects.filter(attempt__job__owner__in=users, removed_at__isnull=True)
    results = Artifact.objects.filter(attempt__job__owner__in=users)
    datasets = Dataset.objects.filter(owner__in=users)
    for rows, owner, times in (
        (datasets, "owner", 1),
        (kept, "attempt__job__owner", 1),
        # A result is there twice: as a folder, and as one file for download.
        (results, "attempt__job__owner", 2),
    ):
        for user, size in rows.order_by().values_list(owner).annotate(Sum("bytes")):
            total[user] += times * size
    for user, source in datasets.exclude(state=Dataset.State.READY).values_list("owner", "source"):
        total[user] += sum(file["bytes"] for file in source.get("files", []) if "key" in file)
    return total


_DEVICES = F("nodes") * F("devices_per_node")


# --- what they keep from happening ------------------------------------------------------------


def against(owner: User, *, settings: dict[str, Any], priority: int) -> dict[str, str]:
    """Why `owner` may not have one more attempt with these settings: dotted field name -> text, "" for the whole."""
    allowed = of(owner)
    name = owner.get_username()
    errors = {}
    if allowed.queued is not None and (queued := queued_of(owner)) >= allowed.queued:
        errors[""] = _(
            "%(owner)s has %(count)d queued jobs, and may have %(limit)d at once: wait until one has started, or cancel one."
        ) % {"owner": name, "count": queued, "limit": allowed.queued}
    if allowed.storage_bytes is not None and (used := stored_bytes(owner)) >= allowed.storage_bytes:
        errors[""] = _(
            "The datasets and jobs of %(owner)s take %(used)s of the %(limit)s that they may: delete some that are no "
            "longer needed."
        ) % {"owner": name, "used": in_bytes(used), "limit": in_bytes(allowed.storage_bytes)}
    devices = settings.get("devices") or {}
    wanted = devices.get("nodes", 1) * devices.get("devices_per_node", 1)
    if allowed.devices is not None and wanted > allowed.devices:
        errors["devices.devices_per_node"] = _(
            "%(owner)s may use %(limit)d devices at once, and this job asks for %(wanted)d."
        ) % {"owner": name, "limit": allowed.devices, "wanted": wanted}
    if allowed.running == 0:
        errors[""] = _("%(owner)s may run no jobs.") % {"owner": name}
    if allowed.priority is not None and priority > allowed.priority:
        errors["priority"] = _("The highest priority of %(owner)s is %(limit)d, not %(value)d.") % {
            "owner": name,
            "limit": allowed.priority,
            "value": priority,
        }
    hours = (settings.get("limits") or {}).get("time_limit_hours")
    # Without a time limit of its own a job gets the longest: see time_limit_s.
    if hours is not None and (too_long := _against_time(allowed, hours)):
        errors["limits.time_limit_hours"] = too_long
    return errors


def against_time(owner: User, hours: float | None) -> str:
    """Why a job of `owner` may not be given this time limit, None being no limit."""
    return _against_time(of(owner), math.inf if hours is None else hours)


def _against_time(allowed: Allowed, hours: float) -> str:
    most = allowed.time_limit_hours
    if most is None or hours <= most:
        return ""
    return _("The longest time limit of its owner is %(limit)g hours.") % {"limit": most}


def time_limit_s(owner: User, settings: dict[str, Any]) -> float | None:
    """What stands in for a time limit that the settings do not have."""
    most = of(owner).time_limit_hours
    given = (settings.get("limits") or {}).get("time_limit_hours")
    return most * 3600 if most is not None and given is None else None


def against_upload(owner: User, size: int) -> str:
    allowed = of(owner).storage_bytes
    if allowed is None or (used := stored_bytes(owner)) + size <= allowed:
        return ""
    return _(
        "Your datasets and jobs take %(used)s, and with this upload more than your %(quota)s: delete some that are no "
        "longer needed."
    ) % {"used": in_bytes(used), "quota": in_bytes(allowed)}


WAITS_FOR = {
    "devices": gettext_noop("Waiting for a limit of its owner: %(used)d devices in use of %(limit)d."),
    "running": gettext_noop("Waiting for a limit of its owner: %(used)d running jobs of %(limit)d."),
}


def holds_back(attempt: Attempt, allowed: Allowed, use: Use) -> str:
    """The limit, a key of WAITS_FOR, for which a queued attempt must wait; "" for none."""
    if allowed.devices is not None and use.devices + attempt.nodes * attempt.devices_per_node > allowed.devices:
        return "devices"
    if allowed.running is not None and use.running >= allowed.running:
        return "running"
    return ""


def why_it_waits(attempt: Attempt) -> str:
    """For the page of a queued attempt; "" if no limit holds it back."""
    owner = attempt.job.owner
    allowed, use = of(owner), use_of(owner)
    which = holds_back(attempt, allowed, use)
    return _(WAITS_FOR[which]) % {"used": getattr(use, which), "limit": getattr(allowed, which)} if which else ""


def in_bytes(size: int) -> str:
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value == int(value) else f"{value:.1f} {units[0]}"


def changed(old: Iterable[Any], new: Iterable[Any]) -> dict[str, list[Any]]:
    return {name: [a, b] for name, a, b in zip(NAMES, old, new, strict=True) if a != b}
