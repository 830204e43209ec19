from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import RedisServer
from webapp import embedded

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[..., embedded.Child]]:
    made = []

    def make(argv: list[str], **env: str) -> embedded.Child:
        made.append(embedded.Child(embedded.Part("part", argv, os.environ | env, 5.0), tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def wait_until(true: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_second_start_on_the_same_folder_is_refused_in_one_sentence(tmp_path: Path) -> None:
    refused = pytest.raises(embedded.Unusable, match=r"already running on .*DATA_DIR=")
    with embedded.held(tmp_path), refused, embedded.held(tmp_path):
        pass
    with embedded.held(tmp_path):
        pass


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(embedded.Unusable, match=f"Port {port} is taken .* PORT={port + 1}"):
            embedded.check_port("127.0.0.1", port)
    embedded.check_port("127.0.0.1", port)


def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded.check_disk(tmp_path)
    monkeypatch.setattr(embedded, "NEEDED_BYTES", 2**60)
    with pytest.raises(embedded.Unusable, match="2 GiB are needed"):
        embedded.check_disk(tmp_path)


def test_a_silent_redis_is_named_without_its_password() -> None:
    with pytest.raises(embedded.Unusable, match=r"at 127\.0\.0\.1:1 does not answer") as caught:
        embedded.wait_for_redis("redis://:secret@127.0.0.1:1/0", timeout_s=0.1)
    assert "secret" not in str(caught.value)


def test_an_answering_redis_is_enough(redis_server: RedisServer) -> None:
    embedded.wait_for_redis(redis_server.url)


def test_hosts_get_no_credential_and_nothing_secret_is_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:hidden@host/name")
    monkeypatch.setenv("SECRET_KEY", "hidden")
    monkeypatch.setenv("REDIS_URL", "redis://:hidden@host/0")
    parts = {part.name: part for part in embedded.parts(tmp_path, "127.0.0.1", 8000)}
    assert set(parts) == {"controller", "web", "worker"}
    assert "DATABASE_URL" not in parts["worker"].env and "SECRET_KEY" not in parts["worker"].env
    assert parts["web"].env["DATABASE_URL"]
    assert not [argument for part in parts.values() for argument in part.argv if "hidden" in argument]


def test_a_dead_part_is_started_again_later_and_later(child: Callable[..., embedded.Child]) -> None:
    part = child([sys.executable, "-c", "raise SystemExit(3)"])
    part.start()
    said = []
    deadline = time.monotonic() + 60
    while len(said) < 3:
        assert time.monotonic() < deadline
        if line := part.tend():
            said.append(line)
        time.sleep(0.01)
    waits = [line.split("again in ")[1].split(" s")[0] for line in said]
    assert waits == ["0.5", "1", "2"]
    assert "exit code 3" in said[0]


def test_stop_ends_even_what_does_not_listen(child: Callable[..., embedded.Child]) -> None:
    deaf = child(
        [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(60)"]
    )
    deaf.part = embedded.Part("deaf", deaf.part.argv, deaf.part.env | {"PYTHONUNBUFFERED": "1"}, 0.2)
    deaf.start()
    wait_until(lambda: deaf.log.exists() and deaf.log.stat().st_size)
    process = deaf.process
    assert process is not None
    deaf.stop()
    assert process.returncode == -signal.SIGKILL


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time, os; from pathlib import Path; from webapp import embedded\n"
            f"child = embedded.Child(embedded.Part('x', {SLEEP!r}, dict(os.environ)), Path({str(tmp_path)!r}))\n"
            "child.start(); print(child.process.pid, flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())


def test_a_long_log_is_put_aside_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "part.log"
    log.write_bytes(b"x" * 100)
    embedded.rotate(log)
    assert log.exists()
    monkeypatch.setattr(embedded, "LOG_BYTES", 99)
    embedded.rotate(log)
    assert not log.exists() and (tmp_path / "part.log.1").exists()


def test_everything_of_an_installation_is_found_and_killed_and_nothing_else(tmp_path: Path) -> None:
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    run_folder = scratch / "attempts" / "abc" / "node0"
    run_folder.mkdir(parents=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL")}
    with_child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    ours = [
        subprocess.Popen(SLEEP, env=clean | {embedded.MARK: str(data)}),
        subprocess.Popen([sys.executable, "-c", with_child, str(run_folder)], env=clean, start_new_session=True),
        subprocess.Popen(SLEEP, env=clean | {"EVENKEEL_ATTEMPT": "abc/0"}, start_new_session=True),
    ]
    others = [
        subprocess.Popen(SLEEP, env=clean | {embedded.MARK: str(data) + "-other", "DATA_DIR": str(data)}),
        subprocess.Popen(SLEEP, env=clean | {"EVENKEEL_ATTEMPT": "def/0"}),
    ]
    try:
        wait_until(lambda: len(embedded.processes_of(data, scratch)) == 4)  # three, and the child of one
        assert set(embedded.run_processes(data, scratch)) == {ours[1].pid}
        assert embedded.kill_all(data, scratch) == []
        assert [process.wait(60) for process in ours] == [-signal.SIGKILL] * 3
        assert [process.poll() for process in others] == [None, None]
    finally:
        for process in [*ours, *others]:
            process.kill()
            process.wait()
