from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.conftest import RedisServer
from workers.contract.messages import CONTROLLER_KEY


def test_healthz_answers_anyone_and_asks_no_database(client: Client) -> None:
    answer = client.get("/healthz")
    assert answer.status_code == 200 and answer.content == b"ok\n"


@pytest.mark.django_db
def test_readyz_says_what_is_reachable(client: Client, redis_server: RedisServer, settings: Any) -> None:
    settings.REDIS_URL = redis_server.url
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"ready": True, "database": "ok", "redis": "ok", "controller": "not seen for a while"}
    with redis_server.client() as server:
        server.set(CONTROLLER_KEY, "1", ex=15)
    assert client.get("/readyz").json()["controller"] == "ok"


@pytest.mark.django_db
def test_readyz_is_not_ready_without_redis(client: Client, settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    answer = client.get("/readyz")
    assert answer.status_code == 503 and answer.json()["ready"] is False
    assert "unreachable" in answer.json()["redis"] and "nowhere" not in answer.text
