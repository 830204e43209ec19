"""Verbs for trying an exported model: ask, take the answer, give up. The model itself runs on a host
(workers/trials/), and nothing of what somebody typed is kept for longer than a day or shown to anybody else."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from jobs import spans, texts, trial_pictures
from jobs.models import Artifact, Attempt, Job, Trial
from jobs.services import Refused
from workers.contract.datasets import MOST_PIXELS
from workers.contract.trials import PICTURE_BYTES, PICTURES_BYTES, Row, TrialForm, TrialResult, TrialSpec
from workers.recipes.registry import RECIPES

# Whatever happens, a trial has an end by then.
LIMIT = timedelta(seconds=240)
# The page says so when even that end does not come: nothing runs that could bring it.
OVERDUE = LIMIT + timedelta(seconds=30)
KEPT = timedelta(days=1)
MOST_WAITING = 3


def form_of(job: Job) -> TrialForm | None:
    recipe = RECIPES.get(job.recipe)
    return recipe.trial if recipe else None


def artifact_of(job: Job, attempt: Attempt) -> Artifact | None:
    """What can be tried on the page of `attempt`: its own export, or else the job's newest."""
    form = form_of(job)
    if form is None:
        return None
    exports = list(Artifact.objects.filter(attempt__job=job, name=form.artifact).select_related("attempt"))
    return max(exports, key=lambda one: (one.attempt_id == attempt.pk, one.attempt.number), default=None)


def is_there(artifact: Artifact) -> bool:
    root = settings.STORAGE_ROOT.resolve()
    folder = (root / artifact.key).resolve()
    return folder.is_relative_to(root) and folder.is_dir()


def rows_of(form: TrialForm, typed: str, files: Sequence[UploadedFile[Any]] = ()) -> list[Row]:
    """A row per line that is not empty, or per picture. Raises Refused."""
    (field,) = form.fields
    if field.kind == "image":
        return trial_pictures.rows_of(form, field, files)
    # PostgreSQL keeps no NUL in texts.
    lines = [line.strip() for line in typed.replace("\0", "").replace("\r", "\n").split("\n")]
    typed_rows = [(number, line) for number, line in enumerate(lines, 1) if line]
    if not typed_rows:
        raise Refused({field.name: _("Type a text, or several with a line each.")})
    if len(typed_rows) > form.most_rows:
        raise Refused(
            {
                field.name: _("These are %(count)d texts; at most %(most)d are taken at once.")
                % {"count": len(typed_rows), "most": form.most_rows}
            }
        )
    for number, text in typed_rows:
        if len(text) > field.longest:
            raise Refused(
                {
                    field.name: _("The text in line %(line)d has %(count)d characters; at most %(most)d are taken.")
                    % {"line": number, "count": len(text), "most": field.longest}
                }
            )
        if (
            field.kind == "numbers"
            and (bad := next((word for word in re.split(r"[\s,]+", text) if not _is_finite(word)), None)) is not None
        ):
            raise Refused(
                {field.name: _("Line %(line)d: “%(word)s” is no finite number.") % {"line": number, "word": bad[:40]}}
            )
    return [{field.name: text} for _number, text in typed_rows]


