from __future__ import annotations

from datetime import timedelta

from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from jobs import services
from jobs.models import Attempt, Dataset, Job
from tests.jobs.views.conftest import People
from workers.contract.messages import Request
from workers.contract.states import EndReason, Status

URL = "/"


def test_one_must_log_in(client: Client, db: None) -> None:
    answer = client.get(URL)
    assert answer.status_code == 302 and answer["Location"] == "/login/?next=/"


def test_each_sees_their_own_and_staff_sees_all(people: People, job: Job) -> None:
    assert job.name in people.owner.get(URL).text
    assert job.name not in people.other.get(URL).text
    assert job.name in people.staff.get(URL).text


def test_an_owner_filter_shows_nobody_elses_jobs(people: People, job: Job) -> None:
    assert job.name not in people.other.get(URL, {"owner": job.owner.username}).text
    assert job.name in people.staff.get(URL, {"owner": job.owner.username}).text


def test_without_jobs_it_says_what_to_do(people: People) -> None:
    assert "Submit the first one" in people.owner.get(URL).text


def test_filters_by_status_reason_text_and_number(people: People, job: Job, owner: User, dataset: Dataset) -> None:
    services.ask_to_leave(job, Request.CANCEL, actor=owner)
    kept = services.submit(
        owner=owner, name="another one", recipe="text_classification", dataset=dataset, settings={}, actor=owner
    )

    def names(**query: str) -> set[str]:
        return {row.job.name for row in people.owner.get(URL, query).context["rows"]}

    assert names(status="active") == {kept.name}
    assert names(status="cancelled") == {job.name}
    assert names(reason="cancelled") == {job.name}
    assert names(q="ANOTHER") == {kept.name}
    assert names(q=f"#{job.pk}") == {job.name}
    assert names(q="no such thing") == set()
    assert names(q="ANO\0THER", status="\0", owner="\0") == {kept.name}
    assert names(status="nonsense") == set()


def test_sorts_both_ways_and_ignores_unknown_orders(people: People, job: Job, owner: User, dataset: Dataset) -> None:
    services.submit(
        owner=owner, name="a first name", recipe="text_classification", dataset=dataset, settings={}, actor=owner
    )

    def names(sort: str) -> list[str]:
        return [row.job.name for row in people.owner.get(URL, {"sort": sort}).context["rows"]]

    assert names("name") == ["a first name", "sentiment"]
    assert names("-name") == ["sentiment", "a first name"]
    assert names("owner__password") == ["sentiment", "a first name"]


def test_a_running_job_shows_progress_health_and_newest_numbers(people: People, attempt: Attempt) -> None:
    services.transition(attempt, Status.STARTING)
    services.transition(attempt, Status.RUNNING)
    Attempt.objects.filter(pk=attempt.pk).update(
        attempted=50,
        applied=50,
        plan={"total_steps": 200},
        newest_record={
            "loss": 0.5,
            "loss_all": 0.4321,
            "grad_norm": "inf",
            "loss_scale": 2.0,
            "t": 10.0,
            "step_ms": 200,
        },
        started_at=timezone.now() - timedelta(seconds=10),
    )
    page = people.owner.get(URL).text
    assert "25 %" in page and "about 30 s left" in page
    assert "healthy" in page and "0.4321" in page and "∞" in page


def test_refreshes_itself_only_while_something_runs(people: People, attempt: Attempt) -> None:
    assert "every 4s" in people.owner.get(URL).text
    services.transition(attempt, Status.CANCELLED, reason=EndReason.CANCELLED)
    assert "every 4s" not in people.owner.get(URL).text


def test_a_refresh_brings_the_table_alone(people: People, job: Job) -> None:
    part = people.owner.get(URL, headers={"HX-Request": "true"}).text
    assert job.name in part and "<html" not in part


def test_pages_of_many_jobs_cost_a_fixed_number_of_queries(
    people: People, owner: User, dataset: Dataset, django_assert_max_num_queries: object
) -> None:
    for number in range(30):
        services.submit(
            owner=owner, name=f"job {number}", recipe="text_classification", dataset=dataset, settings={}, actor=owner
        )
    with django_assert_max_num_queries(8):  # type: ignore[operator]
        page = people.owner.get(URL)
    assert len(page.context["rows"]) == 25
    assert len(people.owner.get(URL, {"page": "2"}).context["rows"]) == 5
