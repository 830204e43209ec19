"""A dry run from the form to its result, and from there to a job with nothing lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs import services, tags
from jobs.controller.send import spec_of
from jobs.models import Dataset, Job, JobEvent, Placement
from tests.browser import seed
from tests.jobs.views.conftest import People
from tests.jobs.views.test_job_new import URL, WARNED, filled
from workers.contract.messages import Request
from workers.contract.states import EndReason

TRIED = {"optimizer__learning_rate": "3e-5", "devices__devices_per_node": "2"}


def submitted(people: People, on: Dataset, **changes: str) -> Job:
    answer = people.owner.post(URL, filled(on, **TRIED | changes) | {"do": "dry_run"})
    assert answer.status_code == 302, answer.text
    job = Job.objects.latest("pk")
    assert answer["Location"] == f"/jobs/{job.pk}/"
    return job


def ran(job: Job, norms: list[float], reason: EndReason = EndReason.COMPLETED, detail: str = "") -> Job:
    attempt = seed.start(job, seed.host(f"cpu-{job.pk}"))
    for rank in range(2):
        rows = seed.records(1, len(norms), rank=rank, loss_scale=None, skipped=None, found_inf=False, step_ms=200.0)
        for row, norm in zip(rows, norms, strict=True):
            row["grad_norm"] = norm
        seed.add_steps(attempt, rows, rank)
        data: dict[str, Any] = {"rank": rank, "peak_mb": 3072.0 * (rank + 1)}
        if rank == 0:
            data |= {"evaluation_s": 4.0, "checkpoint_s": 1.0, "checkpoint_bytes": 14_680_064}
        if reason is EndReason.COMPLETED:
            JobEvent.objects.create(job=job, attempt=attempt, kind="measured", rank=rank, data=data)
    seed.end(attempt, reason, detail)
    job.refresh_from_db()
    return job


@pytest.fixture
def job(people: People, dataset: Dataset) -> Job:
    return ran(submitted(people, dataset), [round(i / 10, 1) for i in range(1, 31)])


def test_the_button_makes_a_dry_run_that_hosts_know_as_such(people: People, dataset: Dataset) -> None:
    job = submitted(people, dataset)
    assert job.dry_run and job.newest is not None and job.newest.settings["optimizer"]["learning_rate"] == 3e-5
    assert b'value="dry_run"' in people.owner.get(URL).content
    place = Placement.objects.create(attempt=job.newest, host=seed.host(), device_kind="cpu", devices=[0, 1])
    assert spec_of(place).dry_run_steps == 30
    assert "It makes 30 steps of the real thing" in people.owner.get(f"/jobs/{job.pk}/").text


def test_errors_and_warnings_hold_it_up_as_they_do_a_job(people: People, dataset: Dataset) -> None:
    wrong = people.owner.post(URL, filled(dataset, training__batch_size="101") | {"do": "dry_run"})
    warned = people.owner.post(URL, filled(dataset, **WARNED) | {"do": "dry_run"})
    assert wrong.status_code == warned.status_code == 422 and not Job.objects.exists()
    assert "there are warnings" in warned.text
    accepted = {"do": "dry_run", "anyway": "on", "shown": "loss_scaling_unused"}
    assert people.owner.post(URL, filled(dataset, **WARNED) | accepted).status_code == 302
    assert Job.objects.get().events.filter(kind="warning_accepted").count() == 1


def test_the_result_is_shown_to_who_may_see_the_job(people: People, job: Job) -> None:
    url = f"/jobs/{job.pk}/"
    assert people.ask(url + "?part=dry_run") == {"anonymous": 302, "owner": 200, "other": 404, "staff": 200}
    text = people.owner.get(url).text
    for said in (
        "Suggested: <strong>2.8</strong>",
        "All 30 steps lie within the warm-up of 98",
        "30 steps were made",
        "980 × 200 ms = 3 min",
        "2 × 4 s",
        "5 × 1 s, 14.0 MiB each",
        "3.0 GiB",
        "50 %",
        "Clipping at 1 would shorten 67 % of the steps",
    ):
        assert said in text, said
    for missing in ("Retry…", ">Clone<", "Pause", "Train longer…"):
        assert missing not in text


def test_one_that_breaks_says_why_and_leads_back_to_the_form(people: People, dataset: Dataset) -> None:
    detail = "ResourceExhausted: Out of memory error on GPU 0."
    job = ran(submitted(people, dataset), [1.0, math.nan, math.inf], EndReason.OUT_OF_MEMORY, detail)
    text = people.owner.get(f"/jobs/{job.pk}/").text
    assert detail in text and "The job itself would have ended like this." in text
    assert "Back to the form" in text and "not measured, and not included" in text


def test_it_is_submitted_as_it_was_tried(people: People, job: Job, owner: User) -> None:
    url = f"/jobs/{job.pk}/submit/"
    assert Client().post(url).status_code == 302 and people.other.post(url).status_code == 404
    assert people.owner.get(url).status_code == 405 and Job.objects.count() == 1
    answer = people.owner.post(url)
    made = Job.objects.latest("pk")
    assert answer["Location"] == f"/jobs/{made.pk}/" and not made.dry_run
    assert (made.name, made.dataset, made.owner) == (job.name, job.dataset, owner)
    assert made.newest is not None and job.newest is not None and made.newest.settings == job.newest.settings
    assert people.owner.post(f"/jobs/{made.pk}/submit/").status_code == 404


def test_what_was_accepted_for_the_dry_run_is_accepted_for_the_job_and_nothing_else(
    people: People, dataset: Dataset
) -> None:
    accepted = {"do": "dry_run", "anyway": "on", "shown": "loss_scaling_unused"}
    people.owner.post(URL, filled(dataset, **WARNED) | accepted)
    job = Job.objects.get()
    assert people.owner.post(f"/jobs/{job.pk}/submit/").status_code == 302
    assert Job.objects.latest("pk").events.filter(kind="warning_accepted").count() == 1
    job.events.filter(kind="warning_accepted").delete()
    asked = people.owner.post(f"/jobs/{job.pk}/submit/")
    assert asked.status_code == 422 and "there are warnings" in asked.text and 'value="1024"' in asked.text
    assert Job.objects.count() == 2


def test_the_form_comes_back_filled_and_with_the_suggested_clip_if_asked(people: People, job: Job) -> None:
    tags.put(job, ["first try"])
    assert people.ask(f"{URL}?dry_run={job.pk}") == {"anonymous": 302, "owner": 200, "other": 404, "staff": 200}
    for url, clip in ((f"{URL}?dry_run={job.pk}", "1"), (f"{URL}?dry_run={job.pk}&clip=1", "2.8")):
        page = people.owner.get(url)
        form = page.context["form"]
        values = {name: form.field(name).value for name in ("clipping.max_norm", "optimizer.learning_rate")}
        assert values == {"clipping.max_norm": clip, "optimizer.learning_rate": "3e-5"}
        assert page.context["given"] == {"name": "my job", "dataset": job.dataset_id, "tags": "first try"}


def test_it_can_only_be_cancelled(people: People, dataset: Dataset, owner: User) -> None:
    job = submitted(people, dataset)
    for request in (Request.PAUSE, Request.FINISH):
        with pytest.raises(services.Refused, match="This is a dry run"):
            services.ask_to_leave(job, request, actor=owner)
    services.ask_to_leave(job, Request.CANCEL, actor=owner)
    job.refresh_from_db()
    assert job.newest is not None and job.status == "cancelled"
    for verb in (
        lambda: services.retry(job, actor=owner, settings=job.newest.settings, from_checkpoint=False),
        lambda: services.resume(job, actor=owner),
        lambda: services.ask_for_checkpoint(job, actor=owner),
    ):
        with pytest.raises(services.Refused, match="This is a dry run"):
            verb()


def test_dry_runs_are_listed_apart(people: People, job: Job) -> None:
    people.owner.post(f"/jobs/{job.pk}/submit/")

    def listed(query: str) -> list[int]:
        return [row.job.pk for row in people.owner.get(f"/?{query}").context["rows"]]

    assert listed("") == [job.pk + 1]
    assert listed("kind=dry") == [job.pk]
    assert listed("kind=all") == [job.pk + 1, job.pk]
    assert "dry run</span>" in people.owner.get("/?kind=dry").text
