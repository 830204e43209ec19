"""Old checkpoints: the newest good ones stay, and those that an attempt started from."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
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
    there = Q(checkpoints__removed_at__isnull=True)
    n_good, n_bad = (Count("checkpoints", filter=there & Q(checkpoints__good=good)) for good in (True, False))
    # Every few seconds, however many attempts there have been: only of those with too many a row is read.
    counted = Attempt.objects.annotate(n_good=n_good, n_bad=n_bad).filter(n_good__gt=0).exclude(n_good=1, n_bad=0)
    keeps = {
        attempt: DEFAULT_KEEP if keep is None else keep
        for attempt, goods, bads, keep in counted.values_list("pk", "n_good", "n_bad", "settings__checkpoints__keep")
        if bads or goods > (DEFAULT_KEEP if keep is None else keep)
    }
    of_attempts: dict[int, list[Checkpoint]] = defaultdict(list)
    rows = Checkpoint.objects.filter(attempt__in=keeps, removed_at__isnull=True).defer("files")
    for checkpoint in rows.order_by("-step"):
        of_attempts[checkpoint.attempt_id].append(checkpoint)
    found = []
    for attempt, checkpoints in of_attempts.items():
        good_ones = [checkpoint for checkpoint in checkpoints if checkpoint.good]
        found += good_ones[keeps[attempt] :]
        # One that is not good is of interest only while it is the newest.
        found += [one for one in checkpoints if not one.good and good_ones and one.step < good_ones[0].step]
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
