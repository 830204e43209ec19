from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from jobs import services
from jobs.models import Artifact, Attempt, Checkpoint, Dataset, Host, Job, JobEvent
from workers.contract.messages import Request
from workers.contract.states import ENDED, TRANSITIONS, EndReason, Status
from workers.recipes import registry

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]


def _put(attempt: Attempt, status: Status) -> Attempt:
    """`attempt` as if it had come to `status`; whatever the way."""
    reason = next((reason for reason in EndReason if reason.status is status), None) if status in ENDED else None
    ended = {"end_reason": reason.value if reason else "", "ended_at": timezone.now() if reason else None}
    Attempt.objects.filter(pk=attempt.pk).update(status=status.value, **ended)
    Job.objects.filter(pk=attempt.job_id).update(status=status.value, **ended)
    return Attempt.objects.get(pk=attempt.pk)


def _reason(status: Status) -> EndReason | None:
    return next((reason for reason in EndReason if reason.status is status), None) if status in ENDED else None


# --- transition ----------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), list(itertools.product(Status, Status)), ids=lambda status: str(status))
def test_every_status_changes_into_those_it_may_and_no_other(attempt: Attempt, old: Status, new: Status) -> None:
    attempt = _put(attempt, old)
    events = JobEvent.objects.count()
    changed = services.transition(attempt, new, reason=_reason(new), detail="why", actor_name="controller")
    assert changed == (new in TRANSITIONS[old])
    attempt = Attempt.objects.get(pk=attempt.pk)
    assert attempt.status == (new if changed else old)
    assert attempt.job.status == attempt.status and attempt.job.end_reason == attempt.end_reason
    assert (attempt.ended_at is not None) == (attempt.status in ENDED) == (attempt.job.ended_at is not None)
    assert JobEvent.objects.count() == events + changed
    if changed:
        event = JobEvent.objects.latest("pk")
        assert (event.old, event.new, event.message, event.actor_name) == (old, new, "why", "controller")


def test_who_saw_an_older_status_changes_nothing(attempt: Attempt) -> None:
    stale = Attempt.objects.get(pk=attempt.pk)
    assert services.transition(attempt, Status.STARTING)
    assert not services.transition(stale, Status.CANCELLED, reason=EndReason.CANCELLED)
    assert Job.objects.get().status == Status.STARTING


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        (Status.FAILED, None),
        (Status.FAILED, EndReason.COMPLETED),
        (Status.RUNNING, EndReason.HOST_LOST),
        (Status.PAUSED, EndReason.CANCELLED),
    ],
)
def test_a_reason_that_does_not_fit_is_a_mistake(attempt: Attempt, to: Status, reason: EndReason | None) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        services.transition(attempt, to, reason=reason)


def test_an_older_attempts_end_does_not_move_the_job(job: Job, attempt: Attempt) -> None:
    _put(attempt, Status.FAILED)
    services.retry(job, actor=None, settings={}, from_checkpoint=False)
    old = Attempt.objects.get(pk=attempt.pk)
    Attempt.objects.filter(number=2).update(status="failed", end_reason="host_lost", ended_at=timezone.now())
    Attempt.objects.filter(pk=old.pk).update(status="running", end_reason="", ended_at=None)
    old.refresh_from_db()
    assert services.transition(old, Status.SUCCEEDED, reason=EndReason.COMPLETED)
    assert Job.objects.get().status == Status.QUEUED


