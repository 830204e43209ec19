"""Hosts: what they are, who holds their devices, and taking one out of service."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Prefetch
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from jobs import services
from jobs.models import Host, Placement
from jobs.views.rows import Asked


@require_safe
def host_list(request: Asked) -> HttpResponse:
    held = Placement.objects.filter(released_at__isnull=True).select_related("attempt__job__owner")
    hosts = Host.objects.prefetch_related(Prefetch("placements", held, to_attr="held"))
    context = {"hosts": [_described(host, request) for host in hosts]}
    return render(request, "hosts/list_table.html" if request.htmx else "hosts/list.html", context)


def _described(host: Any, request: Asked) -> dict[str, Any]:
    holders: dict[int, Placement] = {}
    for placement in host.held:
        for index in placement.devices:
            holders[index] = placement
    devices = []
    gpus = {gpu["index"]: gpu for gpu in host.usage.get("gpus", [])}
    for device in host.devices:
        placement = holders.get(device["index"])
        job = placement.attempt.job if placement else None
        # Whose job it is, is told to those who may see it; the rest learn that the device is taken.
        mine = job is not None and (request.user.is_staff or job.owner_id == request.user.pk)
        usage = gpus.get(device["index"]) if device["kind"] == "gpu" else None
        devices.append({"device": device, "placement": placement, "job": job if mine else None, "usage": usage})
    if any(placement.quarantined for placement in host.held):
        state = "quarantine"
    elif not host.online:
        state = "offline"
    else:
        state = "draining" if host.draining else "online"
    return {"host": host, "devices": devices, "state": state}


@require_POST
def host_drain(request: Asked, pk: int) -> HttpResponse:
    if not request.user.is_staff:
        raise PermissionDenied
    host = get_object_or_404(Host, pk=pk)
    services.drain(host, actor=request.user)
    messages.success(
        request,
        _("%(host)s takes no new attempts; those on it save a checkpoint and go on elsewhere.") % {"host": host.name},
    )
    return redirect("host_list")


@require_POST
def host_undrain(request: Asked, pk: int) -> HttpResponse:
    if not request.user.is_staff:
        raise PermissionDenied
    host = get_object_or_404(Host, pk=pk)
    services.undrain(host)
    messages.success(request, _("%(host)s takes attempts again.") % {"host": host.name})
    return redirect("host_list")
