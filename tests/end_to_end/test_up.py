"""`manage.py up`, as people start and stop it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import services
from jobs.management.commands.up import DRAIN_S
from tests.end_to_end.conftest import has_failed
from tests.end_to_end.stack import ROOT, DatabaseOf, Stack, newest, until, why
from workers.contract.messages import Request
from workers.contract.states import EndReason, Status


class Up:
    """`manage.py up` in a process group of its own, as in a terminal."""

    def __init__(self, stack: Stack, *options: str) -> None:
        self.output = stack.data_dir / "up.txt"
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--port", str(stack.port), *options],
                cwd=ROOT,
                env=stack.env,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str, timeout_s: float = 120.0) -> None:
        def found() -> bool:
            if words in self.said():
                return True
            assert self.process.poll() is None, self.said()
            return False

        until(found, f"“{words}”", timeout_s)

    def stop(self, number: int = signal.SIGINT, timeout_s: float = 120.0) -> str:
        self.process.send_signal(number)
        self.process.wait(timeout_s)
        return self.said()


@pytest.fixture
def stack(tmp_path: Path, django_db_blocker: Any, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Nothing runs yet."""
    # A folder with a space in its name, as people have them.
    stack = Stack(tmp_path / "my data")
    try:
        with django_db_blocker.unblock(), DatabaseOf(stack.data_dir):
            yield stack
            if has_failed(request):
                stack.print_logs()
    finally:
        stack.stop()


def prepared(stack: Stack) -> Stack:
    stack.prepare()
    return stack


@pytest.mark.slow
def test_ctrl_c_drains_and_the_next_start_goes_on(stack: Stack) -> None:
    prepared(stack)
    up = Up(stack)
    up.wait_for("Evenkeel is at")
    job = stack.submit([{"do": "steps", "n": 400, "ms": 20}])
    stack.wait_for_steps(job, 30)
    said = up.stop()
    assert up.process.returncode == 0
    assert "Stopping: running jobs save a checkpoint first" in said
    assert "no process is left" in said
    assert stack.processes() == {}
    drained = job.attempts.get(number=1)
    assert drained.end_reason == EndReason.DRAINED, why(drained)
    assert drained.complete_at is not None
    stack.assert_all_stored_once(drained, 2)

    up = Up(stack)
    attempt = stack.wait_for_end(job)
    assert (attempt.number, attempt.end_reason) == (2, EndReason.COMPLETED), why(attempt)
    assert attempt.start_from is not None and attempt.start_from.step == drained.attempted
    assert attempt.attempted == drained.attempted + 400
    up.wait_for("succeeded: Training is complete.")
    up.stop(signal.SIGTERM)
    assert stack.processes() == {}


@pytest.mark.slow
def test_a_killed_up_takes_its_parts_along_and_the_next_one_finds_the_job_still_running(stack: Stack) -> None:
    prepared(stack)
    up = Up(stack)
    up.wait_for("Evenkeel is at")
    job = stack.submit([{"do": "steps", "n": 500, "ms": 20}])
    stack.wait_for_steps(job, 30)
    up.process.kill()
    up.process.wait()
    until(lambda: set(stack.processes()) == set(stack.run_processes()), "the parts to end")
    assert stack.run_processes(), "the attempt goes on without them"
    up = Up(stack)
    attempt = stack.wait_for_end(job)
    assert (attempt.number, attempt.end_reason) == (1, EndReason.COMPLETED), why(attempt)
    stack.assert_all_stored_once(attempt, 2)
    up.stop()
    assert stack.processes() == {}


def test_a_second_ctrl_c_kills_at_once(stack: Stack) -> None:
    prepared(stack)
    up = Up(stack)
    up.wait_for("Evenkeel is at")
    job = stack.submit([{"do": "start", "s": 600}])
    until(lambda: newest(job).status == Status.STARTING and stack.run_processes(), "the start")
    up.process.send_signal(signal.SIGINT)
    up.wait_for("Stopping: running jobs")
    before = time.monotonic()
    up.stop()
    assert time.monotonic() - before < DRAIN_S / 2
    assert stack.processes() == {}


def test_a_part_that_dies_is_started_again_and_said(stack: Stack) -> None:
    up = Up(stack)
    up.wait_for("Evenkeel is at")
    web = [pid for pid, line in stack.processes().items() if "uvicorn" in line]
    for pid in web:
        subprocess.run(["kill", "-9", str(pid)], check=True)
    up.wait_for("web ended (signal SIGKILL); it is started again")
    until(stack.web_answers, "web")
    up.stop()
    assert stack.processes() == {}


def test_events_and_progress_are_told_a_line_each(stack: Stack) -> None:
    prepared(stack)
    up = Up(stack)
    up.wait_for("Evenkeel is at")
    job = stack.submit([{"do": "steps", "n": 40, "ms": 20}, {"do": "sleep", "s": 60}], name="told")
    up.wait_for(f"job {job.pk} · “told” attempt 1 queued")
    up.wait_for(f"job {job.pk} · running")
    up.wait_for(f"job {job.pk} · step ")
    services.ask_to_leave(job, Request.CANCEL, actor=None, actor_name="test")
    up.wait_for("cancelled: Cancelled on request.")
    assert "Traceback" not in up.stop()


@pytest.mark.parametrize(
    "port, said",
    [
        ("many", "PORT must be a number from 1 to 65535, not “many”"),
        pytest.param("0", "not “0”", marks=pytest.mark.slow),
        pytest.param("99999", "not “99999”", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_port_is_one_sentence(stack: Stack, port: str, said: str) -> None:
    result = stack.manage("up", "--port", port, check=False)
    assert result.returncode == 1
    assert said in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_a_taken_port_is_one_sentence(stack: Stack) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = stack.manage("up", "--port", str(port), check=False)
    assert result.returncode == 1
    assert f"Port {port} is taken" in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert stack.processes() == {}


def test_a_second_start_on_the_same_folder_is_one_sentence(stack: Stack) -> None:
    up = Up(stack)
    up.wait_for("Evenkeel is at")
    result = stack.manage("up", "--port", "8999", check=False)
    assert result.returncode == 1
    assert "already running" in result.stderr and len(result.stderr.strip().splitlines()) == 1
    with urllib.request.urlopen(f"{stack.url}healthz", timeout=60) as answer:
        assert answer.status == 200
    up.stop()
