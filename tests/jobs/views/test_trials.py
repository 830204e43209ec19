"""Trying an exported model on its job's page."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import trials
from jobs.models import Artifact, Attempt, Job, Trial
from tests.jobs.views.conftest import People

HTMX = {"headers": {"HX-Request": "true"}}


@pytest.fixture
def artifact(attempt: Attempt, settings: Any, tmp_path: Path) -> Artifact:
    settings.STORAGE_ROOT = tmp_path
    made = Artifact.objects.create(attempt=attempt, name="inference", key="artifacts/a/inference", bytes=1, sha256="")
    (tmp_path / made.key).mkdir(parents=True)
    return made


@pytest.fixture
def url(artifact: Artifact) -> str:
    return f"/jobs/{artifact.attempt.job_id}/try/{artifact.pk}/"


def answered(artifact: Artifact, user: User, text: str = "<b>typed</b>") -> Trial:
    scores = [{"label": f"label {i}", "probability": 0.5 / (i + 1)} for i in range(8)]
    said = {"scores": scores, "tokens": ["[CLS]", "[UNK]", "[SEP]"], "unknown": "[UNK]", "cut": True}
    return Trial.objects.create(
        uid="a" * 32,
        artifact=artifact,
        asked_by=user,
        rows=[{"text": text}],
        state="answered",
        host="gpu-1",
        result={"predictions": [said], "seconds": 0.012, "start_seconds": 6.5},
    )


def test_only_who_may_see_the_job_may_ask(people: People, url: str) -> None:
    for name, status in {"anonymous": 302, "other": 404}.items():
        assert getattr(people, name).post(url, {"text": "a"}).status_code == status
    assert not Trial.objects.exists()
    asked = people.ask(url, "post", {"text": "a"})
    assert asked == {"anonymous": 302, "owner": 302, "other": 404, "staff": 302}
    assert [trial.asked_by.username for trial in Trial.objects.all()] == ["olga", "stella"]


def test_only_who_asked_sees_what_they_typed(people: People, artifact: Artifact, owner: User) -> None:
    trial = answered(artifact, owner)
    page = f"/jobs/{artifact.attempt.job_id}/tried/{trial.pk}/"
    assert people.ask(page) == {"anonymous": 302, "owner": 200, "other": 404, "staff": 404}
    assert people.owner.get(page)["Cache-Control"] == "private, no-store"


def test_whoever_may_no_longer_see_the_job_sees_no_answer(people: People, artifact: Artifact, staff: User) -> None:
    trial = answered(artifact, staff)
    staff.is_staff = False
    staff.save()
    assert people.staff.get(f"/jobs/{artifact.attempt.job_id}/tried/{trial.pk}/").status_code == 404


def test_a_link_or_a_form_without_token_asks_for_nothing(people: People, strict: Client, url: str) -> None:
    assert people.owner.get(url).status_code == 405
    assert strict.post(url, {"text": "a"}).status_code == 403
    assert not Trial.objects.exists()


def test_of_another_job_nothing_can_be_tried(people: People, url: str, artifact: Artifact) -> None:
    assert people.owner.post(url.replace(f"/{artifact.pk}/", "/999/"), {"text": "a"}).status_code == 404
    assert people.owner.post(f"/jobs/999/try/{artifact.pk}/", {"text": "a"}).status_code == 404


def test_the_page_has_a_box_once_there_is_an_export(people: People, attempt: Attempt) -> None:
    page = people.owner.get(f"/jobs/{attempt.job_id}/").content.decode()
    assert "you can ask it here" in page and "<textarea" not in page


def test_what_is_typed_is_asked_line_by_line_and_the_answer_is_awaited(people: People, url: str) -> None:
    said = people.owner.post(url, {"text": " one \r\n\r\ntwo\0"}, **HTMX).content.decode()
    trial = Trial.objects.get()
    assert trial.rows == [{"text": "one"}, {"text": "two"}]
    assert "Looking for a host." in said and 'hx-trigger="every 700ms"' in said
    Trial.objects.update(number=1, host="gpu-1", stage="starting the model")
    page = f"/jobs/{trial.artifact.attempt.job_id}/tried/{trial.pk}/"
    assert (
        "Starting the model on gpu-1; the first time takes about ten seconds."
        in people.owner.get(page, **HTMX).content.decode()
    )
    # Without JavaScript the page looks again by itself.
    assert people.owner.get(page)["Refresh"] == "2"


def test_an_answer_shows_labels_tokens_and_times_and_nothing_of_it_is_markup(
    people: People, artifact: Artifact, owner: User
) -> None:
    trial = answered(artifact, owner)
    said = people.owner.get(f"/jobs/{artifact.attempt.job_id}/tried/{trial.pk}/", **HTMX).content.decode()
    assert "&lt;b&gt;typed&lt;/b&gt;" in said and "<b>" not in said
    assert "label 4" in said and "label 5" not in said and "and 3 less likely labels" in said
    assert "50.0 %" in said and "the text was cut" in said and "1 unknown" in said
    assert "12 ms on gpu-1" in said and "hx-get" not in said


@pytest.mark.parametrize(
    "typed, words",
    [
        (" \n ", "Type a text, or several with a line each."),
        ("a\n" * 17, "These are 17 texts; at most 16 are taken at once."),
        ("\n" + "x" * 2001, "The text in line 2 has 2001 characters; at most 2000 are taken."),
    ],
)
def test_what_is_wrong_with_the_texts_is_said(people: People, url: str, typed: str, words: str) -> None:
    for more in ({}, HTMX):
        answer = people.owner.post(url, {"text": typed}, **more)
        assert answer.status_code == 422 and words in answer.content.decode()
    assert not Trial.objects.exists()


def test_a_deleted_export_is_said_on_the_page_and_to_who_asks(
    people: People, url: str, tmp_path: Path, attempt: Attempt
) -> None:
    (tmp_path / "artifacts/a/inference").rmdir()
    assert "The exported model was deleted." in people.owner.get(f"/jobs/{attempt.job_id}/").content.decode()
    assert "The exported model was deleted." in people.owner.post(url, {"text": "a"}, **HTMX).content.decode()
    Artifact.objects.update(key="../outside")
    assert people.owner.post(url, {"text": "a"}, **HTMX).status_code == 422


def test_a_model_folder_cannot_be_tried(people: People, url: str, artifact: Artifact) -> None:
    Artifact.objects.update(name="model")
    assert "This result cannot be tried here." in people.owner.post(url, {"text": "a"}, **HTMX).content.decode()


def test_only_a_few_questions_of_one_person_wait_at_once(people: People, url: str) -> None:
    for _ in range(trials.MOST_WAITING):
        assert people.owner.post(url, {"text": "a"}, **HTMX).status_code == 200
    assert "3 of your questions still wait" in people.owner.post(url, {"text": "a"}, **HTMX).content.decode()
    assert people.staff.post(url, {"text": "a"}, **HTMX).status_code == 200
    # Those that nobody will answer any more do not count.
    Trial.objects.update(asked_at=timezone.now() - trials.LIMIT - timedelta(seconds=1))
    assert people.owner.post(url, {"text": "a"}, **HTMX).status_code == 200


def test_without_a_controller_the_page_says_so_and_looks_no_more(people: People, url: str) -> None:
    people.owner.post(url, {"text": "a"}, **HTMX)
    Trial.objects.update(asked_at=timezone.now() - trials.OVERDUE - timedelta(seconds=1))
    trial = Trial.objects.get()
    said = people.owner.get(f"/jobs/{trial.artifact.attempt.job_id}/tried/{trial.pk}/", **HTMX).content.decode()
    assert "Nobody answers: the controller does not run." in said and "hx-get" not in said


def test_of_several_exports_the_one_of_the_viewed_attempt_is_asked(artifact: Artifact, attempt: Attempt) -> None:
    job = attempt.job
    later = Attempt.objects.create(
        uid="e" * 32, job=job, number=2, settings={}, status="failed", end_reason="diverged", ended_at=timezone.now()
    )
    assert trials.artifact_of(job, later) == artifact
    own = Artifact.objects.create(attempt=later, name="inference", key="artifacts/b/inference", bytes=1, sha256="")
    assert (trials.artifact_of(job, later), trials.artifact_of(job, attempt)) == (own, artifact)


# --- pictures --------------------------------------------------------------------------------

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")


@pytest.fixture
def of_pictures(artifact: Artifact) -> Artifact:
    Job.objects.update(recipe="image_classification")
    artifact.attempt.job.refresh_from_db()
    return artifact


def chosen(*files: tuple[str, bytes]) -> dict[str, Any]:
    return {"pictures": [SimpleUploadedFile(name, data) for name, data in files]}


def test_chosen_pictures_are_asked_one_by_one_and_shown_to_who_asked_only(
    people: People, url: str, of_pictures: Artifact
) -> None:
    page = people.owner.get(f"/jobs/{of_pictures.attempt.job_id}/").content.decode()
    assert "of 8.0 MiB and 64 million pixels each, 16.0 MiB together" in page
    assert (
        'type="file"' in page and 'hx-encoding="multipart/form-data"' in page and 'id="id_try" name="text"' not in page
    )
    said = people.owner.post(url, chosen(("one.png", PNG), ("two.gif", b"GIF89a...")), **HTMX).content.decode()
    assert "Looking for a host." in said
    trial = Trial.objects.get()
    assert [base64.b64decode(row["picture"]) for row in trial.rows] == [PNG, b"GIF89a..."]
    predictions = [{"scores": [{"label": "cat", "probability": 0.9}], "tokens": [], "unknown": "", "cut": False}] * 2
    Trial.objects.update(state="answered", host="gpu-1", result={"predictions": predictions, "seconds": 0.1})
    answer = f"/jobs/{of_pictures.attempt.job_id}/tried/{trial.pk}/"
    for more in ({}, HTMX):
        said = people.owner.get(answer, **more).content.decode()
        assert f'src="{answer}1/"' in said and "cat" in said and trial.rows[0]["picture"] not in said
    assert people.ask(f"{answer}0/") == {"anonymous": 302, "owner": 200, "other": 404, "staff": 404}
    first = people.owner.get(f"{answer}0/")
    assert (first.content, first["Content-Type"], first["X-Content-Type-Options"]) == (PNG, "image/png", "nosniff")
    assert first["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert first["Cache-Control"] == "private, no-store"
    assert people.owner.get(f"{answer}1/")["Content-Type"] == "image/gif"
    assert people.owner.get(f"{answer}2/").status_code == 404


def test_what_was_read_in_a_picture_is_shown_with_its_confidence(
    people: People, of_pictures: Artifact, owner: User
) -> None:
    said = {"scores": [], "tokens": [], "unknown": "", "cut": False}
    read = [{"text": "<i>17.50", "confidence": 0.987, "cut": True}, {"text": "", "confidence": 0.5}]
    trial = answered(of_pictures, owner)
    trial.rows = [{"picture": base64.b64encode(PNG).decode()}] * 2
    trial.result = {"predictions": [said | one for one in read], "seconds": 0.1}
    trial.save()
    page = people.owner.get(f"/jobs/{of_pictures.attempt.job_id}/tried/{trial.pk}/").content.decode()
    assert "&lt;i&gt;17.50" in page and "<i>17.50" not in page
    assert "98.7 % confidence" in page.replace("\xa0", " ") and "was squeezed" in page
    assert "No text was found in it." in page


def test_labels_that_were_not_answered_are_counted(people: People, artifact: Artifact, owner: User) -> None:
    trial = answered(artifact, owner)
    url = f"/jobs/{artifact.attempt.job_id}/tried/{trial.pk}/"
    assert "and 3 less likely labels" in people.owner.get(url).content.decode()
    trial.result["predictions"][0]["less_likely"] = 9980
    trial.save()
    assert "and 9983 less likely labels" in people.owner.get(url).content.decode().replace(",", "")


@pytest.mark.parametrize(
    "files, words",
    [
        ((), "Choose a picture, or several."),
        ((("a.png", PNG),) * 9, "These are 9 pictures; at most 8 are taken at once."),
        ((("a.svg", b"<svg onload=alert(1)>"),), "“a.svg” is no picture: it must be PNG, JPEG, WebP, BMP or GIF."),
        ((("a.png", PNG + b"\0" * 2**23),), "“a.png” has 8.0 MiB, and at most 8 MiB are taken: make it smaller."),
        (
            (("a.png", PNG + b"\0" * (2**23 - 99)),) * 3,
            "Together the pictures have 24.0 MiB, and at most 16 MiB are taken at once: choose fewer.",
        ),
    ],
)
def test_what_is_wrong_with_the_pictures_is_said(
    people: People, url: str, of_pictures: Artifact, files: tuple[tuple[str, bytes], ...], words: str
) -> None:
    answer = people.owner.post(url, chosen(*files), **HTMX)
    assert answer.status_code == 422 and words in answer.content.decode()
    assert not Trial.objects.exists()


def test_of_texts_there_are_no_pictures(people: People, artifact: Artifact, owner: User) -> None:
    trial = answered(artifact, owner)
    assert people.owner.get(f"/jobs/{artifact.attempt.job_id}/tried/{trial.pk}/0/").status_code == 404


def test_the_page_that_waits_for_an_answer_does_not_read_the_pictures_again(
    people: People, url: str, of_pictures: Artifact
) -> None:
    people.owner.post(url, chosen(("one.png", PNG)), **HTMX)
    trial = Trial.objects.get()
    with CaptureQueriesContext(connection) as queries:
        people.owner.get(f"/jobs/{of_pictures.attempt.job_id}/tried/{trial.pk}/", **HTMX)
    assert not any('"jobs_trial"."rows"' in query["sql"] for query in queries.captured_queries)
