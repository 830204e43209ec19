"""One model in memory: its process, and the thread that speaks with it.

The process is killed when the thread that started it ends, so a thread stays with it until nobody has asked for some
minutes, it is wanted no more, or the worker ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from workers.config import BASE_DIR, Config
from workers.contract.trials import LARGEST_ANSWER_BYTES, Failed, Row

START_S = 120.0
ANSWER_S = 60.0
TICK_S = 0.05
# What a model has no use for.
_NOT_FOR_MODELS = ("REDIS_URL", "DATABASE_URL", "SECRET_KEY")


@dataclass
class Question:
    """Rows, and in the end an answer or why there is none."""

    rows: list[Row]
    stage: str = "waiting for the model"
    answer: dict[str, Any] | None = None
    failure: Failed | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Model(threading.Thread):
    """`ask` puts a question; `leave` sends it away once its questions are answered."""

    def __init__(self, folder: Path, module: str, config: Config, gone: Callable[[Model], None]) -> None:
        super().__init__(name=f"model {folder.parent.name}/{folder.name}", daemon=True)
        self.folder = folder
        self.used_at = time.monotonic()
        self._module = module
        self._config = config
        self._gone = gone
        self._questions: queue.Queue[Question | None] = queue.Queue()
        self._unanswered = 0
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def busy(self) -> bool:
        return self._unanswered > 0

    def ask(self, question: Question) -> bool:
        """False if it is about to end: ask another."""
        with self._lock:
            if self._closed:
                return False
            self._unanswered += 1
            self._questions.put(question)
            return True

    def leave(self) -> None:
        with self._lock:
            self._closed = True
            self._questions.put(None)

    def run(self) -> None:
        with tempfile.TemporaryFile() as output:
            try:
                while (question := self._next()) is not None:
                    self._answer(question, output)
            finally:
                self._stop()
                self._gone(self)

    def _next(self) -> Question | None:
        try:
            return self._questions.get(timeout=self._config.try_idle_s)
        except queue.Empty:
            pass
        with self._lock:
            self._closed = self._questions.empty()
        return None if self._closed else self._questions.get()

    def _answer(self, question: Question, output: IO[bytes]) -> None:
        try:
            started = 0.0
            if self._process is None or self._process.poll() is not None:
                question.stage = "starting the model"
                started = self._start(output)
            question.stage = "asking the model"
            assert self._process is not None and self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(question.rows).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise self._ended(output) from None
            question.answer = self._read(ANSWER_S, output) | {"start_seconds": started}
        except Failed as failure:
            question.failure = failure
        except Exception as error:  # noqa: BLE001 - the thread must outlive what is wrong with one question
            self._stop()
            question.failure = Failed(
                "The model could not be asked on %(host)s: %(said)s",
                host=self._config.host_name,
                said=f"{type(error).__name__}: {error}"[:300],
            )
        finally:
            with self._lock:
                self._unanswered -= 1
                self.used_at = time.monotonic()
            question.done.set()

    def _start(self, output: IO[bytes]) -> float:
        """Seconds that it took."""
        self._stop()
        output.seek(0)
        output.truncate()
        env = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_MODELS}
        # On the CPU, beside whatever trains: on one core, and no byte of a GPU.
        env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        limit = str(self._config.try_memory_bytes)
        began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "workers.trials.serve", str(self.folder), self._module, limit],
            cwd=BASE_DIR,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
        )
        self._read(START_S, output)
        return time.monotonic() - began

    def _read(self, within_s: float, output: IO[bytes]) -> dict[str, Any]:
        """The next line that the process says. Failed when it says that, needs too much, takes too long or ends."""
        process = self._process
        assert process is not None and process.stdout is not None
        host, limit = self._config.host_name, self._config.try_memory_bytes
        deadline = time.monotonic() + within_s
        line = b""
        while not line.endswith(b"\n"):
            if _resident_bytes(process.pid) > limit:
                self._stop()
                raise _too_much(limit, host)
            if time.monotonic() > deadline:
                self._stop()
                raise Failed(
                    "The model took longer than %(limit)s s on %(host)s and was stopped.",
                    limit=int(within_s),
                    host=host,
                )
            if select.select([process.stdout], [], [], TICK_S)[0]:
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    raise self._ended(output)
                line += piece
        said: dict[str, Any] = json.loads(line)
        if said.get("error") == "out of memory":
            self._stop()
            raise _too_much(limit, host)
        if said.get("error") == "too large":
            raise Failed(
                "The answer has %(size)s, and at most %(limit)s are taken: try fewer or shorter rows.",
                size=f"{said['bytes'] / 2**20:.1f} MiB",
                limit=f"{LARGEST_ANSWER_BYTES / 2**20:.1f} MiB",
            )
        if "template" in said:
            raise Failed(said["template"], **said["values"])
        if "error" in said:
            raise Failed("The model could not answer on %(host)s: %(said)s", host=host, said=said["error"])
        return said

    def _ended(self, output: IO[bytes]) -> Failed:
        process = self._process
        assert process is not None
        code = process.wait()
        output.seek(0)
        last = output.read().decode(errors="replace").strip().splitlines()[-1:]
        return Failed(
            "The model ended with code %(code)d on %(host)s: %(said)s",
            code=code,
            host=self._config.host_name,
            said="".join(last)[:300] or "—",
        )

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _too_much(limit: int, host: str) -> Failed:
    return Failed(
        "The model needed more than %(limit)s of memory, the limit of %(host)s.",
        limit=f"{limit / 2**30:.1f} GiB",
        host=host,
    )


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
