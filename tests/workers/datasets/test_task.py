"""A request to check, as a host carries it out: real processes with real limits, answers as files."""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from workers.config import Config
from workers.contract.datasets import (
    PROGRESS,
    RESULT,
    CheckResult,
    CheckSpec,
    Progress,
    Reading,
    SourceFile,
    check_key,
    dataset_key,
)
from workers.datasets.task import Checks


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HOST_NAME", "testhost")
    return Config.from_environment()


@pytest.fixture
def spec(config: Config) -> Any:
    """Asks to check `body`."""

    def make(body: bytes, **reading: Any) -> CheckSpec:
        uid = uuid.uuid4().hex
        (config.storage_root / "uploads" / uid).mkdir(parents=True)
        (config.storage_root / "uploads" / uid / "0").write_bytes(body)
        (config.storage_root / check_key(uid)).mkdir(parents=True)
        file = SourceFile(name="a.csv", key=f"uploads/{uid}/0")
        return CheckSpec(uid=uid, number=1, files=[file], reading=Reading(format="table", **reading))

    return make


GOOD = b"text,label\n" + b"".join(b"this is text %d,%s\n" % (i, b"ab"[i % 2 : i % 2 + 1]) for i in range(60))


def result(config: Config, spec: CheckSpec) -> CheckResult:
    return CheckResult.model_validate_json((config.storage_root / check_key(spec.uid) / RESULT).read_bytes())


def test_a_fit_dataset_is_stored_with_what_the_model_sees(config: Config, spec: Any) -> None:
    asked = spec(GOOD)
    Checks(config).run(asked)
    said = result(config, asked)
    assert said.fit and said.splits == {"train": 54, "dev": 6} and said.host == "testhost"
    stored = sorted(path.name for path in (config.storage_root / dataset_key(asked.uid)).iterdir())
    assert stored == ["dev.jsonl", "train.jsonl"]
    batch = said.statistics["first_batch"]
    assert len(batch["rows"]) == 32 and batch["rows"][0]["tokens"][0] == "[CLS]"
    assert "bag_of_characters_logistic_regression" in said.statistics["baselines"]
    assert not list((config.scratch_root / "checks").iterdir())


def test_an_unfit_one_leaves_only_the_answer(config: Config, spec: Any) -> None:
    asked = spec(b"text,label\nonly one\n")
    Checks(config).run(asked)
    said = result(config, asked)
    assert [(ref.file, ref.row) for ref in said.findings[0].rows] == [("a.csv", 2)]
    assert not list((config.storage_root / "datasets").iterdir())


def test_a_message_that_comes_twice_or_too_late_does_nothing(config: Config, spec: Any) -> None:
    asked = spec(GOOD[:20])
    folder = config.storage_root / check_key(asked.uid)
    (folder / "claim-1").touch()
    Checks(config).run(asked)
    assert not (folder / RESULT).exists()
    (folder / "claim-1").unlink()
    folder.rmdir()
    Checks(config).run(asked)
    assert not folder.exists()


def test_too_much_memory_ends_the_check_and_says_so(config: Config, spec: Any) -> None:
    asked = spec(GOOD)
    Checks(dataclasses.replace(config, check_memory_bytes=40 * 2**20)).run(asked)
    (finding,) = result(config, asked).findings
    assert not result(config, asked).fit and "testhost" in finding.text


def test_too_much_time_ends_the_check_and_says_so(config: Config, spec: Any) -> None:
    asked = spec(GOOD)
    Checks(dataclasses.replace(config, check_time_limit_s=0.2)).run(asked)
    (finding,) = result(config, asked).findings
    assert finding.template == "The check took longer than %(limit)s s, the limit of %(host)s."


def test_one_waits_for_the_other_and_says_so(config: Config, spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.datasets.task.WAITING_S", 0.05)
    checks, asked = Checks(config), spec(b"")
    checks._slot.acquire()
    thread = threading.Thread(target=checks.run, args=(asked,))
    thread.start()
    path = config.storage_root / check_key(asked.uid) / PROGRESS
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert Progress.model_validate_json(path.read_bytes()).stage == "waiting for another check"
    checks._slot.release()
    thread.join(60)
    assert result(config, asked).findings[0].text == "The file is empty."


@pytest.mark.slow
def test_without_a_connection_paddlenlp_says_what_to_do(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real library, with its addresses out of reach."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    uid = uuid.uuid4().hex
    (config.storage_root / check_key(uid)).mkdir(parents=True)
    asked = CheckSpec(uid=uid, number=1, paddlenlp="no_such_dataset", reading=Reading())
    Checks(config).run(asked)
    (finding,) = result(config, asked).findings
    assert finding.text.startswith("PaddleNLP could not load “no_such_dataset” on testhost")
    assert finding.text.endswith("download the dataset elsewhere and upload it as a file.")
