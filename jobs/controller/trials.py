"""Trials of exported models: each is sent to a host, to another if that says nothing, and has an answer or an error
within minutes, whatever is lost on the way."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_noop

from jobs import trials
from jobs.controller import answers
from jobs.controller.send import Sender
from jobs.models import Host, Trial
from workers.contract.trials import LARGEST_RESULT_BYTES, PROGRESS, RESULT, ROWS, Progress, TrialResult, trial_key
from workers.run_folder import atomic_write_json

logger = logging.getLogger(__name__)

NO_HOST_S = 15.0
AGAIN_S = 5.0  # an unclaimed request is sent again
SILENT_S = 20.0  # one that nobody has claimed by then, or that says nothing any more, goes to another host
MOST_TRIES = 2
WARM = timedelta(minutes=10)  # as long as hosts keep a model in memory by default


@dataclass
class _Heard:
    """By the controller's own clock."""

    at: float
    sent_at: float
    seq: int = 0


class Trials:
    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._heard: dict[tuple[str, int], _Heard] = {}

    def forget(self) -> None:
        """After a time without Redis everybody gets their whole time again."""
        self._heard.clear()

    def run(self, now: float) -> None:
        waiting = list(Trial.objects.waiting().select_related("artifact__attempt__job").defer("rows").order_by("pk"))
        for trial in waiting:
            self._one(trial, now)
        current = {(trial.uid, trial.number) for trial in waiting}
        self._heard = {key: heard for key, heard in self._heard.items() if key in current}

    def _one(self, trial: Trial, now: float) -> None:
        folder = settings.STORAGE_ROOT / trial_key(trial.uid)
        if (folder / RESULT).is_file():
            self._take(trial, folder)
            return
        heard = self._heard.setdefault((trial.uid, trial.number), _Heard(now, now))
        if timezone.now() - trial.asked_at > trials.LIMIT:
            limit = int(trials.LIMIT.total_seconds())
            self._give_up(trial, gettext_noop("There was no answer within %(limit)d s."), limit=limit)
        elif trial.number == 0:
            if not self._send(trial, folder, 1, now) and now - heard.at > NO_HOST_S:
                self._give_up(trial, gettext_noop("No host is there that could run the model."))
        elif not (folder / f"claim-{trial.number}").exists():
            if now - heard.at > SILENT_S:
                self._next(trial, folder, now)
            elif now - heard.sent_at > AGAIN_S:
                heard.sent_at = now
                self._sender.trial(trials.spec_of(trial), trial.host)
        else:
            progress = _progress(folder / PROGRESS)
            if progress is not None and progress.number == trial.number and progress.seq != heard.seq:
                heard.at, heard.seq = now, progress.seq
                if progress.stage != trial.stage:
                    Trial.objects.waiting().filter(pk=trial.pk).update(stage=progress.stage[:100])
            elif now - heard.at > SILENT_S:
                self._next(trial, folder, now)

    def _next(self, trial: Trial, folder: Path, now: float) -> None:
        logger.warning("Nothing is heard of trial %s on %s.", trial.uid, trial.host)
        if trial.number >= MOST_TRIES or not self._send(trial, folder, trial.number + 1, now):
            template = gettext_noop("The model was sent to %(host)s, and no answer came back.")
            self._give_up(trial, template, host=trial.host)

    def _send(self, trial: Trial, folder: Path, number: int, now: float) -> bool:
        host = _host(trial)
        if host is None:
            return False
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_json(folder / ROWS, trial.rows)
        changes: dict[str, Any] = {"number": number, "host": host.name, "stage": ""}
        if Trial.objects.waiting().filter(pk=trial.pk, number=trial.number).update(**changes) != 1:
            return True
        for name, value in changes.items():
            setattr(trial, name, value)
        self._heard[trial.uid, number] = _Heard(now, now)
        self._sender.trial(trials.spec_of(trial), host.name)
        return True

    def _take(self, trial: Trial, folder: Path) -> None:
        try:
            result = TrialResult.model_validate_json(answers.read(folder / RESULT, LARGEST_RESULT_BYTES))
            with transaction.atomic():
                trials.conclude(trial, result)
        except answers.NONSENSE:
            # What was typed may be in it: no word of it into the log.
            logger.error("The answer to trial %s makes no sense.", trial.uid)
            template = gettext_noop("The answer of the host %(host)s makes no sense; its log says more.")
            self._give_up(trial, template, host=trial.host)
        else:
            rmtree(folder, ignore_errors=True)

    def _give_up(self, trial: Trial, template: str, **values: str | int) -> None:
        trials.give_up(trial, template, values)
        rmtree(settings.STORAGE_ROOT / trial_key(trial.uid), ignore_errors=True)


def _host(trial: Trial) -> Host | None:
    """One that takes work, not the last if there is another; where the model may still be in memory, or else where the
    fewest attempts are."""
    lately = timezone.now() - WARM
    before = Trial.objects.filter(artifact=trial.artifact_id, state=Trial.State.ANSWERED, asked_at__gt=lately)
    warm = before.order_by("-pk").values_list("host", flat=True).first()

    def order(host: Host) -> tuple[bool, bool, int, str]:
        return host.name == trial.host, host.name != warm, host.placements.holding().count(), host.name

    return min(Host.objects.accepting(), key=order, default=None)


def _progress(path: Path) -> Progress | None:
    try:
        return Progress.model_validate_json(answers.read(path, answers.LARGEST_PROGRESS_BYTES))
    except (OSError, ValueError):
        return None


def tidy() -> None:
    """Trials of yesterday, and folders that nobody waits for: a crash may leave them, or a host that answers late."""
    trials.remove_old()
    root = settings.STORAGE_ROOT
    waiting = {trial_key(uid) for uid in Trial.objects.waiting().values_list("uid", flat=True)}
    for folder in root.glob("trials/*"):
        if str(folder.relative_to(root)) not in waiting and time.time() - folder.stat().st_mtime > 600:
            rmtree(folder, ignore_errors=True)
