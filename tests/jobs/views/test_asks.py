"""Cancel, pause, resume, finish, checkpoint."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs import services
from jobs.models import Attempt, Checkpoint, Job, JobEvent
from tests.jobs.views.conftest import People
from workers.contract.states import EndReason, Status

VERBS = ("cancel", "pause", "resume", "finish", "checkpoint")


@pytest.fixture
def running(attempt: Attempt) -> Attempt:
    services.transition(attempt, Status.STARTING)
    services.transition(attempt, Status.RUNNING)
    return attempt


@pytest.mark.parametrize("verb", VERBS)
def test_only_the_owner_and_staff_may_ask(people: People, running: Attempt, verb: str) -> None:
    url = f"/jobs/{running.job_id}/{verb}/"
    events = JobEvent.objects.count()
    assert people.anonymous.post(url).status_code == 302
    assert people.other.post(url).status_code == 404
    assert JobEvent.objects.count() == events
    assert people.ask(url, "post") == {"anonymous": 302, "owner": 302, "other": 404, "staff": 302}


@pytest.mark.parametrize("verb", VERBS)
def test_a_link_asks_for_nothing(people: People, job: Job, verb: str) -> None:
    assert people.owner.get(f"/jobs/{job.pk}/{verb}/").status_code == 405


@pytest.mark.parametrize("verb", VERBS)
def test_a_form_without_token_asks_for_nothing(strict: Client, running: Attempt, verb: str) -> None:
    assert strict.post(f"/jobs/{running.job_id}/{verb}/").status_code == 403
    running.refresh_from_db()
    assert running.leave == "" and running.checkpoint_asked == 0


@pytest.mark.parametrize("verb", ["cancel", "pause", "finish"])
def test_a_request_is_kept_with_who_asked(people: People, running: Attempt, verb: str, owner: User) -> None:
    people.owner.post(f"/jobs/{running.job_id}/{verb}/")
    running.refresh_from_db()
    assert (running.leave, running.leave_asked_by) == (verb, owner)
    assert JobEvent.objects.filter(kind="request", reason=verb, actor=owner).exists()


def test_nothing_takes_a_cancellation_back(people: People, running: Attempt) -> None:
    people.owner.post(f"/jobs/{running.job_id}/pause/")
    people.owner.post(f"/jobs/{running.job_id}/cancel/")
    for verb in ("pause", "finish"):
        answer = people.owner.post(f"/jobs/{running.job_id}/{verb}/", follow=True)
        assert "Its cancellation is asked for already." in answer.text
        running.refresh_from_db()
        assert running.leave == "cancel"


def test_a_queued_job_is_cancelled_at_once(people: People, job: Job) -> None:
    answer = people.owner.post(f"/jobs/{job.pk}/cancel/", follow=True)
    job.refresh_from_db()
    assert job.status == Status.CANCELLED
    assert "The job is cancelled." in answer.text and "after its current step" not in answer.text


def test_a_checkpoint_is_asked_for_each_time(people: People, running: Attempt) -> None:
    for _ in range(2):
        people.owner.post(f"/jobs/{running.job_id}/checkpoint/")
    running.refresh_from_db()
    assert running.checkpoint_asked == 2


def test_a_paused_job_is_resumed_as_a_new_attempt(people: People, job: Job) -> None:
    paused = people.owner.post(f"/jobs/{job.pk}/pause/", follow=True)
    assert "Resumed, it begins anew: there is no good checkpoint." in paused.text
    answer = people.owner.post(f"/jobs/{job.pk}/resume/", follow=True)
    assert "The job is queued again and begins anew" in answer.text
    job.refresh_from_db()
    assert job.newest is not None and (job.newest.number, job.newest.cause) == (2, "resume")


def test_a_paused_job_says_from_where_it_goes_on(people: People, running: Attempt) -> None:
    Checkpoint.objects.create(attempt=running, step=7, applied=7, key="7", bytes=1, good=True)
    services.transition(running, Status.PAUSED, reason=EndReason.PAUSED)
    url = f"/jobs/{running.job_id}/"
    assert "Resumed, it goes on from the checkpoint at step 7 of attempt 1." in people.owner.get(url).text
    assert "goes on from its last good checkpoint" in people.owner.post(f"{url}resume/", follow=True).text


def test_once_training_is_over_only_a_cancellation_is_offered(people: People, running: Attempt) -> None:
    page = people.owner.get(f"/jobs/{running.job_id}/").text
    assert "/pause/" in page and "/finish/" in page and "/checkpoint/" in page
    Attempt.objects.filter(pk=running.pk).update(stage="exporting")
    page = people.owner.get(f"/jobs/{running.job_id}/").text
    assert "/cancel/" in page and not any(verb in page for verb in ("/pause/", "/finish/", "/checkpoint/"))


def test_what_is_refused_is_said_on_the_page(people: People, job: Job) -> None:
    answer = people.owner.post(f"/jobs/{job.pk}/resume/", follow=True)
    assert "Only a paused job can be resumed." in answer.text
