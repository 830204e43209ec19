from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Attempt, Host, Placement
from tests.browser import seed
from tests.jobs.views.conftest import People


@pytest.fixture
def host(db: None) -> Host:
    return seed.host()


def test_everybody_who_has_logged_in_sees_the_hosts(people: People, host: Host) -> None:
    assert people.ask("/hosts/") == {"anonymous": 302, "owner": 200, "other": 200, "staff": 200}
    assert "cpu-1" in people.other.get("/hosts/").text


def test_whose_job_holds_a_device_is_told_to_those_who_may_see_it(people: People, host: Host, attempt: Attempt) -> None:
    Placement.objects.create(attempt=attempt, host=host, device_kind="cpu", devices=[1])
    name = attempt.job.name
    assert name in people.owner.get("/hosts/").text and name in people.staff.get("/hosts/").text
    page = people.other.get("/hosts/").text
    assert name not in page and "another user’s job" in page


def test_when_a_host_was_last_seen_is_told_to_the_second(people: People, host: Host) -> None:
    seen = timezone.now() - timedelta(seconds=40)
    Host.objects.update(last_seen_at=seen)
    told = re.search(r"(\d+) s ago", people.owner.get("/hosts/").text)
    assert told is not None and 40 <= int(told[1]) <= (timezone.now() - seen).total_seconds() + 1


@pytest.mark.parametrize(
    ("changes", "word"),
    [({}, "online"), ({"online": False}, "offline"), ({"draining": True}, "draining")],
)
def test_the_state_of_a_host_in_a_word(people: People, host: Host, changes: dict[str, bool], word: str) -> None:
    Host.objects.update(**changes)
    assert people.owner.get("/hosts/").context["hosts"][0]["state"] == word


def test_a_lost_host_is_in_quarantine(people: People, host: Host, attempt: Attempt) -> None:
    Placement.objects.create(attempt=attempt, host=host, device_kind="cpu", devices=[1], quarantined=True)
    assert people.owner.get("/hosts/").context["hosts"][0]["state"] == "quarantine"


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_only_staff_drains(people: People, host: Host, verb: str) -> None:
    url = f"/hosts/{host.pk}/{verb}/"
    Host.objects.update(draining=verb == "undrain")
    before = Host.objects.get().draining
    assert people.anonymous.post(url).status_code == 302
    assert people.owner.post(url).status_code == 403
    assert people.staff.get(url).status_code == 405
    assert Host.objects.get().draining is before
    assert people.staff.post(url).status_code == 302
    assert Host.objects.get().draining is (verb == "drain")


def test_a_form_without_token_drains_nothing(staff: object, host: Host) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(staff)  # type: ignore[arg-type]
    assert client.post(f"/hosts/{host.pk}/drain/").status_code == 403
    assert not Host.objects.get().draining


def test_without_hosts_it_says_how_they_come(people: People) -> None:
    assert "No host yet" in people.owner.get("/hosts/").text
