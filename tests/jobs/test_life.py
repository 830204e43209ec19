from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs import job_file, life, services
from jobs.controller.mirror import control_of
from jobs.controller.send import spec_of
from jobs.models import Artifact, Attempt, Checkpoint, Dataset, DeletedJob, Host, Job, Placement
from jobs.services import Refused
from workers.contract.messages import Control, Request
from workers.contract.states import EndReason, Status

pytestmark = pytest.mark.django_db


def end(attempt: Attempt, reason: EndReason = EndReason.CANCELLED) -> None:
    attempt.refresh_from_db()
    if attempt.status == Status.QUEUED:
        services.transition(attempt, Status.STARTING)
        services.transition(attempt, Status.RUNNING)
    assert services.transition(attempt, reason.status, reason=reason)


def place(attempt: Attempt, *, ran_s: float = 0) -> Placement:
    host = Host.objects.create(name=f"host-{attempt.pk}")
    claimed = timezone.now() - timedelta(seconds=ran_s)
    return Placement.objects.create(attempt=attempt, host=host, device_kind="cpu", devices=[0], claimed_at=claimed)


def checkpoint(attempt: Attempt, step: int, size: int = 100) -> Checkpoint:
    key, files = f"checkpoints/{attempt.uid}/step-{step:09d}", {"a": {"bytes": size}}
    return Checkpoint.objects.create(
        attempt=attempt, step=step, applied=step, key=key, bytes=size, files=files, good=True
    )


def kinds(job: Job) -> list[str]:
    return list(job.events.order_by("pk").values_list("kind", flat=True))


# --- the time limit ---


def limited(owner: User, dataset: Dataset, hours: float | None) -> Attempt:
    settings = {"limits": {"time_limit_hours": hours}}
    job = services.submit(
        owner=owner, name="x", recipe="text_classification", dataset=dataset, settings=settings, actor=owner,
        accepted_warnings=True,
    )  # fmt: skip
    assert job.newest is not None
    return job.newest


def test_the_time_limit_of_the_settings_reaches_the_host(owner: User, dataset: Dataset) -> None:
    attempt = limited(owner, dataset, 2)
    assert spec_of(place(attempt)).time_limit_s == 7200
    assert control_of(attempt) == Control()


def test_a_time_limit_can_be_extended_shortened_and_lifted_by_its_event(owner: User, dataset: Dataset) -> None:
    attempt = limited(owner, dataset, 2)
    job = attempt.job
    assert life.set_time_limit(job, 3, actor=owner)
    assert not life.set_time_limit(job, 3, actor=owner)
    attempt.refresh_from_db()
    # The spec is what the settings say, whenever it is sent; what was asked since comes beside it, and again and again.
    assert spec_of(place(attempt)).time_limit_s == 7200
    assert control_of(attempt).time_limit_s == attempt.time_limit_s == 10800
    assert life.set_time_limit(job, None, actor=owner)
    attempt.refresh_from_db()
    assert (attempt.time_limit_s, control_of(attempt).time_limit_s) == (None, 0)
    events = job.events.filter(kind="time_limit").order_by("pk")
    assert [(event.data["old_s"], event.data["new_s"]) for event in events] == [(7200, 10800), (10800, None)]
    assert attempt.settings["limits"]["time_limit_hours"] == 2


