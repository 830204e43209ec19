"""Guessing is slowed down, and tells nobody which names there are."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.utils import timezone

from jobs import throttle
from jobs.models import LoginFailure, PeopleEvent
from tests.jobs.views.conftest import _logged_in

pytestmark = pytest.mark.django_db
RIGHT = "correct horse battery"


@pytest.fixture(autouse=True)
def three(settings: Any, owner: User) -> None:
    settings.LOGIN_FAILURES = 3


def attempt(client: Client, password: str = "guess", name: str = "olga", **more: Any) -> Any:  # noqa: S107
    return client.post("/login/", {"username": name, "password": password}, **more)


def test_after_so_many_failures_even_the_right_password_waits(client: Client) -> None:
    for _ in range(3):
        answer = attempt(client)
        assert answer.status_code == 200 and "don’t match" in answer.text
    answer = attempt(client, RIGHT)
    assert answer.status_code == 429 and 880 < int(answer["Retry-After"]) <= 901
    assert "Too many logins have failed here. Wait 15 min" in answer.text and "_auth_user_id" not in client.session
    # What is not tried does not make it longer.
    assert LoginFailure.objects.count() == 3


def test_it_ends_by_itself(client: Client) -> None:
    for _ in range(3):
        attempt(client)
    LoginFailure.objects.update(at=timezone.now() - timedelta(seconds=901))
    assert attempt(client, RIGHT).status_code == 302


def test_a_login_that_succeeds_ends_the_count_and_the_failures_stay_written_down(client: Client) -> None:
    attempt(client)
    attempt(client)
    assert attempt(client, RIGHT).status_code == 302
    assert LoginFailure.objects.filter(cleared_at__isnull=False).count() == 3
    client.logout()
    attempt(client)
    assert attempt(client, RIGHT).status_code == 302


def test_other_names_and_other_addresses_are_not_held_up(client: Client, other: User) -> None:
    for _ in range(3):
        attempt(client)
    assert attempt(Client(), RIGHT, REMOTE_ADDR="192.0.2.9").status_code == 302
    assert attempt(Client(), RIGHT, "oskar").status_code == 302


def test_many_names_from_one_address_are_too_many(client: Client) -> None:
    for number in range(30):
        assert attempt(client, name=f"name{number}").status_code == 200
    assert attempt(client, RIGHT).status_code == 429
    assert attempt(Client(), RIGHT, REMOTE_ADDR="192.0.2.9").status_code == 302


def test_a_name_that_is_guessed_from_many_addresses_has_one_try_from_each_and_its_owner_is_not_held_up(
    client: Client,
) -> None:
    assert attempt(client, RIGHT).status_code == 302  # from home
    for number in range(30):
        assert attempt(Client(), REMOTE_ADDR=f"192.0.2.{number % 15}").status_code == 200
    assert attempt(Client(), REMOTE_ADDR="198.51.100.1").status_code == 200
    assert attempt(Client(), RIGHT, REMOTE_ADDR="198.51.100.1").status_code == 429, "one try"
    assert attempt(Client(), RIGHT, REMOTE_ADDR="198.51.100.2").status_code == 302, "on a journey"
    for _ in range(2):
        assert attempt(Client()).status_code == 200
    assert attempt(Client(), RIGHT).status_code == 302, "at home there are as many as ever"
    # Other names are not slower for it, and one that does not exist is treated alike.
    assert attempt(Client(), name="nobody", REMOTE_ADDR="198.51.100.1").status_code == 200
    for number in range(30):
        attempt(Client(), name="nobody", REMOTE_ADDR=f"203.0.113.{number % 15}")
    assert attempt(Client(), name="nobody", REMOTE_ADDR="198.51.100.9").status_code == 200
    assert attempt(Client(), name="nobody", REMOTE_ADDR="198.51.100.9").status_code == 429


def test_a_name_that_does_not_exist_answers_like_one_that_does(client: Client) -> None:
    User.objects.create_user("gone", password=RIGHT, is_active=False)
    pages = {}
    for name in ("olga", "nobody", "gone"):
        answers = [attempt(Client(), "guess", name) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        pages[name] = _without_secrets(answers[0].text, name), _without_secrets(answers[3].text, name)
    assert pages["olga"] == pages["nobody"] == pages["gone"]


def _without_secrets(page: str, name: str) -> str:
    page = re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", page)
    return re.sub(r"Wait \d+ \w+, until [\d:]+", "", page).replace(f'value="{name}"', "")


def test_the_page_is_chinese_for_who_reads_chinese(client: Client) -> None:
    for _ in range(3):
        attempt(client)
    assert '<html lang="zh-hans">' in attempt(client, headers={"accept-language": "zh-CN"}).text


def test_staff_lifts_it_and_others_cannot(client: Client, staff: User, other: User) -> None:
    for _ in range(3):
        attempt(client)
    lock = {"name": "olga", "address": "127.0.0.1"}
    assert Client().post("/people/unlock/", lock).status_code == 302
    assert _logged_in(other).post("/people/unlock/", lock).status_code == 403
    assert attempt(client, RIGHT).status_code == 429
    boss = _logged_in(staff)
    page = boss.get("/people/").text
    assert "Logins as “olga” from 127.0.0.1 are stopped" in page
    boss.post("/people/unlock/", lock)
    assert attempt(client, RIGHT).status_code == 302
    event = PeopleEvent.objects.get()
    assert (event.kind, event.person_name, event.actor_name) == ("unlocked", "olga", "stella")
    assert "127.0.0.1" in boss.get("/people/events/").text


def test_what_is_old_is_forgotten() -> None:
    LoginFailure.objects.create(name="olga", at=timezone.now() - timedelta(days=91))
    LoginFailure.objects.create(name="olga")
    throttle.prune()
    assert LoginFailure.objects.count() == 1


@pytest.mark.parametrize(
    ("https", "peer", "forwarded", "address"),
    [
        (False, "192.0.2.1", "198.51.100.7", "192.0.2.1"),
        (True, "10.0.0.1", "198.51.100.7", "198.51.100.7"),
        (True, "10.0.0.1", "1.1.1.1, 198.51.100.7", "198.51.100.7"),
        (True, "10.0.0.1", "", "10.0.0.1"),
        (True, "10.0.0.1", "nonsense", ""),
        (False, "", "", ""),
        (False, "2001:db8:1:2:3:4:5:6", "", "2001:db8:1:2::"),
    ],
)
def test_a_proxys_word_counts_only_where_there_is_one(
    settings: Any, https: bool, peer: str, forwarded: str, address: str
) -> None:
    settings.HTTPS = https
    headers = {"x-forwarded-for": forwarded} if forwarded else {}
    assert throttle.address_of(RequestFactory().get("/", headers=headers, REMOTE_ADDR=peer)) == address
