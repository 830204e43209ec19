"""How limits and what was done to accounts are written on pages."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.translation import get_language_info, gettext_lazy
from django.utils.translation import gettext as _

from jobs.models import Limits, PeopleEvent
from jobs.templatetags.evenkeel import byte_size, number

register = template.Library()

_LABELS = {
    "devices": gettext_lazy("Devices in use at once"),
    "running": gettext_lazy("Running jobs"),
    "queued": gettext_lazy("Queued jobs"),
    "priority": gettext_lazy("Highest priority"),
    "storage_bytes": gettext_lazy("Storage"),
    "time_limit_hours": gettext_lazy("Longest time limit"),
}
_UNITS = {"storage_bytes": "GiB", "time_limit_hours": gettext_lazy("hours")}
_HELP = {
    "devices": gettext_lazy("A job that would go beyond it waits."),
    "running": gettext_lazy("A job that would go beyond it waits."),
    "queued": gettext_lazy("Submitting more is refused."),
    "priority": gettext_lazy("Between −100 and 100; jobs have 0 if nothing else is said."),
    "storage_bytes": gettext_lazy("Of datasets, checkpoints and results together. When it is full, uploads and new jobs are refused."),
    "time_limit_hours": gettext_lazy("It is also the time limit of jobs that have none of their own."),
}  # fmt: skip


@register.filter
def limit_label(name: str) -> str:
    return str(_LABELS[name])


@register.filter
def limit_unit(name: str) -> str:
    return str(_UNITS.get(name, ""))


@register.filter
def limit_help(name: str) -> str:
    return str(_HELP[name])


@register.filter
def limit_value(value: Any, name: str) -> str:
    """In words; None is no limit."""
    if value is None or value == Limits.NONE:
        return _("no limit")
    if name == "storage_bytes":
        return byte_size(value)
    if name == "time_limit_hours":
        return _("%(hours)g hours") % {"hours": value}
    return number(value)


@register.filter
def share_of(used: Any, limit: Any) -> float:
    return min(used / limit, 1.0) if limit else 1.0


@register.filter
def language_name(code: str) -> str:
    name: str = get_language_info(code)["name_local"]
    return name


_FIELDS = {
    "email": gettext_lazy("e-mail"),
    "staff": gettext_lazy("staff"),
    "superuser": gettext_lazy("superuser"),
    "address": gettext_lazy("address"),
}


@register.filter
def changes_of(event: PeopleEvent) -> str:
    """What it changed, in one line: limits by name with old and new, the rest likewise."""
    parts = []
    for name, (old, new) in event.changes.items():
        if event.kind in (PeopleEvent.Kind.LIMITS, PeopleEvent.Kind.DEFAULTS) and name in _LABELS:
            default = "—" if event.kind == PeopleEvent.Kind.DEFAULTS else _("as everybody")
            shown = [default if value is None else limit_value(value, name) for value in (old, new)]
            parts.append(_change(_LABELS[name], *shown))
        elif event.kind == PeopleEvent.Kind.UNLOCKED:
            parts.append(f"{_FIELDS[name]} {old}")
        elif event.kind == PeopleEvent.Kind.ADDED:
            parts += [str(_FIELDS[name])] if new else []
        elif name in _FIELDS:
            parts.append(_change(_FIELDS[name], _shown(old), _shown(new)))
    return _(", ").join(parts)


def _change(what: Any, old: str, new: str) -> str:
    return _("%(what)s: %(detail)s") % {"what": what, "detail": f"{old} → {new}"}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return str(value or "—")
