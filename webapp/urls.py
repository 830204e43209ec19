from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.contrib.auth import views as auth
from django.contrib.auth.decorators import login_not_required
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from jobs.views import account, login
from webapp import ops

urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", login.Login.as_view(), name="login"),
    path("logout/", auth.LogoutView.as_view(), name="logout"),
    path("language/", login_not_required(account.choose_language), name="set_language"),
    path("healthz", ops.healthz, name="healthz"),
    path("readyz", ops.readyz, name="readyz"),
    # For pages that are not ours, such as the admin's.
    path(
        "favicon.ico",
        login_not_required(RedirectView.as_view(url=settings.STATIC_URL + "img/evenkeel.svg", permanent=True)),
    ),
    # What the admin has of its own for accounts gives way to ours, which slow down guessing and write down changes.
    path("admin/login/", login.admin_login),
    path("admin/password_change/", RedirectView.as_view(pattern_name="account_password")),
    path("admin/", admin.site.urls),
    path("", include("jobs.urls")),
]
