from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs import services
from jobs.forms import SettingsForm
from jobs.models import Attempt, Checkpoint, Dataset, Job
from tests.jobs.views.conftest import MINE, People
from workers.contract.states import EndReason, Status
from workers.recipes.registry import recipe


@pytest.fixture
def failed(job: Job, attempt: Attempt) -> Job:
    services.transition(attempt, Status.STARTING)
    services.transition(attempt, Status.RUNNING)
    services.transition(attempt, Status.FAILED, reason=EndReason.NON_FINITE, detail="Loss was NaN at step 7.", step=7)
    return job


@pytest.fixture
def checkpoint(attempt: Attempt) -> Checkpoint:
    return Checkpoint.objects.create(attempt=attempt, step=5, applied=5, key="checkpoints/x/5", bytes=1, good=True)


def filled(job: Job, **changes: str) -> dict[str, str]:
    assert job.newest is not None
    data = {}
    for item in SettingsForm(recipe(job.recipe), initial=job.newest.settings).fields():
        if item.kind != "checkbox":
            data[item.name] = item.value
        elif item.checked:
            data[item.name] = "on"
    return data | {name.replace("__", "."): value for name, value in changes.items()}


def test_only_the_owner_and_staff_see_the_form(people: People, failed: Job) -> None:
    assert people.ask(f"/jobs/{failed.pk}/retry/") == MINE


def test_only_the_owner_and_staff_may_retry(people: People, failed: Job) -> None:
    url = f"/jobs/{failed.pk}/retry/"
    assert people.anonymous.post(url, filled(failed)).status_code == 302
    assert people.other.post(url, filled(failed)).status_code == 404
    assert failed.attempts.count() == 1
    assert people.staff.post(url, filled(failed)).status_code == 302
    assert failed.attempts.count() == 2


def test_settings_that_an_earlier_version_stored_mean_what_they_meant(people: People, failed: Job) -> None:
    assert failed.newest is not None
    old = failed.newest.settings
    old["schedule"] = {"warmup_steps": None, "warmup_fraction": 0.1, "linear_decay": False}
    old["clipping"] = {"max_norm": 2.0}
    del old["monitoring"]
    failed.newest.save(update_fields=["settings"])
    people.owner.post(f"/jobs/{failed.pk}/retry/", filled(failed, optimizer__learning_rate="1e-6"))
    newest = failed.attempts.latest("number")
    assert newest.settings["schedule"]["decay"] == "constant"
    assert newest.settings["clipping"]["mode"] == "global_norm"
    assert [change["name"] for change in newest.settings_changed] == ["optimizer.learning_rate"]


def test_a_form_without_token_does_nothing(strict: Client, failed: Job) -> None:
    assert strict.post(f"/jobs/{failed.pk}/retry/", filled(failed)).status_code == 403
    assert failed.attempts.count() == 1


def test_the_form_shows_the_old_settings_the_reason_and_the_checkpoint(
    people: People, failed: Job, checkpoint: Checkpoint
) -> None:
    page = people.owner.get(f"/jobs/{failed.pk}/retry/").text
    assert "Loss was NaN at step 7." in page
    assert "step 5 of attempt 1" in page
    assert 'name="optimizer.learning_rate" value="5e-5"' in page


def test_a_retry_is_a_new_attempt_with_who_asked_and_what_changed(
    people: People, failed: Job, checkpoint: Checkpoint, owner: User
) -> None:
    data = filled(failed, optimizer__learning_rate="1e-5", start=str(checkpoint.pk))
    answer = people.owner.post(f"/jobs/{failed.pk}/retry/", data)
    assert answer.status_code == 302
    failed.refresh_from_db()
    new = failed.newest
    assert new is not None
    assert (new.number, new.cause, new.asked_by, new.start_from) == (2, "retry", owner, checkpoint)
    assert new.settings_changed == [{"name": "optimizer.learning_rate", "old": 5e-5, "new": 1e-5}]


def test_from_scratch_starts_from_no_checkpoint(people: People, failed: Job, checkpoint: Checkpoint) -> None:
    people.owner.post(f"/jobs/{failed.pk}/retry/", filled(failed, start="scratch"))
    failed.refresh_from_db()
    assert failed.newest is not None and failed.newest.start_from is None


def test_a_preview_shows_the_difference_and_starts_nothing(people: People, failed: Job) -> None:
    answer = people.owner.post(f"/jobs/{failed.pk}/retry/", filled(failed, clipping__max_norm="", preview="1"))
    assert answer.status_code == 200 and failed.attempts.count() == 1
    assert [(item.name, item.old_shown) for item in answer.context["form"].changes] == [("clipping.max_norm", "1")]


