from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs import services
from jobs.controller import prune
from jobs.models import Attempt, Checkpoint, Job
from workers.contract.states import EndReason, Status

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]


@pytest.fixture
def storage(tmp_path: Path, settings: Any) -> Path:
    settings.STORAGE_ROOT = tmp_path / "storage"
    return tmp_path / "storage"


def _checkpoint(storage: Path, attempt: Attempt, step: int, *, good: bool = True) -> Checkpoint:
    key = f"checkpoints/{attempt.uid}/step-{step:09d}"
    (storage / key).mkdir(parents=True)
    (storage / key / "model").write_text("x")
    return Checkpoint.objects.create(
        attempt=attempt, step=step, applied=step, key=key, bytes=1, files={"model": 1}, good=good
    )


def _there(storage: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step-")) for folder in storage.glob("checkpoints/*/step-*"))


def test_the_newest_good_ones_stay(storage: Path, attempt: Attempt) -> None:
    for step in (10, 20, 30, 40):
        _checkpoint(storage, attempt, step)
    _checkpoint(storage, attempt, 35, good=False)
    _checkpoint(storage, attempt, 50, good=False)
    prune.run()
    assert _there(storage) == [30, 40, 50]
    assert sorted(Checkpoint.objects.filter(removed_at=None).values_list("step", flat=True)) == [30, 40, 50]
    prune.run()
    assert _there(storage) == [30, 40, 50]


def test_what_an_attempt_started_from_stays(storage: Path, attempt: Attempt, job: Job) -> None:
    _checkpoint(storage, attempt, 10)
    services.transition(attempt, Status.FAILED, reason=EndReason.NON_FINITE)
    retried = services.retry(job, actor=None, settings={}, from_checkpoint=True)
    assert retried.start_from is not None and retried.start_from.step == 10
    for step in (20, 30, 40):
        _checkpoint(storage, attempt, step)
    prune.run()
    assert _there(storage) == [10, 30, 40]


def test_files_that_a_crash_left_behind_are_removed_later(storage: Path, attempt: Attempt) -> None:
    old = _checkpoint(storage, attempt, 10)
    Checkpoint.objects.filter(pk=old.pk).update(removed_at="2026-01-01T00:00:00Z")
    prune.run()
    assert _there(storage) == []


def test_nothing_outside_the_storage_is_ever_removed(storage: Path, attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    storage.mkdir()
    Checkpoint.objects.create(
        attempt=attempt,
        step=1,
        applied=1,
        key="../precious",
        bytes=1,
        files={"a": 1},
        good=True,
        removed_at="2026-01-01T00:00:00Z",
    )
    prune.run()
    assert (tmp_path / "precious").exists()