@pytest.mark.parametrize("hours", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_time_limit_that_makes_no_sense_is_refused(attempt: Attempt, owner: User, hours: float) -> None:
    with pytest.raises(Refused, match="number of hours"):
        life.set_time_limit(attempt.job, hours, actor=owner)


def test_a_time_limit_that_has_passed_already_is_refused(attempt: Attempt, owner: User) -> None:
    place(attempt, ran_s=3 * 3600)
    with pytest.raises(Refused, match=r"3\.00 hours already"):
        life.set_time_limit(attempt.job, 2, actor=owner)
    assert life.set_time_limit(attempt.job, 4, actor=owner)


def test_a_job_that_has_ended_gets_no_other_time_limit(attempt: Attempt, owner: User) -> None:
    end(attempt)
    with pytest.raises(Refused, match="already ended"):
        life.set_time_limit(attempt.job, 2, actor=owner)


def test_what_was_asked_for_goes_along_with_a_continuation(attempt: Attempt, owner: User) -> None:
    life.set_time_limit(attempt.job, 5, actor=owner)
    services.ask_to_leave(attempt.job, Request.PAUSE, actor=owner)
    assert services.resume(attempt.job, actor=owner).time_limit_s == 5 * 3600


# --- notes and tags ---


def test_notes_and_tags_are_kept_with_an_event(job: Job, owner: User) -> None:
    assert life.annotate(job, notes=" a\r\nb ", names=["first try", "ernie"], actor=owner)
    job.refresh_from_db()
    assert (job.notes, sorted(tag.name for tag in job.tags.all())) == ("a\nb", ["ernie", "first try"])
    assert not life.annotate(job, notes="a\nb", names=["ernie", "first try"], actor=owner)
    life.annotate(job, notes="a\nb", names=["ernie"], actor=owner)
    assert [event.data for event in job.events.filter(kind="annotated").order_by("pk")] == [
        {"notes": True, "added": ["first try", "ernie"], "removed": []},
        {"notes": False, "added": [], "removed": ["first try"]},
    ]


@pytest.mark.parametrize(
    ("notes", "names", "where"),
    [
        ("x" * 10_001, [], "notes"),
        ("a\0b", [], "notes"),
        ("", ["x" * 41], "tags"),
        ("", [f"t{number}" for number in range(21)], "tags"),
        ("", ["a\x07"], "tags"),
    ],
)
def test_notes_and_tags_beyond_their_limits_are_refused(
    job: Job, owner: User, notes: str, names: list[str], where: str
) -> None:
    with pytest.raises(Refused) as refused:
        life.annotate(job, notes=notes, names=names, actor=owner)
    assert list(refused.value.errors) == [where]
    assert "annotated" not in kinds(job)


def test_a_job_file_may_have_tags(owner: User, dataset: Dataset) -> None:
    text = job_file.dump(name="x", recipe="text_classification", dataset=dataset, settings={}, tags=["a b", "第一次"])
    job = job_file.JobFile.parse(text.encode()).submit(owner=owner)
    assert sorted(tag.name for tag in job.tags.all()) == ["a b", "第一次"]
    with pytest.raises(Refused, match="list of words"):
        job_file.JobFile.parse(b"name: x\ntags: [1, 2]")
    with pytest.raises(Refused, match="without commas"):
        job_file.JobFile.parse(text.replace("a b", "a,b").encode()).submit(owner=owner)


# --- the archive ---


def test_only_what_has_ended_is_archived_and_it_comes_back(job: Job, attempt: Attempt, owner: User) -> None:
    with pytest.raises(Refused, match="has ended"):
        life.archive(job, actor=owner)
    end(attempt)
    assert life.archive(job, actor=owner) and not life.archive(job, actor=owner)
    assert life.unarchive(job, actor=owner) and not life.unarchive(job, actor=owner)
    assert kinds(job)[-2:] == ["archived", "unarchived"]


def test_archiving_frees_checkpoints_only_if_asked(job: Job, attempt: Attempt, owner: User) -> None:
    checkpoint(attempt, 10)
    end(attempt)
    life.archive(job, actor=owner)
    assert attempt.checkpoints.get().removed_at is None
    life.archive(job, actor=owner, free_checkpoints=True)
    assert attempt.checkpoints.get().removed_at is not None
    assert job.events.filter(kind="archived").order_by("pk").last().data == {"checkpoints": 1, "bytes": 100}  # type: ignore[union-attr]


def test_a_retry_brings_a_job_out_of_the_archive(job: Job, attempt: Attempt, owner: User) -> None:
    end(attempt)
    life.archive(job, actor=owner)
    services.retry(job, actor=owner, settings=attempt.settings, from_checkpoint=False)
    job.refresh_from_db()
    assert job.archived_at is None


# --- deletion ---


def test_a_deleted_job_is_seen_by_nobody_and_remembered(job: Job, attempt: Attempt, owner: User, staff: User) -> None:
    checkpoint(attempt, 10)
    end(attempt)
    assert life.delete(job, actor=owner)
    assert not Job.objects.visible_to(owner).exists() and not Job.objects.visible_to(staff).exists()
    assert not Attempt.objects.visible_to(staff).exists()
    left = DeletedJob.objects.get()
    assert (left.number, left.name, left.deleted_by, left.freed_bytes) == (job.pk, "sentiment", owner, 100)
    with pytest.raises(Refused, match="deleted"):
        services.retry(job, actor=owner, settings=attempt.settings, from_checkpoint=False)


def test_a_job_on_its_way_is_not_deleted(job: Job, attempt: Attempt, owner: User) -> None:
    with pytest.raises(Refused, match="not ended"):
        life.delete(job, actor=owner)
    placement = place(attempt)
    end(attempt, EndReason.HOST_LOST)
    with pytest.raises(Refused, match="has not confirmed"):
        life.delete(job, actor=owner)
    assert life.held() == {job.pk}
    Placement.objects.filter(pk=placement.pk).update(released_at=timezone.now())
    life.delete(job, actor=owner)


def test_a_model_is_not_deleted_under_a_job_that_starts_from_it(
    job: Job, attempt: Attempt, owner: User, dataset: Dataset
) -> None:
    end(attempt, EndReason.COMPLETED)
    Artifact.objects.create(attempt=attempt, name="model", key=f"artifacts/{attempt.uid}/model", bytes=1, sha256="")
    settings = {"model": {"source": "job", "job": job.pk}}
    next_one = services.submit(
        owner=owner, name="x", recipe="text_classification", dataset=dataset, settings=settings, actor=owner,
        accepted_warnings=True,
    )  # fmt: skip
    with pytest.raises(Refused, match=f"#{next_one.pk} starts from"):
        life.delete(job, actor=owner)
    assert life.held() == {job.pk}
    services.ask_to_leave(next_one, Request.CANCEL, actor=owner)
    assert life.started_from(job) == [next_one.pk]
    life.delete(job, actor=owner)


def test_a_model_that_goes_between_the_check_and_the_submission_is_missed_there(
    job: Job, attempt: Attempt, dataset: Dataset, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(attempt, EndReason.COMPLETED)
    Artifact.objects.create(attempt=attempt, name="model", key="artifacts/x/model", bytes=1, sha256="")
    looked = services.checks.findings

    def deleted_meanwhile(*args: Any, **more: Any) -> Any:
        life.delete(job, actor=owner)
        return looked(*args, **more)

    monkeypatch.setattr(services.checks, "findings", deleted_meanwhile)
    settings = {"model": {"source": "job", "job": job.pk}}
    with pytest.raises(Refused, match=f"There is no job {job.pk}"):
        services.submit(
            owner=owner, name="late", recipe="text_classification", dataset=dataset, settings=settings, actor=owner,
            accepted_warnings=True,
        )  # fmt: skip
    assert not Job.objects.filter(name="late").exists()
