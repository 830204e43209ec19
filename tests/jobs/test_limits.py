"""What a user may have at once: at submission, at placement, for uploads; and who goes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs import datasets, life, limits, services
from jobs.controller import place
from jobs.models import Account, Artifact, Attempt, Checkpoint, Dataset, DefaultLimits, Host, Limits
from workers.contract.messages import Request
from workers.contract.states import Status

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]


@pytest.fixture
def submit(owner: User, dataset: Dataset) -> Callable[..., Attempt]:
    Dataset.objects.update(shared=True)

    def submit(by: User | None = None, *, devices: int = 1, priority: int = 0, hours: float | None = None) -> Attempt:
        job = services.submit(
            owner=by or owner,
            accepted_warnings=True,
            name="x",
            recipe="text_classification",
            dataset=dataset,
            settings={
                "devices": {"devices_per_node": devices},
                "training": {"batch_size": 4},
                "limits": {"time_limit_hours": hours},
            },
            actor=by or owner,
            priority=priority,
        )
        assert job.newest is not None
        return job.newest

    return submit


@pytest.fixture
def host(db: None) -> Callable[[int], Host]:
    def host(devices: int) -> Host:
        listed = [{"index": index, "kind": "cpu", "name": "", "memory_bytes": 0} for index in range(devices)]
        return Host.objects.create(name="one", devices=listed, online=True)

    return host


def may(user: User | None = None, **values: Any) -> None:
    if user is None:
        DefaultLimits.objects.update_or_create(pk=1, defaults=values)
    else:
        Account.objects.update_or_create(user=user, defaults=values)


def refused(submit: Any, *args: Any, **more: Any) -> dict[str, str]:
    with pytest.raises(services.Refused) as caught:
        submit(*args, **more)
    return caught.value.errors


def status(*attempts: Attempt) -> list[str]:
    return [Attempt.objects.get(pk=attempt.pk).status for attempt in attempts]


# --- which hold ------------------------------------------------------------------------------


def test_own_limits_come_before_those_of_everybody_and_staff_has_none(owner: User, other: User, staff: User) -> None:
    may(devices=4, running=2)
    may(owner, devices=1)
    may(other, devices=Limits.NONE)
    may(staff, devices=1)
    assert (limits.of(owner).devices, limits.of(owner).running) == (1, 2)
    assert (limits.of(other).devices, limits.of(other).running) == (None, 2)
    assert limits.of(staff) == limits.Allowed()


def test_storage_is_what_the_environment_says_until_staff_says_otherwise(owner: User, settings: Any) -> None:
    settings.UPLOAD_QUOTA_BYTES = 1000
    assert limits.of(owner) == limits.Allowed(storage_bytes=1000)
    may(storage_bytes=2000)
    assert limits.of(owner).storage_bytes == 2000


# --- at submission ---------------------------------------------------------------------------


def test_no_more_jobs_are_queued_than_allowed(owner: User, other: User, submit: Any) -> None:
    may(owner, queued=1)
    first = submit()
    assert "olga has 1 queued jobs, and may have 1 at once" in refused(submit)[""]
    submit(other)
    services.transition(first, Status.STARTING)
    submit()


def test_a_retry_is_one_more_queued_job(owner: User, submit: Any) -> None:
    ended = submit()
    services.ask_to_leave(ended.job, Request.CANCEL, actor=owner)
    may(owner, queued=1)
    submit()
    with pytest.raises(services.Refused, match="queued jobs"):
        services.retry(ended.job, actor=owner, settings=ended.settings, from_checkpoint=False)
    assert ended.job.attempts.count() == 1


def test_what_asks_for_too_much_is_refused_at_its_field(owner: User, submit: Any) -> None:
    may(owner, devices=2, priority=1, time_limit_hours=8)
    errors = refused(submit, devices=3, priority=2, hours=9)
    assert set(errors) == {"devices.devices_per_node", "priority", "limits.time_limit_hours"}
    assert "may use 2 devices at once, and this job asks for 3" in errors["devices.devices_per_node"]
    submit(devices=2, priority=1, hours=8)


def test_a_job_without_time_limit_gets_the_longest_of_its_owner(owner: User, submit: Any) -> None:
    assert submit().time_limit_s is None
    may(owner, time_limit_hours=8)
    assert submit().time_limit_s == 8 * 3600
    assert submit(hours=1).time_limit_s == 3600


def test_who_has_no_storage_left_submits_and_uploads_nothing(owner: User, submit: Any) -> None:
    attempt = submit()
    Checkpoint.objects.create(attempt=attempt, step=1, applied=1, key="checkpoints/a", bytes=500, good=True)
    Artifact.objects.create(attempt=attempt, name="model", key="artifacts/a", bytes=200, sha256="0" * 64)
    assert limits.stored_bytes(owner) == 900
    may(owner, storage_bytes=900)
    assert "take 900 B of the 900 B" in refused(submit)[""]
    with pytest.raises(services.Refused) as caught:
        datasets.begin_upload(owner=owner, name="x", shared=False, description="", files=[("a.csv", "", 10)])
    assert "Your datasets and jobs take 900 B" in caught.value.errors["file"]
    Checkpoint.objects.update(removed_at=attempt.created_at)
    submit()


# --- at placement ----------------------------------------------------------------------------


def test_a_job_waits_while_its_owner_has_all_devices_that_they_may(owner: User, submit: Any, host: Any) -> None:
    may(owner, devices=2)
    one, two, three = submit(), submit(), submit()
    host(4)
    assert place.run() == 2 and status(one, two, three) == ["starting", "starting", "queued"]
    assert limits.why_it_waits(three) == "Waiting for a limit of its owner: 2 devices in use of 2."
    may(owner, devices=3)
    assert limits.why_it_waits(three) == ""
    assert place.run() == 1


def test_running_jobs_are_counted_too(owner: User, submit: Any, host: Any) -> None:
    may(owner, running=1)
    one, two = submit(), submit()
    host(4)
    assert place.run() == 1 and status(one, two) == ["starting", "queued"]
    assert limits.why_it_waits(two) == "Waiting for a limit of its owner: 1 running jobs of 1."


def test_who_is_held_back_by_their_limit_holds_up_nobody(owner: User, other: User, submit: Any, host: Any) -> None:
    may(owner, devices=2)
    big, second = submit(devices=2, priority=9), submit(devices=2, priority=9)
    small = submit(other)
    host(4)
    assert place.run() == 2 and status(big, second, small) == ["starting", "queued", "starting"]


# --- fair order ------------------------------------------------------------------------------


def test_with_equal_priority_whoever_uses_least_goes_first(owner: User, other: User, submit: Any, host: Any) -> None:
    many = [submit() for _ in range(4)]
    late = submit(other)
    host(2)
    assert place.run() == 2
    assert status(*many, late) == ["starting", "queued", "queued", "queued", "starting"]


def test_priority_comes_before_fairness(owner: User, other: User, submit: Any, host: Any) -> None:
    many = [submit(priority=1) for _ in range(2)]
    late = submit(other)
    host(2)
    assert place.run() == 2 and status(*many, late) == ["starting", "starting", "queued"]


def test_only_staff_gives_a_job_more_time_than_its_owner_may_have(owner: User, staff: User, submit: Any) -> None:
    may(owner, time_limit_hours=8)
    job = submit().job
    for hours in (9.0, None):
        with pytest.raises(services.Refused, match="longest time limit of its owner is 8 hours"):
            life.set_time_limit(job, hours, actor=owner)
    assert life.set_time_limit(job, 2.0, actor=owner)
    assert life.set_time_limit(job, None, actor=staff)
