"""The results section: verdict, confusion, the worst dev rows; and who may see what of it."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import services
from jobs.fit import Word
from jobs.models import Attempt, Checkpoint, Dataset, Evaluation, Job, WorstRows
from tests.browser import seed
from tests.jobs.views.conftest import MINE, People
from workers.contract.states import EndReason


@pytest.fixture
def running(job: Job) -> Attempt:
    return seed.start(job)


def _part(people: People, job: Job, part: str = "evaluations", **query: Any) -> Any:
    return people.owner.get(f"/jobs/{job.pk}/", {"part": part, **query})


def test_an_overfitting_run_says_since_when_what_is_best_and_what_to_do(people: People, job: Job) -> None:
    seed.succeed(job)
    page = _part(people, job)
    verdict = page.context["verdict"]
    assert verdict.word is Word.OVERFITTING and (verdict.since, verdict.best.step) == (860, 735)
    assert "Since step 860" in page.text and "The best weights are those of step 735" in page.text
    assert "accuracy is 0.834 on training rows and 0.7902 on dev: a gap of 4.4 points" in page.text
    assert "Raise dropout (now 0.1)" in page.text and "early stopping" in page.text
    # The numbers by which it was judged.
    assert "worse by 0.01 or 3 %" in page.text and "better by 0.1 or 25 %" in page.text


def test_states_without_an_evaluation_are_told_apart(people: People, job: Job, attempt: Attempt) -> None:
    assert "once training has begun" in _part(people, job).text
    running = seed.start(job)
    assert "The first evaluation comes after 490 applied steps." in _part(people, job).text
    seed.end(running, EndReason.NON_FINITE)
    assert "ended before its first evaluation" in _part(people, job).text


def test_nan_in_an_evaluation_is_the_verdict_and_is_drawn(people: People, job: Job, running: Attempt) -> None:
    seed.evaluate(running, 100, 0.7, 0.5, best=True)
    one = seed.evaluate(running, 200, 0.5, 0.5)
    Evaluation.objects.filter(pk=one.pk).update(metrics={"accuracy": 0.5, "loss": "nan", "train": {"loss": "inf"}})
    page = _part(people, job)
    assert page.context["verdict"].word is Word.NOT_FINITE and "Since step 200" in page.text
    chart = page.context["evaluation_chart"]
    assert chart["dev_loss"] == [0.5, "nan"] and chart["train_loss"] == [None, "inf"] and chart["best"] == 100


def test_a_run_that_goes_on_is_judged_with_what_came_before(people: People, job: Job, running: Attempt) -> None:
    for step, accuracy in ((100, 0.7), (200, 0.75), (300, 0.9)):
        seed.evaluate(running, step, accuracy, 0.5, best=True, train=(accuracy, 0.5))
    checkpoint = Checkpoint.objects.create(attempt=running, step=250, applied=250, key="k", bytes=1, good=True)
    seed.end(running, EndReason.PAUSED)
    from jobs import services

    services.resume(job, actor=job.owner)
    job.refresh_from_db()
    assert job.newest is not None and job.newest.start_from == checkpoint
    seed.evaluate(job.newest, 400, 0.8, 0.4, best=True, train=(0.82, 0.4))
    page = _part(people, job)
    # Step 300 lies behind the checkpoint: it was undone.
    assert page.context["evaluation_chart"]["step"] == [100, 200, 400]
    assert page.context["verdict"].word is Word.IMPROVING
    assert [row["evaluation"].step for row in page.context["evaluations"]] == [400]


def test_a_metric_of_which_less_is_better_is_the_recipes_to_declare(people: People, job: Job, running: Attempt) -> None:
    Attempt.objects.filter(pk=running.pk).update(
        plan=running.plan | {"best_by": "mae", "lower_is_better": True, "baselines": {"median": 12.5}}
    )
    for number, (dev, train) in enumerate(((20.0, 19.0), (15.0, 13.0), (12.0, 9.0), (13.0, 5.0), (14.0, 2.0)), 1):
        metrics = {"loss": dev**2, "mae": dev, "train": {"loss": train**2, "mae": train}}
        Evaluation.objects.create(
            attempt=running, step=number, applied=number, epoch=0, metrics=metrics, seconds=1, best=number == 3
        )
    page = _part(people, job)
    assert page.context["verdict"].word is Word.OVERFITTING and page.context["main_metric"] == "mae"
    assert "training rows do 25.0 % better" in page.text and "Always the median" in page.text
    assert "not beaten" not in page.text


# --- confusion -------------------------------------------------------------------------------


def test_only_the_owner_and_staff_see_the_confusion(people: People, job: Job) -> None:
    seed.succeed(job)
    assert people.ask(f"/jobs/{job.pk}/confusion/") == MINE


def test_confusion_is_of_the_best_evaluation_or_any_chosen_one(people: People, job: Job) -> None:
    seed.succeed(job)
    page = people.owner.get(f"/jobs/{job.pk}/confusion/", headers={"HX-Request": "true"})
    assert page.context["confusion_of"].step == 735 and "<html" not in page.text
    assert 'class="t8 right"' in page.text and 'class="t3"' in page.text and "style=" not in page.text
    assert "79.0 %" in page.text
    chosen = people.owner.get(f"/jobs/{job.pk}/confusion/", {"evaluation": "490"})
    assert chosen.context["confusion_of"].step == 490 and "<html" in chosen.text


def test_an_attempt_that_went_on_without_getting_better_shows_the_best_of_the_attempt_before(
    people: People, job: Job, running: Attempt
) -> None:
    seed.evaluate(running, 100, 0.8, 0.4, best=True)
    seed.checkpoint(running, 120)
    seed.end(running, EndReason.PAUSED)
    services.resume(job, actor=None)
    again = seed.start(job)
    seed.evaluate(again, 200, 0.7, 0.5)
    context = _part(people, job).context
    assert [(row["evaluation"].step, row["evaluation"] == context["best"]) for row in context["evaluations"]] == [
        (100, True),
        (200, False),
    ]
    assert _part(people, job, "confusion").context["confusion_of"].step == 100


def test_many_labels_have_pairs_instead_of_a_table(people: People, job: Job, running: Attempt) -> None:
    counts = [[9 if i == j else int((i, j) == (3, 5)) * 4 for j in range(40)] for i in range(40)]
    metrics = {"accuracy": 0.9, "confusion": counts, "labels": [f"label {i}" for i in range(40)]}
    Evaluation.objects.create(attempt=running, step=5, applied=5, epoch=0, metrics=metrics, seconds=1, best=True)
    page = _part(people, job, "confusion").text
    assert "A table of 40 labels" in page and 'class="confusion"' not in page
    assert page.index("Mixed up most") < page.index("By label") and "30.8 %" in page


def test_recipes_without_confusion_have_no_such_section(people: People, job: Job, running: Attempt) -> None:
    Evaluation.objects.create(attempt=running, step=5, applied=5, epoch=0, metrics={"mae": 2.0}, seconds=1, best=True)
    assert _part(people, job, "confusion").text.strip() == ""


# --- the worst dev rows ------------------------------------------------------------------------


@pytest.fixture
def worst(running: Attempt) -> WorstRows:
    return seed.worst(running, 735)


def _worst(client: Any, job: Job, **query: Any) -> Any:
    return client.get(f"/jobs/{job.pk}/worst/", query, headers={"HX-Request": "true"})


def test_only_the_owner_and_staff_see_the_worst_rows(people: People, job: Job, worst: WorstRows) -> None:
    assert people.ask(f"/jobs/{job.pk}/worst/") == MINE


def test_worst_rows_come_in_pages_nan_first(people: People, job: Job, worst: WorstRows) -> None:
    page = _worst(people.owner, job)
    assert "NaN" in page.text.split("</tr>")[1] and len(page.context["worst_rows"]) == 10
    assert "23 of 1\u202f740 dev rows" in page.text
    last = _worst(people.owner, job, page="3")
    assert len(last.context["worst_rows"]) == 3 and "page 3 of 3" in last.text
    assert "<html" in people.owner.get(f"/jobs/{job.pk}/worst/").text


def test_worst_rows_show_the_pictures_of_their_dataset(people: People, job: Job, worst: WorstRows) -> None:
    row = {"row": 7, "loss": 3.5, "image": [120, 45], "id": "cat/<b>.png", "label": "cat", "predicted": "dog"}
    WorstRows.objects.update(rows=[row])
    text = _worst(people.owner, job).text
    assert f'<img class="picture" src="/datasets/{job.dataset_id}/pictures/120-45"' in text
    assert "cat/&lt;b&gt;.png" in text and "[120, 45]" not in text
    Dataset.objects.filter(pk=job.dataset_id).update(owner=seed.user("stranger"), shared=False)
    text = _worst(people.owner, job).text
    assert "pictures/" not in text and "cat/" not in text and "dog" in text


def test_worst_rows_are_narrowed_to_a_pair(people: People, job: Job, worst: WorstRows) -> None:
    page = _worst(people.owner, job, pair="negative→positive")
    rows = [{name: value for name, _, _, value in row} for row in page.context["worst_rows"]]
    assert rows and all((row["label"], row["predicted"]) == ("negative", "positive") for row in rows)
    assert "None of that pair" in _worst(people.owner, job, pair="a→b").text


def test_who_may_not_see_the_dataset_sees_no_texts(people: People, job: Job, worst: WorstRows) -> None:
    """The owner's job went on a dataset that was shared then and is not now."""
    text = "等了两个星期"
    assert text in _worst(people.owner, job).text and text in people.owner.get(f"/jobs/{job.pk}/").text
    stranger = seed.user("stranger")
    Dataset.objects.filter(pk=job.dataset_id).update(owner=stranger, shared=False)
    for page in (
        _worst(people.owner, job),
        people.owner.get(f"/jobs/{job.pk}/"),
        people.owner.get(f"/jobs/{job.pk}/worst/"),
    ):
        assert text not in page.text and "only to those who may see the dataset" in page.text
        assert "4.69" in page.text
    assert text in _worst(people.staff, job).text
    Dataset.objects.filter(pk=job.dataset_id).update(shared=True)
    assert text in _worst(people.owner, job).text


def test_another_recipes_columns_are_shown_as_they_come(people: People, job: Job, running: Attempt) -> None:
    rows = [{"row": 3, "loss": 81.0, "target": 1.5, "predicted": 10.5, "note": "<b>", "spike": True}]
    WorstRows.objects.create(attempt=running, step=5, dev_rows=9, rows=rows)
    page = _worst(people.owner, job).text
    Dataset.objects.filter(pk=job.dataset_id).update(owner=seed.user("stranger"), shared=False)
    assert "10.5" not in _worst(people.owner, job).text and "81" in _worst(people.owner, job).text
    assert "Target" in page and "10.5" in page and "&lt;b&gt;" in page and "Spike" in page and "True" in page
