"""The numeric sequences of the demo: offered once, whatever the last start left behind, and fit for the recipe."""

from __future__ import annotations

import io
import json
import statistics
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from jobs import datasets, sample
from jobs.job_file import JobFile
from jobs.models import Dataset
from workers.contract.datasets import PICTURE_KINDS, CheckResult
from workers.datasets import parsing
from workers.datasets.checking import Source, check
from workers.recipes.sequences import baseline
from workers.recipes.sequences.sample import write

if TYPE_CHECKING:
    from django.contrib.auth.models import User

pytestmark = pytest.mark.django_db
FEW = replace(sample.TRANSACTIONS, write=partial(write, count=300, seed=sample.SEED))


@pytest.fixture(autouse=True)
def storage(settings: Any, tmp_path: Path) -> Path:
    settings.STORAGE_ROOT = tmp_path / "storage"
    return tmp_path / "storage"


def test_transactions_are_offered_once_and_are_fit_for_the_example(owner: User, storage: Path, tmp_path: Path) -> None:
    sample.offer(FEW, owner)
    sample.offer(FEW, owner)
    dataset = Dataset.objects.get()
    assert (dataset.name, dataset.kind, dataset.state, dataset.shared) == (
        "transactions",
        "sequences",
        "checking",
        True,
    )
    # As a host does it.
    target, scratch = storage / f"datasets/{dataset.check_uid}", tmp_path / "scratch"
    target.mkdir(parents=True)
    scratch.mkdir()
    file = dataset.source["files"][0]
    source = Source(storage / file["key"], file["name"])
    outcome = check([source], datasets.Reading.model_validate(dataset.reading), scratch, target, lambda *_: None)
    assert outcome.fit and outcome.splits == {"train": 270, "dev": 30}
    assert any("rare, very large values" in finding.text for finding in outcome.findings)
    datasets.conclude(dataset, CheckResult(number=1, host="h", seconds=1, **vars(outcome)))
    job = JobFile.read(sample.EXAMPLES / "transactions.yaml").submit(owner=owner)
    assert (job.recipe, job.dataset) == ("sequences", dataset)


def test_what_an_interrupted_start_left_behind_is_done_again(owner: User) -> None:
    datasets.begin_upload(
        owner=owner, name="transactions", shared=True, description="", files=[("transactions.csv", "", 10)]
    )
    sample.offer(FEW, owner)
    dataset = Dataset.objects.get()
    assert dataset.state == "checking" and dataset.source["files"][0]["bytes"] > 10**5


def test_they_can_be_registered_from_a_terminal(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "transactions.csv"
    with file.open("w") as table:
        write(table, count=40)
    said = ["--kind=sequences", "--layout=steps", "--id-column=account", "--order-column=step", "--features=amount,gap"]
    target = ["--target=number", "--target-column=mean_of_last_5", "--shared", "--dev-fraction=0.25", "--no-baseline"]
    call_command("register_dataset", str(file), "--name=made", *said, *target)
    dataset = Dataset.objects.get()
    assert (dataset.kind, dataset.splits) == ("sequences", {"train": 30, "dev": 10})
    assert "“made” registered: 30 train, 10 dev rows" in capsys.readouterr().out
    found = baseline.baselines(storage / dataset.key)
    assert set(found) == {"regression/median", "regression/summaries", "next_value/median", "next_value/last_value"}
    targets = [json.loads(line)["target"] for line in (storage / dataset.key / "dev.jsonl").read_text().splitlines()]
    train = [json.loads(line)["target"] for line in (storage / dataset.key / "train.jsonl").read_text().splitlines()]
    middle = statistics.median(train)
    assert found["regression/median"] == pytest.approx(statistics.mean(abs(target - middle) for target in targets))


@pytest.mark.parametrize(
    "offered", [one for one in sample.SAMPLES if one.reading.kind not in PICTURE_KINDS], ids=lambda one: one.name
)
def test_every_sample_is_read_as_it_is_described(offered: sample.Sample) -> None:
    body = offered.body()
    assert not any(offered.name == other.name for other in sample.SAMPLES if other is not offered)
    rows = list(islice(parsing.rows(io.BytesIO(body), offered.reading), 50))
    assert len(rows) == 50 and all(isinstance(row, parsing.Row) for row in rows)


def test_the_names_of_the_sample_are_fit_for_their_recipe(owner: User, storage: Path, tmp_path: Path) -> None:
    few = replace(sample.NAMES, write=partial(sample.NAMES.write, count=300))
    sample.offer(few, owner)
    dataset = Dataset.objects.get()
    target, scratch = storage / f"datasets/{dataset.check_uid}", tmp_path / "scratch"
    target.mkdir(parents=True)
    scratch.mkdir()
    file = dataset.source["files"][0]
    reading = datasets.Reading.model_validate(dataset.reading)
    outcome = check([Source(storage / file["key"], file["name"])], reading, scratch, target, lambda *_: None)
    assert outcome.fit and outcome.splits == {"train": 270, "dev": 30}
    assert outcome.labels == ["O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER"]
    datasets.conclude(dataset, CheckResult(number=1, host="h", seconds=1, **vars(outcome)))
    job = JobFile.read(sample.EXAMPLES / "names.yaml").submit(owner=owner)
    assert (job.recipe, job.dataset) == ("token_classification", dataset)


def test_the_digits_of_the_sample_are_fit_for_their_recipe(owner: User, storage: Path, tmp_path: Path) -> None:
    sample.offer(sample.DIGITS, owner)
    dataset = Dataset.objects.get()
    target, scratch = storage / f"datasets/{dataset.check_uid}", tmp_path / "scratch"
    target.mkdir(parents=True)
    scratch.mkdir()
    file = dataset.source["files"][0]
    reading = datasets.Reading.model_validate(dataset.reading)
    outcome = check([Source(storage / file["key"], file["name"])], reading, scratch, target, lambda *_: None)
    assert outcome.fit and outcome.splits["train"] + outcome.splits["dev"] == 1797
    assert outcome.labels == [str(digit) for digit in range(10)]
    datasets.conclude(dataset, CheckResult(number=1, host="h", seconds=1, **vars(outcome)))
    job = JobFile.read(sample.EXAMPLES / "digits.yaml").submit(owner=owner)
    assert (job.recipe, job.dataset) == ("image_classification", dataset)
