"""Trials are asked for until there is an answer or an error, whatever is lost on the way."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs import trials
from jobs.controller.trials import AGAIN_S, NO_HOST_S, SILENT_S, Trials, tidy
from jobs.models import Artifact, Attempt, Host, Trial
from tests.browser import seed
from workers.contract.trials import PROGRESS, RESULT, ROWS, Progress, TrialResult, TrialSpec, trial_key

ANSWER = {"scores": [{"label": "positive", "probability": 0.9}, {"label": "negative", "probability": 0.1}]}


class Sent:
    """In the place of the sender: what it was given."""

    def __init__(self) -> None:
        self.all: list[tuple[int, str]] = []

    def trial(self, spec: TrialSpec, host: str) -> None:
        assert "typed" not in spec.model_dump_json()
        self.all.append((spec.number, host))


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def controller(sent: Sent) -> Trials:
    return Trials(sent)  # type: ignore[arg-type]


@pytest.fixture
def asked(attempt: Attempt, owner: User, settings: Any, tmp_path: Path) -> Trial:
    settings.STORAGE_ROOT = tmp_path
    artifact = Artifact.objects.create(
        attempt=attempt, name="inference", key="artifacts/a/inference", bytes=1, sha256=""
    )
    (tmp_path / artifact.key).mkdir(parents=True)
    return trials.ask(artifact, "typed\r\n\r\n again", user=owner)


@pytest.fixture
def folder(asked: Trial, tmp_path: Path) -> Path:
    return tmp_path / trial_key(asked.uid)


def claim(folder: Path, number: int = 1, seq: int = 0, stage: str = "starting the model") -> None:
    (folder / f"claim-{number}").touch()
    if seq:
        said = Progress(number=number, seq=seq, host="one", stage=stage)
        (folder / PROGRESS).write_text(said.model_dump_json())


def answer(folder: Path, *predictions: Any, **more: Any) -> None:
    said = TrialResult.model_validate({"number": 1, "host": "one", "predictions": predictions} | more)
    (folder / RESULT).write_text(said.model_dump_json())


def problem(trial: Trial) -> str:
    trial.refresh_from_db()
    assert trial.state == "failed"
    return trial.problem["template"] % trial.problem["values"]  # type: ignore[no-any-return]


def test_what_was_typed_is_a_file_until_the_answer_is_there(
    controller: Trials, asked: Trial, folder: Path, sent: Sent
) -> None:
    seed.host("one")
    controller.run(0)
    assert sent.all == [(1, "one")]
    assert json.loads((folder / ROWS).read_text()) == [{"text": "typed"}, {"text": "again"}]
    claim(folder, seq=1)
    controller.run(1)
    asked.refresh_from_db()
    assert (asked.host, asked.stage) == ("one", "starting the model")
    answer(folder, ANSWER, ANSWER, seconds=0.02, start_seconds=4.5)
    controller.run(2)
    asked.refresh_from_db()
    assert asked.state == "answered" and asked.result["start_seconds"] == 4.5
    assert not folder.exists()
    controller.run(100)
    assert sent.all == [(1, "one")]


def test_without_a_host_it_ends_soon(controller: Trials, asked: Trial) -> None:
    seed.host("draining", draining=True)
    controller.run(0)
    controller.run(NO_HOST_S + 1)
    assert problem(asked) == "No host is there that could run the model."


def test_a_lost_request_is_sent_again_under_the_same_number(controller: Trials, asked: Trial, sent: Sent) -> None:
    seed.host("one")
    for now in (0, AGAIN_S - 1, AGAIN_S + 1, AGAIN_S + 2):
        controller.run(now)
    assert sent.all == [(1, "one"), (1, "one")]


@pytest.mark.parametrize("claimed", [True, False])
def test_a_host_that_says_nothing_is_followed_by_another_and_then_by_an_error(
    controller: Trials, asked: Trial, folder: Path, sent: Sent, claimed: bool
) -> None:
    seed.host("one")
    seed.host("two")
    controller.run(0)
    if claimed:
        claim(folder, seq=1)
    for now in (1, 10, SILENT_S + 5):
        controller.run(now)
    assert sent.all[0] == (1, "one") and sent.all[-1] == (2, "two")
    if claimed:
        claim(folder, 2)
    controller.run(2 * SILENT_S + 20)
    assert problem(asked) == "The model was sent to two, and no answer came back."
    assert not folder.exists()


def test_with_one_host_that_one_gets_the_second_try(controller: Trials, asked: Trial, folder: Path, sent: Sent) -> None:
    seed.host("one")
    controller.run(0)
    claim(folder)
    controller.run(SILENT_S + 1)
    assert sent.all == [(1, "one"), (2, "one")]


def test_an_outage_of_redis_counts_for_nobody(controller: Trials, asked: Trial, folder: Path, sent: Sent) -> None:
    seed.host("one")
    controller.run(0)
    claim(folder, seq=1)
    controller.run(1)
    controller.forget()
    controller.run(500)
    controller.run(500 + SILENT_S - 1)
    assert sent.all == [(1, "one")]


def test_whatever_happens_there_is_an_end(controller: Trials, asked: Trial, folder: Path) -> None:
    seed.host("one")
    controller.run(0)
    Trial.objects.update(asked_at=timezone.now() - trials.LIMIT)
    claim(folder, seq=2)
    controller.run(1)
    assert problem(asked) == "There was no answer within 240 s." and not folder.exists()


def test_the_model_goes_where_it_may_still_be_in_memory(
    controller: Trials, asked: Trial, folder: Path, sent: Sent, owner: User
) -> None:
    seed.host("one")
    warm = seed.host("two")
    Trial.objects.create(uid="b" * 32, artifact=asked.artifact, asked_by=owner, rows=[], state="answered", host="two")
    controller.run(0)
    assert sent.all == [(1, "two")]
    Host.objects.filter(pk=warm.pk).update(online=False)
    controller.run(SILENT_S + 1)
    assert sent.all[1:] == [(2, "one")]


@pytest.mark.parametrize(
    "body", ["{", '{"number": 1}', "x" * (2**20 + 1), '{"number": 1, "host": "one", "values": {"a": 1e999}}']
)
def test_an_answer_that_makes_no_sense_is_an_error_and_in_no_log(
    controller: Trials, asked: Trial, folder: Path, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    seed.host("one")
    controller.run(0)
    (folder / RESULT).write_text(body)
    controller.run(1)
    assert problem(asked) == "The answer of the host one makes no sense; its log says more."
    assert body not in caplog.text


def test_what_a_host_says_went_wrong_is_kept_for_the_page(controller: Trials, asked: Trial, folder: Path) -> None:
    seed.host("one")
    controller.run(0)
    answer(
        folder,
        template="The model took longer than %(limit)s s on %(host)s and was stopped.",
        values={"limit": 60, "host": "one"},
    )
    controller.run(1)
    assert problem(asked) == "The model took longer than 60 s on one and was stopped."
    answer_of_too_few = Trial.objects.create(
        uid="c" * 32, artifact=asked.artifact, asked_by=asked.asked_by, rows=[{}, {}]
    )
    trials.conclude(answer_of_too_few, TrialResult(number=1, host="one", predictions=[ANSWER]))  # type: ignore[list-item]
    assert problem(answer_of_too_few).startswith("The answer of the host one makes no sense")


def test_after_a_day_nothing_is_left(asked: Trial, settings: Any) -> None:
    orphan = settings.STORAGE_ROOT / trial_key("d" * 32)
    orphan.mkdir(parents=True)
    tidy()
    assert Trial.objects.exists() and orphan.exists()
    os.utime(orphan, (0, 0))
    Trial.objects.update(asked_at=timezone.now() - trials.KEPT - timedelta(seconds=1))
    tidy()
    assert not Trial.objects.exists() and not orphan.exists()
