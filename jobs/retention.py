"""What goes by itself, and when. Staff sets the days; without a row nothing of value goes, only dry runs do.

Pinned jobs are never touched. The controller applies the rules, one job a transaction, and a rule that has been applied
finds nothing more to do.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Sum
from django.utils import timezone
from django.utils.translation import gettext as _

from jobs import life, storage
from jobs.models import Attempt, Checkpoint, Evaluation, Job, JobEvent, LogChunk, RetentionRule
from jobs.services import Refused
from workers.contract.states import Status

What, Keep = RetentionRule.What, RetentionRule.Keep

DEFAULT_DAYS: dict[str, int] = {What.DRY_RUNS: 7}
LONGEST_DAYS = 36_500
# Jobs that one turn of the controller deals with, for each rule.
MOST = 20
# Until then bytes of a lost host's log may still come.
LATE = timedelta(days=14)


@dataclass(frozen=True)
class Rule:
    what: RetentionRule.What
    days: int | None
    keep: RetentionRule.Keep = Keep.LAST
    row: RetentionRule | None = None

    @property
    def deletes_jobs(self) -> bool:
        return self.what in (What.DRY_RUNS, What.ARCHIVED)

    @property
    def has_keep(self) -> bool:
        return self.what in (What.CHECKPOINTS, What.FAILED_CHECKPOINTS)


@dataclass
class Preview:
    """What a rule would do now."""

    jobs: list[int] = field(default_factory=list)
    things: int = 0  # checkpoints, or logs of attempts; of jobs that are deleted it is their number
    bytes: int = 0
    held: int = 0  # jobs that cannot be deleted at the moment


def rules() -> list[Rule]:
    rows = {row.what: row for row in RetentionRule.objects.select_related("changed_by")}
    return [
        Rule(what, row.days, Keep(row.keep), row) if (row := rows.get(what)) else Rule(what, DEFAULT_DAYS.get(what))
        for what in What
    ]


def checked_days(text: str) -> int | None:
    """As typed; empty is never. Raises Refused."""
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= LONGEST_DAYS:
        shown = text[:20]
        raise Refused(
            {"": _("Must be a whole number of days from 1, or empty for never, not “%(value)s”.") % {"value": shown}}
        )
    return int(text)


def set_rules(changed: list[Rule], *, actor: User) -> int:
    """Returns how many are different now."""
    count = 0
    with transaction.atomic():
        now = {rule.what: rule for rule in rules()}
        for rule in changed:
            if (rule.days, rule.keep) != (now[rule.what].days, now[rule.what].keep):
                RetentionRule.objects.update_or_create(
                    what=rule.what,
                    defaults={
                        "days": rule.days,
                        "keep": rule.keep,
                        "changed_by": actor,
                        "changed_at": timezone.now(),
                    },
                )
                count += 1
    return count


def preview(rule: Rule) -> Preview:
    """Of all that the controller would do by this rule from now on, until nothing is left."""
    found = Preview()
    if rule.days is None:
        return found
    if rule.deletes_jobs:
        held = life.held()
        jobs = list(_fitting(rule).order_by("pk").values_list("pk", flat=True))
        found.jobs = [job for job in jobs if job not in held]
        found.held = len(jobs) - len(found.jobs)
        found.things = len(found.jobs)
        uses = storage.of_jobs(_fitting(rule))
        found.bytes = sum(use.total for job, use in uses.items() if job not in held)
    elif rule.what is What.LOGS:
        attempts = _loggers(_before(rule)).filter(job__in=_fitting(rule))
        found.jobs = sorted(set(attempts.values_list("job", flat=True)))
        found.things = attempts.count()
        found.bytes = LogChunk.objects.filter(attempt__in=attempts).aggregate(sum=Sum("length"))["sum"] or 0
    else:
        going = _going(rule, _fitting(rule))
        found.jobs = sorted(going)
        found.things = sum(map(len, going.values()))
        found.bytes = sum(one.bytes for of_job in going.values() for one in of_job)
    return found


def run() -> None:
    """The controller's: a few jobs of each rule."""
    for rule in rules():
        if rule.days is None:
            continue
        jobs = _going(rule, _fitting(rule)) if rule.has_keep else _fitting(rule).values_list("pk", flat=True)
        done = 0
        for job in sorted(jobs):
            done += _apply(rule, job)
            if done >= MOST:
                break


# --- one rule and one job ------------------------------------------------------------------


