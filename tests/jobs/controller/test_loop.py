from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest
import redis
from django.core.management import call_command
from django.db import OperationalError, connection

from jobs.controller import ingest
from jobs.controller.loop import Controller
from jobs.models import Attempt, JobEvent
from jobs.steps import read
from tests.conftest import RedisServer
from tests.jobs.controller.conftest import FakeHost, FakeSupervisor
from tests.jobs.records import line
from workers.contract.messages import CONTROLLER_KEY, TELEMETRY_STREAM, Kind, live_channel


@pytest.mark.django_db
def test_a_locked_database_loses_nothing(
    attempt: Attempt,
    supervisor: FakeSupervisor,
    controller: Controller,
    monkeypatch: pytest.MonkeyPatch,
    client: redis.Redis,
) -> None:
    supervisor.send(0, Kind.STEPS, line(1))
    with monkeypatch.context() as patch:

        def locked(*_: object) -> None:
            raise OperationalError("database is locked")

        patch.setattr(ingest.steps, "apply", locked)
        patch.setattr(connection, "close", lambda: None)
        controller.turn(all_due=True)
    assert client.xlen(TELEMETRY_STREAM) == 1
    controller.turn(all_due=True)
    assert list(read.lines(attempt, 0)) == [line(1)]
    assert JobEvent.objects.filter(kind="not_applied").count() == 0


@pytest.mark.django_db
def test_records_that_cannot_be_applied_are_kept_and_do_not_stop_the_stream(
    attempt: Attempt, supervisor: FakeSupervisor, turn: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.send(0, Kind.STEPS, line(1))
    with monkeypatch.context() as patch:

        def faulty(*_: object) -> None:
            raise RuntimeError("a fault of ours")

        patch.setattr(ingest.steps, "apply", faulty)
        turn()
    supervisor.send(0, Kind.STEPS, line(2))
    turn()
    assert list(read.lines(attempt, 0)) == [line(1), line(2)]
    assert "a fault of ours" in JobEvent.objects.get(kind="not_applied").message
    attempt.refresh_from_db()
    assert attempt.attempted == 2


@pytest.mark.django_db
def test_without_redis_it_waits_with_one_line(
    controller: Controller, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.kill()
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            controller.turn(all_due=True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    redis_server.start()
    controller.turn(all_due=True)
    assert "Redis is back" in caplog.text


@pytest.mark.django_db
def test_a_fault_in_one_action_does_not_stop_the_others(
    controller: Controller, attempt: Attempt, supervisor: FakeSupervisor, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty() -> None:
        raise RuntimeError("a fault of ours")

    controller.actions[1].run = faulty
    supervisor.send(0, Kind.STEPS, line(1))
    for _ in range(3):
        controller.turn(all_due=True)
    assert list(read.lines(attempt, 0)) == [line(1)]
    assert caplog.text.count("a fault of ours\n") <= 3


@pytest.mark.django_db
def test_pages_are_told_after_the_commit(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None], client: redis.Redis
) -> None:
    with client.pubsub() as listener:
        listener.subscribe(live_channel(attempt.job_id))
        assert listener.get_message(timeout=30)
        supervisor.send(0, Kind.STEPS, line(1))
        turn()
        told = []
        while message := listener.get_message(timeout=0.5):
            told.append(message["data"].decode())
    assert any('"steps"' in text for text in told)
    assert any('"events"' in text for text in told)


@pytest.mark.django_db
def test_once_runs_each_action_and_leaves(
    redis_server: RedisServer, client: redis.Redis, settings: object, host: FakeHost
) -> None:
    settings.REDIS_URL = redis_server.url  # type: ignore[attr-defined]
    call_command("controller", "--once")
    assert client.get(CONTROLLER_KEY)


@pytest.mark.postgresql_too
@pytest.mark.django_db(transaction=True)
def test_a_record_is_visible_within_a_second_and_two_controllers_do_no_harm(
    attempt: Attempt, redis_server: RedisServer, settings: object, client: redis.Redis
) -> None:
    settings.REDIS_URL = redis_server.url  # type: ignore[attr-defined]
    FakeHost(client, "one")
    supervisor = FakeSupervisor(client, attempt.uid)
    controllers = [Controller(), Controller()]

    def work(controller: Controller) -> None:
        try:
            controller.run()
        finally:
            connection.close()
            controller.redis.close()
            controller.sender.close()

    threads = [threading.Thread(target=work, args=(controller,)) for controller in controllers]
    for thread in threads:
        thread.start()
    try:
        _until(lambda: attempt.placements.count() == 1)
        supervisor.run()
        waits = []
        for step in range(1, 21):
            began = time.monotonic()
            supervisor.send(0, Kind.STEPS, line(step))
            _until(lambda step=step: bool(read.records(attempt, 0, step - 1)))  # type: ignore[misc]
            waits.append(time.monotonic() - began)
    finally:
        for controller in controllers:
            controller.stop()
        for thread in threads:
            thread.join()
    assert list(read.lines(attempt, 0)) == [line(step) for step in range(1, 21)]
    assert JobEvent.objects.filter(kind="claimed").count() == 1 and attempt.placements.count() == 1
    # The goal is a second; this leaves room for a machine that does other things as well.
    assert sorted(waits)[18] < 2.0


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
