from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
import redis
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from jobs import services
from jobs.controller import place
from jobs.models import Attempt, Dataset, DeviceHold, Host, Job, Placement
from tests.jobs.controller.conftest import FakeHost
from workers.contract.messages import Request, host_key
from workers.contract.states import EndReason, Status

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]


@pytest.fixture
def submit(owner: User, dataset: Dataset) -> Callable[..., Attempt]:
    def submit(devices: int = 1, priority: int = 0, nodes: int = 1) -> Attempt:
        job = services.submit(
            owner=owner,
            accepted_warnings=True,
            name="x",
            recipe="text_classification",
            dataset=dataset,
            settings={"devices": {"devices_per_node": devices}, "training": {"batch_size": 4}},
            actor=owner,
            priority=priority,
        )
        assert job.newest is not None
        Attempt.objects.filter(pk=job.newest.pk).update(nodes=nodes)
        return Attempt.objects.get(pk=job.newest.pk)

    return submit


@pytest.fixture
def add_host(db: None) -> Callable[..., Host]:
    def add_host(name: str, devices: int = 2, kind: str = "cpu", **more: Any) -> Host:
        listed = [{"index": i, "kind": kind, "name": "", "memory_bytes": 0} for i in range(devices)]
        return Host.objects.create(name=name, devices=listed, **{"online": True} | more)

    return add_host


def _where(attempt: Attempt) -> list[tuple[str, list[int]]]:
    return [(p.host.name, p.devices) for p in attempt.placements.order_by("node").select_related("host")]


def test_the_higher_priority_goes_first_and_then_the_older(submit: Any, add_host: Any) -> None:
    first, second, urgent = submit(), submit(), submit(priority=5)
    add_host("one", devices=2)
    assert place.run() == 2
    assert _where(urgent) == [("one", [0])] and _where(first) == [("one", [1])] and _where(second) == []
    second.refresh_from_db()
    assert second.status == Status.QUEUED


def test_what_a_shutdown_interrupted_goes_before_what_was_only_waiting(submit: Any, add_host: Any) -> None:
    waiting, interrupted = submit(), submit()
    Attempt.objects.filter(pk=interrupted.pk).update(cause=Attempt.Cause.DRAIN)
    add_host("one", devices=1)
    assert place.run() == 1
    assert _where(interrupted) == [("one", [0])] and _where(waiting) == []


def test_no_device_is_ever_given_twice(submit: Any, add_host: Any) -> None:
    for _ in range(9):
        submit()
    add_host("one", devices=3)
    add_host("two", devices=4)
    assert place.run() == 7
    assert place.run() == 0
    held = list(DeviceHold.objects.values_list("host", "kind", "index"))
    assert len(held) == len(set(held)) == 7


def test_the_database_refuses_a_device_that_is_held(submit: Any, add_host: Any) -> None:
    attempt = submit()
    host = add_host("one")
    place.run()
    placement = attempt.placements.get()
    with pytest.raises(IntegrityError), transaction.atomic():
        DeviceHold.objects.create(placement=placement, host=host, kind="cpu", index=0)


def test_a_choice_that_was_overtaken_changes_nothing(submit: Any, add_host: Any) -> None:
    first, second = submit(), submit()
    host = add_host("one", devices=1)
    stale = [(place.Room(host, "cpu", [0], [0]), [0])]
    assert place._place(first, stale)
    assert not place._place(second, stale)
    second.refresh_from_db()
    assert second.status == Status.QUEUED and second.events.filter(kind="status").count() == 0
    host.draining = True
    host.save()
    DeviceHold.objects.all().delete()
    assert not place._place(second, stale)


def test_all_nodes_or_none(submit: Any, add_host: Any) -> None:
    attempt = submit(devices=2, nodes=2)
    add_host("one")
    assert place.run() == 0
    add_host("two", devices=3)
    assert place.run() == 1
    assert _where(attempt) == [("one", [0, 1]), ("two", [0, 1])]


@pytest.mark.parametrize("state", [{"online": False}, {"enabled": False}, {"draining": True}])
def test_a_host_that_is_away_disabled_or_draining_gets_nothing(submit: Any, add_host: Any, state: Any) -> None:
    submit()
    add_host("one", **state)
    assert place.run() == 0


def test_a_large_attempt_is_not_starved_by_small_ones(submit: Any, add_host: Any) -> None:
    small = submit()
    add_host("one", devices=2)
    add_host("tiny", devices=1, online=False)
    place.run()
    large, behind = submit(devices=2), submit()
    assert place.run() == 0
    services.transition(Attempt.objects.get(pk=small.pk), Status.FAILED, reason=EndReason.TRAINER_ERROR)
    DeviceHold.objects.all().delete()
    assert place.run() == 1
    assert _where(large) == [("one", [0, 1])] and _where(behind) == []


def test_an_attempt_too_large_for_every_host_holds_nobody_up(submit: Any, add_host: Any) -> None:
    submit(devices=8)
    behind = submit()
    add_host("one")
    assert place.run() == 1
    assert _where(behind) == [("one", [0])]


def test_with_a_gpu_host_nothing_goes_to_cpus(submit: Any, add_host: Any) -> None:
    attempt = submit()
    add_host("slow")
    add_host("fast", kind="gpu", devices=1)
    place.run()
    assert _where(attempt) == [("fast", [0])]
    assert Placement.objects.get().device_kind == "gpu"


def test_a_queued_attempt_that_is_cancelled_is_never_placed(submit: Any, add_host: Any) -> None:
    attempt = submit()
    services.ask_to_leave(attempt.job, Request.CANCEL, actor=None)
    add_host("one")
    assert place.run() == 0
    assert Job.objects.get(pk=attempt.job_id).status == Status.CANCELLED


def test_hosts_come_and_go_by_their_beats(turn: Callable[..., None], client: redis.Redis) -> None:
    fake = FakeHost(client, "one", devices=3)
    turn()
    host = Host.objects.get()
    assert (host.online, len(host.devices), host.versions) == (True, 3, {"python": "3.11"})
    turn(10)
    fake.beat()
    turn(10)
    assert Host.objects.get().online
    turn(16)
    assert not Host.objects.get().online
    fake.beat()
    turn(1)
    assert Host.objects.get().online


@pytest.mark.parametrize("nonsense", [{"disk_free_bytes": 2**70}, {"name": "n" * 200}, {"seq": -1}, {"boot": "b" * 65}])
def test_a_host_that_speaks_nonsense_keeps_no_other_from_being_heard(
    turn: Callable[..., None], client: redis.Redis, nonsense: dict[str, Any]
) -> None:
    FakeHost(client, "one")
    beat = json.loads(cast(bytes, client.get(host_key("one"))))
    client.set(host_key("nonsense"), json.dumps(beat | {"name": "two"} | nonsense))
    turn()
    assert list(Host.objects.values_list("name", flat=True)) == ["one"]
