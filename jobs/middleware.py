"""What an account asks of every request: its language, and a new password before anything else."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import translation
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _
from django_htmx.http import HttpResponseClientRedirect

from jobs import people

# What can be reached before the password is changed.
OPEN = {"account_password", "logout", "login", "set_language", "healthz", "readyz"}


class LoginMiddleware(LoginRequiredMiddleware):
    def handle_no_permission(self, request: HttpRequest, view_func: Any) -> HttpResponseBase:  # type: ignore[override]
        """A part of a page would show the login where the part was; its page says it instead (webapp/static/js/page.js)."""
        if request.headers.get("HX-Request"):
            return HttpResponse(status=401)
        return super().handle_no_permission(request, view_func)


class AccountMiddleware(MiddlewareMixin):
    """After the authentication. The language of the account stands above cookie and browser, and follows to every device."""

    def process_request(self, request: HttpRequest) -> None:
        if request.user.is_authenticated and (language := people.account_of(request.user).language):
            translation.activate(language)
            request.LANGUAGE_CODE = translation.get_language()

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """What somebody sees who has logged in is nobody else's, and is asked for again."""
        user = getattr(request, "user", None)
        if user is not None and user.is_authenticated and not response.has_header("Cache-Control"):
            response["Cache-Control"] = "private, no-cache"
        return response

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        if not request.user.is_authenticated or not people.account_of(request.user).must_change_password:
            return None
        match = request.resolver_match
        if match is not None and match.view_name in OPEN:
            return None
        return _change_first(request)


def _change_first(request: HttpRequest) -> HttpResponse:
    """A page leads to the form. A part of a page brings its whole page there; a script or a stream gets an answer that it
    does not take for its own."""
    where = reverse("account_password")
    if request.headers.get("HX-Request"):
        return HttpResponseClientRedirect(where)
    if request.accepts("text/html"):
        return redirect(where)
    return JsonResponse({"errors": {"": _("Change your password first.")}}, status=403)
