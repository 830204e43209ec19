"""What has been said to be gone: files first, then rows, in transactions so small that nobody waits for them.

A crash at any line leaves the word (`deleted_at`, `log_removed_at`) and something less to do.
"""

from __future__ import annotations

import logging
import time

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from jobs import storage
from jobs.models import (
    Artifact,
    Attempt,
    Checkpoint,
    Cursor,
    DeletedJob,
    DeviceSamples,
    Evaluation,
    Job,
    LogChunk,
    StepBlock,
    StepLevel,
    StepTail,
)

logger = logging.getLogger(__name__)

# Rows of one transaction, and how long one turn may take: other actions wait meanwhile.
ROWS = 200
TURN_S = 0.5
# Ended attempts that one turn measures.
MEASURED = 50

_OF_ATTEMPTS = (StepTail, StepBlock, StepLevel, LogChunk, DeviceSamples, Cursor, Evaluation)


def run() -> None:
    until = time.monotonic() + TURN_S
    for job in Job.objects.filter(deleted_at__isnull=False).order_by("deleted_at"):
        if not _files(job):
            continue
        if not _rows(job, until):
            return
        _last(job)
    _logs(until)


def _files(job: Job) -> bool:
    keys = [f"{kind}/{uid}" for uid in _uids(job) for kind in ("checkpoints", "artifacts")]
    # They lie in these folders; a host might have named others.
    keys += Checkpoint.objects.filter(attempt__job=job).exclude(files={}).values_list("key", flat=True)
    for key in Artifact.objects.filter(attempt__job=job).values_list("key", flat=True):
        keys += [key, f"{key}.tar"]
    return all([storage.remove(key) for key in keys])


def _uids(job: Job) -> list[str]:
    return list(job.attempts.values_list("uid", flat=True))


def _rows(job: Job, until: float) -> bool:
    """Whether all that can be many are gone."""
    for rows in (*(model._default_manager.filter(attempt__job=job) for model in _OF_ATTEMPTS), job.events.all()):
        while storage.delete_rows(rows, ROWS):
            if time.monotonic() > until:
                return False
    return True


def _last(job: Job) -> None:
    with transaction.atomic():
        Attempt.objects.filter(job=job).update(start_from=None)
        Job.objects.filter(pk=job.pk).update(newest=None)
        number = job.pk
        Job.objects.get(pk=number).delete()
        DeletedJob.objects.filter(number=number).update(done_at=timezone.now())
    logger.info("Job %d is deleted.", number)


def _logs(until: float) -> None:
    """Of attempts whose log was said to be removed."""
    gone = Attempt.objects.filter(log_removed_at__isnull=False)
    for attempt in gone.filter(Exists(LogChunk.objects.filter(attempt=OuterRef("pk")))):
        while storage.delete_rows(LogChunk.objects.filter(attempt=attempt), ROWS):
            if time.monotonic() > until:
                return
        storage.measure(attempt)


def measure() -> None:
    """What records and logs take up in the database: of live attempts again and again, of ended ones once more."""
    for attempt in Attempt.objects.filter(ended_at__isnull=True, attempted__gt=0):
        storage.measure(attempt)
    for attempt in Attempt.objects.filter(ended_at__isnull=False, stored_bytes__isnull=True)[:MEASURED]:
        storage.measure(attempt)
