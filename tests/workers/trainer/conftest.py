"""Run folders with a small dataset of real Chinese characters, and real ranks to train on them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.workers.recipes.examples import EXAMPLES, write_texts
from workers.contract import records
from workers.contract.messages import AttemptSpec, CheckpointRef, Control, DatasetRef
from workers.recipes import registry
from workers.run_folder import RunFolder, atomic_write_json

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle
    import paddlenlp.transformers  # noqa: F401

paddle.set_device("cpu")


def settings(recipe: str = "text_classification", **changes: dict[str, Any]) -> Any:
    tiny = EXAMPLES[recipe].settings
    merged = {group: {**tiny.get(group, {}), **changes.get(group, {})} for group in tiny.keys() | changes.keys()}
    return registry.recipe(recipe).settings.model_validate(merged)


def _lines(path: Path) -> list[bytes]:
    """Whole ones: the end of the last may be on its way."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


@dataclass
class Attempt:
    """A run folder, and what was written into it."""

    folder: RunFolder
    world: int
    exit_codes: list[int]

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return [records.decode(line) for line in _lines(self.folder.steps(rank))]

    def events(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in _lines(self.folder.events(rank))]
        return [line for line in lines if line["kind"] == kind]

    def outcome(self, rank: int = 0) -> dict[str, Any]:
        assert self.folder.outcome(rank).exists(), self.log(rank)
        return json.loads(self.folder.outcome(rank).read_text())

    def log(self, rank: int = 0) -> str:
        return self.folder.log(rank).read_text()[-4000:]

    def checkpoints(self) -> list[Path]:
        return sorted(self.folder.checkpoints.glob("step-*"))

    def final(self, name: str = "model") -> dict[str, Any]:
        """Arrays of the newest checkpoint."""
        from safetensors.numpy import load_file

        return load_file(self.checkpoints()[-1] / f"{name}.safetensors")

    def state(self) -> dict[str, Any]:
        return json.loads((self.checkpoints()[-1] / "state.json").read_text())

    def ask(self, control: Control) -> None:
        atomic_write_json(self.folder.control, control.model_dump(mode="json"))


class Zygote:
    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.owes_an_answer = False
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.workers.trainer.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
        )
        assert self._answer() == "ready"

    def ask(self, request: dict[str, Any]) -> int:
        if self.owes_an_answer:  # a test ran out of time while it waited
            self.process.kill()
            self.process.wait()
            self._start()
        assert self.process.stdin is not None
        self.owes_an_answer = True
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = int(self._answer())
        self.owes_an_answer = False
        return answer

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line[:1] in '"-0123456789':  # else: something that Paddle prints
                return json.loads(line)
        raise AssertionError("the zygote died")

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


_zygotes: list[Zygote] = []


@pytest.fixture(scope="session")
def zygote(request: pytest.FixtureRequest) -> Zygote:
    """One for all tests, though several conftests hand it out."""
    if not _zygotes:
        _zygotes.append(Zygote())
        request.config.add_cleanup(_zygotes[0].close)
    return _zygotes[0]


class Ranks:
    """Ranks at work on one run folder."""

    def __init__(
        self,
        zygote: Zygote,
        attempt: Attempt,
        environment: dict[str, str],
        module: str = "workers.trainer.__main__",
        folders: list[Path] | None = None,
        export: bool = True,
    ) -> None:
        self.zygote, self.attempt = zygote, attempt
        holders = [socket.socket() for _ in range(attempt.world + 1)]
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{holder.getsockname()[1]}" for holder in holders]
        for holder in holders:
            holder.close()
        self.pids = [
            zygote.ask(
                {
                    "module": module,
                    "folder": str(folders[rank] if folders else attempt.folder.path),
                    "log": str(attempt.folder.log(rank)),
                    "export": export,
                    "environment": {
                        "PADDLE_TRAINER_ID": str(rank),
                        "PADDLE_TRAINERS_NUM": str(attempt.world),
                        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses[1:]),
                        "PADDLE_CURRENT_ENDPOINT": addresses[1 + rank],
                        "PADDLE_MASTER": addresses[0],
                        "PADDLE_DISTRI_BACKEND": "gloo",
                        **environment,
                    },
                }
            )
            for rank in range(attempt.world)
        ]

    def wait(self) -> Attempt:
        self.attempt.exit_codes[:] = [self.zygote.ask({"wait": pid}) for pid in self.pids]
        return self.attempt

    def until_step(self, step: int, timeout_s: float = 90) -> Ranks:
        deadline = time.monotonic() + timeout_s
        while not (self.attempt.folder.steps(0).exists() and len(self.attempt.steps()) >= step):
            assert time.monotonic() < deadline, self.attempt.log()
            time.sleep(0.01)
        return self

    def kill(self) -> Attempt:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self.wait()


Start = Callable[..., Ranks]


def make_attempt(
    path: Path,
    dataset: Path,
    *,
    world: int = 1,
    start_from: Path | None = None,
    dry_run_steps: int | None = None,
    recipe: str = "text_classification",
    **changes: dict[str, Any],
) -> Attempt:
    folder = RunFolder(path)
    folder.make()
    folder.dataset.symlink_to(dataset)
    reference = None
    if start_from is not None:
        shutil.copytree(start_from, folder.start)
        state = json.loads((start_from / "state.json").read_text())
        reference = CheckpointRef(key="k", step=state["step"], applied=state["applied"])
    spec: dict[str, Any] = {
        "attempt": "0f" * 16,
        "job": 1,
        "number": 1,
        "name": "test",
        "recipe": recipe,
        "settings": settings(recipe, **changes).model_dump(mode="json"),
        "dataset": DatasetRef(
            id=1, name="words", key="k", content_hash="h", splits={}, labels=list(EXAMPLES[recipe].labels)
        ),
        "start_from": reference,
        "devices": list(range(world)),
        "dry_run_steps": dry_run_steps,
    }
    folder.spec.write_text(AttemptSpec.model_validate(spec).model_dump_json())
    return Attempt(folder, world, [])


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_texts(tmp_path / "words")
    return tmp_path / "words"


@pytest.fixture
def exports() -> bool:
    """Whether runs export their model, unless they are asked otherwise. Few tests look at it."""
    return False


@pytest.fixture
def begin(zygote: Zygote, tmp_path: Path, dataset: Path, exports: bool) -> Start:
    """Start ranks: begin("name", world=2, training={…}) -> Ranks."""

    def begin(
        name: str,
        *,
        world: int = 1,
        data: Path | None = None,
        environment: dict[str, str] | None = None,
        export: bool = exports,
        tampered: str = "",
        **changes: Any,
    ) -> Ranks:
        changes = {("data" if group == "columns" else group): value for group, value in changes.items()}
        attempt = make_attempt(tmp_path / name, data or dataset, world=world, **changes)
        module = "workers.trainer.__main__"
        if tampered:
            module = "tests.workers.trainer.tampered"
            (attempt.folder.path / "tamper").write_text(tampered)
        return Ranks(zygote, attempt, environment or {}, module, export=export)

    return begin


@pytest.fixture
def train(begin: Start) -> Callable[..., Attempt]:
    """Train to the end: train("name", world=2, training={…}) -> Attempt."""

    def train(name: str, **options: Any) -> Attempt:
        return begin(name, **options).wait()

    return train
