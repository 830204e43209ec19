"""Old checkpoints: the newest good ones stay, and those that an attempt started from."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from jobs.models import Attempt, Checkpoint

logger = logging.getLogger(__name__)

DEFAULT_KEEP = 2


def run() -> None:
    for checkpoint in _superfluous():
        with transaction.atomic():
            # Who wants to start from it has locked it, and then refers to it.
            locked = Checkpoint.objects.select_for_update().filter(pk=checkpoint.pk, removed_at__isnull=True)
            if not locked.exists() or Attempt.objects.filter(start_from=checkpoint).exists():
                continue
            Checkpoint.objects.filter(pk=checkpoint.pk).update(removed_at=timezone.now())
    # First the word that it is gone, then the files: never a checkpoint without its files. What a
    # crash leaves in between still has its list of files, and is removed by the next run.
    for checkpoint in Checkpoint.objects.filter(removed_at__isnull=False).exclude(files={}):
        _remove(checkpoint)


def _superfluous() -> list[Checkpoint]:
    several = (
        Attempt.objects.annotate(there=Count("checkpoints", filter=Q(checkpoints__removed_at__isnull=True)))
        .filter(there__gt=1)
        .prefetch_related("checkpoints")
    )
    found = []
    for attempt in several:
        keep = (attempt.settings.get("checkpoints") or {}).get("keep", DEFAULT_KEEP)
        there = sorted((c for c in attempt.checkpoints.all() if c.removed_at is None), key=lambda c: -c.step)
        good = [checkpoint for checkpoint in there if checkpoint.good]
        found += good[keep:]
        if good:
            # One that is not good is of interest only while it is the newest.
            found += [checkpoint for checkpoint in there if not checkpoint.good and checkpoint.step < good[0].step]
    return found


def _remove(checkpoint: Checkpoint) -> None:
    root = Path(settings.STORAGE_ROOT).resolve()
    folder = (root / checkpoint.key).resolve()
    if root not in folder.parents:
        logger.error("Checkpoint %s lies outside the storage: %s", checkpoint.pk, checkpoint.key)
    else:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("Checkpoint %s cannot be removed yet: %s", checkpoint.key, error)
            return
    Checkpoint.objects.filter(pk=checkpoint.pk).update(files={})