def _before(rule: Rule) -> datetime:
    assert rule.days is not None
    return timezone.now() - timedelta(days=rule.days)


def _fitting(rule: Rule) -> QuerySet[Job]:
    before = _before(rule)
    jobs = Job.objects.ended().filter(pinned=False)
    checkpoints = Checkpoint.objects.filter(attempt__job=OuterRef("pk"), removed_at__isnull=True)
    match rule.what:
        case What.DRY_RUNS:
            return jobs.filter(dry_run=True, ended_at__lt=before)
        case What.ARCHIVED:
            return jobs.filter(archived_at__lt=before)
        case What.FAILED_CHECKPOINTS:
            ended_so = [Status.FAILED.value, Status.CANCELLED.value]
            return jobs.filter(Exists(checkpoints), status__in=ended_so, ended_at__lt=before)
        case What.CHECKPOINTS:
            return jobs.filter(Exists(checkpoints), status=Status.SUCCEEDED.value, ended_at__lt=before)
        case What.LOGS:
            return jobs.filter(Exists(_loggers(before).filter(job=OuterRef("pk"))))


def _loggers(before: datetime) -> QuerySet[Attempt]:
    over = Q(complete_at__isnull=False) | Q(ended_at__lt=timezone.now() - LATE)
    logged = Exists(LogChunk.objects.filter(attempt=OuterRef("pk")))
    return Attempt.objects.filter(over, logged, ended_at__lt=before, log_removed_at__isnull=True)


def _apply(rule: Rule, number: int) -> bool:
    """Whether something of this job went."""
    with transaction.atomic():
        # As it is now: somebody may have pinned it, or begun a retry.
        fitting = _fitting(rule).filter(pk=number)
        job = fitting.select_for_update(of=("self",)).first()
        if job is None:
            return False
        if rule.deletes_jobs:
            try:
                life.delete(job, actor=None, rule=rule.what)
            except Refused:
                return False
        elif rule.what is What.LOGS:
            attempts = list(_loggers(_before(rule)).filter(job=job))
            Attempt.objects.filter(pk__in=[attempt.pk for attempt in attempts]).update(log_removed_at=timezone.now())
            _tell(rule, job, "logs_removed", attempts=[attempt.number for attempt in attempts])
        else:
            going = life.remove_checkpoints(_going(rule, fitting).get(number, []))
            if not going:
                return False
            size = sum(checkpoint.bytes for checkpoint in going)
            _tell(rule, job, "checkpoints_removed", checkpoints=len(going), bytes=size)
    return True


def _going(rule: Rule, jobs: QuerySet[Job]) -> dict[int, list[Checkpoint]]:
    """Checkpoints that do not stay, by job. Two queries, however many jobs there are."""
    there: dict[int, list[Checkpoint]] = defaultdict(list)
    rows = life.removable().filter(attempt__job__in=jobs).defer("files").annotate(of_job=F("attempt__job"))
    for checkpoint in rows.order_by("attempt", "step"):
        there[checkpoint.of_job].append(checkpoint)
    best: dict[int, tuple[int, int]] = {}
    if rule.keep in (Keep.BEST, Keep.BOTH):
        marks = Evaluation.objects.filter(attempt__job__in=jobs, best=True).order_by("attempt", "step")
        # The last of them is the best.
        best = {job: (attempt, step) for job, attempt, step in marks.values_list("attempt__job", "attempt", "step")}
    going = {}
    for job, checkpoints in there.items():
        staying = _staying([one for one in checkpoints if one.good], rule.keep, best.get(job))
        if gone := [one for one in checkpoints if one.pk not in staying]:
            going[job] = gone
    return going


def _staying(good: list[Checkpoint], keep: str, best: tuple[int, int] | None) -> set[int]:
    """Of good checkpoints in their order. The best is the one saved at the best evaluation or right after it."""
    if not good or keep == Keep.NONE:
        return set()
    staying = {good[-1].pk} if keep in (Keep.LAST, Keep.BOTH) or best is None else set()
    if keep in (Keep.BEST, Keep.BOTH) and best is not None:
        attempt, step = best
        after = (one for one in good if one.attempt_id == attempt and one.step >= step)
        staying.add(next(after, good[-1]).pk)
    return staying


def _tell(rule: Rule, job: Job, kind: str, **data: object) -> None:
    JobEvent.objects.create(
        job=job,
        kind=kind,
        reason=rule.what,
        actor_name="controller",
        data={"days": rule.days, "keep": rule.keep, **data},
    )
