"""What happens to a job beside its attempts: its time limit, notes and tags, the archive, and its deletion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import limits, storage, tags
from jobs.models import Artifact, Attempt, Checkpoint, DeletedJob, Job, JobEvent, Placement
from jobs.services import Refused, locked
from workers.contract.states import ACTIVE, ENDED

LONGEST_HOURS = 8760.0
LONGEST_NOTES = 10_000
# Lines and tabs are welcome in notes; the rest no page shows, and PostgreSQL keeps no NUL and no half of a pair.
NEVER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


# --- the time limit ------------------------------------------------------------------------


def set_time_limit(job: Job, hours: float | None, *, actor: User | None) -> bool:
    """Of the attempt that is on its way; None is no limit. False if it was so already. The settings stay what they were."""
    if hours is not None and not (isfinite(hours) and 0.01 <= hours <= LONGEST_HOURS):
        text = _("Must be a number of hours from 0.01 to %(most)g, or empty for no limit.")
        raise Refused({"hours": text % {"most": LONGEST_HOURS}})
    if actor is not None and not actor.is_staff and (too_long := limits.against_time(job.owner, hours)):
        raise Refused({"hours": too_long})
    with transaction.atomic():
        job, attempt = locked(job)
        if attempt.status in ENDED:
            raise Refused({"hours": _("The job has already ended; a retry can have another time limit.")})
        limit = None if hours is None else hours * 3600
        if limit == attempt.time_limit_s:
            return False
        ran = ran_s(attempt)
        if limit is not None and ran is not None and limit <= ran:
            text = _(
                "The attempt has been on its host for %(ran).2f hours already. To end it now, finish, pause or cancel it."
            )
            raise Refused({"hours": text % {"ran": ran / 3600}})
        old = attempt.time_limit_s
        Attempt.objects.filter(pk=attempt.pk).update(time_limit_asked_s=limit or 0.0)
        _event(job, "time_limit", actor, attempt=attempt, data={"old_s": old, "new_s": limit})
    return True


def ran_s(attempt: Attempt) -> float | None:
    """How long the attempt has been on its host, which is what its time limit counts; None before that."""
    placement = Placement.objects.filter(attempt=attempt, claimed_at__isnull=False).order_by("-pk").first()
    if placement is None or placement.claimed_at is None:
        return None
    return ((attempt.ended_at or timezone.now()) - placement.claimed_at).total_seconds()


# --- notes, tags, keeping ------------------------------------------------------------------


def annotate(job: Job, *, notes: str, names: Iterable[str], actor: User | None) -> bool:
    """Notes and tags, each as a whole. False if nothing is different."""
    notes, names = notes.replace("\r\n", "\n").strip(), list(names)
    errors = {}
    if len(notes) > LONGEST_NOTES:
        text = _("At most %(most)d characters; this has %(count)d.")
        errors["notes"] = text % {"most": LONGEST_NOTES, "count": len(notes)}
    elif NEVER.search(notes):
        errors["notes"] = _("Must not contain control characters.")
    if why_not := tags.problem(names):
        errors["tags"] = why_not
    if errors:
        raise Refused(errors)
    with transaction.atomic():
        job, _attempt = locked(job)
        added, removed = tags.put(job, names)
        if notes == job.notes and not added and not removed:
            return False
        Job.objects.filter(pk=job.pk).update(notes=notes)
        _event(job, "annotated", actor, data={"notes": notes != job.notes, "added": added, "removed": removed})
    return True


def pin(job: Job, pinned: bool, *, actor: User | None) -> bool:
    """A pinned job is left alone by the rules of retention."""
    with transaction.atomic():
        if Job.objects.filter(pk=job.pk, pinned=not pinned).update(pinned=pinned) != 1:
            return False
        _event(job, "pinned" if pinned else "unpinned", actor)
    return True


# --- the archive ---------------------------------------------------------------------------


def archive(job: Job, *, actor: User | None, free_checkpoints: bool = False) -> bool:
    """Out of the list; records, evaluations and results stay. Checkpoints go only if that is asked for."""
    with transaction.atomic():
        job, attempt = locked(job)
        if attempt.status not in ENDED:
            raise Refused({"": _("Only a job that has ended can be archived.")})
        freed = remove_checkpoints(list(removable().filter(attempt__job=job))) if free_checkpoints else []
        if job.archived_at is not None and not freed:
            return False
        Job.objects.filter(pk=job.pk, archived_at=None).update(archived_at=timezone.now())
        data = {"checkpoints": len(freed), "bytes": sum(checkpoint.bytes for checkpoint in freed)}
        _event(job, "archived", actor, data=data)
    return True


def unarchive(job: Job, *, actor: User | None) -> bool:
    with transaction.atomic():
        if Job.objects.filter(pk=job.pk, archived_at__isnull=False).update(archived_at=None) != 1:
            return False
        _event(job, "unarchived", actor)
    return True


def removable() -> QuerySet[Checkpoint]:
    """Checkpoints that are there and that no attempt on its way is to start from."""
    needed = Attempt.objects.filter(status__in=_ACTIVE, start_from__isnull=False).values("start_from")
    return Checkpoint.objects.filter(removed_at__isnull=True).exclude(pk__in=needed)


def remove_checkpoints(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """The word that they are gone; the controller removes the files (jobs/controller/prune.py)."""
    Checkpoint.objects.filter(pk__in=[checkpoint.pk for checkpoint in checkpoints]).update(removed_at=timezone.now())
    return checkpoints


# --- deletion ------------------------------------------------------------------------------


def delete(job: Job, *, actor: User | None, rule: str = "") -> bool:
    """The word that it is gone: from here on nobody sees it. Files and rows follow (jobs/controller/remove.py).

    False if that was said already."""
    with transaction.atomic():
        job, _attempt = locked(job)
        why_not = obstacle(job)
        if why_not:
            raise Refused({"": why_not})
        if Job.objects.filter(pk=job.pk, deleted_at=None).update(deleted_at=timezone.now()) != 1:
            return False
        DeletedJob.objects.create(
            number=job.pk,
            name=job.name,
            owner_id=job.owner_id,
            created_at=job.created_at,
            deleted_by=actor,
            rule=rule,
            freed_bytes=storage.of_job(job).total,
        )
    return True


def obstacle(job: Job) -> str:
    """Why this job cannot be deleted now; "" if it can."""
    live = Attempt.objects.filter(status__in=_ACTIVE)
    if live.filter(job=job).exists():
        return _("It has not ended; cancel it first.")
    held = Placement.objects.filter(attempt__job=job, released_at__isnull=True).select_related("host").first()
    if held is not None:
        text = _("%(host)s has not confirmed that nothing of it runs there; please try again later.")
        return text % {"host": held.host.name}
    users = sorted(set(_users_of_model(job).filter(status__in=_ACTIVE).values_list("job_id", flat=True)))
    users += sorted(
        set(Attempt.objects.filter(start_from__attempt__job=job).exclude(job=job).values_list("job_id", flat=True))
    )
    if users:
        text = ngettext(
            "Job %(jobs)s starts from what this one made; wait until it has ended, or cancel it.",
            "The jobs %(jobs)s start from what this one made; wait until they have ended, or cancel them.",
            len(users),
        )
        return text % {"jobs": numbers(users)}
    return ""


def held() -> set[int]:
    """Jobs that the last two of these obstacles keep, all at once."""
    placed = Placement.objects.filter(released_at__isnull=True).values_list("attempt__job", flat=True)
    live = Attempt.objects.filter(status__in=_ACTIVE)
    models = Artifact.objects.filter(key__in=live.exclude(model_key="").values("model_key"))
    return {*placed, *models.values_list("attempt__job", flat=True)}


def started_from(job: Job) -> list[int]:
    """Other jobs that began with its model: they keep what they have, and cannot begin anew."""
    return sorted(set(_users_of_model(job).values_list("job_id", flat=True)))


def numbers(jobs: Sequence[int]) -> str:
    return ", ".join(f"#{number}" for number in jobs[:5]) + (" …" if len(jobs) > 5 else "")


def _users_of_model(job: Job) -> QuerySet[Attempt]:
    keys = list(Artifact.objects.filter(attempt__job=job).values_list("key", flat=True))
    return Attempt.objects.filter(model_key__in=keys, job__deleted_at=None).exclude(job=job)


_ACTIVE = [status.value for status in ACTIVE]


def _event(
    job: Job, kind: str, actor: User | None, *, attempt: Attempt | None = None, data: Mapping[str, object] | None = None
) -> None:
    JobEvent.objects.create(
        job=job,
        attempt=attempt,
        kind=kind,
        actor=actor,
        actor_name=actor.get_username() if actor else "controller",
        data=dict(data or {}),
    )
