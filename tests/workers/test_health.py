from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RedisServer
from workers import health
from workers.config import Config
from workers.contract.messages import CONTROLLER_KEY
from workers.watch import HostThreads


@pytest.fixture(autouse=True)
def host(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    monkeypatch.setenv("HOST_NAME", "here")
    monkeypatch.setenv("DEVICES", "cpu:1")
    monkeypatch.setenv("DATA_DIR", str(tmp_path))


def test_a_worker_is_well_while_its_heartbeat_is_fresh() -> None:
    assert health.main(["worker"]) == 1
    HostThreads(Config.from_environment()).beat()
    assert health.main(["worker"]) == 0


def test_another_hosts_heartbeat_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    HostThreads(Config.from_environment()).beat()
    monkeypatch.setenv("HOST_NAME", "elsewhere")
    assert health.main(["worker"]) == 1


def test_a_controller_is_well_while_it_renews_its_key(redis_server: RedisServer) -> None:
    assert health.main(["controller"]) == 1
    with redis_server.client() as client:
        client.set(CONTROLLER_KEY, "some", ex=15)
    assert health.main(["controller"]) == 0


def test_without_redis_nothing_is_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("REDIS_URL", "unix:///nowhere.sock")
    assert health.main(["worker"]) == 1
    assert "cannot be reached" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["web"], ["worker", "controller"]])
def test_it_is_asked_for_one_of_two(arguments: list[str]) -> None:
    assert health.main(arguments) == 2
