from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.contrib.auth import views as auth
from django.contrib.auth.decorators import login_not_required
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView
from django.views.i18n import set_language

from webapp import ops

urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", auth.LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", auth.LogoutView.as_view(), name="logout"),
    path("language/", login_not_required(set_language), name="set_language"),
    path("healthz", ops.healthz, name="healthz"),
    path("readyz", ops.readyz, name="readyz"),
    # For pages that are not ours, such as the admin's.
    path(
        "favicon.ico",
        login_not_required(RedirectView.as_view(url=settings.STATIC_URL + "img/evenkeel.svg", permanent=True)),
    ),
    path("admin/", admin.site.urls),
    path("", include("jobs.urls")),
]
