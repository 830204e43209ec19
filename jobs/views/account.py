"""A user's own account: password, language, and what they use of what they may."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe
from django.views.i18n import set_language

from jobs import limits, people
from jobs.views.rows import Asked


@require_safe
def account(request: Asked) -> HttpResponse:
    context = {"account": people.account_of(request.user), "limits": limit_rows(request.user)}
    return render(request, "people/account.html", context)


def limit_rows(user: Any) -> list[dict[str, Any]]:
    """Every limit with its use, where it is used up: {"name", "used", "limit"}; a limit of None is none."""
    allowed, use = limits.of(user), limits.use_of(user)
    used = {
        "devices": use.devices,
        "running": use.running,
        "queued": limits.queued_of(user),
        "storage_bytes": limits.stored_bytes(user),
    }
    return [{"name": name, "used": used.get(name), "limit": getattr(allowed, name)} for name in limits.NAMES]


class NewPassword(PasswordChangeForm):
    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        new = cleaned.get("new_password1")
        if new and new == cleaned.get("old_password"):
            raise forms.ValidationError(_("The new password is the old one."))
        return cleaned


@sensitive_post_parameters()
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def account_password(request: Asked) -> HttpResponse:
    must = people.account_of(request.user).must_change_password
    form = NewPassword(request.user, request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        people.change_password(request.user, form.cleaned_data["new_password1"])
        # This session goes on under a new key; all others end.
        update_session_auth_hash(request, request.user)
        messages.success(request, _("Your password is changed. Other places where you were logged in are logged out."))
        return redirect("job_list" if must else "account")
    context = {"form": form, "must": must}
    return render(request, "people/password.html", context, status=422 if form.errors else 200)


def choose_language(request: HttpRequest) -> HttpResponse:
    """For this browser by a cookie, as Django does; for who is logged in also for every other."""
    response: HttpResponse = set_language(request)
    language = request.POST.get("language", "")
    if request.method == "POST" and request.user.is_authenticated and language in dict(settings.LANGUAGES):
        people.set_language(request.user, language)
    return response
