"""Datasets of numeric sequences: described, checked, shown, and offered to the recipe that takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs import datasets, services
from jobs.dataset_forms import FORMS
from jobs.job_file import JobFile
from jobs.models import Dataset, Job
from jobs.picture_forms import PicturesForm
from tests.jobs.views.conftest import People
from tests.jobs.views.test_datasets import READING, begin, send, storage  # noqa: F401 (storage is a fixture)
from workers.contract.datasets import PICTURE_KINDS, Kind, Reading
from workers.contract.messages import Request
from workers.datasets.checking import Source, check
from workers.recipes.sequences.first_batch import first_batch

STEPS = b"account,day,amount,gap,label\n" + b"".join(
    b"a%d,%d,%d.5,%d,%s\n" % (i, t, 10 * i + t, t, b"bad" if i % 3 == 0 else b"good")
    for i in range(20)
    for t in range(4)
)
DESCRIBED = READING | {
    "kind": "sequences", "layout": "steps", "id_column": "account", "order_column": "day", "features": "amount, gap",
    "target": "label", "target_column": "label",
}  # fmt: skip


@pytest.fixture
def sequences(owner: User, tmp_path: Path) -> Dataset:
    file = tmp_path / "accounts.csv"
    file.write_bytes(STEPS)
    how = {
        "layout": "steps",
        "id_column": "account",
        "features": ["amount", "gap"],
        "target": "label",
        "target_column": "label",
    }
    dataset, _ = datasets.register(
        file, name="accounts", owner=owner, kind="sequences", sequences=how, dev_fraction=0.2, baseline=False
    )
    return dataset


def test_a_file_of_time_steps_is_recognised_and_its_description_can_be_changed(people: People) -> None:
    send(people.owner, begin(people.owner, body=STEPS).json()["uploads"][0], STEPS)
    dataset = Dataset.objects.get()
    assert dataset.kind == "texts", "account is not a name that is known"
    url = f"/datasets/{dataset.pk}/describe/"
    assert 'name="text_column"' in people.owner.get(url).text
    other = people.owner.post(url, READING | {"kind": "sequences", "preview": "1"}).text
    assert 'name="features"' in other and 'name="text_column"' not in other
    for wrong, field in (
        ({"features": "amount, much"}, "There is no column “much”"),
        ({"id_column": ""}, "a column must say of which sequence it is"),
        ({"target_column": ""}, "Choose the column that has it"),
        ({"window": "40"}, "Windows have no target of their own"),
        ({"window": "1", "target": "none"}, "A window needs two time steps"),
        ({"features": "amount, label"}, "“label” cannot be a feature"),
    ):
        answer = people.owner.post(url, DESCRIBED | wrong)
        assert answer.status_code == 422 and field in answer.text
    assert people.owner.post(url, DESCRIBED).status_code == 302
    dataset.refresh_from_db()
    assert (dataset.state, dataset.kind) == ("checking", "sequences")
    how = Reading.model_validate(dataset.reading).sequences
    assert how.features == ["amount", "gap"] and how.order_column == "day" and how.window == 0


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("texts", "Of each label,"),
        ("numbers", "Of all rows,"),
        ("tokens", "Of the rows with entities and of those without,"),
        ("sequences", "Of the sequences, or of those of each label,"),
        ("images", "Of each label,"),
        ("lines", "Of all lines,"),
    ],
)
def test_the_form_says_of_each_kind_what_the_share_for_evaluation_is_of(kind: Kind, share: str) -> None:
    reading = Reading(kind=kind)
    form = (
        PicturesForm(None, lists=[], texts=[], reading=reading)
        if kind in PICTURE_KINDS
        else FORMS[kind](None, columns=["a", "b"], reading=reading)
    )
    assert str(form["dev_fraction"].help_text).startswith(share)


def test_a_series_without_a_sequence_column_is_cut_into_windows(people: People) -> None:
    send(people.owner, begin(people.owner, body=STEPS).json()["uploads"][0], STEPS)
    dataset = Dataset.objects.get()
    form = {**DESCRIBED, "id_column": "", "target": "none", "window": "10", "stride": "5"}
    assert people.owner.post(f"/datasets/{dataset.pk}/describe/", form).status_code == 302
    dataset.refresh_from_db()
    how = Reading.model_validate(dataset.reading).sequences
    assert (how.id_column, how.window, how.stride) == ("", 10, 5)


def test_known_names_are_guessed_and_many_columns_are_written_short(people: People) -> None:
    body = b"id," + b",".join(b"x%d" % i for i in range(1, 41)) + b",target\n" + b"a," + b"1," * 40 + b"2\n"
    send(people.owner, begin(people.owner, body=body).json()["uploads"][0], body)
    dataset = Dataset.objects.get()
    assert dataset.kind == "sequences"
    page = people.owner.get(f"/datasets/{dataset.pk}/describe/").text
    assert 'value="x1..x40"' in page
    answer = people.owner.post(
        f"/datasets/{dataset.pk}/describe/",
        DESCRIBED
        | {
            "layout": "columns",
            "features": "x1..x40",
            "id_column": "id",
            "target": "number",
            "target_column": "target",
            "order_column": "",
        },
    )
    assert answer.status_code == 302
    dataset.refresh_from_db()
    assert len(Reading.model_validate(dataset.reading).sequences.features) == 40


def test_the_page_shows_values_lengths_and_what_the_model_sees(people: People, sequences: Dataset) -> None:
    from django.conf import settings

    sequences.statistics["first_batch"] = first_batch(settings.STORAGE_ROOT / sequences.key)
    sequences.statistics["baselines"] = {"classification/majority": 0.65, "next_value/last_value": 1.25}
    sequences.save()
    page = people.owner.get(f"/datasets/{sequences.pk}/").text
    assert page.count("<polyline") == 2 * 16
    for text in (
        "Sequences of train",
        "Time steps per sequence",
        "numeric sequences",
        "65",
        "Next value: the same as the last",
    ):
        assert text in page
    assert people.other.get(f"/datasets/{sequences.pk}/").status_code == 404


def test_a_recipe_is_offered_what_it_takes_and_told_why_not_the_rest(
    people: People, sequences: Dataset, dataset: Dataset
) -> None:
    page = people.owner.get("/jobs/new/?recipe=sequences").text
    assert f'<option value="{sequences.pk}"' in page and f'<option value="{dataset.pk}"' not in page
    assert "reviews (texts with labels)" in " ".join(page.split())
    # A dataset brings its recipe along.
    by_dataset = people.owner.get(f"/jobs/new/?dataset={sequences.pk}").text
    assert '<input type="hidden" name="recipe" value="sequences">' in by_dataset
    with pytest.raises(services.Refused, match="this recipe takes texts with labels"):
        JobFile("x", "text_classification", sequences.pk).submit(owner=sequences.owner)


def test_weights_of_sequences_are_described_and_a_job_begins_with_them(people: People, tmp_path: Path) -> None:
    body = b"".join(line + (b",sure\n" if i == 0 else b",0.5\n") for i, line in enumerate(STEPS.splitlines()))
    send(people.owner, begin(people.owner, body=body).json()["uploads"][0], body)
    dataset = Dataset.objects.get()
    url = f"/datasets/{dataset.pk}/describe/"
    form = DESCRIBED | {"weight_column": "sure"}
    preview = people.owner.post(url, form | {"preview": "1"}).text
    assert '>sure <span class="badge starting">weight</span>' in preview
    wrong = people.owner.post(url, form | {"features": "amount, sure"})
    assert wrong.status_code == 422 and "“sure” cannot be a feature" in wrong.text
    assert people.owner.post(url, form).status_code == 302
    dataset.refresh_from_db()
    outcome = check(
        [Source(tmp_path / "storage" / dataset.source["files"][0]["key"], "accounts.csv")],
        Reading.model_validate(dataset.reading), tmp_path, tmp_path, lambda *_: None,
    )  # fmt: skip
    assert outcome.fit and outcome.columns == ["amount", "gap", "label", "weight"]
    dataset.columns, dataset.splits, dataset.statistics = outcome.columns, outcome.splits, outcome.statistics
    dataset.state, dataset.key, dataset.content_hash = Dataset.State.READY, "datasets/accounts", outcome.content_hash
    dataset.labels = outcome.labels
    dataset.save()
    page = people.owner.get(f"/jobs/new/?dataset={dataset.pk}&mode=full").text
    assert 'name="data.weight_column" value="weight"' in page
    data = {"goal": "classification", "weight_column": "weight"}
    JobFile("x", "sequences", dataset.pk, settings={"data": data, "training": {"batch_size": 4}}).submit(
        owner=dataset.owner
    )
    with pytest.raises(services.Refused, match="has no column “sure”"):
        JobFile("x", "sequences", dataset.pk, settings={"data": data | {"weight_column": "sure"}}).submit(
            owner=dataset.owner
        )


def test_a_job_on_sequences_is_submitted_from_the_form_and_from_a_file(people: People, sequences: Dataset) -> None:
    data = {
        "recipe": "sequences",
        "name": "accounts",
        "dataset": sequences.pk,
        "data.goal": "classification",
        "training.batch_size": "4",
    }
    answer = people.owner.post("/jobs/new/", data | {"do": "fill", "preset": "recurrent"}).text
    assert 'name="clipping.max_norm" value="5"' in answer and 'name="model.linear_steps" value="8"' in answer
    answer = people.owner.post("/jobs/new/", data | {"do": "submit", "preset": "recurrent"})
    job = Job.objects.get()
    assert (job.recipe, job.dataset, job.newest.settings["data"]["goal"]) == ("sequences", sequences, "classification")
    assert job.newest.settings["optimizer"]["learning_rate"] == 3e-3
    text = people.owner.get(f"/jobs/{job.pk}/yaml/").content
    again = JobFile.parse(text).submit(owner=sequences.owner)
    assert again.newest.settings == job.newest.settings
    assert people.owner.get(f"/jobs/new/?clone={job.pk}").status_code == 200
    assert people.owner.get(f"/jobs/{job.pk}/").status_code == 200
    services.ask_to_leave(job, Request.CANCEL, actor=None)
    retry = people.owner.get(f"/jobs/{job.pk}/retry/").text
    assert 'name="model.cell"' in retry and 'name="data.goal"' in retry
    changed = data | {"preview": "1", "clipping.max_norm": "1", "optimizer.learning_rate": "0.0005"}
    assert people.owner.post(f"/jobs/{job.pk}/retry/", changed).status_code == 200
    assert people.owner.get(f"/jobs/new/?from={job.pk}").status_code == 200


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"data": {"goal": "regression"}}, "each sequence needs a number as its target"),
        (
            {"data": {"goal": "classification", "features": "amount, much"}},
            "has no feature “much”; it has: amount, gap",
        ),
        (
            {"data": {"goal": "next_value", "features": "gap", "next_of": "amount"}},
            "is to be predicted, but it is not among",
        ),
    ],
)
def test_what_does_not_fit_the_dataset_is_said_at_submission(
    sequences: Dataset, given: dict[str, Any], text: str
) -> None:
    settings = given | {"training": {"batch_size": 4}}
    with pytest.raises(services.Refused, match=text):
        JobFile("x", "sequences", sequences.pk, settings=settings).submit(owner=sequences.owner)


def test_json_of_a_sequence_is_what_a_job_reads(sequences: Dataset) -> None:
    from django.conf import settings

    lines = (settings.STORAGE_ROOT / sequences.key / "train.jsonl").read_text().splitlines()
    assert set(json.loads(lines[0])) == {"id", "features", "label"}