def test_the_same_number_written_otherwise_is_no_change(people: People, failed: Job) -> None:
    answer = people.owner.post(
        f"/jobs/{failed.pk}/retry/", filled(failed, optimizer__learning_rate="0.00005", preview="1")
    )
    assert answer.context["form"].changes == []


def test_an_error_starts_nothing_and_keeps_what_was_typed(people: People, failed: Job) -> None:
    answer = people.owner.post(f"/jobs/{failed.pk}/retry/", filled(failed, optimizer__learning_rate="slow"))
    assert answer.status_code == 422 and failed.attempts.count() == 1
    assert "not “slow”" in answer.text and 'value="slow"' in answer.text


def test_what_is_still_in_progress_is_not_retried(people: People, job: Job) -> None:
    answer = people.owner.post(f"/jobs/{job.pk}/retry/", filled(job), follow=True)
    assert job.attempts.count() == 1 and "still in progress" in answer.text


def test_training_longer_is_a_retry_from_the_last_checkpoint_with_twice_the_epochs(
    people: People, job: Job, attempt: Attempt
) -> None:
    for status in (Status.STARTING, Status.RUNNING):
        services.transition(attempt, status)
    services.transition(attempt, Status.SUCCEEDED, reason=EndReason.COMPLETED)
    page = people.owner.get(f"/jobs/{job.pk}/")
    assert "Train longer…" not in page.text, "there is no checkpoint to go on from"
    Checkpoint.objects.create(attempt=attempt, step=90, applied=88, key="c", bytes=1, good=True)
    assert f'href="/jobs/{job.pk}/retry/?longer=1"' in people.owner.get(f"/jobs/{job.pk}/").text
    answer = people.owner.get(f"/jobs/{job.pk}/retry/?longer=1")
    assert [(item.name, item.value) for item in answer.context["form"].changes] == [("training.epochs", "6")]
    assert answer.context["start"] == str(Checkpoint.objects.get().pk)


def test_every_kept_checkpoint_is_on_offer_and_one_right_before_the_failure_is_not_suggested(
    people: People, failed: Job, checkpoint: Checkpoint, attempt: Attempt
) -> None:
    late = Checkpoint.objects.create(attempt=attempt, step=6, applied=6, key="checkpoints/x/6", bytes=1, good=True)
    answer = people.owner.get(f"/jobs/{failed.pk}/retry/")
    (first, why), (second, nothing) = answer.context["checkpoints"]
    assert (first, second, nothing) == (late, checkpoint, "") and "the very next step was not finite" in why
    assert answer.context["start"] == str(checkpoint.pk)
    people.owner.post(f"/jobs/{failed.pk}/retry/", filled(failed, start=str(late.pk)))
    failed.refresh_from_db()
    assert failed.newest is not None and failed.newest.start_from == late


def test_what_the_retry_would_be_can_be_tried_in_a_dry_run(people: People, failed: Job) -> None:
    page = people.owner.get(f"/jobs/{failed.pk}/retry/").text
    assert 'value="dry_run" formaction="/jobs/new/"' in page
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))
    sent = filled(failed, optimizer__learning_rate="1e-5", do="dry_run") | hidden
    answer = people.owner.post("/jobs/new/", sent)
    dry = Job.objects.latest("pk")
    assert answer.status_code == 302 and dry.dry_run and dry.name == failed.name and dry.dataset == failed.dataset
    assert dry.newest is not None and dry.newest.settings["optimizer"]["learning_rate"] == 1e-5
    failed.refresh_from_db()
    assert failed.attempts.count() == 1


def test_when_ranks_differed_one_is_advised_and_what_was_saved_since_they_were_compared_is_not_suggested(
    people: People, job: Job, attempt: Attempt
) -> None:
    for status in (Status.STARTING, Status.RUNNING):
        services.transition(attempt, status)
    detail = "At step 1203 not all ranks were alike."
    services.transition(attempt, Status.FAILED, reason=EndReason.RANKS_DIFFER, detail=detail, step=1203)
    saved = [
        Checkpoint.objects.create(attempt=attempt, step=step, applied=step, key=f"{step}", bytes=1, good=True)
        for step in (999, 1000, 1200)
    ]
    page = people.owner.get(f"/jobs/{job.pk}/").text
    assert "The ranks no longer did the same" in page and detail in page
    assert "ranks differ" in people.owner.get("/").text
    assert "The last good checkpoint, at step 999 of attempt 1" in page and page.count(">doubtful<") == 2
    saved[0].good = False
    saved[0].save()
    assert "None of its checkpoints is a safe place to go on from" in people.owner.get(f"/jobs/{job.pk}/").text
    saved[0].good = True
    saved[0].save()
    answer = people.owner.get(f"/jobs/{job.pk}/retry/")
    assert [bool(why) for _, why in answer.context["checkpoints"]] == [True, True, False]
    assert answer.context["start"] == str(saved[0].pk)
    assert "try once more as it was, if possible on another host" in answer.text
    assert "may be those of the one that was wrong" in answer.text

    attempt.plan = {"checkpoints_compared": True}
    attempt.save(update_fields=["plan"])
    answer = people.owner.get(f"/jobs/{job.pk}/retry/")
    assert [bool(why) for _, why in answer.context["checkpoints"]] == [False, False, False]
    assert answer.context["start"] == str(saved[2].pk)


