"""Datasets that are to be checked: each is sent to a host, and again until its answer lies in the storage.

Redis may lose the request, a host may die over it: a try that nobody has claimed is sent again, and one that was
claimed and says nothing any more is followed by another. Two tries at once write the same bytes.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext_noop

from jobs import datasets
from jobs.controller import answers
from jobs.controller.send import Sender
from jobs.models import Dataset, Host
from workers.contract.datasets import LARGEST_RESULT_BYTES, PROGRESS, RESULT, CheckResult, Finding, Progress, check_key

logger = logging.getLogger(__name__)

AGAIN_S = 10.0  # an unclaimed request is sent again
SILENT_S = 60.0  # a claimed one without a new word is given up
MOST_TRIES = 3
ABANDONED_S = 86_400.0


@dataclass
class _Heard:
    seq: int
    at: float


class Checks:
    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        # (check, try) -> its last word, by the controller's own clock.
        self._heard: dict[tuple[str, int], _Heard] = {}

    def forget(self) -> None:
        self._heard.clear()

    def run(self, now: float) -> None:
        waiting = list(Dataset.objects.filter(state=Dataset.State.CHECKING).order_by("pk"))
        for dataset in waiting:
            self._one(dataset, now)
        current = {(dataset.check_uid, dataset.check_try) for dataset in waiting}
        self._heard = {key: heard for key, heard in self._heard.items() if key in current}

    def _one(self, dataset: Dataset, now: float) -> None:
        folder = settings.STORAGE_ROOT / check_key(dataset.check_uid)
        if (folder / RESULT).is_file():
            _take(dataset, folder / RESULT)
            return
        if dataset.check_try == 0:
            self._send(dataset, folder, number=1)
            return
        heard = self._heard.setdefault((dataset.check_uid, dataset.check_try), _Heard(0, now))
        if not (folder / f"claim-{dataset.check_try}").exists():
            if now - heard.at > AGAIN_S:
                heard.at = now
                self._send(dataset, folder, number=dataset.check_try)
            return
        progress = _progress(folder / PROGRESS)
        if progress is not None and progress.number == dataset.check_try and progress.seq != heard.seq:
            self._heard[dataset.check_uid, dataset.check_try] = _Heard(progress.seq, now)
            said = progress.model_dump(mode="json", include={"stage", "done", "total", "host", "left_s"})
            if said != dataset.check_progress:
                _mine(dataset).update(check_progress=said, check_host=progress.host)
        elif now - heard.at > SILENT_S:
            if dataset.check_try >= MOST_TRIES:
                template = gettext_noop(
                    "Hosts began the check %(count)d times and did not finish it; the last was %(host)s."
                )
                values: dict[str, Any] = {"count": dataset.check_try, "host": dataset.check_host}
                datasets.refuse(dataset, Finding(level="error", template=template, values=values))
                logger.error("The check of %s is given up after %d tries.", dataset, dataset.check_try)
            else:
                logger.warning("Nothing is heard of the check of %s on %s.", dataset, dataset.check_host)
                self._send(dataset, folder, number=dataset.check_try + 1)

    def _send(self, dataset: Dataset, folder: Path, *, number: int) -> None:
        host = _host(dataset, not_on=dataset.check_host if number > 1 else "")
        if host is None:
            return
        changes: dict[str, Any] = {"check_try": number, "check_host": host.name, "check_sent_at": timezone.now()}
        if _mine(dataset).update(**changes) != 1:
            return
        for name, value in changes.items():
            setattr(dataset, name, value)
        # Hosts may run as another user.
        folder.mkdir(parents=True, exist_ok=True)
        self._sender.check(datasets.spec_of(dataset), host.name)
        logger.info("The check of %s, try %d, is sent to %s.", dataset, number, host.name)


def _mine(dataset: Dataset) -> Any:
    return Dataset.objects.filter(pk=dataset.pk, state=Dataset.State.CHECKING, check_uid=dataset.check_uid)


def _host(dataset: Dataset, *, not_on: str) -> Host | None:
    """One that takes work and checks nothing else: another than the last if there is one, the one with the fewest attempts.
    Without one the dataset waits here, where whichever host is free first can take it."""
    checking = Dataset.objects.filter(state=Dataset.State.CHECKING, check_try__gt=0).exclude(pk=dataset.pk)
    busy = set(checking.values_list("check_host", flat=True))

    def order(host: Host) -> tuple[bool, int, str]:
        return host.name == not_on, host.placements.holding().count(), host.name

    return min((host for host in Host.objects.accepting() if host.name not in busy), key=order, default=None)


def _progress(path: Path) -> Progress | None:
    try:
        return Progress.model_validate_json(answers.read(path, answers.LARGEST_PROGRESS_BYTES))
    except (OSError, ValueError):
        return None


def _take(dataset: Dataset, path: Path) -> None:
    try:
        result = CheckResult.model_validate_json(answers.read(path, LARGEST_RESULT_BYTES))
        datasets.conclude(dataset, result)
    except answers.NONSENSE as error:
        logger.error("The answer to the check of %s makes no sense: %s", dataset, error)
        template = gettext_noop("The answer of the host %(host)s makes no sense; its log says more.")
        datasets.refuse(dataset, Finding(level="error", template=template, values={"host": dataset.check_host}))
        return
    logger.info("%s is %s after %.1f s on %s.", dataset, dataset.state, result.seconds, result.host)


def tidy() -> None:
    """Uploads that nobody goes on with, and folders that belong to no dataset: a crash may leave them."""
    for dataset in datasets.stale_uploads(ABANDONED_S):
        logger.info("The upload of %s is given up.", dataset)
        datasets.delete(dataset)
    root = settings.STORAGE_ROOT
    known = set(Dataset.objects.values_list("source__uploads", flat=True))
    known |= {check_key(uid) for uid in Dataset.objects.exclude(check_uid="").values_list("check_uid", flat=True)}
    for folder in [*root.glob("uploads/*"), *root.glob("checks/*"), *root.glob("datasets/.new-*")]:
        if str(folder.relative_to(root)) not in known and time.time() - folder.stat().st_mtime > ABANDONED_S:
            rmtree(folder, ignore_errors=True)
