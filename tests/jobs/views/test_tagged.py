"""Datasets of tokens with tags, jobs on them, and their spans on pages."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command

from jobs import baselines, datasets, services, spans
from jobs.controller.reports import _row
from jobs.job_file import JobFile
from jobs.models import Artifact, Dataset, Evaluation, Trial, WorstRows
from jobs.templatetags.spans import spans as drawn
from tests.jobs.views.conftest import People
from tests.jobs.views.test_datasets import READING, begin, send, storage  # noqa: F401 (storage is a fixture)
from workers.contract.datasets import Reading
from workers.contract.trials import Prediction

CONLL = "".join(f"李 B-PER\n四 I-PER\n{i} O\n在 O\n北 B-LOC\n京 I-LOC\n\n" for i in range(60)).encode()
DESCRIBED = {
    **READING, "kind": "tokens", "format": "conll", "delimiter": "space", "rows_have": "lists", "scheme": "bio",
    "tokens_column": "1", "tags_column": "2", "split_column": "",
}  # fmt: skip


def upload(people: People, body: bytes = CONLL, name: str = "names.conll") -> tuple[Dataset, str]:
    send(people.owner, begin(people.owner, body=body, file=name).json()["uploads"][0], body)
    dataset = Dataset.objects.get()
    return dataset, f"/datasets/{dataset.pk}/describe/"


def test_conll_is_recognised_previewed_and_described(people: People) -> None:
    dataset, url = upload(people)
    page = people.owner.get(url).text
    for text in (
        '<option value="tokens" selected>',
        '<option value="conll" selected>',
        '<option value="space" selected>',
        '<option value="bio" selected>',
        '<option value="2" selected>',
        "李 四 0 在 北 京",
        "B-PER I-PER O O B-LOC I-LOC",
    ):
        assert text in page
    assert 'name="weight_column"' not in page, "a column of CoNLL has something for each token"
    assert people.owner.post(url, {**DESCRIBED, "weight_column": "1", "preview": "1"}).status_code == 200
    assert "The tags cannot be in the column" in people.owner.post(url, {**DESCRIBED, "tags_column": "1"}).text
    assert people.owner.post(url, DESCRIBED).status_code == 302
    dataset.refresh_from_db()
    reading = Reading.model_validate(dataset.reading)
    assert (dataset.state, dataset.kind, reading.format, reading.delimiter) == ("checking", "tokens", "conll", " ")
    assert (reading.tagging.tokens_column, reading.tagging.tags_column) == ("1", "2")


def test_weights_of_conll_are_offered_where_comments_have_them(people: People) -> None:
    dataset, url = upload(people, CONLL.replace("李".encode(), "# weight = 2\n李".encode()))
    page = people.owner.get(url).text
    weights = page[page.index('name="weight_column"') :]
    assert re.findall('<option value="([^"]*)"', weights[: weights.index("</select>")]) == ["", "weight"]
    assert '<option value="2" selected>' in page and '<option value="weight" selected>' not in page
    assert people.owner.post(url, {**DESCRIBED, "tags_column": "weight"}).status_code == 302
    dataset.refresh_from_db()
    assert dataset.reading["tagging"]["tags_column"] == "2" and dataset.reading["weight_column"] == ""
    Dataset.objects.update(state=Dataset.State.MAPPING)
    assert people.owner.post(url, {**DESCRIBED, "weight_column": "weight"}).status_code == 302
    dataset.refresh_from_db()
    assert dataset.reading["weight_column"] == "weight"


def test_columns_are_guessed_anew_when_the_kind_or_the_format_changes(people: People) -> None:
    _dataset, url = upload(people, name="names.txt")
    as_texts = people.owner.post(url, {**READING, "kind": "texts", "format": "conll", "preview": "1"}).text
    assert '<option value="table" selected>' in as_texts and "Text column" in as_texts
    as_tokens = people.owner.post(url, {**READING, "kind": "tokens", "format": "conll", "preview": "1"}).text
    assert '<option value="2" selected>' in as_tokens and "Scheme of the tags" in as_tokens


def test_entities_by_their_places_are_recognised(people: People) -> None:
    body = b'{"text": "Ann ran", "entities": [{"start": 0, "end": 3, "label": "PER"}]}\n'
    dataset, url = upload(people, body, "x.jsonl")
    page = people.owner.get(url).text
    assert '<option value="spans" selected>' in page and 'name="weight_column"' in page
    form = {**DESCRIBED, "format": "jsonl", "rows_have": "spans", "tokens_column": "text", "tags_column": "entities"}
    assert people.owner.post(url, form).status_code == 302
    dataset.refresh_from_db()
    assert dataset.reading["tagging"]["layout"] == "spans"


@pytest.fixture
def tagged(owner: User, tmp_path: Path) -> Dataset:
    file = tmp_path / "names.conll"
    file.write_bytes(CONLL)
    dataset, _ = datasets.register(file, name="names", owner=owner, kind="tokens", baseline=False)
    return dataset


def test_the_page_shows_entities_in_the_rows_tags_and_what_has_to_be_beaten(people: People, tagged: Dataset) -> None:
    tagged.statistics["baselines"] = {"entities/most_frequent_tag": 0.625}
    tagged.statistics["first_batch"] = {
        "rows": [{"row": 1, "pieces": [["[CLS]", ""], ["李", "B-PER"]], "count": 2, "labelled": 1, "cut": False}],
        "batch": 1, "vocabulary": 9, "max_length": 8, "padded_to": 2, "labelled": 1, "cut_share": 0.25, "mean_tokens": 2,
    }  # fmt: skip
    tagged.save()
    page = people.owner.get(f"/datasets/{tagged.pk}/").text
    for text in (
        '<mark class="span c2">李四<small>PER</small></mark>',
        '<mark class="span c1">北京<small>LOC</small></mark>',
        "Entities per type",
        "Each token&#x27;s most frequent tag",
        "62.5 %",
        "F1 of entities",
        '<span class="token">李<small>B-PER</small></span>',
    ):
        assert text in page
    assert people.other.get(f"/datasets/{tagged.pk}/").status_code == 404
    assert baselines.for_goal(tagged, "") == {"most_frequent_tag": 0.625}


def test_a_job_on_tags_is_submitted_from_the_form_and_from_a_file(people: People, tagged: Dataset) -> None:
    page = people.owner.get(f"/jobs/new/?dataset={tagged.pk}").text
    assert '<input type="hidden" name="recipe" value="token_classification">' in page
    with pytest.raises(services.Refused):
        JobFile("x", "text_classification", tagged.pk).submit(owner=tagged.owner)
    job = JobFile("x", "token_classification", tagged.pk, anyway=True).submit(owner=tagged.owner)
    attempt = job.newest
    metrics = {
        "loss": 0.5, "f1": 0.75, "accuracy": 0.9, "rows": 3, "labels": ["O", "PER"], "confusion": [[5, 1], [0, 2]],
        "entities": {"PER": {"precision": 0.7, "recall": None, "f1": 0.75, "support": 2}},
    }  # fmt: skip
    Evaluation.objects.create(attempt=attempt, step=5, applied=5, epoch=0, metrics=metrics, best=True, seconds=1)
    row = {"row": 3, "loss": 1.5, "wrong": 2, "tagged": [["李四", "PER"], ["<在>", ""]], "said": [["李四<在>", ""]]}
    WorstRows.objects.create(attempt=attempt, step=5, dev_rows=3, rows=[row])
    page = people.owner.get(f"/jobs/{job.pk}/").text
    assert "An entity is right if" in page and "75.0 %" in page and "Precision" in page
    assert "&lt;在&gt;" in page and '<mark class="span c2">李四<small>PER</small></mark>' in page
    assert "Spans of the model" in page
    assert people.other.get(f"/jobs/{job.pk}/worst/").status_code == 404


def test_what_was_tried_is_shown_with_its_entities_to_who_asked_only(
    people: People, tagged: Dataset, owner: User
) -> None:
    job = JobFile("x", "token_classification", tagged.pk, anyway=True).submit(owner=owner)
    artifact = Artifact.objects.create(attempt=job.newest, name="inference", key="artifacts/a", bytes=1, sha256="")
    (settings.STORAGE_ROOT / artifact.key).mkdir(parents=True)
    found = [{"start": 0, "end": 2, "label": "PER", "probability": 0.5}]
    said = {"tokens": ["[CLS]", "李", "[SEP]"], "unknown": "[UNK]", "cut": True}
    predictions = [Prediction(spans=spans, **said).model_dump() for spans in (found, [])]
    trial = Trial.objects.create(
        uid="a" * 32, artifact=artifact, asked_by=owner, rows=[{"text": "李四<在>"}, {"text": "在"}], state="answered",
        result={"predictions": predictions, "seconds": 0.1},
    )  # fmt: skip
    url = f"/jobs/{job.pk}/tried/{trial.pk}/"
    page = people.owner.get(url).text
    for text in (
        '<mark class="span c2">李四<small>PER</small></mark>&lt;在&gt;',
        "50.0 %",
        "Nothing was found in it.",
        "the text was cut",
    ):
        assert text in page
    assert people.other.get(url).status_code == people.staff.get(url).status_code == 404
    with pytest.raises(ValueError, match="either scores"):
        Prediction(spans=[], value=1.0)


def test_reports_keep_texts_with_spans_and_nothing_else_that_is_a_list() -> None:
    row = _row(
        {"row": 1, "loss": 0.5, "tagged": [["a", "X"], ["b", ""]], "bad": [["a", 1]], "long": [["x" * 20_000, ""]]}
    )
    assert set(row) == {"row", "loss", "tagged"}


def test_places_in_a_text_become_parts_and_what_makes_no_sense_is_left_out() -> None:
    found = [
        {"start": 3, "end": 5, "label": "B"}, {"start": 0, "end": 2, "label": "A"},
        {"start": 4, "end": 9, "label": "C"}, {"start": 6, "end": 99, "label": "D"},
    ]  # fmt: skip
    assert spans.parts_of("abcdefgh", found) == [["ab", "A"], ["c", ""], ["de", "B"], ["fgh", ""]]
    assert spans.parts_of("", []) == []
    assert spans.kinds(["O", "B-X", "I-X", "B-A"]) == ["A", "X"] and spans.kinds(["NN", "O"]) == ["NN"]
    assert drawn([["<b>", ""], ["x", "A"]], ["A"]) == '&lt;b&gt;<mark class="span c1">x<small>A</small></mark>'


def test_a_command_registers_tags_and_does_not_count_labels_of_numbers(owner: User, tmp_path: Path) -> None:
    (tmp_path / "names.conll").write_bytes(CONLL)
    said = io.StringIO()
    options = {"name": "n", "shared": True, "no_baseline": True, "stdout": said}
    call_command("register_dataset", tmp_path / "names.conll", kind="tokens", tags_column="2", **options)
    assert "54 train, 6 dev rows, 5 tags" in said.getvalue()
    scores = [json.dumps({"text": f"text {i}", "label": i}) + "\n" for i in range(20)]
    (tmp_path / "scores.jsonl").write_text("".join(scores))
    call_command("register_dataset", tmp_path / "scores.jsonl", kind="numbers", **{**options, "name": "m"})
    assert "18 train, 2 dev rows." in said.getvalue()