def _is_finite(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def ask(artifact: Artifact, typed: str, files: Sequence[UploadedFile[Any]] = (), *, user: User) -> Trial:
    """The controller brings it to a host. Raises Refused."""
    form = form_of(artifact.attempt.job)
    if form is None or form.artifact != artifact.name:
        raise Refused({"": _("This result cannot be tried here.")})
    rows = rows_of(form, typed, files)
    if not is_there(artifact):
        raise Refused({"": _("The exported model was deleted.")})
    waiting = Trial.objects.waiting().filter(asked_by=user, asked_at__gt=timezone.now() - LIMIT).count()
    if waiting >= MOST_WAITING:
        raise Refused(
            {
                "": ngettext(
                    "%(count)d of your questions still waits for its answer.",
                    "%(count)d of your questions still wait for their answers.",
                    waiting,
                )
                % {"count": waiting}
            }
        )
    return Trial.objects.create(uid=uuid.uuid4().hex, artifact=artifact, asked_by=user, rows=rows)


def spec_of(trial: Trial) -> TrialSpec:
    artifact = trial.artifact
    return TrialSpec(uid=trial.uid, number=trial.number, recipe=artifact.attempt.job.recipe, artifact=artifact.key)


def conclude(trial: Trial, result: TrialResult) -> None:
    if result.template:
        give_up(trial, result.template, result.values, host=result.host)
    elif len(result.predictions) != len(trial.rows):
        give_up(
            trial,
            gettext_noop("The answer of the host %(host)s makes no sense; its log says more."),
            {"host": result.host},
        )
    else:
        _end(trial, state=Trial.State.ANSWERED, host=result.host, result=result.model_dump(mode="json"))


def give_up(trial: Trial, template: str, values: dict[str, Any], *, host: str = "") -> None:
    problem = {"template": template, "values": values}
    _end(trial, state=Trial.State.FAILED, problem=problem, **({"host": host} if host else {}))


def _end(trial: Trial, **changes: Any) -> None:
    Trial.objects.waiting().filter(pk=trial.pk).update(**changes)
    for name, value in changes.items():
        setattr(trial, name, value)


def remove_old() -> None:
    Trial.objects.filter(asked_at__lt=timezone.now() - KEPT).delete()


# --- what pages show -------------------------------------------------------------------------


def part(job: Job, attempt: Attempt) -> dict[str, Any]:
    """The box on a job's page."""
    form = None if job.dry_run else form_of(job)
    artifact = artifact_of(job, attempt)
    return {
        "try_form": form,
        "try_artifact": artifact,
        "try_there": artifact is not None and is_there(artifact),
        "try_typed": "",
        "try_each": PICTURE_BYTES,
        "try_most": PICTURES_BYTES,
        "try_pixels": MOST_PIXELS // 10**6,
        "try_errors": [],
    }


LABELS_SHOWN = 5


def _labels(trial: Trial) -> list[str]:
    dataset = trial.artifact.attempt.job.dataset
    return dataset.labels if dataset else []


def of_pictures(trial: Trial) -> bool:
    form = form_of(trial.artifact.attempt.job)
    return form is not None and form.fields[0].kind == "image"


def answer(trial: Trial) -> dict[str, Any]:
    """What came of a trial, and whether to look again."""
    age = timezone.now() - trial.asked_at
    waiting = trial.state == Trial.State.WAITING
    problem = ""
    if trial.problem:
        problem = texts.filled(trial.problem["template"], trial.problem["values"])
    elif waiting and age > OVERDUE:
        problem = _("Nobody answers: the controller does not run. Its staff knows more.")
    rows = []
    for number, said in enumerate(trial.result.get("predictions", [])):
        scores, found = said.get("scores", []), said.get("spans")
        # Pictures are fetched by their number, and not with the page.
        text = "" if of_pictures(trial) else next(iter(trial.rows[number].values()))
        rows.append(
            {
                "number": number,
                "text": text,
                "spans": None if found is None else [{**one, "text": text[one["start"] : one["end"]]} for one in found],
                "parts": spans.parts_of(text, found or []),
                "value": said.get("value"),
                "read": said.get("text"),
                "confidence": said.get("confidence"),
                "scores": scores[:LABELS_SHOWN],
                "more": max(len(scores) - LABELS_SHOWN, 0) + said.get("less_likely", 0),
                "tokens": said["tokens"],
                "unknown": said["unknown"],
                "unknown_count": said["tokens"].count(said["unknown"]) if said["unknown"] else 0,
                "cut": said["cut"],
            }
        )
    return {
        "trial": trial,
        "try_waits": waiting and not problem,
        "try_problem": problem,
        "try_rows": rows,
        "try_pictures": of_pictures(trial),
        "try_age_s": age.total_seconds(),
        "span_kinds": spans.kinds(_labels(trial)) if any(row["spans"] for row in rows) else [],
    }
