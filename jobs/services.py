"""Every write that touches several things, as plain verbs. Who may call one is the views' question (`visible_to`);
`actor` is who asked, for the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from pydantic import ValidationError

from jobs import checks, limits, tags
from jobs.models import Artifact, Attempt, Checkpoint, Dataset, Host, Job, JobEvent
from workers.contract.checks import Finding
from workers.contract.fields import CONTROL, Misfit, SettingsGroup
from workers.contract.messages import Request
from workers.contract.records import jsonable
from workers.contract.states import ACTIVE, ENDED, ON_HOST, EndReason, Status, may_change
from workers.contract.texts import Text
from workers.recipes import registry


class Refused(Exception):
    """Why a verb was not carried out: dotted field name -> text for people, "" for the whole."""

    def __init__(self, errors: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" if name else text for name, text in errors.items()))
        self.errors = errors


class Warned(Refused):
    """Nothing is wrong, but somebody has to say "anyway" to these first."""

    def __init__(self, warnings: list[Finding]) -> None:
        super().__init__(_by_setting(warnings))
        self.warnings = warnings


# --- creating jobs and attempts ------------------------------------------------------------


def submit(
    *,
    owner: User,
    name: str,
    recipe: str,
    dataset: Dataset | None,
    settings: dict[str, Any],
    actor: User | None,
    priority: int = 0,
    accepted_warnings: bool = False,
    cloned_from: Job | None = None,
    dry_run: bool = False,
    names: Sequence[str] = (),
) -> Job:
    """A new job with its first attempt, queued. Raises Refused, and Warned if there are warnings that were not accepted."""
    errors: dict[str, str] = {}
    name = name.strip()
    if not name:
        errors["name"] = _("Give the job a name.")
    elif len(name) > 120:
        errors["name"] = _("At most 120 characters; this has %(count)d.") % {"count": len(name)}
    elif CONTROL.search(name):
        errors["name"] = _("Must not contain control characters.")
    if recipe not in registry.RECIPES:
        known = ", ".join(sorted(registry.RECIPES))
        raise Refused(
            errors
            | {"recipe": _("There is no recipe “%(recipe)s”; known: %(known)s.") % {"recipe": recipe, "known": known}}
        )
    if dataset is None:
        if registry.recipe(recipe).needs_dataset:
            errors["dataset"] = _("Choose a dataset.")
    elif not Dataset.objects.visible_to(owner).filter(pk=dataset.pk).exists():
        errors["dataset"] = _("There is no such dataset, or it is not shared with you.")
    elif not Dataset.objects.ready().filter(pk=dataset.pk).exists():
        errors["dataset"] = _("This dataset is not ready: its check must have passed before a job can use it.")
    elif dataset.kind != registry.recipe(recipe).dataset_kind:
        errors["dataset"] = _("“%(name)s” is made of %(kind)s; this recipe takes %(wanted)s.") % {
            "name": dataset.name,
            "kind": dataset.get_kind_display(),
            "wanted": Dataset.Kind(registry.recipe(recipe).dataset_kind).label,
        }
    if not -100 <= priority <= 100:
        errors["priority"] = _("Between −100 and 100, not %(value)d.") % {"value": priority}
    if why_not := tags.problem(names):
        errors["tags"] = why_not
    try:
        checked = validated(recipe, settings)
        model_key = _model_key(checked, owner)
    except Refused as refused:
        errors |= refused.errors
    if errors:
        raise Refused(errors)
    warnings = _consented(checks.findings(recipe, checked, dataset, owner, cloned_from), accepted_warnings)

    with transaction.atomic():
        _model_must_stay(checked, model_key)
        job = Job.objects.create(
            owner=owner,
            name=name,
            recipe=recipe,
            dataset=dataset,
            priority=priority,
            dry_run=dry_run,
            cloned_from=cloned_from,
            status=Status.QUEUED.value,
        )
        tags.put(job, names)
        attempt = _new_attempt(
            job, None, checked, cause=Attempt.Cause.SUBMIT, actor=actor, model_key=model_key, start_from=None
        )
        _record_accepted(attempt, warnings, actor)
    return job


def _consented(findings: list[Finding], accepted: bool) -> list[Finding]:
    """The warnings among them. Raises Refused for errors, and Warned for warnings that were not accepted."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise Refused(_by_setting(errors))
    warnings = [finding for finding in findings if finding.level == "warning"]
    if warnings and not accepted:
        raise Warned(warnings)
    return warnings


