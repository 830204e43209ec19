from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs import life, retention, services
from jobs.controller import remove
from jobs.models import Attempt, Checkpoint, Evaluation, Job, LogChunk
from jobs.retention import Keep, Rule, What
from jobs.services import Refused
from tests.jobs.test_life import checkpoint, end
from workers.contract.states import EndReason

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def root(tmp_path: Path, settings: Any) -> None:
    settings.STORAGE_ROOT = tmp_path


def ended(attempt: Attempt, days: float, reason: EndReason = EndReason.COMPLETED) -> Attempt:
    end(attempt, reason)
    at = timezone.now() - timedelta(days=days)
    Attempt.objects.filter(pk=attempt.pk).update(ended_at=at, complete_at=at)
    Job.objects.filter(pk=attempt.job_id).update(ended_at=at)
    attempt.refresh_from_db()
    return attempt


def there(attempt: Attempt) -> list[int]:
    return sorted(attempt.checkpoints.filter(removed_at=None).values_list("step", flat=True))


def rule(staff: User, what: What, days: int | None, keep: Keep = Keep.LAST) -> Rule:
    retention.set_rules([Rule(what, days, keep)], actor=staff)
    return next(one for one in retention.rules() if one.what is what)


def test_without_rules_only_dry_runs_go_and_after_a_week(attempt: Attempt, job: Job) -> None:
    assert {one.what: one.days for one in retention.rules() if one.days is not None} == {What.DRY_RUNS: 7}
    checkpoint(attempt, 10)
    LogChunk.objects.create(attempt=attempt, rank=0, offset=0, length=2, body=b"hi")
    ended(attempt, 10_000, EndReason.NON_FINITE)
    life.archive(job, actor=None)
    retention.run()
    assert there(attempt) == [10] and LogChunk.objects.exists() and Job.objects.there().exists()
    Job.objects.update(dry_run=True)
    retention.run()
    assert not Job.objects.there().exists()


def test_a_dry_run_stays_for_its_days_and_while_it_is_pinned(attempt: Attempt, job: Job) -> None:
    Job.objects.update(dry_run=True)
    ended(attempt, 6.9)
    retention.run()
    assert Job.objects.there().exists()
    Job.objects.update(ended_at=timezone.now() - timedelta(days=8))
    life.pin(job, True, actor=None)
    assert retention.preview(retention.rules()[0]).jobs == []
    retention.run()
    assert Job.objects.there().exists()


@pytest.mark.parametrize(
    ("keep", "left"), [(Keep.LAST, [40]), (Keep.BEST, [20]), (Keep.BOTH, [20, 40]), (Keep.NONE, [])]
)
def test_checkpoints_go_but_for_those_that_are_to_stay(
    attempt: Attempt, staff: User, keep: Keep, left: list[int]
) -> None:
    for step in (10, 20, 30, 40):
        checkpoint(attempt, step)
    Checkpoint.objects.filter(step=30).update(good=False)
    for step, best in ((5, True), (15, True), (35, False)):
        Evaluation.objects.create(attempt=attempt, step=step, applied=step, epoch=0, metrics={}, seconds=1, best=best)
    ended(attempt, 31)
    chosen = rule(staff, What.CHECKPOINTS, 30, keep)
    told = retention.preview(chosen)
    assert (told.things, told.bytes, told.jobs) == (4 - len(left), 100 * (4 - len(left)), [attempt.job_id])
    retention.run()
    assert there(attempt) == left
    event = attempt.job.events.get(kind="checkpoints_removed")
    assert event.reason == "checkpoints" and event.data["checkpoints"] == 4 - len(left)
    # Applied once: there is nothing more to do, and nothing more to say.
    assert retention.preview(chosen).things == 0
    retention.run()
    assert attempt.job.events.filter(kind="checkpoints_removed").count() == 1


def test_a_rule_of_failed_jobs_leaves_others_alone(attempt: Attempt, staff: User) -> None:
    checkpoint(attempt, 10)
    ended(attempt, 31, EndReason.PAUSED)
    rule(staff, What.FAILED_CHECKPOINTS, 30, Keep.NONE)
    rule(staff, What.CHECKPOINTS, 30, Keep.NONE)
    retention.run()
    assert there(attempt) == [10]


def test_what_an_attempt_on_its_way_starts_from_stays(attempt: Attempt, job: Job, staff: User) -> None:
    checkpoint(attempt, 10)
    ended(attempt, 31, EndReason.NON_FINITE)
    chosen = rule(staff, What.FAILED_CHECKPOINTS, 30, Keep.NONE)
    services.retry(job, actor=None, settings=attempt.settings, from_checkpoint=True)
    assert retention.preview(chosen).things == 0
    retention.run()
    assert there(attempt) == [10]


def test_logs_go_with_a_word_first_and_the_rest_stays(attempt: Attempt, job: Job, staff: User) -> None:
    LogChunk.objects.create(attempt=attempt, rank=0, offset=0, length=5, body=b"hello")
    ended(attempt, 3)
    chosen = rule(staff, What.LOGS, 2)
    assert (retention.preview(chosen).things, retention.preview(chosen).bytes) == (1, 5)
    retention.run()
    attempt.refresh_from_db()
    assert attempt.log_removed_at is not None and LogChunk.objects.exists()
    remove.run()
    assert not LogChunk.objects.exists() and Job.objects.there().exists()
    assert job.events.filter(kind="logs_removed").count() == 1
    retention.run()
    assert job.events.filter(kind="logs_removed").count() == 1


def test_archived_jobs_are_deleted_after_their_days(attempt: Attempt, job: Job, staff: User) -> None:
    ended(attempt, 100)
    life.archive(job, actor=None)
    chosen = rule(staff, What.ARCHIVED, 30)
    assert retention.preview(chosen).jobs == []
    Job.objects.update(archived_at=timezone.now() - timedelta(days=31))
    assert retention.preview(chosen).jobs == [job.pk]
    retention.run()
    remove.run()
    assert not Job.objects.exists()


def test_a_rule_that_is_set_again_is_not_changed(staff: User) -> None:
    assert retention.set_rules([Rule(What.LOGS, 30)], actor=staff) == 1
    assert retention.set_rules([Rule(What.LOGS, 30)], actor=staff) == 0


@pytest.mark.parametrize("typed", ["0", "-1", "1.5", "soon", "1e3", "999999999999"])
def test_days_are_whole_numbers(typed: str) -> None:
    with pytest.raises(Refused, match="whole number of days"):
        retention.checked_days(typed)
    assert retention.checked_days(" ") is None and retention.checked_days("7") == 7
