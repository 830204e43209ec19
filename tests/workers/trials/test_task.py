"""A host asked to try a model: real processes, with a model that does as it is told."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripted.recipe import RECIPE
from tests.workers.conftest import eventually
from workers.config import Config
from workers.contract.trials import (
    LARGEST_RESULT_BYTES,
    PROGRESS,
    RESULT,
    ROWS,
    Progress,
    TrialResult,
    TrialSpec,
    trial_key,
)
from workers.recipes import registry
from workers.supervisor import processes
from workers.trials import model
from workers.trials.task import Trials


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HOST_NAME", "testhost")
    monkeypatch.setitem(registry.RECIPES, "scripted", RECIPE)
    return Config.from_environment()


class Asked:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.trials = Trials(config)

    def put(self, *texts: str, artifact: str = "artifacts/a/inference", says: str = "good") -> TrialSpec:
        """What the controller leaves: the artifact, and the rows in the trial's folder."""
        model = self.config.storage_root / artifact
        if not model.exists():
            model.mkdir(parents=True)
            (model / "model.bin").write_text(says)
        spec = TrialSpec(uid=uuid.uuid4().hex, number=1, recipe="scripted", artifact=artifact)
        self.folder(spec).mkdir(parents=True)
        (self.folder(spec) / ROWS).write_text(json.dumps([{"text": text} for text in texts]))
        return spec

    def folder(self, spec: TrialSpec) -> Path:
        return self.config.storage_root / trial_key(spec.uid)

    def result(self, spec: TrialSpec) -> TrialResult:
        return TrialResult.model_validate_json((self.folder(spec) / RESULT).read_bytes())

    def run(self, *texts: str, **more: Any) -> TrialResult:
        spec = self.put(*texts, **more)
        self.trials.run(spec)
        return self.result(spec)

    def begin(self, *texts: str, **more: Any) -> TrialSpec:
        """Does not wait for the answer, but until the model has the question."""
        spec = self.put(*texts, **more)
        self.trials.start(spec)
        eventually(lambda: self.stage(spec) == "asking the model", what="the model is asked")
        return spec

    def stage(self, spec: TrialSpec) -> str:
        try:
            return Progress.model_validate_json((self.folder(spec) / PROGRESS).read_bytes()).stage
        except FileNotFoundError:
            return ""

    def pids(self) -> list[int]:
        return [one._process.pid for one in self.trials._models.values() if one._process is not None]

    def end(self) -> None:
        for one in list(self.trials._models.values()):
            one.leave()
        eventually(lambda: not self.trials._models, 90, "models leave")


@pytest.fixture
def asked(config: Config) -> Iterator[Asked]:
    made = Asked(config)
    yield made
    made.end()


@pytest.fixture
def changed(config: Config) -> Iterator[Callable[..., Asked]]:
    made: list[Asked] = []

    def make(**changes: Any) -> Asked:
        made.append(Asked(dataclasses.replace(config, **changes)))
        return made[-1]

    yield make
    for one in made:
        one.end()


def said(result: TrialResult) -> str:
    return result.template % result.values


def test_a_model_answers_and_stays_in_memory_for_the_next(asked: Asked) -> None:
    first = asked.run("a good text", "another")
    assert [[score.label for score in one.scores] for one in first.predictions] == [
        ["good", "other"],
        ["other", "good"],
    ]
    assert first.predictions[0].tokens == ["[CLS]", "a", "good", "text", "[SEP]"]
    assert first.start_seconds > 0 and first.host == "testhost"
    (pid,) = asked.pids()
    second = asked.run('好 \u2028 "quoted"\ttext')
    assert second.start_seconds == 0 and asked.pids() == [pid]
    assert second.predictions[0].tokens[1] == "好"


def test_it_leaves_when_nobody_asks_any_more(changed: Any) -> None:
    asked = changed(try_idle_s=0.1)
    asked.run("a")
    eventually(lambda: not asked.trials._models)


def test_a_message_that_comes_twice_or_too_late_does_nothing(asked: Asked) -> None:
    spec = asked.put("a")
    (asked.folder(spec) / "claim-1").touch()
    asked.trials.run(spec)
    assert not (asked.folder(spec) / RESULT).exists() and not asked.trials._models
    gone = TrialSpec(uid=uuid.uuid4().hex, number=1, recipe="scripted", artifact="artifacts/a")
    asked.trials.run(gone)
    assert not asked.folder(gone).exists()


def test_of_the_models_in_memory_the_one_that_was_asked_longest_ago_goes(asked: Asked) -> None:
    for name in ("a", "b", "a", "c"):
        assert asked.run("x", artifact=f"artifacts/{name}/inference").predictions
    assert {folder.parent.name for folder in asked.trials._models} == {"a", "c"}


