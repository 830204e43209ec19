from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from jobs.controller.send import spec_of
from jobs.models import Attempt, DeviceHold
from tests.jobs.controller.conftest import FakeHost, FakeSupervisor
from workers.contract.messages import Request
from workers.contract.states import EndReason, Status

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]


@pytest.fixture
def nodes(attempt: Attempt, client: redis.Redis, turn: Callable[..., None]) -> list[FakeSupervisor]:
    """Both nodes of an attempt, running."""
    Attempt.objects.filter(pk=attempt.pk).update(nodes=2)
    FakeHost(client, "one")
    FakeHost(client, "two")
    turn()
    supervisors = [FakeSupervisor(client, attempt.uid, node, host) for node, host in enumerate(("one", "two"))]
    for supervisor in supervisors:
        supervisor.run()
    turn()
    return supervisors


def test_it_runs_when_every_node_runs_and_ends_when_every_node_has_ended(
    attempt: Attempt, nodes: list[FakeSupervisor], turn: Callable[..., None]
) -> None:
    attempt.refresh_from_db()
    assert attempt.status == Status.RUNNING
    nodes[0].end("completed")
    nodes[0].complete()
    turn()
    attempt.refresh_from_db()
    assert attempt.status == Status.RUNNING and DeviceHold.objects.count() == 1
    nodes[1].end("completed")
    nodes[1].complete()
    turn()
    attempt.refresh_from_db()
    assert attempt.status == Status.SUCCEEDED and attempt.complete_at is not None


def test_a_failed_node_brings_the_others_down_and_is_the_cause(
    attempt: Attempt, nodes: list[FakeSupervisor], turn: Callable[..., None]
) -> None:
    nodes[1].end("out_of_memory", "Rank 1 was killed.", rank=1)
    turn()
    control = nodes[0].control()
    assert control is not None and control.leave == Request.SUPERSEDE
    nodes[0].end("superseded")
    turn()
    attempt.refresh_from_db()
    assert (attempt.status, attempt.end_reason) == (Status.FAILED, EndReason.OUT_OF_MEMORY)


def test_the_launchers_of_several_nodes_meet_at_the_first(attempt: Attempt, nodes: list[FakeSupervisor]) -> None:
    specs = [spec_of(placement) for placement in attempt.placements.select_related("attempt__job__dataset", "host")]
    assert len({spec.master for spec in specs}) == 1
    assert (specs[0].master or "").startswith("192.0.2.7:")
    assert sorted(spec.node for spec in specs) == [0, 1] and specs[0].nodes == 2
