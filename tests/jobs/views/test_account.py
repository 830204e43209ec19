"""One's own account: password, language, and that nothing else can be done before a new password."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver

from jobs.models import Account, Job, PeopleEvent
from tests.jobs.views.conftest import People
from tests.webapp.test_pages import _patterns

OLD, NEW = "correct horse battery", "a sea of 9 whales"


def change(client: Client, old: str = OLD, new: str = NEW, again: str | None = None) -> int:
    data = {"old_password": old, "new_password1": new, "new_password2": new if again is None else again}
    return client.post("/account/password/", data).status_code


def test_everybody_has_an_account_page(people: People) -> None:
    everybody = {"anonymous": 302, "owner": 200, "other": 200, "staff": 200}
    assert people.ask("/account/") == everybody
    assert people.ask("/account/password/") == everybody


def test_a_new_password_ends_the_other_sessions_and_not_this_one(people: People, owner: User) -> None:
    elsewhere = Client()
    elsewhere.force_login(owner)
    assert change(people.owner) == 302
    assert people.owner.get("/account/").status_code == 200
    assert elsewhere.get("/account/")["Location"].startswith("/login/")
    owner.refresh_from_db()
    assert owner.check_password(NEW)
    assert [event.kind for event in PeopleEvent.objects.filter(person=owner)] == ["password_changed"]


@pytest.mark.parametrize(
    ("old", "new", "again"),
    [("wrong", NEW, None), (OLD, "short", None), (OLD, "password123", None), (OLD, NEW, "other"), (OLD, OLD, None)],
)
def test_a_password_that_will_not_do_changes_nothing(
    people: People, owner: User, old: str, new: str, again: str | None
) -> None:
    assert change(people.owner, old, new, again) == 422
    owner.refresh_from_db()
    assert owner.check_password(OLD)


def test_a_form_without_token_changes_nothing(strict: Client, owner: User) -> None:
    assert change(strict) == 403


# --- a new password before anything else -----------------------------------------------------


@pytest.fixture
def must(owner: User, people: People) -> Client:
    Account.objects.create(user=owner, must_change_password=True)
    return people.owner


def test_every_other_page_leads_to_the_form(must: Client, job: Job) -> None:
    asked = 0
    for route in _patterns(get_resolver()):
        if route in ("login/", "logout/", "language/", "healthz", "readyz", "favicon.ico", "account/password/") or (
            "<path" in route or "static" in route or "^" in route or route.startswith("admin/")
        ):
            continue
        url = "/" + re.sub(r"<int:\w+>", str(job.pk), route)
        url = re.sub(r"<\w+:\w+>", "1", url)
        for answer in (must.get(url), must.post(url)):
            assert answer.status_code == 302 and answer["Location"] == "/account/password/", url
        asked += 1
    assert asked >= 30
    assert must.get("/admin/")["Location"] == "/account/password/"
    assert must.get("/account/password/").status_code == 200
    assert must.post("/language/", {"language": "en"}).status_code == 302


def test_parts_scripts_and_streams_get_an_answer_that_they_understand(must: Client, job: Job) -> None:
    part = must.get("/", headers={"HX-Request": "true"})
    assert part.status_code == 200 and part["HX-Redirect"] == "/account/password/"
    chart = must.get(f"/jobs/{job.pk}/chart/", headers={"accept": "application/json"})
    assert chart.status_code == 403 and chart.json()["errors"][""] == "Change your password first."
    assert must.get(f"/jobs/{job.pk}/live/", headers={"accept": "text/event-stream"}).status_code == 403


def test_after_the_change_all_is_open(must: Client) -> None:
    assert "was given to you" in must.get("/account/password/").text
    assert change(must) == 302
    assert must.get("/").status_code == 200


def test_who_must_change_the_password_may_log_out(must: Client) -> None:
    assert must.post("/logout/")["Location"] == "/login/"


# --- language --------------------------------------------------------------------------------


def test_the_language_goes_with_the_account_to_every_device(people: People, owner: User) -> None:
    people.owner.post("/language/", {"language": "zh-hans", "next": "/"})
    elsewhere = Client()
    elsewhere.force_login(owner)
    elsewhere.cookies["django_language"] = "en"
    assert '<html lang="zh-hans">' in elsewhere.get("/account/", headers={"accept-language": "en"}).text
    assert elsewhere.get("/account/")["Content-Language"] == "zh-hans"
    assert '<html lang="en">' in people.other.get("/account/").text


def test_without_a_choice_the_browser_is_asked(people: People) -> None:
    assert '<html lang="zh-hans">' in people.owner.get("/", headers={"accept-language": "zh-CN"}).text
    assert '<html lang="zh-hans">' in people.anonymous.get("/login/", headers={"accept-language": "zh-CN"}).text
    assert '<html lang="en">' in people.anonymous.get("/login/", headers={"accept-language": "de"}).text


def test_a_language_that_there_is_not_is_not_kept(people: People, owner: User) -> None:
    people.owner.post("/language/", {"language": "tlh", "next": "/"})
    assert not Account.objects.exists()


def test_the_language_of_one_request_does_not_stay_for_the_next(people: People, owner: User) -> None:
    people.owner.post("/language/", {"language": "zh-hans", "next": "/"})
    people.owner.get("/")
    assert '<html lang="en">' in people.other.get("/", headers={"accept-language": "en"}).text


def test_no_cache_keeps_what_somebody_sees_who_has_logged_in(people: People) -> None:
    for page in ("/", "/storage/", "/nothing-here/"):
        assert people.owner.get(page)["Cache-Control"] == "private, no-cache"
    assert "no-store" in people.owner.get("/account/password/")["Cache-Control"]
    assert people.anonymous.get("/readyz").get("Cache-Control") != "private, no-cache"