def _record_accepted(attempt: Attempt, warnings: list[Finding], actor: User | None) -> None:
    for finding in warnings:
        JobEvent.objects.create(
            job_id=attempt.job_id,
            attempt=attempt,
            kind="warning_accepted",
            reason=finding.code,
            actor=actor,
            actor_name=_name_of(actor, ""),
            message=str(finding),
            data={"setting": finding.setting, "template": finding.template, "values": finding.values},
        )


def _by_setting(findings: list[Finding]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    for finding in findings:
        texts.setdefault(finding.setting, []).append(checks.in_words(finding))
    return {name: " ".join(of_setting) for name, of_setting in texts.items()}


def retry(
    job: Job,
    *,
    actor: User | None,
    settings: dict[str, Any],
    from_checkpoint: bool,
    checkpoint: int | None = None,
    accepted_warnings: bool = False,
) -> Attempt:
    """A new attempt with `settings`: from the beginning, or from the checkpoint with the key `checkpoint`, or (None)
    from the newest good one if there is one. Refused and Warned as at submission."""
    checked = validated(job.recipe, settings)
    found = checks.findings(job.recipe, checked, job.dataset, job.owner, cloned_from=job)
    warnings = _consented(found, accepted_warnings)
    with transaction.atomic():
        job, previous = locked(job)
        _must_not_be_dry(job)
        _must_have_ended(previous)
        start_from = newest_good_checkpoint(job, lock=True) if from_checkpoint else None
        if from_checkpoint and checkpoint is not None:
            start_from = _usable(job).select_for_update(of=("self",)).filter(pk=checkpoint).first()
            if start_from is None:
                raise Refused({"": _("That checkpoint is no longer there. Please choose another one.")})
        if start_from is not None:
            _must_fit(start_from, checked)
        if _source_job(checked) == _source_job(_settings_of(job, previous)):
            model_key = previous.model_key
        else:
            model_key = _model_key(checked, job.owner)
        if start_from is None:
            _model_must_stay(checked, model_key)
        attempt = _new_attempt(
            job,
            previous,
            checked,
            cause=Attempt.Cause.RETRY,
            actor=actor,
            model_key=model_key,
            start_from=start_from,
        )
        _record_accepted(attempt, warnings, actor)
        return attempt


def resume(job: Job, *, actor: User | None) -> Attempt:
    """Go on with a paused job: same settings, newest good checkpoint."""
    return _continue(job, Attempt.Cause.RESUME, actor=actor)


def continue_drained(job: Job) -> Attempt | None:
    """The controller's: the successor of an attempt whose host was shut down. None if there is one already."""
    try:
        return _continue(job, Attempt.Cause.DRAIN, actor=None, actor_name="controller")
    except Refused:
        return None


def _continue(job: Job, cause: Attempt.Cause, *, actor: User | None, actor_name: str = "") -> Attempt:
    with transaction.atomic():
        job, previous = locked(job)
        if cause is Attempt.Cause.RESUME:
            _must_not_be_dry(job)
        if previous.status != Status.PAUSED or (
            cause is Attempt.Cause.DRAIN and previous.end_reason != EndReason.DRAINED
        ):
            raise Refused({"": _("Only a paused job can be resumed.")})
        return _new_attempt(
            job,
            previous,
            _settings_of(job, previous),
            cause=cause,
            actor=actor,
            actor_name=actor_name,
            model_key=previous.model_key,
            start_from=newest_good_checkpoint(job, lock=True),
            time_limit_asked_s=previous.time_limit_asked_s,
        )


def _new_attempt(
    job: Job,
    previous: Attempt | None,
    settings: SettingsGroup,
    *,
    cause: Attempt.Cause,
    actor: User | None,
    actor_name: str = "",
    model_key: str,
    start_from: Checkpoint | None,
    time_limit_asked_s: float | None = None,
) -> Attempt:
    dump, recipe = settings.model_dump(mode="json"), registry.recipe(job.recipe)
    devices = dump.get("devices") or {}
    # What goes on by itself asks nobody. Two requests at once are counted one after the other; no_key, since each
    # holds the owner's key already by the job that it has just written.
    if cause is not Attempt.Cause.DRAIN:
        owner = User.objects.select_for_update(no_key=True).get(pk=job.owner_id)
        if errors := limits.against(owner, settings=dump, priority=job.priority):
            raise Refused(errors)
    attempt = Attempt.objects.create(
        uid=Attempt.new_uid(),
        job=job,
        number=previous.number + 1 if previous else 1,
        status=Status.QUEUED.value,
        settings=dump,
        settings_changed=difference(recipe.in_todays_names(previous.settings), dump) if previous else [],
        cause=cause,
        asked_by=actor,
        start_from=start_from,
        model_key=model_key,
        nodes=devices.get("nodes", 1),
        devices_per_node=devices.get("devices_per_node", 1),
        time_limit_asked_s=limits.time_limit_s(job.owner, dump) if time_limit_asked_s is None else time_limit_asked_s,
    )
    old = job.status if previous else ""
    job.newest, job.status, job.end_reason, job.ended_at = attempt, attempt.status, "", None
    job.archived_at = None  # what is on its way belongs into the list
    job.save(update_fields=["newest", "status", "end_reason", "ended_at", "archived_at"])
    JobEvent.objects.create(
        job=job,
        attempt=attempt,
        kind="attempt",
        old=old,
        new=attempt.status,
        reason=cause.value,
        actor=actor,
        actor_name=_name_of(actor, actor_name),
        step=start_from.step if start_from else None,
        data={
            "number": attempt.number,
            "settings_changed": attempt.settings_changed,
            "start_from": start_from.pk if start_from else None,
        },
    )
    return attempt


# --- the one way a status changes ----------------------------------------------------------


def transition(
    attempt: Attempt,
    to: Status,
    *,
    reason: EndReason | None = None,
    detail: str = "",
    step: int | None = None,
    rank: int | None = None,
    actor: User | None = None,
    actor_name: str = "",
) -> bool:
    """Moves `attempt` from the status the caller saw to `to`, its job with it if it is the newest, and writes the event.

    False, and nothing is changed, if that is no legal change or the attempt is no longer in that status.
    """
    if (reason is not None) != (to in ENDED) or (reason is not None and reason.status is not to):
        raise ValueError(f"reason {reason} does not fit status {to}")
    old = Status(attempt.status)
    if not may_change(old, to):
        return False
    now = timezone.now()
    end_reason = reason.value if reason else ""
    said = jsonable(detail.said) if isinstance(detail, Text) else []
    changes: dict[str, Any] = {"status": to.value}
    if to in ENDED:
        changes |= {
            "end_reason": end_reason,
            "end_detail": str(detail),
            "end_said": said,
            "end_step": step,
            "end_rank": rank,
            "ended_at": now,
        }
    elif to is Status.STARTING and old is Status.QUEUED:
        changes["placed_at"] = now
    elif to is Status.RUNNING and attempt.started_at is None:
        changes["started_at"] = now
    elif to is Status.QUEUED:
        changes |= {"placed_at": None, "stage": ""}
    with transaction.atomic():
        # Exactly one row, still in the status that was seen: whoever comes second changes nothing.
        if Attempt.objects.filter(pk=attempt.pk, status=old.value).update(**changes) != 1:
            return False
        Job.objects.filter(pk=attempt.job_id, newest_id=attempt.pk).update(
            status=to.value, end_reason=end_reason, ended_at=now if to in ENDED else None
        )
        JobEvent.objects.create(
            job_id=attempt.job_id,
            attempt=attempt,
            at=now,
            kind="status",
            old=old.value,
            new=to.value,
            reason=end_reason,
            actor=actor,
            actor_name=_name_of(actor, actor_name),
            step=step,
            rank=rank,
            message=str(detail),
            data={"said": said} if said else {},
        )
    for name, value in changes.items():
        setattr(attempt, name, value)
    return True


# --- requests: facts beside the status -----------------------------------------------------

_LEAVE_AT_ONCE = {Request.CANCEL: EndReason.CANCELLED, Request.PAUSE: EndReason.PAUSED}


def ask_to_leave(job: Job, request: Request, *, actor: User | None, actor_name: str = "") -> None:
    """Cancel, pause or finish. What is still queued ends at once; what runs is told, and the newest request stands;
    but none takes a cancellation back."""
    with transaction.atomic():
        job, attempt = locked(job)
        if attempt.status in ENDED:
            raise Refused({"": _("The job has already ended.")})
        if request is not Request.CANCEL:
            _must_not_be_dry(job)
        if attempt.leave == request.value:
            return
        if attempt.leave == Request.CANCEL:
            raise Refused({"": _("Its cancellation is asked for already.")})
        if attempt.status not in ON_HOST:
            reason = _LEAVE_AT_ONCE.get(request)
            if reason is None:
                raise Refused({"": _("It has not started yet, so there is nothing to finish; cancel or pause it.")})
            _ask(attempt, request, actor, actor_name)
            if not transition(attempt, reason.status, reason=reason, actor=actor, actor_name=actor_name):
                raise Refused({"": _("It is still being checked; cancel it or wait a moment.")})
            return
        _ask(attempt, request, actor, actor_name)


def ask_for_checkpoint(job: Job, *, actor: User | None) -> None:
    with transaction.atomic():
        job, attempt = locked(job)
        _must_not_be_dry(job)
        if attempt.status not in ON_HOST:
            raise Refused({"": _("It is not running, so there is nothing to save.")})
        Attempt.objects.filter(pk=attempt.pk).update(checkpoint_asked=F("checkpoint_asked") + 1)
        JobEvent.objects.create(
            job=job,
            attempt=attempt,
            kind="request",
            reason="checkpoint",
            actor=actor,
            actor_name=_name_of(actor, ""),
        )


def drain(host: Host, *, actor: User | None = None, actor_name: str = "") -> None:
    """No new attempts on `host`; those on it save a checkpoint and leave, and go on elsewhere or later."""
    with transaction.atomic():
        Host.objects.filter(pk=host.pk).update(draining=True)
        host.draining = True
        ask_drained_to_leave(host, actor=actor, actor_name=actor_name)


def undrain(host: Host) -> None:
    Host.objects.filter(pk=host.pk).update(draining=False)
    host.draining = False


def ask_drained_to_leave(host: Host, *, actor: User | None = None, actor_name: str = "") -> None:
    """Tells the attempts on a draining host that have not been asked to leave otherwise."""
    on_it = Attempt.objects.on_host().filter(
        leave="", placements__host=host, placements__released_at__isnull=True, placements__ended_at__isnull=True
    )
    for attempt in on_it.distinct():
        _ask(attempt, Request.DRAIN, actor, actor_name)


def _ask(attempt: Attempt, request: Request, actor: User | None, actor_name: str) -> None:
    live = Attempt.objects.filter(pk=attempt.pk, status__in=[status.value for status in ACTIVE])
    if live.update(leave=request.value, leave_asked_at=timezone.now(), leave_asked_by=actor) != 1:
        raise Refused({"": _("The job has already ended.")})
    attempt.leave = request.value
    JobEvent.objects.create(
        job_id=attempt.job_id,
        attempt=attempt,
        kind="request",
        reason=request.value,
        actor=actor,
        actor_name=_name_of(actor, actor_name),
    )


# --- settings ------------------------------------------------------------------------------


def validated(recipe: str, settings: dict[str, Any]) -> SettingsGroup:
    """`settings` as the recipe's model, defaults filled in. Raises Refused with a text per dotted field name."""
    try:
        return registry.recipe(recipe).settings.model_validate(settings)
    except ValidationError as error:
        errors: dict[str, str] = {}
        for item in error.errors(include_url=False):
            name = ".".join(str(part) for part in item["loc"])
            errors.setdefault(name, _in_words(item["type"], item.get("ctx") or {}, item["msg"], item.get("input")))
        raise Refused(errors) from None


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[dict[str, Any]]:
    """[{"name": dotted, "old": …, "new": …}] for every setting that differs; a missing one is None."""
    before, after = dict(_dotted(old)), dict(_dotted(new))
    # In the order of the new ones, which is that of the declaration; PostgreSQL does not keep the order of the old.
    names = [*after, *(name for name in before if name not in after)]
    return [
        {"name": name, "old": before.get(name), "new": after.get(name)}
        for name in names
        if before.get(name) != after.get(name)
    ]


def _dotted(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _in_words(kind: str, context: dict[str, Any], message: str, given: Any) -> str:
    shown = str(given)[:60]
    limit = next((str(context[key]).removesuffix(".0") for key in ("ge", "gt", "le", "lt") if key in context), "")
    match kind:
        case "greater_than_equal":
            return _("Must be at least %(limit)s, not %(value)s.") % {"limit": limit, "value": shown}
        case "greater_than":
            return _("Must be more than %(limit)s, not %(value)s.") % {"limit": limit, "value": shown}
        case "less_than_equal":
            return _("Must be at most %(limit)s, not %(value)s.") % {"limit": limit, "value": shown}
        case "less_than":
            return _("Must be less than %(limit)s, not %(value)s.") % {"limit": limit, "value": shown}
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return _("Must be a whole number, not “%(value)s”.") % {"value": shown}
        case "float_parsing" | "float_type":
            return _("Must be a number, not “%(value)s”.") % {"value": shown}
        case "finite_number":
            return _("Must be a finite number, not “%(value)s”.") % {"value": shown}
        case "bool_parsing" | "bool_type":
            return _("Must be yes or no, not “%(value)s”.") % {"value": shown}
        case "enum" | "literal_error":
            return _("Must be one of %(known)s, not “%(value)s”.") % {
                "known": context["expected"].replace(" or ", ", "),
                "value": shown,
            }
        case "string_type":
            return _("Must be text, not “%(value)s”.") % {"value": shown}
        case "model_type" | "model_attributes_type" | "dict_type":
            return _("Must be a group of settings, not “%(value)s”.") % {"value": shown}
        case "string_too_short":
            return _("Must not be empty.")
        case "string_too_long":
            return _("At most %(limit)s characters.") % {"limit": context["max_length"]}
        case "extra_forbidden":
            return _("There is no such setting.")
        case "missing":
            return _("Is missing.")
        case "value_error":
            error = context.get("error")
            if isinstance(error, Misfit):
                return _(error.template) % error.values
            text = str(error or message)
            return f"{text[:1].upper()}{text[1:]}."
        case _:
            return message


def _settings_of(job: Job, attempt: Attempt) -> SettingsGroup:
    return validated(job.recipe, attempt.settings)


def _source_job(settings: SettingsGroup) -> int | None:
    model = getattr(settings, "model", None)
    return getattr(model, "job", None) if str(getattr(model, "source", "")) == "job" else None


def _model_must_stay(settings: SettingsGroup, key: str) -> None:
    """Locks the job that exported the model: who deletes it waits, and then finds the attempt that needs it."""
    if not key:
        return
    artifacts = Artifact.objects.filter(key=key).values("attempt__job")
    if Job.objects.there().select_for_update(no_key=True).filter(pk__in=artifacts).first() is None:
        raise Refused({"model.job": _no_job(_source_job(settings))})


def _no_job(number: int | None) -> str:
    return _("There is no job %(number)d, or it is not yours.") % {"number": number}


def _model_key(settings: SettingsGroup, owner: User) -> str:
    """The folder of the model that another job exported, "" if the settings name none."""
    number = _source_job(settings)
    if number is None:
        return ""
    if not Job.objects.visible_to(owner).filter(pk=number).exists():
        raise Refused({"model.job": _no_job(number)})
    exported = Artifact.objects.filter(attempt__job_id=number, name="model").order_by("-attempt__number").first()
    if exported is None:
        raise Refused({"model.job": _("Job %(number)d has not exported a model.") % {"number": number}})
    return exported.key


# --- shared --------------------------------------------------------------------------------


def newest_good_checkpoint(job: Job, *, lock: bool = False) -> Checkpoint | None:
    """The one a continuation starts from. Locked, it cannot be pruned before the attempt refers to it."""
    usable = _usable(job).select_for_update(of=("self",)) if lock else _usable(job)
    doubtful = doubtful_checkpoints(job)
    return next((checkpoint for checkpoint in usable if checkpoint.pk not in doubtful), None)


def good_checkpoints(job: Job) -> list[Checkpoint]:
    """All that a retry can start from, the newest first."""
    return list(_usable(job))


def doubtful_checkpoints(job: Job) -> dict[int, str]:
    """Finite, and yet not to start from unless somebody insists: key -> why."""
    again = _("the very next step was not finite: from here it would most likely fail again")
    differ = _(
        "the ranks were not compared any more before it was made: its weights may be those of the one that was wrong"
    )
    return dict.fromkeys(_before_a_bad_step(job), again) | dict.fromkeys(_of_ranks_that_differ(job), differ)


def _before_a_bad_step(job: Job) -> set[int]:
    """The very next step went wrong, or things were wrong already: the weights are too far out, or the next batch is
    broken."""
    failed = job.attempts.filter(
        end_reason__in=[EndReason.NON_FINITE, EndReason.LOSS_SCALE_COLLAPSED, EndReason.DIVERGED],
        end_step__isnull=False,
    )
    bad = Q(pk__in=[])
    for attempt, start, step in failed.values_list("pk", "start_from", "end_step"):
        bad |= Q(step__gte=(step or 0) - 1) & (Q(attempt=attempt) | Q(pk=start))
    return set(Checkpoint.objects.filter(bad, attempt__job=job).values_list("pk", flat=True))


def _of_ranks_that_differ(job: Job) -> set[int]:
    """Made since the weights of all ranks were last found to be the same; with no such comparison, all of the attempt.
    Where they are compared before each checkpoint, none."""
    found: set[int] = set()
    for attempt in job.attempts.filter(end_reason=EndReason.RANKS_DIFFER, end_step__isnull=False):
        if attempt.plan.get("checkpoints_compared"):
            continue
        every = attempt.settings.get("monitoring", {}).get("compare_ranks_every")
        compared = ((attempt.end_step or 0) - 1) // every * every if every else 0
        # Step n compares what step n - 1 left.
        newer = Checkpoint.objects.filter(attempt=attempt, step__gte=compared)
        found |= set(newer.values_list("pk", flat=True))
    return found


def _usable(job: Job) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.usable().filter(attempt__job=job).order_by("-attempt__number", "-step")


def locked(job: Job) -> tuple[Job, Attempt]:
    """The job and its newest attempt as they are now, locked until the transaction ends."""
    there = Job.objects.there().select_for_update().filter(pk=job.pk).first()
    if there is None:
        raise Refused({"": _("The job was deleted.")})
    return there, Attempt.objects.select_for_update().filter(job=there).latest("number")


def _must_fit(checkpoint: Checkpoint, settings: SettingsGroup) -> None:
    recipe = registry.recipe(checkpoint.attempt.job.recipe)
    old = recipe.in_todays_names(checkpoint.attempt.settings)
    text = _("The checkpoint was made with %(old)s: change it back, or start from the beginning.")
    if misfits := recipe.misfits(old, settings.model_dump(mode="json")):
        words = {True: _("on"), False: _("off")}
        shown = {name: words[old] if isinstance(old, bool) else old for name, old in misfits.items()}
        raise Refused({name: text % {"old": value} for name, value in shown.items()})


def _must_not_be_dry(job: Job) -> None:
    if job.dry_run:
        raise Refused({"": _("This is a dry run: it can be cancelled, and its settings can be submitted as a job.")})


def _must_have_ended(attempt: Attempt) -> None:
    if attempt.status not in ENDED:
        raise Refused({"": _("Attempt %(number)d is still in progress.") % {"number": attempt.number}})


def _name_of(actor: User | None, name: str) -> str:
    return actor.get_username() if actor else name