@pytest.mark.parametrize(
    "broken",
    [
        {"status": "failed"},
        {"status": "failed", "end_reason": "completed", "ended_at": timezone.now()},
        {"status": "running", "end_reason": "completed"},
        {"ended_at": timezone.now()},
        {"status": "nonsense"},
        {"uid": ""},
    ],
)
def test_the_database_repeats_the_rules(attempt: Attempt, broken: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.filter(pk=attempt.pk).update(**broken)
    if "uid" not in broken:
        with pytest.raises(IntegrityError), transaction.atomic():
            Job.objects.filter(pk=attempt.job_id).update(**broken)


def test_the_database_refuses_a_second_live_attempt_and_a_number_twice(job: Job, attempt: Attempt) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.create(job=job, uid="a", number=2, settings={})
    _put(attempt, Status.FAILED)
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.create(job=job, uid="a", number=1, settings={})


# --- submit --------------------------------------------------------------------------------


@pytest.fixture
def submit(owner: User, dataset: Dataset) -> Callable[..., Job]:
    def submit(**changes: Any) -> Job:
        given: dict[str, Any] = {
            "owner": owner,
            "name": "x",
            "recipe": "text_classification",
            "dataset": dataset,
            "settings": {},
            "actor": owner,
        }
        return services.submit(**given | changes)

    return submit


def test_a_submitted_job_is_queued_with_its_full_settings(submit: Callable[..., Job], owner: User) -> None:
    job = submit(settings={"optimizer": {"learning_rate": "1e-3"}, "devices": {"devices_per_node": 2}})
    attempt = job.newest
    assert attempt is not None
    assert (job.status, attempt.status, attempt.number, attempt.cause) == ("queued", "queued", 1, "submit")
    assert attempt.settings["optimizer"]["learning_rate"] == 1e-3
    assert attempt.settings["clipping"]["max_norm"] == 1.0
    assert attempt.devices_per_node == 2 and len(attempt.uid) == 32
    event = JobEvent.objects.get()
    assert (event.kind, event.new, event.actor, event.attempt) == ("attempt", "queued", owner, attempt)


@pytest.mark.parametrize(
    ("settings", "field", "text"),
    [
        ({"optimizer": {"learning_rate": 0}}, "optimizer.learning_rate", "Must be more than 0"),
        ({"optimizer": {"learning_rate": "fast"}}, "optimizer.learning_rate", "Must be a number, not “fast”."),
        ({"optimizer": {"learning_rate": float("inf")}}, "optimizer.learning_rate", "Must be a finite number"),
        ({"training": {"epochs": 1.5}}, "training.epochs", "Must be a whole number, not “1.5”."),
        ({"training": {"epochs": 0}}, "training.epochs", "Must be at least 1, not 0."),
        (
            {"precision": {"mode": "fp8"}},
            "precision.mode",
            "Must be one of 'float32', 'fp16', 'bf16', 'auto', not “fp8”.",
        ),
        ({"nonsense": 1}, "nonsense", "There is no such setting."),
        ({"optimizer": {"lr": 1}}, "optimizer.lr", "There is no such setting."),
        ({"data": {"text_column": ""}}, "data.text_column", "Must not be empty."),
        ({"model": {"heads": 3}}, "model", "The heads (3) must divide the hidden size (128)."),
        ({"model": {"source": "job"}}, "model", "To start from “job”, fill in “job”."),
        ({"model": {"source": "job", "job": 999}}, "model.job", "There is no job 999, or it is not yours."),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_wrong(
    submit: Callable[..., Job], settings: dict[str, Any], field: str, text: str
) -> None:
    with pytest.raises(services.Refused) as refused:
        submit(settings=settings)
    assert list(refused.value.errors) == [field]
    assert refused.value.errors[field].startswith(text)
    assert Job.objects.count() == Attempt.objects.count() == 0


def test_all_that_is_wrong_is_said_at_once(submit: Callable[..., Job], other: User) -> None:
    foreign = Dataset.objects.create(name="theirs", owner=other, key="k", content_hash="1" * 64)
    with pytest.raises(services.Refused) as refused:
        submit(name=" ", dataset=foreign, settings={"training": {"epochs": 0}, "optimizer": {"beta1": 2}})
    assert set(refused.value.errors) == {"name", "dataset", "training.epochs", "optimizer.beta1"}
    with pytest.raises(services.Refused) as refused:
        submit(dataset=None)
    assert set(refused.value.errors) == {"dataset"}
    with pytest.raises(services.Refused) as refused:
        submit(recipe="nonsense")
    assert set(refused.value.errors) == {"recipe"}


def test_a_shared_dataset_may_be_used_by_all(submit: Callable[..., Job], other: User, dataset: Dataset) -> None:
    Dataset.objects.filter(pk=dataset.pk).update(shared=True)
    assert submit(owner=other).owner == other


def test_a_job_starts_from_the_model_that_another_job_exported(submit: Callable[..., Job], other: User) -> None:
    source = submit()
    assert source.newest is not None
    wanted = {"model": {"source": "job", "job": source.pk}}
    with pytest.raises(services.Refused, match="has not exported a model"):
        submit(settings=wanted)
    Artifact.objects.create(attempt=source.newest, name="model", key="artifacts/1/model", bytes=1, sha256="")
    job = submit(settings=wanted)
    assert job.newest is not None and job.newest.model_key == "artifacts/1/model"
    _put(job.newest, Status.FAILED)
    again = services.retry(job, actor=None, settings=wanted, from_checkpoint=False)
    assert again.model_key == "artifacts/1/model"
    Dataset.objects.update(shared=True)
    with pytest.raises(services.Refused, match="not yours"):
        submit(owner=other, settings=wanted)


# --- retry and resume ----------------------------------------------------------------------


def _checkpoint(attempt: Attempt, step: int, **more: Any) -> Checkpoint:
    return Checkpoint.objects.create(
        attempt=attempt, step=step, applied=step, key=f"c/{step}", bytes=1, **{"good": True} | more
    )


def test_a_retry_is_a_new_attempt_and_the_old_ones_settings_stay(job: Job, attempt: Attempt, staff: User) -> None:
    _put(attempt, Status.FAILED)
    _checkpoint(attempt, 10)
    _checkpoint(attempt, 20)
    _checkpoint(attempt, 30, good=False)
    _checkpoint(attempt, 40, removed_at=timezone.now())
    changed = {"optimizer": {"learning_rate": 1e-6}, "clipping": {"max_norm": None}}
    new = services.retry(job, actor=staff, settings=changed, from_checkpoint=True)
    assert (new.number, new.status, new.cause, new.asked_by) == (2, "queued", "retry", staff)
    assert new.start_from is not None and new.start_from.step == 20
    assert new.settings_changed == [
        {"name": "optimizer.learning_rate", "old": 5e-5, "new": 1e-6},
        {"name": "clipping.max_norm", "old": 1.0, "new": None},
    ]
    old = Attempt.objects.get(pk=attempt.pk)
    assert old.settings["optimizer"]["learning_rate"] == 5e-5 and old.status == Status.FAILED
    job.refresh_from_db()
    assert (job.status, job.end_reason, job.newest) == ("queued", "", new)
    event = JobEvent.objects.latest("pk")
    assert (event.kind, event.reason, event.actor, event.step) == ("attempt", "retry", staff, 20)


def test_a_retry_from_scratch_and_one_without_a_checkpoint_start_from_nothing(job: Job, attempt: Attempt) -> None:
    _put(attempt, Status.FAILED)
    second = services.retry(job, actor=None, settings={}, from_checkpoint=True)
    assert second.start_from is None
    _put(second, Status.FAILED)
    _checkpoint(attempt, 10)
    third = services.retry(job, actor=None, settings={}, from_checkpoint=False)
    assert third.start_from is None
    _put(third, Status.FAILED)
    fourth = services.retry(job, actor=None, settings={}, from_checkpoint=True)
    assert fourth.start_from is not None and fourth.start_from.attempt == attempt


def test_a_retry_from_a_checkpoint_keeps_what_its_weights_are_bound_to(job: Job, attempt: Attempt) -> None:
    _put(attempt, Status.FAILED)
    _checkpoint(attempt, 10)
    own: dict[str, Any] = {"model": {"source": "scratch"}}
    attempt.settings = services.validated(job.recipe, own).model_dump(mode="json")
    attempt.save(update_fields=["settings"])
    changed = {"model": {"source": "scratch", "hidden_size": 64, "layers": 1}}
    with pytest.raises(services.Refused) as refused:
        services.retry(job, actor=None, settings=changed, from_checkpoint=True)
    assert set(refused.value.errors) == {"model.hidden_size", "model.layers"}
    assert refused.value.errors["model.hidden_size"].startswith("The checkpoint was made with 128: change it back")
    assert Attempt.objects.count() == 1
    second = services.retry(job, actor=None, settings=changed, from_checkpoint=False)
    _put(second, Status.FAILED)
    # The newest attempt has other sizes than the checkpoint of the first, which counts.
    with pytest.raises(services.Refused):
        services.retry(job, actor=None, settings=second.settings, from_checkpoint=True)
    assert services.retry(job, actor=None, settings=own, from_checkpoint=True).start_from is not None


def test_what_a_checkpoint_is_bound_to_are_settings_of_the_recipe_as_far_as_they_count() -> None:
    for recipe in registry.RECIPES.values():
        dump = recipe.settings().model_dump(mode="json")
        assert [name for name in recipe.bound if name not in dict(services._dotted(dump))] == []
    images = registry.recipe("image_classification")
    resnet, patched = ({"model": {"architecture": "resnet18", "patch": patch}} for patch in (4, 7))
    assert images.misfits(resnet, patched) == {}
    vit = {"model": {"architecture": "vit", "patch": 4}}
    assert images.misfits(vit, {"model": vit["model"] | {"patch": 7}}) == {"model.patch": 4}


@pytest.mark.parametrize("status", [status for status in Status if status not in ENDED])
def test_a_job_in_progress_cannot_be_retried_or_resumed(job: Job, attempt: Attempt, status: Status) -> None:
    _put(attempt, status)
    with pytest.raises(services.Refused):
        services.retry(job, actor=None, settings={}, from_checkpoint=True)
    with pytest.raises(services.Refused):
        services.resume(job, actor=None)
    assert Attempt.objects.count() == 1


def test_a_retry_with_wrong_settings_changes_nothing(job: Job, attempt: Attempt) -> None:
    _put(attempt, Status.FAILED)
    with pytest.raises(services.Refused):
        services.retry(job, actor=None, settings={"training": {"epochs": 0}}, from_checkpoint=True)
    assert Attempt.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_retries_at_the_same_time_give_one_attempt(job: Job, attempt: Attempt) -> None:
    _put(attempt, Status.FAILED)
    outcomes: list[str] = []
    together = threading.Barrier(4)

    def retry() -> None:
        try:
            together.wait()
            services.retry(job, actor=None, settings={}, from_checkpoint=True)
            outcomes.append("made")
        except services.Refused:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=retry) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "refused", "refused", "refused"]
    assert Attempt.objects.count() == 2


def test_a_paused_job_goes_on_with_the_same_settings(job: Job, attempt: Attempt, owner: User) -> None:
    _put(attempt, Status.PAUSED)
    _checkpoint(attempt, 10)
    new = services.resume(job, actor=owner)
    assert (new.cause, new.settings, new.settings_changed) == ("resume", attempt.settings, [])
    assert new.start_from is not None and new.start_from.step == 10


@pytest.mark.parametrize("status", [Status.FAILED, Status.SUCCEEDED, Status.CANCELLED])
def test_only_a_paused_job_can_be_resumed(job: Job, attempt: Attempt, status: Status) -> None:
    _put(attempt, status)
    with pytest.raises(services.Refused):
        services.resume(job, actor=None)


# --- requests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "reason"), [(Request.CANCEL, EndReason.CANCELLED), (Request.PAUSE, EndReason.PAUSED)]
)
def test_what_is_queued_ends_at_once(
    job: Job, attempt: Attempt, owner: User, request_: Request, reason: EndReason
) -> None:
    services.ask_to_leave(job, request_, actor=owner)
    job.refresh_from_db()
    assert (job.status, job.end_reason) == (reason.status, reason)
    kinds = list(JobEvent.objects.order_by("pk").values_list("kind", "actor_name"))
    assert kinds == [("attempt", "olga"), ("request", "olga"), ("status", "olga")]


