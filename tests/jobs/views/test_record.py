from __future__ import annotations

from django.contrib.auth.models import User

from jobs import services
from jobs.models import Job
from tests.browser import seed
from tests.jobs.views.conftest import People
from workers.contract.states import EndReason, Status


def _retried(job: Job, owner: User) -> None:
    first = seed.start(job)
    services.transition(first, Status.FAILED, reason=EndReason.NON_FINITE)
    services.retry(job, actor=owner, settings=first.settings, from_checkpoint=False)
    second = seed.start(job)
    second.environment["nodes"]["0"]["versions"]["numpy"] = "2.0.0"
    second.save(update_fields=["environment"])


def test_the_record_has_all_that_is_needed_to_do_it_again(people: People, job: Job, owner: User) -> None:
    _retried(job, owner)
    answer = people.owner.get(f"/jobs/{job.pk}/record/", {"attempt": "1"})
    assert answer.headers["Content-Disposition"] == f'attachment; filename="job-{job.pk}-attempt-1.json"'
    record = answer.json()
    assert record["dataset"]["content_hash"] == "0" * 64
    assert record["settings"]["optimizer"]["learning_rate"] == 5e-5
    assert (record["seed"], record["world_size"]) == (record["settings"]["training"]["seed"], 1)
    node = record["environment"]["nodes"]["0"]
    assert node["code"]["revision"] and node["machine"]["kernel"] and node["versions"]["paddlepaddle"]
    assert "password" not in answer.text.lower()


def test_what_differs_from_the_attempt_before_is_marked(people: People, job: Job, owner: User) -> None:
    _retried(job, owner)
    context = people.owner.get(f"/jobs/{job.pk}/").context
    changed = {
        row.name: (row.old, row.value) for _, rows in context["environment_groups"] for row in rows if row.changed
    }
    assert changed["NumPy"] == ("1.26.4", "2.0.0")
    assert changed["Revision of Evenkeel"][1].endswith(" (modified)") and context["environment_changes"] == 2
    first = people.owner.get(f"/jobs/{job.pk}/", {"attempt": "1"}).context
    assert first["environment_changes"] == 0


def test_environments_of_older_attempts_are_read_too(people: People, job: Job) -> None:
    attempt = seed.start(job)
    attempt.environment = {"host": "cpu-1", "devices": [0], "python": "3.11.7", "paddlepaddle": "3.3.1"}
    attempt.save(update_fields=["environment"])
    assert "3.11.7" in people.owner.get(f"/jobs/{job.pk}/").text
    assert people.owner.get(f"/jobs/{job.pk}/record/").json()["environment"]["nodes"]["0"]["host"] == "cpu-1"


def test_a_clone_can_be_of_an_earlier_attempt(people: People, job: Job, owner: User) -> None:
    first = seed.start(job)
    services.transition(first, Status.FAILED, reason=EndReason.NON_FINITE)
    other = first.settings | {"training": first.settings["training"] | {"seed": 99}}
    services.retry(job, actor=owner, settings=other, from_checkpoint=False)

    def seed_of(**query: str) -> str:
        form = people.owner.get("/jobs/new/", {"clone": str(job.pk), **query}).context["form"]
        return str(form.field("training.seed").value)

    assert seed_of() == "99" and seed_of(attempt="1") != "99"
    assert people.owner.get("/jobs/new/", {"clone": str(job.pk), "attempt": "7"}).status_code == 404
