"""A controller with a clock that stands still, and hosts and supervisors that say what the contract lets them say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from jobs.controller.loop import Controller
from jobs.models import Attempt
from tests.conftest import RedisServer
from workers.contract.messages import (
    TELEMETRY_STREAM,
    AttemptBeat,
    Control,
    Device,
    HostBeat,
    Kind,
    beat_key,
    host_key,
    host_queue,
    request_key,
    supervisor_rank,
)
from workers.contract.records import dumps


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeHost:
    """The messages of one host's worker."""

    def __init__(self, client: redis.Redis, name: str, devices: int = 2, kind: Any = "cpu") -> None:
        self.redis, self.name = client, name
        self.devices = [Device(index=i, kind=kind, name="slot", memory_bytes=2**30) for i in range(devices)]
        self.seq = 0
        self.attempts: list[str] = []
        self.beat()

    def beat(self) -> None:
        self.seq += 1
        beat = HostBeat(
            name=self.name,
            address="192.0.2.7",
            boot="first",
            seq=self.seq,
            devices=self.devices,
            versions={"python": "3.11"},
            disk_total_bytes=10,
            disk_free_bytes=5,
            memory_total_bytes=8,
            load1=0.5,
            attempts=self.attempts,
        )
        self.redis.set(host_key(self.name), beat.model_dump_json())

    def messages(self) -> int:
        return int(self.redis.llen(host_queue(self.name)))


class FakeSupervisor:
    """One attempt's streams on one node, sent as a relay does."""

    def __init__(self, client: redis.Redis, uid: str, node: int = 0, host: str = "one") -> None:
        self.redis, self.uid, self.node, self.host = client, uid, node, host
        self.offsets: dict[tuple[int, Kind], int] = {}
        self._seq = itertools.count(1)

    def beat(self) -> None:
        beat = AttemptBeat(attempt=self.uid, node=self.node, host=self.host, seq=next(self._seq), stage="running")
        self.redis.set(beat_key(self.uid, self.node), beat.model_dump_json())

    def report(self, kind: str, **fields: Any) -> None:
        self._say(supervisor_rank(self.node), Kind.REPORT, {"kind": kind, "at": "2026-01-02T03:04:05Z"} | fields)

    def event(self, kind: str, by: int = 0, **fields: Any) -> None:
        self._say(by, Kind.EVENTS, {"kind": kind, "at": "2026-01-02T03:04:05+00:00"} | fields)

    def send(self, rank: int, kind: Kind, body: bytes, offset: int | None = None) -> None:
        at = self.offsets.get((rank, kind), 0) if offset is None else offset
        self.redis.xadd(
            TELEMETRY_STREAM,
            {
                "attempt": self.uid,
                "rank": rank,
                "kind": kind.value,
                "offset": at,
                "body": body,
                "host": self.host,
            },
        )
        self.offsets[rank, kind] = max(self.offsets.get((rank, kind), 0), at + len(body))

    def claim(self) -> None:
        self.report("claimed", node=self.node, host=self.host, pid=7, devices=[0], versions={"paddlepaddle": "3.3.1"})

    def run(self) -> None:
        self.claim()
        self.report("started", node=self.node, launcher_pid=8)
        self.report("running", node=self.node)

    def end(self, reason: str = "completed", detail: str = "", **more: Any) -> None:
        fields = {"rank": None, "step": None} | more
        self.report("ended", node=self.node, end_reason=reason, detail=detail, processes_left=0, **fields)

    def complete(self) -> None:
        sizes = {f"{rank}/{kind}": size for (rank, kind), size in self.offsets.items() if kind is not Kind.REPORT}
        self.report("complete", node=self.node, bytes=sizes)

    def control(self) -> Control | None:
        body = self.redis.get(request_key(self.uid))
        return None if body is None else Control.model_validate_json(body)

    def _say(self, rank: int, kind: Kind, line: dict[str, Any]) -> None:
        self.send(rank, kind, dumps(line) + b"\n")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def controller(db: None, redis_server: RedisServer, settings: Any, clock: Clock) -> Iterator[Controller]:
    settings.REDIS_URL = redis_server.url
    controller = Controller(clock)
    controller.ingest._spacing_s = 0.0
    yield controller
    controller.redis.close()
    controller.sender.close()


@pytest.fixture
def turn(controller: Controller, clock: Clock) -> Callable[..., None]:
    def turn(after_s: float = 0.0) -> None:
        """Every action once, so long after the last; a fault in any of them fails the test."""
        clock.now += after_s
        controller.turn(all_due=True)
        assert [action.complaint for action in controller.actions if action.complaint] == []

    return turn


@pytest.fixture
def host(client: redis.Redis) -> FakeHost:
    return FakeHost(client, "one")


@pytest.fixture
def supervisor(client: redis.Redis, attempt: Attempt) -> FakeSupervisor:
    return FakeSupervisor(client, attempt.uid)
