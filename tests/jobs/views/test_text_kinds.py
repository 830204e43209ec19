"""Datasets of pairs of texts, and of texts with numbers: described, shown, and offered to the recipe that takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs import baselines, datasets, services
from jobs.job_file import JobFile
from jobs.models import Dataset, Job
from tests.jobs.views.conftest import People
from tests.jobs.views.test_datasets import READING, begin, send, storage  # noqa: F401 (storage is a fixture)
from workers.contract.datasets import Reading

PAIRS = b"sentence1,sentence2,score\n" + b"".join(b"how %d,what %d,%d\n" % (i, i % 9, i % 5) for i in range(40))
DESCRIBED = READING | {"text_column": "sentence1", "text_b_column": "sentence2", "label_column": "score"}


def test_pairs_are_recognised_and_each_text_has_a_column_of_its_own(people: People) -> None:
    send(people.owner, begin(people.owner, body=PAIRS).json()["uploads"][0], PAIRS)
    dataset = Dataset.objects.get()
    url = f"/datasets/{dataset.pk}/describe/"
    page = people.owner.get(url).text
    assert '<option value="sentence2" selected>' in page and "second text" in page
    for wrong, field in (
        ({"text_b_column": "sentence1"}, "The second text needs a column of its own"),
        ({"label_column": "sentence1"}, "The label cannot be in the column of the text"),
    ):
        answer = people.owner.post(url, DESCRIBED | wrong)
        assert answer.status_code == 422 and field in answer.text
    assert people.owner.post(url, DESCRIBED).status_code == 302
    dataset.refresh_from_db()
    reading = Reading.model_validate(dataset.reading)
    assert (dataset.kind, reading.text_column, reading.text_b_column) == ("texts", "sentence1", "sentence2")


def test_the_same_file_can_be_texts_with_numbers(people: People) -> None:
    send(people.owner, begin(people.owner, body=PAIRS).json()["uploads"][0], PAIRS)
    dataset = Dataset.objects.get()
    url = f"/datasets/{dataset.pk}/describe/"
    page = people.owner.post(url, DESCRIBED | {"kind": "numbers", "preview": "1"}).text
    assert "Number column" in page and 'name="weight_column"' in page and "Label set" not in page
    assert people.owner.post(url, DESCRIBED | {"kind": "numbers", "weight_column": "score"}).status_code == 302
    dataset.refresh_from_db()
    assert (dataset.state, dataset.kind, dataset.reading["label_column"]) == ("checking", "numbers", "score")
    assert dataset.reading["weight_column"] == "score"


@pytest.fixture
def scores(owner: User, tmp_path: Path) -> Dataset:
    file = tmp_path / "scores.csv"
    file.write_bytes(PAIRS)
    columns: dict[str, Any] = {"text_column": "sentence1", "text_b_column": "sentence2", "label_column": "score"}
    dataset, _ = datasets.register(file, name="scores", owner=owner, kind="numbers", baseline=False, **columns)
    return dataset


def test_the_page_of_texts_with_numbers_shows_their_spread_and_what_has_to_be_beaten(
    people: People, scores: Dataset
) -> None:
    scores.statistics["baselines"]["number/ridge_on_characters"] = 0.75
    scores.save()
    page = people.owner.get(f"/datasets/{scores.pk}/").text
    for text in (
        "texts with numbers",
        "The numbers",
        "Always the median number",
        "Linear regression on single characters",
    ):
        assert text in page
    assert "|||" in page and "sentence1 + sentence2 → score" in page
    assert people.other.get(f"/datasets/{scores.pk}/").status_code == 404
    assert baselines.for_goal(scores, "") == {
        "median": scores.statistics["baselines"]["number/median"], "ridge_on_characters": 0.75,
    }  # fmt: skip


def test_a_job_on_texts_with_numbers_is_submitted_from_the_form_and_from_a_file(
    people: People, scores: Dataset, dataset: Dataset
) -> None:
    page = people.owner.get("/jobs/new/?recipe=text_regression").text
    assert f'<option value="{scores.pk}"' in page and f'<option value="{dataset.pk}"' not in page
    by_dataset = people.owner.get(f"/jobs/new/?dataset={scores.pk}").text
    assert '<input type="hidden" name="recipe" value="text_regression">' in by_dataset
    with pytest.raises(services.Refused):
        JobFile("x", "text_classification", scores.pk).submit(owner=scores.owner)
    job = JobFile("x", "text_regression", scores.pk, anyway=True).submit(owner=scores.owner)
    assert isinstance(job, Job) and job.newest.settings["data"]["text_b_column"] == "text_b"
