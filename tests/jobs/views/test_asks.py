"""Cancel, pause, resume, finish, checkpoint."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs import services
from jobs.models import Attempt, Job, JobEvent
from tests.jobs.views.conftest import People
from workers.contract.states import Status

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
    people.owner.post(f"/jobs/{job.pk}/pause/")
    people.owner.post(f"/jobs/{job.pk}/resume/")
    job.refresh_from_db()
    assert job.newest is not None and (job.newest.number, job.newest.cause) == (2, "resume")


def test_what_is_refused_is_said_on_the_page(people: People, job: Job) -> None:
    answer = people.owner.post(f"/jobs/{job.pk}/resume/", follow=True)
    assert "Only a paused job can be resumed." in answer.text
