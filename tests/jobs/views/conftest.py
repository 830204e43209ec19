"""Four people ask the same questions of every view: the owner, another user, staff, and someone who has not logged in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

from tests.jobs.views.streams import let_go

if TYPE_CHECKING:
    from django.contrib.auth.models import User

PEOPLE = ("anonymous", "owner", "other", "staff")


@dataclass(frozen=True)
class People:
    anonymous: Client
    owner: Client
    other: Client
    staff: Client

    def ask(self, url: str, method: str = "get", data: dict[str, Any] | None = None, **more: Any) -> dict[str, int]:
        """The status that each of them gets; the owner and staff last, since they may change something."""
        order = ("anonymous", "other", "owner", "staff")
        answers = {}
        for name in order:
            answer = getattr(getattr(self, name), method)(url, data or {}, **more)
            answers[name] = answer.status_code
            let_go(answer)
        return {name: answers[name] for name in PEOPLE}


@pytest.fixture
def people(owner: User, other: User, staff: User) -> People:
    return People(Client(), *(_logged_in(user) for user in (owner, other, staff)))


def _logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def strict(owner: User) -> Client:
    """The owner, in a browser whose requests are checked for CSRF."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    return client


MINE = {"anonymous": 302, "owner": 200, "other": 404, "staff": 200}
"""What is answered about something of the owner's: to others it is not there, not even forbidden."""
