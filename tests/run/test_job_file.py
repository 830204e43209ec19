from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from jobs.job_file import JobFile
from jobs.models import Dataset, Job
from jobs.services import Refused

pytestmark = pytest.mark.django_db
# transactions.yaml is submitted in tests/jobs/test_sample.py, with the dataset that it names.
EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("reviews*.yaml"))


@pytest.fixture
def user() -> User:
    return User.objects.create_user("someone")


@pytest.fixture
def dataset(user: User) -> Dataset:
    return Dataset.objects.create(
        name="reviews", owner=user, key="k", content_hash="h", labels=["a", "b"], splits={"train": 900, "dev": 100}
    )


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return str(file)


GOOD = "name: mine\nrecipe: text_classification\ndataset: reviews\nsettings:\n  training:\n    epochs: 2\n"


def test_command_submits_with_defaults_filled_in(tmp_path: Path, user: User, dataset: Dataset) -> None:
    call_command("submit", written(tmp_path, GOOD), "--set", "optimizer.learning_rate=0.001")
    job = Job.objects.get()
    assert (job.owner, job.name, job.dataset) == (user, "mine", dataset)
    assert job.newest is not None
    assert job.newest.settings["training"]["epochs"] == 2
    assert job.newest.settings["optimizer"]["learning_rate"] == 0.001
    assert job.newest.settings["training"]["batch_size"] == 32


@pytest.mark.parametrize(
    "text, said",
    [
        ("name: [", "is not YAML"),
        ("just words", "A job has the keys"),
        (GOOD + "colour: red\n", "colour: Line 7: There is no such key"),
        (GOOD.replace("name: mine\n", ""), "name: Give the job a name"),
        (GOOD.replace("epochs: 2", "epochs: many"), "training.epochs: Must be a whole number"),
        (GOOD.replace("epochs: 2", "epoch: 2"), "training.epoch: "),
        (GOOD.replace("dataset: reviews", "dataset: other"), "There is no dataset “other”"),
        (GOOD.replace("text_classification", "cooking"), "There is no recipe “cooking”"),
        (GOOD.replace("settings:", "settings: 3\nx:"), "settings: Line 4: Cannot be “3”"),
    ],
)
def test_command_says_what_is_wrong_by_field(tmp_path: Path, dataset: Dataset, text: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("submit", written(tmp_path, text))
    assert not Job.objects.exists()


def test_owner_must_be_clear(tmp_path: Path, dataset: Dataset) -> None:
    User.objects.create_user("another")
    with pytest.raises(CommandError, match="--owner NAME"):
        call_command("submit", written(tmp_path, GOOD))
    call_command("submit", written(tmp_path, GOOD), "--owner=someone")
    assert Job.objects.get().owner.username == "someone"


def test_datasets_of_others_are_not_there(tmp_path: Path, dataset: Dataset) -> None:
    User.objects.create_user("another")
    with pytest.raises(CommandError, match="no dataset"):
        call_command("submit", written(tmp_path, GOOD), "--owner=another")


def test_a_setting_cannot_be_set_below_another_setting() -> None:
    file = JobFile("x", settings={"training": {"epochs": 1}})
    with pytest.raises(Refused):
        file.set("training.epochs.more", 2)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_accepted(example: Path, user: User, dataset: Dataset) -> None:
    file = JobFile.read(example)
    if file.settings.get("model", {}).get("source") == "job":
        file.set("model.source", "scratch")  # the other job is not here
    assert file.submit(owner=user).newest is not None