def test_while_all_models_are_busy_another_waits_and_says_so(asked: Asked, tmp_path: Path) -> None:
    done = tmp_path / "done"
    busy = [asked.begin(f"wait {done}", artifact=f"artifacts/{name}/inference") for name in ("a", "b")]
    spec = asked.put("x", artifact="artifacts/c/inference")
    thread = threading.Thread(target=asked.trials.run, args=(spec,))
    thread.start()
    eventually(lambda: asked.stage(spec) == "waiting for other models")
    done.touch()
    thread.join(60)
    for one in busy:
        eventually((asked.folder(one) / RESULT).exists)
    assert asked.result(spec).predictions and all(asked.result(one).predictions for one in busy)


def test_too_much_memory_ends_the_model_and_says_so_and_the_next_starts_it_again(changed: Any) -> None:
    asked = changed(try_memory_bytes=200 * 2**20)
    assert said(asked.run("memory 400")) == "The model needed more than 0.2 GiB of memory, the limit of testhost."
    assert asked.run("a good text").start_seconds > 0


def test_too_much_time_ends_the_model_and_says_so(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.run("a")
    monkeypatch.setattr(model, "ANSWER_S", 0.3)
    assert said(asked.run("sleep 30")) == "The model took longer than 0 s on testhost and was stopped."
    assert asked.pids() == []


@pytest.mark.parametrize(
    "text, words",
    [
        ("crash", "The model ended with code -9 on testhost: a library that prints what it likes"),
        ("raise it", "The model could not answer on testhost: ValueError: raise it"),
        (
            "nonsense",
            "The answer of the model makes no sense: ",
        ),
        ("refuse", "Row 1 is not what the model reads."),
        ("long 5", "The answer has 5.0 MiB, and at most 4.0 MiB are taken: try fewer or shorter rows."),
    ],
)
def test_what_goes_wrong_is_said(asked: Asked, text: str, words: str) -> None:
    assert said(asked.run(text)).startswith(words)


def test_the_largest_answer_that_is_taken_is_read_by_the_controller(asked: Asked) -> None:
    spec = asked.put("long 3")
    asked.trials.run(spec)
    assert asked.result(spec).predictions
    assert (asked.folder(spec) / RESULT).stat().st_size < LARGEST_RESULT_BYTES


def test_a_model_that_cannot_be_loaded_or_is_not_there_is_said(asked: Asked) -> None:
    broken = asked.run("a", says="broken")
    assert said(broken) == "The model could not answer on testhost: ValueError: the weights are broken"
    spec = asked.put("a", artifact="artifacts/b/inference")
    (asked.config.storage_root / "artifacts/b/inference/model.bin").unlink()
    (asked.config.storage_root / "artifacts/b/inference").rmdir()
    asked.trials.run(spec)
    assert said(asked.result(spec)) == "The exported model is no longer in the storage."
    outside = TrialSpec(uid=spec.uid, number=2, recipe="scripted", artifact="../secrets")
    (asked.folder(spec) / RESULT).unlink()
    asked.trials.run(outside)
    assert said(asked.result(outside)) == "Models of this recipe cannot be tried on testhost."


def test_one_that_was_killed_while_idle_is_started_again(asked: Asked) -> None:
    asked.run("a")
    (pid,) = asked.pids()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert asked.run("a good text").start_seconds > 0


def test_when_nobody_waits_any_more_nothing_is_written(asked: Asked, tmp_path: Path) -> None:
    spec = asked.begin(f"wait {tmp_path / 'done'}")
    for path in asked.folder(spec).iterdir():
        path.unlink()
    asked.folder(spec).rmdir()
    (tmp_path / "done").touch()
    eventually(lambda: not any(one.busy for one in asked.trials._models.values()))
    time.sleep(0.1)
    assert not asked.folder(spec).exists()


def test_what_was_typed_is_in_no_log_and_in_no_environment(
    asked: Asked, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:hidden@redis")
    caplog.set_level("DEBUG")
    asked.run("a secret text", "raise secret")
    assert "secret" not in caplog.text
    (pid,) = asked.pids()
    assert b"hidden" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()


WORKER = """
import sys, time
from workers.config import Config
from workers.contract.trials import TrialSpec
from workers.trials.task import Trials
trials = Trials(Config.from_environment())
trials.start(TrialSpec.model_validate_json(sys.argv[1]))
while True:
    for one in list(trials._models.values()):
        if one._process is not None:
            print(one._process.pid, flush=True)
            time.sleep(60)
    time.sleep(0.01)
"""


def test_a_model_dies_with_its_worker(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_RECIPES", "tests.scripted.recipe")
    spec = asked.put("sleep 60")
    command = [sys.executable, "-c", WORKER, spec.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        eventually(lambda: asked.stage(spec) == "asking the model")
        worker.kill()
    eventually(lambda: not processes.alive(pid))
    assert not (asked.folder(spec) / RESULT).exists()