def test_a_newer_version_of_the_dataset_is_said_and_offered_to_a_clone(people: People, failed: Job) -> None:
    url = f"/jobs/{failed.pk}/retry/"
    assert "newer version" not in people.owner.get(url).text
    assert failed.dataset is not None
    newer = Dataset.objects.get(pk=failed.dataset.pk)
    newer.pk, newer.version, newer.key, newer.content_hash = None, 2, "datasets/reviews-2", "1" * 64
    newer.save()
    page = people.owner.get(url).text
    assert "has a newer version, 2. All attempts of a job train on the same one, here version 1." in page
    assert f"?clone={failed.pk}&amp;dataset={newer.pk}" in page
    cloned = people.owner.get(f"/jobs/new/?clone={failed.pk}&dataset={newer.pk}").text
    assert f'value="{newer.pk}" selected' in cloned


def test_a_checkpoint_of_another_job_is_no_place_to_start(people: People, failed: Job, checkpoint: Checkpoint) -> None:
    answer = people.owner.post(f"/jobs/{failed.pk}/retry/", filled(failed, start=str(checkpoint.pk + 1)))
    assert answer.status_code == 422 and "no longer there" in answer.text and failed.attempts.count() == 1


# --- checks across fields -------------------------------------------------------------------

WARNED = {"loss_scaling__init_scale": "1024"}


def test_a_warning_wants_a_tick_and_is_recorded_with_the_attempt(people: People, failed: Job) -> None:
    url = f"/jobs/{failed.pk}/retry/"
    asked = people.owner.post(url, filled(failed, **WARNED))
    assert asked.status_code == 422 and failed.attempts.count() == 1
    assert "Nothing was started yet: there are warnings." in asked.text and 'value="1024"' in asked.text
    assert asked.text.count("Loss scaling was changed, but it is used with fp16 only") == 2
    unseen = people.owner.post(url, filled(failed, **WARNED) | {"anyway": "on"})
    assert unseen.status_code == 422 and failed.attempts.count() == 1
    done = people.owner.post(url, filled(failed, **WARNED) | {"anyway": "on", "shown": "loss_scaling_unused"})
    assert done.status_code == 302
    event = failed.events.get(kind="warning_accepted")
    assert event.attempt == failed.attempts.latest("number") and event.reason == "loss_scaling_unused"


def test_an_error_across_fields_hangs_on_its_field_and_no_tick_helps(people: People, failed: Job) -> None:
    changed = filled(failed, training__batch_size="101") | {"anyway": "on"}
    answer = people.owner.post(f"/jobs/{failed.pk}/retry/", changed)
    assert answer.status_code == 422 and failed.attempts.count() == 1
    assert "larger than the training set of 100 rows" in answer.context["form"].field("training.batch_size").error


def test_other_ranks_than_the_attempt_before_had_are_noticed(people: People, failed: Job) -> None:
    answer = people.owner.post(f"/jobs/{failed.pk}/retry/", filled(failed, devices__devices_per_node="4"))
    assert f"Job {failed.pk} ran on 1 ranks, this one on 4" in answer.text and failed.attempts.count() == 1


def test_what_speaks_against_it_is_seen_before_and_while_typing(people: People, failed: Job) -> None:
    url = f"/jobs/{failed.pk}/retry/"
    page = people.owner.get(url)
    assert page.context["warnings"] == [] and "The weights are random, and a learning rate of" in page.text
    part = people.owner.post(
        url, filled(failed, optimizer__learning_rate="5e-4") | {"check": "1"}, headers={"hx-request": "true"}
    )
    assert "Nothing speaks against it." in part.text
    typed = filled(failed, **WARNED) | {"check": "1"}
    part = people.owner.post(url, typed, headers={"hx-request": "true"})
    assert part.status_code == 200 and "Loss scaling was changed" in part.text and "<html" not in part.text
    assert "Loss scaling was changed" in people.owner.post(url, typed).text
    assert failed.attempts.count() == 1


def test_training_longer_is_checked_as_well(people: People, failed: Job) -> None:
    answer = people.owner.get(f"/jobs/{failed.pk}/retry/?longer=1")
    assert answer.status_code == 200 and answer.context["warnings"] == []
    sent = filled(failed, training__epochs="6", **WARNED)
    assert people.owner.post(f"/jobs/{failed.pk}/retry/?longer=1", sent).status_code == 422
