from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs import life, services, storage
from jobs.controller import remove
from jobs.models import (
    Artifact,
    Attempt,
    Checkpoint,
    Cursor,
    DeletedJob,
    Evaluation,
    Job,
    JobEvent,
    JobTag,
    LogChunk,
    StepTail,
)
from workers.contract.states import EndReason, Status

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remove, "TURN_S", 60.0)


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    settings.STORAGE_ROOT = tmp_path / "storage"
    settings.STORAGE_ROOT.mkdir()
    return tmp_path / "storage"


@pytest.fixture
def full(root: Path, job: Job, attempt: Attempt) -> Attempt:
    """Ended, retried from its checkpoint, ended again; with something in every table and folder."""
    for kind, key in (("checkpoints", "step-000000010"), ("artifacts", "model")):
        folder = root / kind / attempt.uid / key
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"x" * 100)
    (root / "artifacts" / attempt.uid / "model.tar").write_bytes(b"x" * 150)
    files = {"weights": {"bytes": 100, "sha256": ""}}
    Checkpoint.objects.create(
        attempt=attempt, step=10, applied=10, key=f"checkpoints/{attempt.uid}/step-000000010", bytes=100, files=files,
        good=True,
    )  # fmt: skip
    key = f"artifacts/{attempt.uid}/model"
    Artifact.objects.create(attempt=attempt, name="model", key=key, bytes=150, sha256="", files=files)
    StepTail.objects.create(attempt=attempt, rank=0, start=0, count=1, last_step=1, body=b"r" * 30, packed=b"p" * 12)
    LogChunk.objects.bulk_create(
        LogChunk(attempt=attempt, rank=0, offset=n * 5, length=5, body=b"hello") for n in range(7)
    )
    Cursor.objects.create(attempt=attempt, rank=0, kind="log", offset=35)
    Evaluation.objects.create(attempt=attempt, step=10, applied=10, epoch=0, metrics={}, seconds=1)
    JobTag.objects.create(job=job, name="old")
    services.transition(attempt, Status.FAILED, reason=EndReason.LAUNCH_FAILED)
    again = services.retry(job, actor=None, settings=attempt.settings, from_checkpoint=True)
    services.transition(again, Status.FAILED, reason=EndReason.LAUNCH_FAILED)
    assert again.start_from is not None
    return attempt


def test_what_a_job_takes_up_is_counted_to_the_byte(full: Attempt) -> None:
    use = storage.of_job(full.job)
    assert use == storage.Use(checkpoints=100, artifacts=250, records=42, logs=35)
    assert storage.of_jobs(Job.objects.all())[full.job_id].database == 0
    remove.measure()
    assert storage.of_jobs(Job.objects.all())[full.job_id].total == use.total == 427


def test_a_deleted_job_leaves_nothing_behind(full: Attempt, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remove, "ROWS", 3)
    life.delete(full.job, actor=None)
    remove.run()
    assert [path for path in root.rglob("*") if path.is_file()] == []
    for model in (Job, Attempt, Checkpoint, Artifact, StepTail, LogChunk, Cursor, Evaluation, JobEvent, JobTag):
        assert model._default_manager.count() == 0, model
    left = DeletedJob.objects.get()
    assert left.freed_bytes == 427 and left.done_at is not None
    remove.run()


def test_a_deletion_that_was_broken_off_goes_on(full: Attempt, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life.delete(full.job, actor=None)
    monkeypatch.setattr(remove, "ROWS", 3)
    # Out of time after the first few rows: what a crash there leaves.
    monkeypatch.setattr(remove, "TURN_S", -1.0)
    remove.run()
    assert 0 < LogChunk.objects.count() < 8 and Job.objects.count() == 1
    assert not list(root.glob("checkpoints/*"))
    while Job.objects.exists():
        remove.run()
    assert DeletedJob.objects.get().done_at is not None


def test_nothing_is_forgotten_while_the_storage_is_away(full: Attempt, root: Path) -> None:
    root.rename(root.with_name("away"))
    life.delete(full.job, actor=None)
    remove.run()
    assert Job.objects.count() == 1
    root.with_name("away").rename(root)
    remove.run()
    assert Job.objects.count() == 0 and not [path for path in root.rglob("*") if path.is_file()]


def test_nothing_outside_of_the_storage_is_removed(full: Attempt, root: Path) -> None:
    (root.parent / "precious").mkdir()
    Artifact.objects.update(key="../precious")
    life.delete(full.job, actor=None)
    remove.run()
    assert (root.parent / "precious").is_dir() and Job.objects.count() == 0
