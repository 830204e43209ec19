"""Leases and the fence, with a clock that only moves when the test moves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs import services
from jobs.controller.leases import Leases
from jobs.controller.loop import Controller
from jobs.models import Attempt, DeviceHold, Job, Placement
from tests.conftest import RedisServer
from tests.jobs.controller.conftest import Clock, FakeHost, FakeSupervisor
from tests.jobs.records import line
from workers.contract.messages import Kind, Request, host_key
from workers.contract.states import EndReason, Status

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]
Turn = Callable[..., None]


@pytest.fixture
def running(attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Turn) -> Attempt:
    turn()
    supervisor.run()
    supervisor.beat()
    turn()
    attempt.refresh_from_db()
    assert attempt.status == Status.RUNNING
    return attempt


def _status(attempt: Attempt) -> str:
    attempt.refresh_from_db()
    return attempt.status


def test_silence_makes_it_unresponsive_and_a_beat_brings_it_back(
    running: Attempt, supervisor: FakeSupervisor, turn: Turn
) -> None:
    turn(14)
    assert _status(running) == Status.RUNNING
    turn(2)
    assert _status(running) == Status.UNRESPONSIVE
    supervisor.beat()
    turn(1)
    assert _status(running) == Status.RUNNING


def test_a_lease_that_runs_out_ends_the_attempt_and_quarantines_its_devices(
    running: Attempt, host: FakeHost, turn: Turn
) -> None:
    turn(16)
    turn(46)
    assert _status(running) == Status.FAILED and running.end_reason == EndReason.HOST_LOST
    assert Placement.objects.get().quarantined and DeviceHold.objects.count() == 1
    host.attempts = [running.uid]
    host.beat()
    turn(1)
    assert DeviceHold.objects.count() == 1
    host.attempts = []
    host.beat()
    turn(1)
    assert DeviceHold.objects.count() == 0 and not Placement.objects.get().quarantined


def test_a_lost_attempt_that_lives_after_all_is_told_to_leave_and_its_records_go_to_it(
    running: Attempt, supervisor: FakeSupervisor, turn: Turn
) -> None:
    turn(61)
    assert _status(running) == Status.FAILED
    supervisor.beat()
    supervisor.send(0, Kind.STEPS, line(1))
    turn(3)
    control = supervisor.control()
    assert control is not None and control.leave == Request.SUPERSEDE
    assert _status(running) == Status.FAILED and running.attempted == 1
    supervisor.end("superseded")
    supervisor.complete()
    turn(1)
    assert _status(running) == Status.FAILED and running.end_reason == EndReason.HOST_LOST
    assert running.complete_at is not None and DeviceHold.objects.count() == 0


def test_no_lease_ages_while_redis_is_away(
    running: Attempt,
    supervisor: FakeSupervisor,
    turn: Turn,
    clock: Clock,
    controller: Controller,
    redis_server: RedisServer,
) -> None:
    turn(10)
    redis_server.kill()
    for _ in range(20):
        clock.now += 10
        controller.turn(all_due=True)
    assert _status(running) == Status.RUNNING
    redis_server.start()
    turn(10)
    assert _status(running) == Status.RUNNING
    turn(14)
    assert _status(running) == Status.RUNNING
    turn(2)
    assert _status(running) == Status.UNRESPONSIVE


def test_every_lease_is_new_to_a_controller_that_has_just_started(
    running: Attempt, turn: Turn, controller: Controller
) -> None:
    turn(14)
    controller.leases = Leases()
    turn(14)
    assert _status(running) == Status.RUNNING


def test_an_old_beat_that_is_still_in_redis_is_no_sign_of_life(
    running: Attempt, supervisor: FakeSupervisor, turn: Turn
) -> None:
    for _ in range(7):
        turn(10)
    assert _status(running) == Status.FAILED


def test_a_host_that_dies_before_it_has_claimed_loses_the_attempt(attempt: Attempt, host: FakeHost, turn: Turn) -> None:
    turn()
    for _ in range(5):
        host.beat()
        turn(20)
    assert _status(attempt) == Status.STARTING
    host.redis.delete(host_key("one"))
    turn(16)
    assert _status(attempt) == Status.UNRESPONSIVE
    turn(50)
    assert (_status(attempt), attempt.end_reason) == (Status.FAILED, EndReason.HOST_LOST)


def test_a_cancelled_attempt_on_a_lost_host_counts_as_cancelled(running: Attempt, job: Job, turn: Turn) -> None:
    services.ask_to_leave(job, Request.CANCEL, actor=None)
    turn(61)
    assert (_status(running), running.end_reason) == (Status.CANCELLED, EndReason.CANCELLED)


def test_the_end_of_an_unresponsive_attempt_arrives_late(
    running: Attempt, supervisor: FakeSupervisor, turn: Turn
) -> None:
    turn(20)
    assert _status(running) == Status.UNRESPONSIVE
    supervisor.end("non_finite", "Loss was NaN at step 5 on rank 1.", rank=1, step=5)
    turn(1)
    assert (_status(running), running.end_reason) == (Status.FAILED, EndReason.NON_FINITE)
    assert (running.end_step, running.end_rank) == (5, 1)
