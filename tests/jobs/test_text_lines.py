"""Text lines on the web side: the demo's dataset, texts that a model has no room for, answers, the worst rows, the verdict."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from jobs import baselines, checks, datasets, fit, sample
from jobs.fit import Point, Word
from jobs.job_file import JobFile
from jobs.models import Dataset
from tests.workers.recipes.examples import glyphs
from workers.contract.checks import DatasetFacts, Facts
from workers.contract.datasets import CheckResult, ImageReading, ListFile, Reading
from workers.datasets.checking import Outcome, Source, check
from workers.recipes.text_lines.checks import CHECKS, memory_bytes, parameters, texts_fit_lines
from workers.recipes.text_lines.settings import TextLinesSettings

if TYPE_CHECKING:
    from django.contrib.auth.models import User

pytestmark = pytest.mark.django_db
READING = Reading(kind="lines", images=ImageReading(layout="lists", lists=[ListFile(name="labels.txt")]))


@pytest.fixture(autouse=True)
def storage(settings: Any, tmp_path: Path) -> Path:
    settings.STORAGE_ROOT = tmp_path / "storage"
    return tmp_path / "storage"


def archive(texts: list[str], side: int = 4) -> bytes:
    """Lines that all show “abc” in 40 × 16 pixels, whatever is said to stand there."""
    picture, file = io.BytesIO(), io.BytesIO()
    Image.fromarray(glyphs("abc", side)).save(picture, "PNG")
    with zipfile.ZipFile(file, "w") as packed:
        for number in range(len(texts)):
            packed.writestr(f"{number}.png", picture.getvalue() + bytes([number]))
        packed.writestr("labels.txt", "".join(f"{number}.png\t{text}\n" for number, text in enumerate(texts)))
    return file.getvalue()


def checked(owner: User, storage: Path, body: bytes, reading: Reading = READING) -> tuple[Dataset, Outcome]:
    """As a host does it."""
    offered = sample.Sample("lines", "", ".zip", lambda file: file.write(body), reading)
    sample.offer(offered, owner)
    return concluded(Dataset.objects.get(), storage)


def concluded(dataset: Dataset, storage: Path) -> tuple[Dataset, Outcome]:
    target, scratch = storage / f"datasets/{dataset.check_uid}", storage / "scratch"
    target.mkdir(parents=True)
    scratch.mkdir()
    file = dataset.source["files"][0]
    reading = datasets.Reading.model_validate(dataset.reading)
    outcome = check([Source(storage / file["key"], file["name"])], reading, scratch, target, lambda *_: None)
    datasets.conclude(dataset, CheckResult(number=1, host="h", seconds=1, **vars(outcome)))
    dataset.refresh_from_db()
    return dataset, outcome


def test_the_demos_lines_are_fit_for_their_recipe(owner: User, storage: Path) -> None:
    few = replace(sample.LINES, write=partial(sample.LINES.write, count=40))
    assert few.body() == few.body()
    sample.offer(few, owner)
    dataset, outcome = concluded(Dataset.objects.get(), storage)
    assert outcome.fit and outcome.splits == {"train": 36, "dev": 4}
    assert len(outcome.statistics["line_widths"]["train"]) == 101
    job = JobFile.read(sample.EXAMPLES / "receipt-lines.yaml").submit(owner=owner)
    assert (job.recipe, job.dataset) == ("text_lines", dataset)


def test_empty_texts_are_found_when_the_dataset_is_checked(owner: User, storage: Path) -> None:
    dataset, outcome = checked(owner, storage, archive(["abc", "", "ab", "", "b"] * 3))
    assert dataset.state == Dataset.State.REFUSED
    (error,) = [finding for finding in outcome.findings if finding.level == "error"]
    assert error.count == 6 and "empty text" in error.text


def test_texts_that_need_more_steps_than_there_are_are_counted_at_submission(owner: User, storage: Path) -> None:
    # 40 × 16 pixels are 80 × 32, which is 20 steps of four pixels; “aaaaaaaaaaaa” needs 23, and “abababababababababab” 20.
    texts = ["abc", "ab", "a" * 12, "ab" * 10, "ba"] * 8
    dataset, _outcome = checked(owner, storage, archive(texts))
    assert dataset.state == Dataset.State.READY

    def found(**changes: Any) -> dict[str, Any]:
        settings = TextLinesSettings.model_validate({"training": {"batch_size": 8}} | changes)
        return {one.code: one for one in checks.findings("text_lines", settings, dataset, owner)}

    error = found()["texts_do_not_fit"]
    assert error.level == "error" and error.values == {"count": "8", "needed": 23, "available": 20, "reduction": 4}
    warning = found(data={"leave_out": True})["texts_left_out"]
    assert warning.level == "warning" and warning.values["count"] == "8"
    assert {"texts_do_not_fit", "texts_left_out"}.isdisjoint(found(model={"reduction": 2}))
    assert {"texts_do_not_fit", "texts_left_out"}.isdisjoint(found(data={"height": 48}))
    narrow = found(data={"max_width": 40})
    assert narrow["texts_do_not_fit"].values["count"] == "16" and "lines_are_squeezed" in narrow
    with pytest.raises(Exception, match="CTC cannot learn them"):
        settings = {"training": {"batch_size": 8}}
        JobFile(name="n", recipe="text_lines", dataset="lines", settings=settings).submit(owner=owner)


def test_checks_know_what_a_model_needs() -> None:
    settings = TextLinesSettings()
    assert parameters(settings) == 1_592_233 - 9 * 257  # as built for eight characters, without the last layer
    facts = Facts(DatasetFacts(train_rows=1000, line_widths=tuple(float(i) for i in range(100, 201))))
    wide = Facts(DatasetFacts(train_rows=1000, line_widths=tuple(float(i) for i in range(800, 901))))
    assert memory_bytes(settings, facts) < memory_bytes(settings, wide)
    assert not [one for run in CHECKS for one in run(settings, facts) if one.level == "error"]
    assert list(texts_fit_lines(settings, Facts())) == []


def test_a_rate_of_errors_is_judged_in_points() -> None:
    def word(dev: list[float], train: list[float], **facts: Any) -> Word:
        points = [Point(i, d, None, t) for i, (d, t) in enumerate(zip(dev, train, strict=True))]
        return fit.judge(points, lower_is_better=True, rate=True, over=True, **facts).word

    # Four times as many mistakes as on training rows, and still nearly none.
    assert word([1.1, 0.05, 0.02, 0.021], [1.1, 0.01, 0.005, 0.005], baselines={"b": 0.8}) is Word.FINE
    assert word([0.9, 0.3, 0.3, 0.3], [0.9, 0.02, 0.01, 0.01], baselines={"b": 0.8}) is Word.BY_HEART
    assert word([0.95, 0.9, 0.9, 0.9], [0.9, 0.85, 0.85, 0.85], baselines={"b": 0.8}) is Word.UNDERFITTING


def test_baselines_are_error_rates_and_count_for_jobs_that_are_judged_by_them(dataset: Dataset) -> None:
    dataset.kind, dataset.statistics = "lines", {"baselines": {"cer/commonest_text": 0.9, "cer/nearest_line": 0.6}}
    assert [(one.value, one.is_share, one.unit) for one in baselines.of_dataset(dataset)] == [
        (0.9, False, "character error rate"),
        (0.6, False, "character error rate"),
    ]
    assert baselines.for_goal(dataset, "cer") == {"commonest_text": 0.9, "nearest_line": 0.6}
    assert baselines.for_goal(dataset, "accuracy") == {}
