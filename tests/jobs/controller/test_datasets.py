"""Checks are asked for until their answer is there, whatever is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs import datasets
from jobs.controller.datasets import AGAIN_S, MOST_TRIES, SILENT_S, Checks, tidy
from jobs.models import Dataset
from tests.browser import seed
from workers.contract.datasets import PROGRESS, RESULT, CheckResult, CheckSpec, Progress, check_key, dataset_key

State = Dataset.State


class Sent:
    """In the place of the sender: what it was given."""

    def __init__(self) -> None:
        self.all: list[tuple[int, str]] = []

    def check(self, spec: CheckSpec, host: str) -> None:
        self.all.append((spec.number, host))


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def checks(sent: Sent) -> Checks:
    return Checks(sent)  # type: ignore[arg-type]


@pytest.fixture
def asked(dataset: Dataset, settings: Any, tmp_path: Path) -> Dataset:
    settings.STORAGE_ROOT = tmp_path
    Dataset.objects.update(state=State.MAPPING, key="", content_hash="")
    dataset.refresh_from_db()
    datasets.ask_for_check(dataset, datasets.Reading())
    return dataset


@pytest.fixture
def folder(asked: Dataset, tmp_path: Path) -> Path:
    return tmp_path / check_key(asked.check_uid)


def write(path: Path, what: Progress | CheckResult) -> None:
    path.write_text(what.model_dump_json())


def test_without_a_host_it_waits(checks: Checks, asked: Dataset, sent: Sent) -> None:
    checks.run(0)
    assert sent.all == []
    seed.host("draining", draining=True)
    checks.run(1)
    assert sent.all == []
    seed.host("one")
    checks.run(2)
    assert sent.all == [(1, "one")]


def test_a_lost_request_is_sent_again_under_the_same_number(
    checks: Checks, asked: Dataset, folder: Path, sent: Sent
) -> None:
    seed.host("one")
    for at in (0, 1, AGAIN_S + 2, AGAIN_S + 3):
        checks.run(at)
    assert sent.all == [(1, "one"), (1, "one")]
    (folder / "claim-1").touch()
    checks.run(3 * AGAIN_S)
    assert len(sent.all) == 2


def test_a_silent_host_is_followed_by_another_and_in_the_end_it_is_refused(
    checks: Checks, asked: Dataset, folder: Path, sent: Sent
) -> None:
    seed.host("one"), seed.host("two")
    now = 0.0
    for number in range(1, MOST_TRIES + 1):
        checks.run(now)
        (folder / f"claim-{number}").touch()
        checks.run(now + 1)
        now += SILENT_S + 5
    checks.run(now)
    assert sent.all == [(1, "one"), (2, "two"), (3, "one")]
    asked.refresh_from_db()
    assert asked.state == State.REFUSED and "did not finish it" in asked.findings[0]["template"]


def test_one_that_speaks_is_left_alone_and_its_words_are_shown(
    checks: Checks, asked: Dataset, folder: Path, sent: Sent
) -> None:
    seed.host("one")
    checks.run(0)
    (folder / "claim-1").touch()
    for i in range(1, 6):
        write(folder / PROGRESS, Progress(number=1, seq=i, host="one", stage="reading rows", done=i, total=9))
        checks.run(i * SILENT_S * 0.9)
    assert len(sent.all) == 1
    asked.refresh_from_db()
    assert asked.check_progress == {"stage": "reading rows", "done": 5, "total": 9, "host": "one", "left_s": None}


def test_an_answer_is_taken_and_the_folder_goes(checks: Checks, asked: Dataset, folder: Path, tmp_path: Path) -> None:
    seed.host("one")
    checks.run(0)
    (tmp_path / dataset_key(asked.check_uid)).mkdir(parents=True)
    fit = CheckResult(
        number=1, host="one", seconds=1, findings=[], splits={"train": 9, "dev": 1}, content_hash="a" * 64, bytes=10
    )
    write(folder / RESULT, fit)
    checks.run(1)
    asked.refresh_from_db()
    assert asked.state == State.READY and asked.splits == {"train": 9, "dev": 1}
    assert not folder.exists()


HUGE = b'{"number": 1, "host": "one", "seconds": 1, "findings": [], "splits": {"train": 9, "dev": 1}, "bytes": 1%s}' % (
    b"0" * 30
)


@pytest.mark.parametrize("body", [b"", b"{", b'{"number": 1}', b"[]", b"\xff", HUGE])
def test_an_answer_that_makes_no_sense_refuses(checks: Checks, asked: Dataset, folder: Path, body: bytes) -> None:
    seed.host("one")
    checks.run(0)
    (folder.parents[1] / dataset_key(asked.check_uid)).mkdir(parents=True)
    (folder / RESULT).write_bytes(body)
    checks.run(1)
    asked.refresh_from_db()
    assert asked.state == State.REFUSED


def test_an_answer_without_its_files_refuses(checks: Checks, asked: Dataset, folder: Path) -> None:
    seed.host("one")
    checks.run(0)
    write(folder / RESULT, CheckResult(number=1, host="one", seconds=1, findings=[], splits={"train": 9, "dev": 1}))
    checks.run(1)
    asked.refresh_from_db()
    assert asked.state == State.REFUSED


def test_a_host_checks_one_dataset_at_a_time_and_the_others_wait(checks: Checks, asked: Dataset, sent: Sent) -> None:
    seed.host("a"), seed.host("b")
    other = Dataset.objects.create(name="other", state=State.CHECKING, check_uid="f" * 32, check_try=1, check_host="a")
    third = Dataset.objects.create(name="third", state=State.CHECKING, check_uid="e" * 32)
    checks.run(0)
    assert sent.all == [(1, "b")]
    checks.run(1)
    third.refresh_from_db()
    assert (third.check_try, third.check_host) == (0, "")
    Dataset.objects.filter(pk=other.pk).update(state=State.REFUSED)
    checks.run(2)
    assert sent.all == [(1, "b"), (1, "a")]


def test_what_nobody_knows_is_tidied_up_only_when_it_is_old(
    asked: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("uploads/x", "checks/y", "datasets/.new-z", "datasets/kept", check_key(asked.check_uid)):
        (tmp_path / key).mkdir(parents=True)
    tidy()
    assert (tmp_path / "uploads/x").exists()
    monkeypatch.setattr("jobs.controller.datasets.ABANDONED_S", -1.0)
    tidy()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")}
    assert left == {"datasets/kept", check_key(asked.check_uid)}
