"""Time limit, notes and tags, keeping, archiving, deleting; one at a time and from the list."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs import life, services
from jobs.models import Attempt, Job, JobEvent, JobTag, RetentionRule
from tests.jobs.test_life import checkpoint, end, place
from tests.jobs.views.conftest import MINE, People
from workers.contract.states import Status

POSTS = ("time-limit", "notes", "keep", "archive", "unarchive", "delete")


@pytest.fixture
def ended(attempt: Attempt) -> Attempt:
    end(attempt)
    return attempt


@pytest.mark.parametrize("verb", POSTS)
def test_only_the_owner_and_staff_may_change_something(people: People, ended: Attempt, verb: str) -> None:
    url, events = f"/jobs/{ended.job_id}/{verb}/", JobEvent.objects.count()
    assert people.anonymous.post(url).status_code == 302
    assert people.other.post(url, {"keep": "on", "notes": "x", "hours": "1"}).status_code == 404
    assert JobEvent.objects.count() == events and Job.objects.there().count() == 1
    assert people.staff.post(url).status_code == 302


@pytest.mark.parametrize("verb", POSTS)
def test_a_form_without_token_changes_nothing(strict: Client, ended: Attempt, verb: str) -> None:
    events = JobEvent.objects.count()
    assert strict.post(f"/jobs/{ended.job_id}/{verb}/").status_code == 403
    assert JobEvent.objects.count() == events and Job.objects.there().exists()


@pytest.mark.parametrize("verb", ["time-limit", "keep", "archive", "unarchive"])
def test_a_link_changes_nothing(people: People, ended: Attempt, verb: str) -> None:
    assert people.owner.get(f"/jobs/{ended.job_id}/{verb}/").status_code == 405


@pytest.mark.parametrize("page", ["notes", "delete", "record"])
def test_only_the_owner_and_staff_see_each_page(people: People, ended: Attempt, page: str) -> None:
    assert people.ask(f"/jobs/{ended.job_id}/{page}/") == MINE


# --- the time limit ---


def test_the_limit_is_shown_with_what_is_left_and_can_be_changed(people: People, job: Job, attempt: Attempt) -> None:
    place(attempt, ran_s=1800)
    services.transition(attempt, Status.STARTING)
    services.transition(attempt, Status.RUNNING)
    answer = people.owner.post(f"/jobs/{job.pk}/time-limit/", {"hours": "1,5"}, follow=True)
    assert "The time limit is changed." in answer.text and "60 min left, until" in answer.text
    answer = people.owner.post(f"/jobs/{job.pk}/time-limit/", {"hours": "0.25"}, follow=True)
    assert "on its host for 0.50 hours already" in answer.text
    answer = people.owner.post(f"/jobs/{job.pk}/time-limit/", {"hours": "<b>soon"}, follow=True)
    assert "“&lt;b&gt;soon” is not a number of hours" in answer.text
    attempt.refresh_from_db()
    assert attempt.time_limit_s == 5400
    people.owner.post(f"/jobs/{job.pk}/time-limit/", {"hours": ""})
    attempt.refresh_from_db()
    assert attempt.time_limit_s is None


# --- notes and tags ---


def test_notes_are_edited_in_their_place(people: People, job: Job) -> None:
    url, htmx = f"/jobs/{job.pk}/notes/", {"HX-Request": "true"}
    form = people.owner.get(url, headers=htmx)
    assert "<textarea" in form.text and "<html" not in form.text
    saved = people.owner.post(url, {"notes": "<i>hi", "tags": "a，b"}, headers=htmx)
    assert "&lt;i&gt;hi" in saved.text and "<form" not in saved.text
    assert sorted(JobTag.objects.values_list("name", flat=True)) == ["a", "b"]
    refused = people.owner.post(url, {"notes": "kept", "tags": "x" * 50}, headers=htmx)
    assert refused.status_code == 422
    assert "has 50" in refused.text and ">kept</textarea>" in refused.text
    assert "<textarea" not in people.owner.get(url, {"cancel": "1"}, headers=htmx).text


def test_notes_are_edited_without_javascript(people: People, job: Job) -> None:
    assert "<html" in people.owner.get(f"/jobs/{job.pk}/notes/").text
    answer = people.owner.post(f"/jobs/{job.pk}/notes/", {"notes": "hello", "tags": ""}, follow=True)
    assert answer.redirect_chain[-1][0] == f"/jobs/{job.pk}/" and "hello" in answer.text


def test_tags_of_others_are_not_suggested(people: People, job: Job) -> None:
    life.annotate(job, notes="", names=["secret project"], actor=None)
    assert "secret project" in people.owner.get("/").text
    assert "secret project" not in people.other.get("/").text
    assert "secret project" in people.staff.get("/").text


def test_a_new_job_has_the_tags_that_were_typed_and_a_clone_the_same(people: People, job: Job) -> None:
    form = {"recipe": "text_classification", "name": "x", "dataset": str(job.dataset_id), "anyway": "on"}
    settings = {field.name: field.value for field in people.owner.get("/jobs/new/").context["form"].fields()}
    made = people.owner.post("/jobs/new/", settings | form | {"tags": "a, b,a"}, follow=True)
    new = Job.objects.exclude(pk=job.pk).get()
    assert made.status_code == 200 and sorted(tag.name for tag in new.tags.all()) == ["a", "b"]
    assert 'value="a, b"' in people.owner.get("/jobs/new/", {"clone": str(new.pk)}).text
    refused = people.owner.post("/jobs/new/", settings | form | {"tags": "x" * 41})
    assert refused.status_code == 422 and "has 41" in refused.text


# --- the list ---


def test_the_list_filters_by_tag_and_leaves_archived_jobs_out(people: People, job: Job, ended: Attempt) -> None:
    life.annotate(job, notes="", names=["good"], actor=None)

    def listed(**query: str) -> list[int]:
        return [row.job.pk for row in people.owner.get("/", query).context["rows"]]

    assert listed(tag="good") == listed() == [job.pk] and listed(tag="bad") == []
    life.archive(job, actor=None)
    assert listed() == [] and listed(shelf="archived") == listed(shelf="all") == [job.pk]


def _bulk(client: Client, do: str, *jobs: int, **more: str) -> str:
    answer = client.post("/jobs/bulk/", {"do": do, "job": list(jobs), "back": "/?shelf=all", **more}, follow=True)
    return str(answer.text)


def test_many_are_archived_and_one_that_runs_is_named(people: People, owner: User, job: Job, ended: Attempt) -> None:
    runs = services.submit(
        owner=owner, name="b", recipe="text_classification", dataset=job.dataset, settings={}, actor=owner
    )
    text = _bulk(people.owner, "archive", job.pk, runs.pk)
    assert "1 job is archived." in text and f"Job {runs.pk} is left as it is." in text
    assert Job.objects.filter(archived_at__isnull=False).get() == job
    assert "1 job is back in the list." in _bulk(people.owner, "unarchive", job.pk)


def test_many_are_deleted_after_a_page_that_says_what_goes(people: People, job: Job, ended: Attempt) -> None:
    checkpoint(ended, 10, 3 * 2**20)
    page = _bulk(people.owner, "delete", job.pk)
    assert "Delete for good" in page and "3.0 MiB" in page and Job.objects.there().exists()
    # One alone is deleted by the page of its own, whatever led there.
    assert f'action="/jobs/{job.pk}/delete/"' in page
    assert "1 job is deleted." in _bulk(people.owner, "delete_now", job.pk)
    assert not Job.objects.there().exists()


@pytest.mark.parametrize("do", ["archive", "delete", "delete_now"])
def test_jobs_of_others_cannot_be_checked(people: People, job: Job, ended: Attempt, do: str) -> None:
    assert people.anonymous.post("/jobs/bulk/", {"do": do, "job": [job.pk]}).status_code == 302
    assert "No job was checked." in _bulk(people.other, do, job.pk)
    assert Job.objects.there().filter(archived_at=None).exists()


def test_bulk_leads_nowhere_else(people: People, job: Job) -> None:
    answer = people.owner.post("/jobs/bulk/", {"do": "archive", "job": [job.pk], "back": "https://example.org/"})
    assert answer.headers["Location"] == "/"


# --- deletion ---


def test_deletion_says_what_it_frees_and_who_depends_on_it(people: People, job: Job, ended: Attempt) -> None:
    checkpoint(ended, 10, 2**21)
    page = people.owner.get(f"/jobs/{job.pk}/delete/").text
    assert "2.0 MiB" in page and "Delete for good" in page
    answer = people.owner.post(f"/jobs/{job.pk}/delete/", follow=True)
    assert f"Job {job.pk} is deleted." in answer.text
    assert people.ask(f"/jobs/{job.pk}/") == MINE | {"owner": 404, "staff": 404}


def test_a_job_on_its_way_cannot_be_deleted(people: People, job: Job) -> None:
    assert "Delete for good" not in people.owner.get(f"/jobs/{job.pk}/delete/").text
    answer = people.owner.post(f"/jobs/{job.pk}/delete/", follow=True)
    assert "cancel it first" in answer.text and Job.objects.there().exists()


# --- storage and retention ---


def test_storage_is_ones_own_and_staff_sees_all(people: People, job: Job, ended: Attempt, other: User) -> None:
    checkpoint(ended, 10, 5 * 2**20)
    assert people.ask("/storage/") == MINE | {"other": 200}
    assert "5.0 MiB" in people.owner.get("/storage/").text and "sentiment" in people.owner.get("/storage/").text
    for query in ({}, {"user": "olga"}):
        assert "sentiment" not in people.other.get("/storage/", query).text
        assert "5.0 MiB" not in people.other.get("/storage/", query).text
        assert "sentiment" in people.staff.get("/storage/", query).text
    assert "sentiment" not in people.staff.get("/storage/", {"user": "oskar"}).text


@pytest.mark.parametrize("sort", ["job", "-checkpoints", "artifacts", "-records", "total", "nonsense"])
def test_storage_is_sorted(people: People, job: Job, sort: str) -> None:
    assert people.owner.get("/storage/", {"sort": sort}).status_code == 200


def test_only_staff_sets_rules(people: People, job: Job) -> None:
    assert people.ask("/retention/") == {"anonymous": 302, "owner": 403, "other": 403, "staff": 200}
    assert people.owner.post("/retention/", {"do": "save", "logs.days": "1"}).status_code == 403
    assert not RetentionRule.objects.exists()


def test_rules_show_what_would_go_before_they_are_saved(people: People, job: Job, ended: Attempt) -> None:
    checkpoint(ended, 10)
    Job.objects.update(ended_at="2020-01-01T00:00:00Z")
    asked = {"failed_checkpoints.days": "30", "failed_checkpoints.keep": "none", "dry_runs.days": "7"}
    page = people.staff.post("/retention/", asked | {"do": "preview"})
    assert "1 checkpoint would be removed now, 100 B:" in page.text and not RetentionRule.objects.exists()
    wrong = people.staff.post("/retention/", asked | {"do": "save", "logs.days": "soon"})
    assert wrong.status_code == 422 and "not “soon”" in wrong.text and not RetentionRule.objects.exists()
    saved = people.staff.post("/retention/", asked | {"do": "save"}, follow=True)
    assert "1 rule is changed." in saved.text and "Last changed by stella" in saved.text
    rule = RetentionRule.objects.get()
    assert (rule.what, rule.days, rule.keep) == ("failed_checkpoints", 30, "none")
