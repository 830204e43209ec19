from __future__ import annotations

from pathlib import Path

from tests.conftest import RedisServer
from workers import embedded_redis


def test_server_answers_on_its_socket_and_starts_empty_after_a_kill(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.set("key", "value")
    redis_server.kill()
    redis_server.start()
    with redis_server.client() as client:
        assert client.get("key") is None


def test_a_long_folder_gets_a_short_socket_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    assert len(str(embedded_redis.socket_path(folder))) <= 100


def test_celery_spells_socket_urls_differently() -> None:
    assert embedded_redis.broker_url("unix:///a/redis.sock") == "redis+socket:///a/redis.sock"
    assert embedded_redis.broker_url("redis://host:6379/0") == "redis://host:6379/0"
