from __future__ import annotations

import json
import math

import pytest
from django.utils import timezone

from jobs import services
from jobs.models import Attempt, Job, JobEvent
from tests.browser import seed
from tests.jobs.views.conftest import MINE, People
from workers.contract.states import EndReason


@pytest.fixture
def running(job: Job) -> Attempt:
    attempt = seed.start(job)
    seed.add_steps(attempt, seed.records(1, 400))
    return attempt


def test_only_the_owner_and_staff_get_it(people: People, job: Job) -> None:
    assert people.ask(f"/jobs/{job.pk}/chart/") == MINE


def test_nan_and_infinity_arrive_as_what_they_are(people: People, job: Job) -> None:
    attempt = seed.start(job)
    rows = seed.records(1, 3)
    for row, value in zip(rows, (math.nan, math.inf, 0.5), strict=True):
        row["loss_all"] = value
    seed.add_steps(attempt, rows)
    answer = people.owner.get(f"/jobs/{job.pk}/chart/")
    field = json.loads(answer.content)["attempts"][0]["fields"]["loss_all"]
    assert field["mean"] == ["nan", "inf", 0.5]
    assert field["non_finite"] == [[1, 1, 0, 0], [2, 0, 1, 0]]


def test_zooming_brings_single_records(people: People, running: Attempt) -> None:
    url = f"/jobs/{running.job_id}/chart/"
    whole = people.owner.get(url, {"points": "40"}).json()["attempts"][0]
    part = people.owner.get(url, {"points": "40", "first": "100", "last": "120"}).json()["attempts"][0]
    assert whole["bucket"] > 1 and whole["step"][-1] == 400
    assert part["bucket"] == 1 and part["step"] == list(range(100, 121))


def test_all_attempts_come_together_with_the_viewed_one_named(people: People, running: Attempt, job: Job) -> None:
    seed.end(running, EndReason.NON_FINITE)
    services.retry(job, actor=job.owner, settings=running.settings, from_checkpoint=False)
    seed.evaluate(running, 100, 0.75, 0.5)
    answer = people.owner.get(f"/jobs/{job.pk}/chart/").json()
    assert answer["viewed"] == 2
    assert sorted(one["number"] for one in answer["attempts"]) == [1, 2]
    assert answer["evaluations"] == [{"attempt": 1, "step": 100, "loss": 0.5}]
    alone = people.owner.get(f"/jobs/{job.pk}/chart/", {"attempt": "1", "only": ""}).json()
    assert [one["number"] for one in alone["attempts"]] == [1]


def test_each_rank_has_its_own(people: People, running: Attempt) -> None:
    seed.add_steps(running, seed.records(1, 10, rank=1), rank=1)
    url = f"/jobs/{running.job_id}/chart/"
    assert people.owner.get(url, {"rank": "1"}).json()["attempts"][0]["available"]["last"] == 10
    assert people.owner.get(url, {"rank": "7"}).json()["attempts"][0]["step"] == []


def test_only_the_fields_asked_for_are_sent(people: People, running: Attempt) -> None:
    url = f"/jobs/{running.job_id}/chart/"
    fields = people.owner.get(url, {"fields": "loss,lr,password"}).json()["attempts"][0]["fields"]
    assert set(fields) == {"loss", "lr"}


@pytest.mark.parametrize("query", [{"rank": "x"}, {"first": "-5"}, {"points": "1e9"}, {"last": "'"}])
def test_nonsense_in_the_query_is_harmless(people: People, running: Attempt, query: dict[str, str]) -> None:
    assert people.owner.get(f"/jobs/{running.job_id}/chart/", query).status_code == 200


def test_spikes_and_rewinds_are_marked_where_they_happened(people: People, running: Attempt) -> None:
    for step, kind in ((120, "spike"), (200, "rewind"), (210, "note")):
        JobEvent.objects.create(job_id=running.job_id, attempt=running, at=timezone.now(), kind=kind, step=step)
    answer = people.owner.get(f"/jobs/{running.job_id}/chart/").json()
    assert answer["happened"] == [
        {"attempt": 1, "step": 120, "kind": "spike"},
        {"attempt": 1, "step": 200, "kind": "rewind"},
    ]
