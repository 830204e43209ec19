"""Logging in: Django's own, with a limit to guessing (jobs/throttle.py)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib.auth import views as auth
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache

from jobs import throttle


class LoginForm(AuthenticationForm):
    locked_until: datetime | None = None

    def clean(self) -> dict[str, Any]:
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not name or not password or self.request is None:
            return super().clean()
        address = throttle.address_of(self.request)
        try:
            throttle.begin(name, address)
        except throttle.Locked as locked:
            self.locked_until = locked.until
            raise forms.ValidationError("", code="locked") from None
        cleaned = super().clean()
        throttle.succeeded(name, address)
        return cleaned


@method_decorator(login_not_required, name="dispatch")
class Login(auth.LoginView):
    redirect_authenticated_user = True
    form_class = LoginForm

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        until = form.locked_until if isinstance(form, LoginForm) else None
        if until is None:
            return super().form_invalid(form)
        wait_s = max((until - timezone.now()).total_seconds(), 1)
        context = self.get_context_data(form=form, until=until, wait_s=wait_s)
        return self.render_to_response(context, status=429, headers={"Retry-After": str(int(wait_s) + 1)})


@never_cache
@login_not_required
def admin_login(request: HttpRequest) -> HttpResponseBase:
    """Django's admin has a login of its own, which nothing slows down: ours stands in for it."""
    if request.user.is_authenticated:
        raise PermissionDenied
    return redirect(f"/login/?{urlencode({'next': request.GET.get('next') or '/admin/'})}")
