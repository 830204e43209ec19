"""Accounts, for staff. Which of them somebody may change is the question of jobs/people.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from jobs import limits, people, throttle
from jobs.models import Account, DefaultLimits, Limits, LoginFailure, PeopleEvent
from jobs.services import Refused
from jobs.views.account import limit_rows
from jobs.views.rows import Asked
from workers.contract.states import ACTIVE

PER_PAGE = 25
EVENTS_SHOWN = 50

P = ParamSpec("P")
View = Callable[Concatenate[Asked, P], HttpResponse]


def for_staff(view: View[P]) -> View[P]:
    @wraps(view)
    def checked(request: Asked, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not request.user.is_staff:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return checked


# --- lists -----------------------------------------------------------------------------------


@require_safe
@for_staff
def people_list(request: Asked) -> HttpResponse:
    text, kind = (request.GET.get(name, "").replace("\0", "").strip() for name in ("q", "kind"))
    found = User.objects.all()
    if text:
        found = found.filter(Q(username__icontains=text) | Q(email__icontains=text))
    match kind:
        case "active":
            found = found.filter(is_active=True)
        case "inactive":
            found = found.filter(is_active=False)
        case "staff":
            found = found.filter(is_staff=True)
    live = Q(jobs__status__in=[status.value for status in ACTIVE])
    found = found.annotate(job_count=Count("jobs"), live_count=Count("jobs", filter=live)).order_by("username")
    page = Paginator(found, PER_PAGE).get_page(request.GET.get("page"))
    use, stored = limits.use_of_all(), limits.stored_bytes_of([person.pk for person in page])
    rows = [
        {"person": person, "devices": use.get(person.pk, limits.Use()).devices, "stored": stored.get(person.pk, 0)}
        for person in page
    ]
    context = {
        "page": page,
        "rows": rows,
        "query": request.GET,
        "filtered": bool(text or kind),
        "locked": throttle.locked(),
    }
    return render(request, "people/list.html", context)


@require_safe
@for_staff
def people_events(request: Asked) -> HttpResponse:
    page = Paginator(PeopleEvent.objects.all(), EVENTS_SHOWN).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "query": request.GET,
        "events": page,
        "failures": LoginFailure.objects.all()[:EVENTS_SHOWN],
        "locked": throttle.locked(),
    }
    return render(request, "people/events.html", context)


# --- one account -----------------------------------------------------------------------------


@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@for_staff
def person_new(request: Asked) -> HttpResponse:
    given: dict[str, Any] = {"name": "", "email": "", "staff": False, "superuser": False}
    errors: dict[str, str] = {}
    if request.method == "POST":
        given = _given(request)
        try:
            person, password = people.add(**given, password=request.POST.get("password", ""), actor=request.user)
        except Refused as refused:
            errors = refused.errors
        else:
            # Shown once: it is kept nowhere.
            return render(request, "people/first_password.html", {"person": person, "password": password, "new": True})
    context = {"given": given, "errors": errors}
    return render(request, "people/new.html", context, status=422 if errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@for_staff
def person_detail(request: Asked, pk: int) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    errors: dict[str, str] = {}
    if request.method == "POST":
        given = _given(request)
        try:
            if people.edit(
                person,
                email=given["email"],
                staff=given["staff"],
                superuser=given["superuser"],
                actor=request.user,
            ):
                messages.success(request, _("The account is changed."))
            return redirect("person_detail", pk)
        except Refused as refused:
            errors = refused.errors
    return _person_page(request, person, errors=errors)


def _person_page(
    request: Asked, person: User, *, errors: dict[str, str] | None = None, form: LimitsForm | None = None
) -> HttpResponse:
    account = people.account_of(person)
    context = {
        "person": person,
        "account": account,
        "may": people.may_manage(request.user, person),
        "me": person == request.user,
        "rows": limit_rows(person),
        "form": form or LimitsForm(row=account),
        "why_kept": people.why_not_deleted(person),
        "live": person.jobs.filter(status__in=[status.value for status in ACTIVE]).order_by("-pk")[:20],
        "job_count": person.jobs.count(),
        "dataset_count": person.datasets.count(),
        "events": PeopleEvent.objects.filter(person=person)[:EVENTS_SHOWN],
        "errors": errors or {},
    }
    failed = bool(errors or (form and form.errors))
    return render(request, "people/detail.html", context, status=422 if failed else 200)


def _given(request: Asked) -> dict[str, Any]:
    data = request.POST
    return {
        "name": data.get("name", ""),
        "email": data.get("email", "").strip(),
        "staff": bool(data.get("staff")),
        "superuser": bool(data.get("superuser")),
    }


@sensitive_post_parameters("password")
@never_cache
@require_POST
@for_staff
def person_password(request: Asked, pk: int) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    try:
        password = people.reset_password(person, actor=request.user, password=request.POST.get("password", ""))
    except Refused as refused:
        return _person_page(request, person, errors=refused.errors)
    return render(request, "people/first_password.html", {"person": person, "password": password})


@require_POST
@for_staff
def person_deactivate(request: Asked, pk: int) -> HttpResponse:
    return _set_active(request, pk, False)


@require_POST
@for_staff
def person_activate(request: Asked, pk: int) -> HttpResponse:
    return _set_active(request, pk, True)


def _set_active(request: Asked, pk: int, active: bool) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    try:
        if people.set_active(person, active, actor=request.user):
            said = (
                _("%(name)s can log in again.")
                if active
                else _("%(name)s is logged out and cannot log in. Jobs that run or wait go on.")
            )
            messages.success(request, said % {"name": person.get_username()})
    except Refused as refused:
        messages.error(request, " ".join(refused.errors.values()))
    return redirect("person_detail", pk)


@require_POST
@for_staff
def person_delete(request: Asked, pk: int) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    try:
        people.delete(person, actor=request.user)
    except Refused as refused:
        messages.error(request, " ".join(refused.errors.values()))
        return redirect("person_detail", pk)
    messages.success(request, _("The account %(name)s is deleted.") % {"name": person.get_username()})
    return redirect("people_list")


@require_POST
@for_staff
def people_unlock(request: Asked) -> HttpResponse:
    name, address = (request.POST.get(field, "").replace("\0", "") for field in ("name", "address"))
    if throttle.lift(name, address, actor=request.user):
        messages.success(request, _("They can try to log in again."))
    return redirect("people_list")


# --- limits ----------------------------------------------------------------------------------

GIB = 2**30


class LimitsForm(forms.Form):
    """Of one user, or of everybody. Storage is typed in GiB."""

    devices = forms.IntegerField(min_value=0, max_value=100_000, required=False)
    running = forms.IntegerField(min_value=0, max_value=100_000, required=False)
    queued = forms.IntegerField(min_value=0, max_value=100_000, required=False)
    priority = forms.IntegerField(min_value=-100, max_value=100, required=False)
    storage_bytes = forms.FloatField(min_value=0, max_value=1e9, required=False)
    time_limit_hours = forms.FloatField(min_value=0.01, max_value=8760, required=False)

    def __init__(self, data: Any = None, *, row: Limits) -> None:
        self.own = isinstance(row, Account)
        self.stored = {name: getattr(row, name) for name in limits.NAMES}
        super().__init__(data)

    def rows(self) -> list[dict[str, Any]]:
        """What the template shows of each: what is typed or stored, and what holds without it."""
        everybody = limits.of_everybody() if self.own else {}
        rows: list[dict[str, Any]] = []
        for name in limits.NAMES:
            stored = self.stored[name]
            typed: Any = "" if stored is None or stored == Limits.NONE else stored
            if name == "storage_bytes" and typed != "":
                typed = round(typed / GIB, 3)
            rows.append(
                {
                    "name": name,
                    "value": self.data.get(name, "") if self.is_bound else typed,
                    "none": f"{name}_none" in self.data if self.is_bound else stored == Limits.NONE,
                    "default": everybody.get(name),
                    "errors": self.errors.get(name, []) if self.is_bound else [],
                }
            )
        return rows

    def values(self) -> dict[str, Any]:
        values = {}
        for name in limits.NAMES:
            value = self.cleaned_data.get(name)
            if name == "storage_bytes" and value is not None:
                value = int(value * GIB)
            values[name] = Limits.NONE if f"{name}_none" in self.data else value
        return values


@require_POST
@for_staff
def person_limits(request: Asked, pk: int) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    form = LimitsForm(request.POST, row=people.account_of(person))
    if not form.is_valid():
        return _person_page(request, person, form=form)
    try:
        if people.set_limits(person, form.values(), actor=request.user):
            messages.success(request, _("The limits are changed; they hold from now on."))
    except Refused as refused:
        messages.error(request, " ".join(refused.errors.values()))
    return redirect("person_detail", pk)


@require_http_methods(["GET", "HEAD", "POST"])
@for_staff
def people_limits(request: Asked) -> HttpResponse:
    """Of everybody who has none of their own."""
    row = DefaultLimits.objects.first() or DefaultLimits()
    form = LimitsForm(request.POST if request.method == "POST" else None, row=row)
    if form.is_bound and form.is_valid():
        if people.set_limits(None, form.values(), actor=request.user):
            messages.success(request, _("The limits are changed; they hold from now on."))
        return redirect("people_limits")
    context = {"form": form, "storage": limits.of_everybody()["storage_bytes"]}
    return render(request, "people/limits.html", context, status=422 if form.errors else 200)
