"""What jobs take up, and how files go. Sizes come from rows, never from walking folders."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from django.db.models import Model, QuerySet, Sum
from django.db.models.functions import Length

from jobs.models import Artifact, Attempt, Checkpoint, DeviceSamples, Job, LogChunk, StepBlock, StepLevel, StepTail

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Use:
    """Bytes, by what they are for."""

    checkpoints: int = 0
    artifacts: int = 0
    records: int = 0
    logs: int = 0

    @property
    def database(self) -> int:
        return self.records + self.logs

    @property
    def total(self) -> int:
        return self.checkpoints + self.artifacts + self.records + self.logs


def of_job(job: Job) -> Use:
    """As it is now."""
    attempts = Attempt.objects.filter(job=job)
    return replace(_files(Job.objects.filter(pk=job.pk))[job.pk], records=_records(attempts), logs=_logs(attempts))


def of_jobs(jobs: QuerySet[Job]) -> dict[int, Use]:
    """Of many at once. Records and logs, together as records, are as the controller last measured them."""
    uses = _files(jobs)
    stored = Attempt.objects.filter(job__in=jobs, stored_bytes__isnull=False).values_list("job")
    for job, size in stored.annotate(Sum("stored_bytes")).order_by():
        uses[job] = replace(uses[job], records=size)
    return uses


def measure(attempt: Attempt) -> None:
    mine = Attempt.objects.filter(pk=attempt.pk)
    mine.update(stored_bytes=_records(mine) + _logs(mine))


def _files(jobs: QuerySet[Job]) -> dict[int, Use]:
    uses: dict[int, Use] = defaultdict(Use)
    there = Checkpoint.objects.filter(attempt__job__in=jobs, removed_at__isnull=True).values_list("attempt__job")
    for job, size in there.annotate(Sum("bytes")).order_by():
        uses[job] = replace(uses[job], checkpoints=size)
    for job, size, files in Artifact.objects.filter(attempt__job__in=jobs).values_list(
        "attempt__job", "bytes", "files"
    ):
        # The archive, and the folder that is beside it.
        size += sum(int(file.get("bytes", 0)) for file in files.values() if isinstance(file, dict))
        uses[job] = replace(uses[job], artifacts=uses[job].artifacts + size)
    return uses


def _records(attempts: QuerySet[Attempt]) -> int:
    return (
        _sum(StepTail.objects.filter(attempt__in=attempts), Length("body") + Length("packed"))
        + _sum(DeviceSamples.objects.filter(attempt__in=attempts), Length("body"))
        + _sum(StepBlock.objects.filter(attempt__in=attempts), Length("body"))
        + _sum(StepLevel.objects.filter(attempt__in=attempts), Length("body"))
    )


def _logs(attempts: QuerySet[Attempt]) -> int:
    return _sum(LogChunk.objects.filter(attempt__in=attempts), "length")


def _sum(rows: QuerySet[Any], what: Any) -> int:
    return rows.aggregate(sum=Sum(what))["sum"] or 0


# --- removal -------------------------------------------------------------------------------


def remove(key: str) -> bool:
    """A file or folder below STORAGE_ROOT. False if that must be tried again; what lies elsewhere is never touched."""
    root = settings.STORAGE_ROOT.resolve()
    path = (root / key).resolve()
    if not key or root not in path.parents:
        logger.error("%r lies outside of the storage and is left alone.", key)
        return True
    try:
        if not root.is_dir():
            raise FileNotFoundError(f"there is no {root}")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed yet: %s", key, error)
        return False
    return True


def delete_rows(rows: QuerySet[Any], most: int) -> int:
    """At most so many, in a transaction of their own; returns how many went."""
    model: type[Model] = rows.model
    keys = list(rows.order_by("pk").values_list("pk", flat=True)[:most])
    if keys:
        model._default_manager.filter(pk__in=keys).delete()
    return len(keys)
