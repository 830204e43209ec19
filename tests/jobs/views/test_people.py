"""Accounts: who may do what to whom, and what becomes of sessions and jobs."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs.models import Account, DefaultLimits, Job, Limits, PeopleEvent
from tests.jobs.views.conftest import People

STAFF_ONLY = {"anonymous": 302, "owner": 403, "other": 403, "staff": 200}
GOOD = "a sea of 9 whales"


@pytest.fixture
def boss(db: None) -> User:
    return User.objects.create_user("boss", password="correct horse battery", is_staff=True, is_superuser=True)  # noqa: S106


@pytest.fixture
def chief(boss: User) -> Client:
    client = Client()
    client.force_login(boss)
    return client


def events(person: User) -> list[str]:
    return list(PeopleEvent.objects.filter(person=person).order_by("pk").values_list("kind", flat=True))


# --- who sees it -----------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["/people/", "/people/events/", "/people/new/", "/people/limits/"])
def test_pages_are_for_staff(people: People, url: str) -> None:
    assert people.ask(url) == STAFF_ONLY


def test_the_page_of_a_person_is_for_staff_even_their_own(people: People, owner: User) -> None:
    assert people.ask(f"/people/{owner.pk}/") == STAFF_ONLY
    assert people.staff.get("/people/4711/").status_code == 404


@pytest.mark.parametrize("verb", ["password", "deactivate", "activate", "delete", "limits", ""])
def test_nobody_else_changes_accounts(people: People, other: User, verb: str) -> None:
    url = f"/people/{other.pk}/{verb}/" if verb else f"/people/{other.pk}/"
    before = User.objects.filter(pk=other.pk).values().get()
    assert people.anonymous.post(url).status_code == 302
    assert people.owner.post(url, {"devices": "9"}).status_code == 403
    if verb:
        assert people.staff.get(url).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="stella"))
    assert strict.post(url).status_code == 403
    assert User.objects.filter(pk=other.pk).values().get() == before
    assert not PeopleEvent.objects.exists() and not Account.objects.exists()


def test_the_list_is_searched_and_filtered(people: People, owner: User, other: User, job: Job) -> None:
    User.objects.filter(pk=other.pk).update(is_active=False, email="oskar@example.org")
    page = people.staff.get("/people/").text
    assert "olga" in page and "oskar" in page and "deactivated" in page
    assert [row["person"].username for row in people.staff.get("/people/?q=example.org").context["rows"]] == ["oskar"]
    assert [row["person"].username for row in people.staff.get("/people/?kind=inactive").context["rows"]] == ["oskar"]
    assert [row["person"].username for row in people.staff.get("/people/?kind=staff").context["rows"]] == ["stella"]
    assert "No user fits" in people.staff.get("/people/?q=nobody%00").text
    row = people.staff.get("/people/?q=olga").context["rows"][0]
    assert (row["person"].job_count, row["person"].live_count) == (1, 1)


# --- adding ----------------------------------------------------------------------------------


def test_a_first_password_is_made_shown_once_and_must_be_changed(people: People, staff: User) -> None:
    answer = people.staff.post("/people/new/", {"name": "frida", "email": "frida@example.org"})
    password = answer.context["password"]
    assert answer.status_code == 200 and password in answer.text and "no-store" in answer["Cache-Control"]
    frida = User.objects.get(username="frida")
    assert frida.check_password(password) and not frida.is_staff and len(password) == 19
    assert password not in people.staff.get(f"/people/{frida.pk}/").text
    assert events(frida) == ["added"]
    client = Client()
    client.post("/login/", {"username": "frida", "password": password})
    assert client.get("/")["Location"] == "/account/password/"


def test_a_typed_password_is_checked(people: People) -> None:
    answer = people.staff.post("/people/new/", {"name": "frida", "password": "12345"})
    assert answer.status_code == 422 and "too short" in answer.text
    assert not User.objects.filter(username="frida").exists()
    assert people.staff.post("/people/new/", {"name": "frida", "password": GOOD}).context["password"] == GOOD


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "OLGA"}, "name"),
        ({"name": "two words"}, "name"),
        ({"name": "x" * 151}, "name"),
        ({"name": "nul\0"}, "name"),
        ({"name": "frida", "email": "nothing"}, "email"),
        ({"name": "frida", "staff": "on"}, "staff"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(people: People, given: dict[str, str], field: str) -> None:
    answer = people.staff.post("/people/new/", given)
    assert answer.status_code == 422 and list(answer.context["errors"]) == [field]
    assert User.objects.count() == 3


# --- rights ----------------------------------------------------------------------------------


def test_only_a_superuser_makes_staff(people: People, chief: Client, owner: User) -> None:
    url = f"/people/{owner.pk}/"
    assert people.staff.post(url, {"email": "", "staff": "on"}).status_code == 422
    assert people.staff.post(url, {"email": "olga@example.org"}).status_code == 302
    assert chief.post(url, {"email": "olga@example.org", "staff": "on"}).status_code == 302
    owner.refresh_from_db()
    assert owner.is_staff and not owner.is_superuser
    assert PeopleEvent.objects.filter(person=owner).first().changes == {"staff": [False, True]}  # type: ignore[union-attr]
    assert "staff: no → yes" in chief.get(url).text


@pytest.mark.parametrize("verb", ["password", "deactivate", "delete", "limits", ""])
def test_staff_touches_neither_staff_nor_superusers(people: People, boss: User, verb: str) -> None:
    second = User.objects.create_user("second", is_staff=True)
    for person in (boss, second):
        url = f"/people/{person.pk}/{verb}/" if verb else f"/people/{person.pk}/"
        before = User.objects.filter(pk=person.pk).values().get()
        people.staff.post(url, {"email": "new@example.org", "devices": "0"})
        assert User.objects.filter(pk=person.pk).values().get() == before
    assert not PeopleEvent.objects.exists()


@pytest.mark.parametrize("verb", ["deactivate", "delete", "password", ""])
def test_nobody_locks_themselves_out(chief: Client, boss: User, verb: str) -> None:
    url = f"/people/{boss.pk}/{verb}/" if verb else f"/people/{boss.pk}/"
    answer = chief.post(url, {"email": ""}, follow=True)
    assert answer.status_code in (200, 422) and ("Nobody" in answer.text or "your own password" in answer.text)
    boss.refresh_from_db()
    assert boss.is_active and boss.is_superuser and boss.is_staff and boss.check_password("correct horse battery")


def test_a_superuser_may_take_the_rights_of_another(chief: Client, boss: User) -> None:
    second = User.objects.create_user("second", is_staff=True, is_superuser=True)
    chief.post(f"/people/{second.pk}/", {"email": ""})
    second.refresh_from_db()
    assert not second.is_staff and not second.is_superuser


# --- passwords, deactivation, deletion -------------------------------------------------------


def test_a_reset_ends_every_session_and_asks_for_a_new_password(people: People, owner: User) -> None:
    assert people.owner.get("/").status_code == 200
    password = people.staff.post(f"/people/{owner.pk}/password/").context["password"]
    assert people.owner.get("/")["Location"].startswith("/login/")
    client = Client()
    assert client.post("/login/", {"username": "olga", "password": password}).status_code == 302
    assert client.get("/")["Location"] == "/account/password/"
    assert events(owner) == ["password_reset"]


def test_a_deactivated_person_is_out_at_once_and_their_job_goes_on(people: People, owner: User, job: Job) -> None:
    answer = people.staff.post(f"/people/{owner.pk}/deactivate/", follow=True)
    assert "Jobs that run or wait go on" in answer.text and job.name in answer.text
    assert people.owner.get("/")["Location"].startswith("/login/")
    login = {"username": "olga", "password": "correct horse battery"}
    assert "don’t match" in Client().post("/login/", login).text
    job.refresh_from_db()
    assert job.status == "queued"
    people.staff.post(f"/people/{owner.pk}/activate/")
    assert Client().post("/login/", login).status_code == 302
    assert events(owner) == ["deactivated", "activated"]


def test_an_account_with_jobs_or_datasets_is_kept(people: People, owner: User, other: User, job: Job) -> None:
    assert "can only be deactivated" in people.staff.post(f"/people/{owner.pk}/delete/", follow=True).text
    assert User.objects.filter(pk=owner.pk).exists()
    Account.objects.create(user=other, language="en")
    people.staff.post(f"/people/{other.pk}/delete/")
    assert not User.objects.filter(pk=other.pk).exists()
    event = PeopleEvent.objects.get()
    assert (event.kind, event.person, event.person_name, event.actor_name) == ("deleted", None, "oskar", "stella")
    assert "oskar" in people.staff.get("/people/events/").text


# --- limits ----------------------------------------------------------------------------------


def test_limits_of_one_user_and_of_everybody(people: People, owner: User) -> None:
    people.staff.post("/people/limits/", {"devices": "4", "storage_bytes": "1.5", "time_limit_hours": "8"})
    row = DefaultLimits.objects.get()
    assert (row.devices, row.storage_bytes, row.time_limit_hours) == (4, 3 * 2**29, 8)
    url = f"/people/{owner.pk}/limits/"
    answer = people.staff.post(url, {"devices": "2", "running": "1", "time_limit_hours_none": "on"}, follow=True)
    account = Account.objects.get(user=owner)
    assert (account.devices, account.running, account.time_limit_hours) == (2, 1, Limits.NONE)
    assert account.storage_bytes is None and "no limit" in answer.text
    assert "Devices in use at once: as everybody → 2" in answer.text
    assert people.staff.post(url, {"devices": "many"}).status_code == 422
    assert people.staff.post("/people/limits/", {"priority": "101"}).status_code == 422
    page = people.owner.get("/account/").text
    assert "Devices in use at once" in page and "1.5 GiB" in page


# --- Django's own admin ----------------------------------------------------------------------


def test_the_admin_has_no_way_around_it(chief: Client, people: People, owner: User) -> None:
    assert people.staff.get("/admin/auth/user/").status_code == 404
    assert chief.get("/admin/auth/user/").status_code == 404
    assert people.anonymous.get("/admin/login/?next=/admin/jobs/")["Location"] == "/login/?next=%2Fadmin%2Fjobs%2F"
    assert people.owner.get("/admin/", follow=True).status_code == 403


def test_staff_finds_the_page_and_others_do_not(people: People) -> None:
    assert 'href="/people/"' in people.staff.get("/").text
    assert 'href="/people/"' not in people.owner.get("/").text


def test_two_superusers_cannot_take_each_others_rights(boss: User) -> None:
    """The second works on rows that it read before the first was done."""
    from jobs import people as verbs
    from jobs.services import Refused

    second = User.objects.create_user("second", is_staff=True, is_superuser=True)
    stale: Any = User.objects.get(pk=second.pk)
    verbs.set_active(second, False, actor=boss)
    with pytest.raises(Refused, match="may not"):
        verbs.set_active(boss, False, actor=stale)
    assert User.objects.get(pk=boss.pk).is_active