def test_what_has_not_started_cannot_be_finished(job: Job, attempt: Attempt) -> None:
    with pytest.raises(services.Refused):
        services.ask_to_leave(job, Request.FINISH, actor=None)
    attempt.refresh_from_db()
    assert attempt.leave == "" and JobEvent.objects.filter(kind="request").count() == 0


@pytest.mark.parametrize("status", [Status.STARTING, Status.RUNNING, Status.UNRESPONSIVE])
@pytest.mark.parametrize("request_", [Request.CANCEL, Request.PAUSE, Request.FINISH])
def test_what_is_on_a_host_is_asked(job: Job, attempt: Attempt, owner: User, status: Status, request_: Request) -> None:
    _put(attempt, status)
    services.ask_to_leave(job, request_, actor=owner)
    services.ask_to_leave(job, request_, actor=owner)
    attempt.refresh_from_db()
    assert (attempt.status, attempt.leave, attempt.leave_asked_by) == (status, request_, owner)
    assert JobEvent.objects.filter(kind="request").count() == 1


def test_the_newest_request_stands(job: Job, attempt: Attempt) -> None:
    _put(attempt, Status.RUNNING)
    services.ask_to_leave(job, Request.PAUSE, actor=None)
    services.ask_to_leave(job, Request.CANCEL, actor=None)
    attempt.refresh_from_db()
    assert attempt.leave == Request.CANCEL


