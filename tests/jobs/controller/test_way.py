"""One attempt from the queue to its end, through everything that is said on the way."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import redis
from django.test import Client

from jobs import services
from jobs.controller.send import spec_of
from jobs.models import Artifact, Attempt, Checkpoint, DeviceHold, Evaluation, Host, Job, JobEvent, LogChunk, Placement
from jobs.steps import read
from tests.conftest import RedisServer
from tests.jobs.controller.conftest import FakeHost, FakeSupervisor
from tests.jobs.records import line
from workers.contract.messages import CONTROLLER_KEY, TELEMETRY_STREAM, Kind, Request, ack_key, host_key
from workers.contract.states import EndReason, Status

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]


def test_from_the_queue_to_the_end(
    job: Job,
    attempt: Attempt,
    host: FakeHost,
    supervisor: FakeSupervisor,
    turn: Callable[..., None],
    client: redis.Redis,
) -> None:
    turn()
    attempt.refresh_from_db()
    assert attempt.status == Status.STARTING
    placement = attempt.placements.get()
    assert (placement.host.name, placement.devices, host.messages()) == ("one", [0], 1)
    assert DeviceHold.objects.count() == 1
    assert client.get(CONTROLLER_KEY)

    supervisor.run()
    supervisor.event("plan", total_steps=10, parameters=5)
    supervisor.event("environment", paddle="3.3.1", cuda=None, flags={"FLAGS_x": "1"})
    supervisor.event("stage", name="training", detail=None)
    supervisor.event("ready", rank=0, pid=99)
    stored = [
        line(1, clipped=False),
        line(2, applied=1, skipped="found_inf", found_inf=True, grad_norm=math.inf, clipped=False),
        line(3, applied=1, skipped="non_finite_loss", loss=math.nan, clipped=False),
        line(4, applied=2, clipped=True),
    ]
    supervisor.send(0, Kind.STEPS, b"".join(stored))
    supervisor.send(0, Kind.LOG, "训练 begins\n".encode())
    turn()
    attempt.refresh_from_db()
    assert (attempt.status, attempt.stage, attempt.plan["total_steps"]) == (Status.RUNNING, "training", 10)
    assert (attempt.attempted, attempt.applied, attempt.skipped, attempt.clipped, attempt.non_finite) == (4, 2, 2, 1, 1)
    assert attempt.newest_record["step"] == 4 and attempt.newest_record["skips_in_a_row"] == 0
    assert attempt.rank_states == {"0": {"pid": 99}}
    assert attempt.environment["nodes"]["0"]["versions"]["paddlepaddle"] == "3.3.1"
    assert attempt.environment["trainer"] == {"paddle": "3.3.1", "cuda": None, "flags": {"FLAGS_x": "1"}}
    assert list(read.lines(attempt, 0)) == stored
    assert bytes(LogChunk.objects.get().body).decode() == "训练 begins\n"
    assert client.xlen(TELEMETRY_STREAM) == 0
    assert int(client.hget(ack_key(attempt.uid), "0/steps") or 0) == len(b"".join(stored))
    skips = JobEvent.objects.get(attempt=attempt, kind="skipped")
    assert (skips.step, skips.data["count"], skips.data["last"]) == (2, 2, 3)
    odd = JobEvent.objects.get(attempt=attempt, kind="non_finite")
    assert (odd.step, odd.data["what"]) == (3, "loss nan")

    supervisor.event("evaluation", step=4, applied=2, epoch=0, metrics={"accuracy": "nan"}, seconds=1.5, best=True)
    published = {"key": f"checkpoints/{attempt.uid}/4", "bytes": 10, "files": {"m": {"bytes": 10}}, "good": True}
    supervisor.report("checkpoint_published", step=4, applied=2, **published)
    key = f"artifacts/{attempt.uid}/model"
    supervisor.report("artifact_published", name="model", key=key, bytes=3, sha256="0" * 64, files={})
    supervisor.report("rank_exit", rank=0, pid=99, exit_code=0, signal=None, first=False)
    supervisor.end(detail="All epochs are done.")
    supervisor.complete()
    turn()
    attempt.refresh_from_db()
    job.refresh_from_db()
    assert (attempt.status, attempt.end_reason, job.status) == (Status.SUCCEEDED, EndReason.COMPLETED, Status.SUCCEEDED)
    assert attempt.end_detail == "All epochs are done."
    assert attempt.complete_at is not None and attempt.ended_at is not None
    assert Evaluation.objects.get().metrics == {"accuracy": "nan"}
    assert Checkpoint.objects.get().good and attempt.artifacts.get().name == "model"
    assert attempt.rank_states["0"]["exit_code"] == 0
    assert DeviceHold.objects.count() == 0 and Placement.objects.get().released_at is not None


def test_what_comes_twice_is_stored_once(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None]
) -> None:
    turn()
    supervisor.run()
    supervisor.send(0, Kind.STEPS, line(1) + line(2))
    turn()
    events = JobEvent.objects.count()
    again = FakeSupervisor(supervisor.redis, supervisor.uid)
    again.run()
    again.send(0, Kind.STEPS, line(1) + line(2))
    again.send(0, Kind.STEPS, line(3))
    turn()
    assert JobEvent.objects.count() == events
    assert list(read.lines(attempt, 0)) == [line(1), line(2), line(3)]


def test_a_run_of_skips_is_one_event_across_batches(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None]
) -> None:
    turn()
    supervisor.run()
    for step in range(1, 7):
        supervisor.send(0, Kind.STEPS, line(step, applied=0, skipped="found_inf", found_inf=True))
        turn()
    attempt.refresh_from_db()
    assert attempt.newest_record["skips_in_a_row"] == 6
    event = JobEvent.objects.get(kind="skipped")
    assert (event.data["first"], event.data["last"], event.data["count"]) == (1, 6, 6)
    supervisor.send(0, Kind.STEPS, line(7) + line(8, skipped="found_inf", found_inf=True))
    turn()
    assert JobEvent.objects.filter(kind="skipped").count() == 2


def test_a_ranks_own_nan_names_the_rank(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None]
) -> None:
    turn()
    supervisor.run()
    supervisor.send(0, Kind.STEPS, line(1, loss_all=math.nan, skipped="non_finite_loss"))
    supervisor.send(1, Kind.STEPS, line(1, loss=math.nan, loss_all=math.nan, skipped="non_finite_loss"))
    turn()
    told = {(event.rank, event.data["what"]) for event in JobEvent.objects.filter(kind="non_finite")}
    assert told == {(0, "loss_all nan"), (1, "loss nan, loss_all nan")}
    assert JobEvent.objects.filter(kind="skipped").count() == 1
    attempt.refresh_from_db()
    assert attempt.skipped == 1


def test_a_refused_placement_goes_back_to_the_queue_and_elsewhere(
    job: Job,
    attempt: Attempt,
    host: FakeHost,
    supervisor: FakeSupervisor,
    turn: Callable[..., None],
    client: redis.Redis,
) -> None:
    turn()
    supervisor.report("refused", node=0, host="one", detail="device cpu 0 is still locked")
    turn()
    attempt.refresh_from_db()
    assert attempt.status == Status.QUEUED and DeviceHold.objects.count() == 0
    FakeHost(client, "two")
    turn(1)
    attempt.refresh_from_db()
    newest = attempt.placements.latest("pk")
    assert (attempt.status, newest.host.name) == (Status.STARTING, "two")
    spec = spec_of(newest)
    assert spec.report_offset == supervisor.offsets[-1, Kind.REPORT] and spec.placement == newest.pk


def test_a_start_message_is_sent_again_until_it_is_claimed(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None]
) -> None:
    turn()
    turn(1)
    assert host.messages() == 1
    Placement.objects.update(sent_at="2026-01-01T00:00:00Z")
    turn(1)
    assert host.messages() == 2
    supervisor.claim()
    turn(1)
    Placement.objects.update(sent_at="2026-01-01T00:00:00Z")
    turn(1)
    assert host.messages() == 2


def test_requests_are_mirrored_and_survive_a_wiped_redis(
    job: Job,
    attempt: Attempt,
    host: FakeHost,
    supervisor: FakeSupervisor,
    turn: Callable[..., None],
    client: redis.Redis,
) -> None:
    turn()
    supervisor.run()
    supervisor.send(0, Kind.LOG, b"x\n")
    turn()
    services.ask_for_checkpoint(job, actor=None)
    services.ask_to_leave(job, Request.PAUSE, actor=job.owner)
    turn()
    control = supervisor.control()
    assert control is not None and (control.leave, control.checkpoint) == (Request.PAUSE, 1)
    client.flushall()
    turn(2.5)
    assert supervisor.control() == control
    assert client.hget(ack_key(attempt.uid), "0/log") == b"2"
    supervisor.end("paused")
    turn(1)
    job.refresh_from_db()
    assert (job.status, job.end_reason) == (Status.PAUSED, EndReason.PAUSED)


def test_an_attempt_that_no_host_was_told_of_ends_at_once(
    job: Job, attempt: Attempt, host: FakeHost, turn: Callable[..., None]
) -> None:
    turn()
    Placement.objects.update(sent_at=None)
    services.ask_to_leave(job, Request.CANCEL, actor=job.owner)
    turn(1)
    attempt.refresh_from_db()
    assert attempt.status == Status.CANCELLED and DeviceHold.objects.count() == 0
    assert attempt.complete_at is not None


@pytest.mark.parametrize("reason", ["paused", "drained"])
def test_a_cancellation_that_came_too_late_for_the_ranks_stands_and_nothing_goes_on(
    job: Job, attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None], reason: str
) -> None:
    turn()
    supervisor.run()
    turn()
    if reason == "drained":
        services.drain(Host.objects.get(), actor_name="shutdown")
    else:
        services.ask_to_leave(job, Request.PAUSE, actor=job.owner)
    services.ask_to_leave(job, Request.CANCEL, actor=job.owner)
    supervisor.end(reason)
    supervisor.complete()
    turn(2)
    job.refresh_from_db()
    assert (job.status, job.end_reason, job.attempts.count()) == (Status.CANCELLED, EndReason.CANCELLED, 1)


def test_a_drained_attempt_goes_on_in_a_successor_from_its_newest_checkpoint(
    job: Job, attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None]
) -> None:
    turn()
    supervisor.run()
    turn()
    services.drain(Host.objects.get(), actor_name="shutdown")
    turn()
    control = supervisor.control()
    assert control is not None and control.leave == Request.DRAIN
    published = {"key": f"checkpoints/{supervisor.uid}/9", "bytes": 1, "files": {"a": {"bytes": 1}}, "good": True}
    supervisor.report("checkpoint_published", step=9, applied=8, **published)
    supervisor.end("drained")
    supervisor.complete()
    turn()
    job.refresh_from_db()
    assert job.newest is not None and job.newest.number == 2
    assert (job.newest.cause, job.newest.status) == (Attempt.Cause.DRAIN, Status.QUEUED)
    assert job.newest.start_from is not None and job.newest.start_from.step == 9
    turn(1)
    assert job.newest.placements.count() == 0
    services.undrain(Host.objects.get())
    turn(1)
    assert job.newest.placements.count() == 1


def test_a_telemetry_entry_that_makes_no_sense_stops_nothing(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None], client: redis.Redis
) -> None:
    turn()
    client.xadd(TELEMETRY_STREAM, {"nonsense": "1"})
    client.xadd(TELEMETRY_STREAM, {"attempt": attempt.uid, "rank": "x", "kind": "steps", "offset": 0, "body": "a\n"})
    client.xadd(TELEMETRY_STREAM, {"attempt": attempt.uid, "rank": 0, "kind": "steps", "offset": 0, "body": "half"})
    supervisor.run()
    supervisor.report("nobody knows this")
    supervisor.event("evaluation", step="four")
    supervisor.event("checkpoint_published", step=1, applied=1, key="../../etc", bytes=1, files={}, good=True)
    supervisor.send(0, Kind.EVENTS, b"not json\n")
    supervisor.event("note", level="info", text="still here")
    supervisor.send(0, Kind.STEPS, b"broken\n" + line(1))
    turn()
    attempt.refresh_from_db()
    assert attempt.status == Status.RUNNING and attempt.attempted == 1
    assert JobEvent.objects.filter(kind="not_applied").count() == 4
    assert JobEvent.objects.filter(kind="note", message="still here").count() == 1
    assert client.xlen(TELEMETRY_STREAM) == 0
    assert Checkpoint.objects.count() == 0


def test_what_only_a_newer_host_says_is_acknowledged_and_ends_the_attempt_all_the_same(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None], client: redis.Redis
) -> None:
    turn()
    supervisor.run()
    body = b"anything at all\n"
    for offset in (0, len(body)):
        fields = {"attempt": attempt.uid, "rank": 0, "kind": "profile", "offset": offset, "body": body, "host": "one"}
        client.xadd(TELEMETRY_STREAM, fields)
    turn()
    assert client.hget(ack_key(attempt.uid), "0/profile") == str(2 * len(body)).encode()
    supervisor.event("outcome", end_reason="cosmic_rays", detail="A bit fell over.", rank=0, step=3)
    supervisor.end("cosmic_rays", "A bit fell over.")
    turn()
    attempt.refresh_from_db()
    assert (attempt.status, attempt.end_reason) == (Status.FAILED, EndReason.TRAINER_ERROR)
    assert attempt.end_detail == "A bit fell over."
    assert client.xlen(TELEMETRY_STREAM) == 0 and not JobEvent.objects.filter(kind="not_applied").exists()


def test_an_attempt_that_the_database_does_not_know_is_told_to_stop(
    turn: Callable[..., None], client: redis.Redis
) -> None:
    stranger = FakeSupervisor(client, "f" * 32)
    stranger.run()
    turn()
    control = stranger.control()
    assert control is not None and control.leave == Request.SUPERSEDE
    assert client.xlen(TELEMETRY_STREAM) == 0


@pytest.mark.parametrize(
    "metrics", ["0.9", [0.9], {"accuracy": "high"}, {"accuracy": 0.9, "confusion": [1, 2]}, {"confusion": [[1], [2]]}]
)
def test_metrics_that_no_page_can_show_are_passed_over(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None], metrics: object
) -> None:
    turn()
    supervisor.run()
    supervisor.event("evaluation", step=1, applied=1, epoch=0, metrics=metrics, seconds=0.1, best=True)
    supervisor.event("evaluation", step=2, applied=2, epoch=0, metrics={"accuracy": "nan"}, seconds=0.1, best=True)
    turn()
    assert [evaluation.step for evaluation in Evaluation.objects.all()] == [2]
    assert JobEvent.objects.filter(kind="not_applied").count() == 1


def test_the_worst_dev_rows_are_kept_and_their_texts_are_in_no_event(
    attempt: Attempt, supervisor: FakeSupervisor, host: FakeHost, turn: Callable[..., None]
) -> None:
    turn()
    supervisor.run()
    rows = [
        {"row": 7, "loss": "nan", "text": "很差" * 2000, "probability": "nan", "nested": {"no": 1}, "image": [-1, 3]},
        {"row": 3, "loss": 2.5, "text": "好", "probability": 0.9, "known": None, "image": [120, 45]},
    ]
    supervisor.event("worst", step=8, of=21, rows=rows)
    turn()
    kept = attempt.worst_rows
    assert (kept.step, kept.dev_rows) == (8, 21)
    assert kept.rows[1] == rows[1] and kept.rows[0].keys() == {"row", "loss", "text", "probability"}
    assert kept.rows[0]["loss"] == "nan" and len(kept.rows[0]["text"]) == 1000
    assert not any("很" in str(event.data) for event in JobEvent.objects.all())
    supervisor.event("worst", step=9, of=21, rows=[{"row": "7", "loss": 1.0}])
    turn()
    attempt.refresh_from_db()
    assert attempt.worst_rows.step == 8


def test_an_environment_that_no_page_can_show_keeps_no_host_from_its_work(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None]
) -> None:
    turn()
    machine = {"cpu": "slot", "memory_bytes": "much", "devices": ["none", {"kind": "cpu", "memory_bytes": [1]}]}
    supervisor.report("claimed", node=0, host="one", devices=[0], versions="3.3", machine=machine, code=[1])
    supervisor.event("environment", paddle="3.3", flags=7)
    supervisor.event("plan", total_steps=10, epochs="many")
    supervisor.event("plan", total_steps=10, baselines=[0.5])
    turn()
    attempt.refresh_from_db()
    assert attempt.placements.get().claimed_at is not None
    assert attempt.environment["nodes"]["0"]["machine"]["cpu"] == "slot"
    assert attempt.environment["trainer"]["paddle"] == "3.3" and attempt.plan == {}
    browser = Client()
    browser.force_login(attempt.job.owner)
    assert "slot" in browser.get(f"/jobs/{attempt.job_id}/").text


def test_a_beat_that_no_column_holds_keeps_no_other_host_from_being_heard(
    host: FakeHost, redis_server: RedisServer, turn: Callable[..., None]
) -> None:
    good = redis_server.client().get(host_key("one"))
    assert isinstance(good, bytes)
    for number, (old, new) in enumerate(
        [(b'"cpu":null', b'"cpu":NaN'), (b'"load1":0.5', b'"load1":1e999'), (b"1073741824", b"1" + b"0" * 400)]
    ):
        assert old in good
        name = f"a{number}"
        redis_server.client().set(host_key(name), good.replace(b'"one"', f'"{name}"'.encode()).replace(old, new))
    redis_server.client().set(host_key("b"), good.replace(b'"one"', b'"b"').replace(b'"3.11"', b'"3\\u0000"'))
    turn()
    assert set(Host.objects.values_list("name", flat=True)) == {"one", "b"}


def test_nothing_is_published_in_folders_of_others_or_in_numbers_that_are_none(
    attempt: Attempt, host: FakeHost, supervisor: FakeSupervisor, turn: Callable[..., None]
) -> None:
    turn()
    supervisor.run()
    mine = f"artifacts/{attempt.uid}"
    keys = ["datasets/reviews", "artifacts", mine, f"{mine}/", f"{mine}/../b", "artifacts/b/model", f"/{mine}/model"]
    for key in (*keys, f"checkpoints/{attempt.uid}/model"):
        supervisor.report("artifact_published", name="model", key=key, bytes=3, sha256="", files={})
    for wrong in (
        {"bytes": -1},
        {"bytes": "3"},
        {"files": [1]},
        {"files": {"a": {}}},
        {"files": {"a": {"bytes": 1.5}}},
    ):
        said = {"name": "model", "key": f"{mine}/model", "bytes": 3, "sha256": "", "files": {}} | wrong
        supervisor.report("artifact_published", **said)
    turn()
    assert JobEvent.objects.filter(kind="not_applied").count() == len(keys) + 6
    assert not Artifact.objects.exists()
