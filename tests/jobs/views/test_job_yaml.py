from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from jobs.job_file import MOST_BYTES, JobFile
from jobs.models import Dataset, Job
from tests.jobs.views.conftest import MINE, People
from tests.jobs.views.test_job_new import filled
from workers.recipes.registry import recipe

URL = "/jobs/new/import/"
GOOD = "name: mine\ndataset: reviews\nsettings:\n  training:\n    epochs: 7\n  optimizer:\n    learning_rate: 3e-5\n"


def test_one_must_log_in(client: Client, db: None) -> None:
    assert client.get(URL).status_code == client.post(URL, {"text": GOOD}).status_code == 302


def test_only_those_who_see_a_job_get_its_file(people: People, job: Job) -> None:
    assert people.ask(f"/jobs/{job.pk}/yaml/") == MINE


def test_a_file_fills_the_form_and_submits_nothing(people: People, dataset: Dataset) -> None:
    pasted = people.owner.post(URL, {"text": GOOD})
    uploaded = people.owner.post(URL, {"file": SimpleUploadedFile("job.yaml", GOOD.encode())})
    for answer in (pasted, uploaded):
        assert answer.status_code == 200 and not Job.objects.exists()
        assert answer.context["given"] == {"name": "mine", "dataset": dataset.pk, "tags": ""}
        form = answer.context["form"]
        assert form.field("training.epochs").value == "7"
        assert form.field("optimizer.learning_rate").value == "3e-5"
        assert [item.name for item in form.changes] == ["training.epochs", "optimizer.learning_rate"]


def test_what_was_exported_is_imported_as_the_same_job(people: People, dataset: Dataset) -> None:
    Dataset.objects.filter(pk=dataset.pk).update(columns=["text", "label", "重量"])
    people.owner.post(
        "/jobs/new/", filled(dataset, clipping__max_norm="", optimizer__epsilon="1e-7", data__weight_column="重量")
    )
    job = Job.objects.get()
    assert job.newest is not None
    exported = people.owner.get(f"/jobs/{job.pk}/yaml/")
    assert exported["Content-Disposition"] == f'attachment; filename="job-{job.pk}-1-my-job.yaml"'
    form = people.owner.post(URL, {"text": exported.text}).context["form"]
    assert form.is_valid() and form.settings == job.newest.settings
    file = JobFile.parse(exported.content)
    assert (file.name, file.dataset, file.settings) == ("my job", dataset.pk, job.newest.settings)


def test_the_form_saves_the_same_file(people: People, dataset: Dataset) -> None:
    answer = people.owner.post("/jobs/new/", filled(dataset, name="评论 1") | {"do": "yaml"})
    assert answer["Content-Disposition"] == 'attachment; filename="1.yaml"'
    file = JobFile.parse(answer.content)
    assert file.name == "评论 1"
    assert file.settings == recipe("text_classification").settings().model_dump(mode="json")
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Choose a file, or paste its text."),
        ("name: [", "Line 1 is not YAML"),
        ("just words", "A job has the keys"),
        ("name: x\ncolour: red\n", "Line 2: There is no such key"),
        ("name: x\nname: y\n", "Line 2 is not YAML: “name” stands here twice."),
        (GOOD.replace("epochs: 7", "epochs: many"), "Line 5: Must be a whole number, not “many”."),
        (GOOD.replace("epochs: 7", "epoch: 7"), "Line 5: There is no such setting."),
        (GOOD.replace("reviews", "others"), "Line 2: There is no dataset “others”"),
        (GOOD + "recipe: cooking\n", "Line 8: There is no recipe “cooking”"),
        ("name: x\nsettings: &a {b: &b [1]}\ndataset: *a\n", "aliases (*) are not allowed"),
        ("name: " + "[" * 40 + "]" * 40, "more than 12 levels within one another"),
        ("name: !!python/object/apply:os.system [id]", "is not YAML"),
        ("name: 2026-13-45\n", "is not YAML"),
        ("name: x\n" + "#" * MOST_BYTES, "A job file has at most 64 KiB."),
        ("name: \x00", "not YAML"),
        ('recipe: x\nname: "a\\ud800"\n', "Line 2: Must not contain control characters."),
        ('name: x\n"\\0": x\n', "Line 2: Must not contain control characters."),
    ],
)
def test_a_bad_file_is_refused_with_its_lines_and_stays_to_be_mended(
    people: People, dataset: Dataset, text: str, said: str
) -> None:
    answer = people.owner.post(URL, {"text": text})
    assert answer.status_code == 422 and not Job.objects.exists()
    assert said in answer.text
    if text and "&" not in text and len(text) < 1000:
        assert text.strip().splitlines()[0] in answer.text


def test_bytes_that_are_no_text_are_refused_by_line(people: People, dataset: Dataset) -> None:
    answer = people.owner.post(URL, {"file": SimpleUploadedFile("job.yaml", b"name: x\n# \xff\xfe\n")})
    assert answer.status_code == 422 and "Line 2 is not UTF-8." in answer.text


def test_a_bomb_of_aliases_is_refused_before_it_grows(people: People, dataset: Dataset) -> None:
    levels = ["a: &a [x, x]"] + [
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    answer = people.owner.post(URL, {"text": "\n".join(levels)})
    assert answer.status_code == 422 and "Line 2 is not YAML: aliases" in answer.text


def test_datasets_of_others_are_not_there(people: People, dataset: Dataset) -> None:
    assert "There is no dataset “reviews” for oskar" in people.other.post(URL, {"text": GOOD}).text


def test_an_import_without_token_does_nothing(strict: Client) -> None:
    assert strict.post(URL, {"text": GOOD}).status_code == 403


def test_the_file_of_an_older_attempt_has_its_settings(people: People, job: Job, attempt: Any) -> None:
    assert "epochs: 3" in people.owner.get(f"/jobs/{job.pk}/yaml/?attempt=1").text
    assert people.owner.get(f"/jobs/{job.pk}/yaml/?attempt=2").status_code == 404