@pytest.mark.parametrize("status", ENDED)
def test_what_has_ended_cannot_be_asked(job: Job, attempt: Attempt, status: Status) -> None:
    _put(attempt, status)
    for ask in (
        lambda: services.ask_to_leave(job, Request.CANCEL, actor=None),
        lambda: services.ask_for_checkpoint(job, actor=None),
    ):
        with pytest.raises(services.Refused):
            ask()


def test_checkpoint_requests_count_up(job: Job, attempt: Attempt) -> None:
    with pytest.raises(services.Refused):
        services.ask_for_checkpoint(job, actor=None)
    _put(attempt, Status.RUNNING)
    services.ask_for_checkpoint(job, actor=None)
    services.ask_for_checkpoint(job, actor=None)
    attempt.refresh_from_db()
    assert attempt.checkpoint_asked == 2


def test_draining_asks_those_on_the_host_that_were_not_asked_otherwise(job: Job, attempt: Attempt) -> None:
    host = Host.objects.create(name="one", online=True)
    _put(attempt, Status.RUNNING)
    attempt.placements.create(host=host, device_kind="cpu", devices=[0])
    services.drain(host, actor_name="shutdown")
    attempt.refresh_from_db()
    assert attempt.leave == Request.DRAIN and host.draining
    services.drain(host, actor_name="shutdown")
    assert JobEvent.objects.filter(kind="request", actor_name="shutdown").count() == 1
    services.undrain(host)
    assert not Host.objects.get().draining


def test_a_job_can_be_deleted_with_all_that_is_its_own(job: Job, attempt: Attempt) -> None:
    _put(attempt, Status.FAILED)
    _checkpoint(attempt, 10)
    services.retry(job, actor=None, settings={}, from_checkpoint=True)
    job.delete()
    assert not Attempt.objects.exists() and not Checkpoint.objects.exists()


@pytest.mark.parametrize("text", ["a\0b", "a\r\nX-Header: b", "\ud800"])
def test_control_characters_are_refused_wherever_a_text_is_given(owner: User, dataset: Dataset, text: str) -> None:
    with pytest.raises(services.Refused) as refused:
        services.submit(
            owner=owner,
            name=text,
            recipe="text_classification",
            dataset=dataset,
            settings={"data": {"text_column": text}, "model": {"folder": text}},
            actor=owner,
        )
    assert set(refused.value.errors) == {"name", "data.text_column", "model.folder"}
