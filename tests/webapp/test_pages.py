"""What all pages share: login, language, errors, and that nothing is open by accident."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

PUBLIC = {"login/", "logout/", "language/", "healthz", "readyz", "favicon.ico"}


def _patterns(resolver: URLResolver, prefix: str = "") -> list[str]:
    found: list[str] = []
    for entry in resolver.url_patterns:
        route = prefix + str(entry.pattern)
        found += _patterns(entry, route) if isinstance(entry, URLResolver) else [route]
        assert isinstance(entry, (URLPattern, URLResolver))
    return found


@pytest.mark.django_db
def test_every_other_address_asks_for_a_login(client: Client) -> None:
    asked = 0
    for route in _patterns(get_resolver()):
        if route in PUBLIC or route.startswith("admin/") or "static" in route:
            continue
        url = "/" + re.sub(r"<int:\w+>", "1", route)
        answer = client.post(url) if client.get(url).status_code == 405 else client.get(url)
        assert answer.status_code == 302 and answer["Location"].startswith("/login/"), url
        asked += 1
    assert asked >= 15


@pytest.mark.django_db
def test_the_admin_sends_strangers_and_plain_users_away(client: Client) -> None:
    assert client.get("/admin/").status_code == 302
    client.force_login(User.objects.create_user("plain"))
    assert client.get("/admin/jobs/job/").status_code == 302


@pytest.mark.django_db
def test_log_in_and_out(client: Client) -> None:
    User.objects.create_user("someone", password="a good long secret")  # noqa: S106
    wrong = client.post("/login/", {"username": "someone", "password": "guess"})
    assert "don’t match" in wrong.text and 'value="someone"' in wrong.text
    right = client.post("/login/", {"username": "someone", "password": "a good long secret", "next": "/hosts/"})
    assert right.status_code == 302 and right["Location"] == "/hosts/"
    assert client.get("/logout/").status_code == 405
    client.post("/logout/")
    assert client.get("/").status_code == 302


@pytest.mark.django_db
def test_a_login_leads_to_no_other_site(client: Client) -> None:
    User.objects.create_user("someone", password="a good long secret")  # noqa: S106
    answer = client.post(
        "/login/", {"username": "someone", "password": "a good long secret", "next": "https://example.org/"}
    )
    assert answer["Location"] == "/"


@pytest.mark.django_db
def test_the_language_is_chosen_without_logging_in(client: Client) -> None:
    client.post("/language/", {"language": "zh-hans", "next": "/login/"})
    assert '<html lang="zh-hans">' in client.get("/login/").text


@pytest.mark.django_db
def test_errors_look_like_the_rest(client: Client) -> None:
    client.force_login(User.objects.create_user("someone"))
    answer = client.get("/no/such/page")
    assert answer.status_code == 404 and "evenkeel.css" in answer.text and "Not found" in answer.text
    strict = Client(enforce_csrf_checks=True)
    assert "open for too long" in strict.post("/login/").text


def test_the_error_page_of_last_resort_needs_neither_request_nor_database() -> None:
    from django.template.loader import get_template

    assert "Something went wrong" in get_template("500.html").render()


def test_nothing_is_fetched_from_elsewhere() -> None:
    """No CDN: every address in templates and own scripts is ours."""
    base = Path(settings.BASE_DIR)
    for file in [*base.glob("templates/**/*.html"), *base.glob("webapp/static/**/*.[cj]s*")]:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, file
