"""The real thing on a data folder of its own: the processes of `manage.py up`, to be killed one by one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from django.db import connections
from django.db.utils import load_backend

from jobs.models import Attempt, Job, LogChunk
from jobs.steps import read
from webapp import embedded
from workers.contract.states import ENDED
from workers.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
HOST = "test-host"
T = TypeVar("T")


def until(found: Callable[[], T | None], what: str, timeout_s: float = 120.0) -> T:
    """What `found` returns once it is true; it is asked ten times a second."""
    deadline = time.monotonic() + timeout_s
    while not (result := found()):
        assert time.monotonic() < deadline, f"after {timeout_s:g} s still waiting for {what}"
        time.sleep(0.1)
    return result


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Stack:
    def __init__(self, folder: Path, **env: str) -> None:
        self.data_dir = folder / "data"
        self.scratch_root = self.data_dir / "scratch"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
        self.env |= {
            "DATA_DIR": str(self.data_dir),
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
            "EVENKEEL_RECIPES": "tests.scripted.recipe",
            "HOST_NAME": HOST,
            "DEVICES": "cpu:2",
            **env,
        }
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(self.env)
        try:
            parts = embedded.parts(self.data_dir, "127.0.0.1", self.port)
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.children = embedded.Children.of(parts, self.data_dir / "logs")

    # --- processes ---

    def manage(self, *arguments: str, check: bool = True, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", *arguments]
        result = subprocess.run(command, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=timeout_s)
        assert not check or result.returncode == 0, result.stderr
        return result

    def prepare(self) -> None:
        self.manage("migrate", "-v0")
        self.manage(
            "shell", "-v0", "-c", "from django.contrib.auth.models import User; User.objects.create_user('owner')"
        )

    def start(self, *names: str) -> None:
        """All parts that do not run, or those named."""
        for child in self.children.all:
            if names and child.part.name not in names:
                continue
            if child.process is None or child.process.poll() is not None:
                child.start()
        if not names or "redis" in names:
            embedded.wait_for_redis(f"unix://{self.data_dir / 'redis.sock'}")
        if not names or "web" in names:
            until(self.web_answers, "web")

    def web_answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}healthz", timeout=60):
                return True
        except OSError:
            return False

    def kill(self, name: str) -> None:
        """SIGKILL, without a successor; of Redis, what it keeps on disk goes as well."""
        child = self.children.named(name)
        assert child is not None and child.process is not None
        child.process.kill()
        child.process.wait()
        if name == "redis":
            (self.data_dir / "redis.rdb").unlink(missing_ok=True)

    def stop(self) -> None:
        self.children.stop()
        left = embedded.kill_all(self.data_dir, self.scratch_root)
        assert not left, left

    def processes(self) -> dict[int, str]:
        return embedded.processes_of(self.data_dir, self.scratch_root)

    def run_processes(self) -> dict[int, str]:
        return embedded.run_processes(self.data_dir, self.scratch_root)

    def print_logs(self) -> None:
        """What each part wrote last; pytest shows it beside a failed test."""
        logs = [*self.data_dir.glob("logs/*.log"), *self.scratch_root.glob("attempts/*/*/supervisor.log")]
        for log in sorted([*logs, *self.data_dir.glob("up*.txt")]):
            last = log.read_text(errors="replace").splitlines()[-25:]
            print(f"--- {log.relative_to(self.data_dir)}", *last, sep="\n")

    # --- jobs ---

    def submit(self, script: list[dict[str, Any]], *, ranks: int = 2, name: str = "scripted") -> Job:
        settings = {"script": script, "devices": {"devices_per_node": ranks}}
        return self.submit_file({"name": name, "recipe": "scripted", "settings": settings})

    def submit_file(self, job: dict[str, Any]) -> Job:
        file = self.data_dir / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        result = self.manage("submit", str(file), "--owner", "owner", "--json")
        return Job.objects.get(pk=json.loads(result.stdout)["job"])

    def wait_for_steps(self, job: Job, count: int, timeout_s: float = 120.0) -> Attempt:
        def enough() -> Attempt | None:
            attempt = newest(job)
            assert attempt.status not in ENDED, why(attempt)
            return attempt if attempt.attempted >= count else None

        return until(enough, f"{count} steps of {job}", timeout_s)

    def wait_for_end(self, job: Job, timeout_s: float = 180.0) -> Attempt:
        """Until the newest attempt has ended, every byte of it is stored, and no process of it is left."""

        def over() -> Attempt | None:
            attempt = newest(job)
            return attempt if attempt.status in ENDED and attempt.complete_at else None

        attempt = until(over, f"the end of {job}", timeout_s)
        until(lambda: not self.run_processes(), "the supervisor to leave")
        return attempt

    def run_folder(self, attempt: Attempt) -> RunFolder:
        return RunFolder.of(self.scratch_root, attempt.uid, 0)

    def assert_all_stored_once(self, attempt: Attempt, ranks: int) -> None:
        """What is in the database is what the ranks wrote, byte for byte: steps, and logs with the launcher's."""
        folder = self.run_folder(attempt)
        for rank in range(ranks):
            written = folder.steps(rank).read_bytes()
            assert written and b"".join(read.lines(attempt, rank)) == written
            assert log_of(attempt, rank) == folder.log(rank).read_bytes()
        launcher = folder.launcher_log.read_bytes()
        assert launcher and log_of(attempt, -1) == launcher


def newest(job: Job) -> Attempt:
    return Attempt.objects.filter(job=job).latest("number")


def log_of(attempt: Attempt, rank: int) -> bytes:
    stored = b""
    for chunk in LogChunk.objects.filter(attempt=attempt, rank=rank).order_by("offset"):
        assert chunk.offset == len(stored)
        stored += bytes(chunk.body)
    return stored


def why(attempt: Attempt) -> str:
    return f"{attempt}: {attempt.status} {attempt.end_reason} {attempt.end_detail}"


class DatabaseOf:
    """Within, this process reads and writes the stack's database instead of the tests'."""

    def __init__(self, data_dir: Path) -> None:
        self.settings = dict(connections["default"].settings_dict)
        if "sqlite3" not in self.settings["ENGINE"]:
            self.settings = {**self.settings, "ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"timeout": 20}}
        self.settings["NAME"] = str(data_dir / "evenkeel.sqlite3")

    def __enter__(self) -> None:
        self.before = connections["default"]
        backend = load_backend(self.settings["ENGINE"])
        connections["default"] = backend.DatabaseWrapper(self.settings, "default")

    def __exit__(self, *_: object) -> None:
        connections["default"].close()
        connections["default"] = self.before


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
