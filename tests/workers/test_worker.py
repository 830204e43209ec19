"""The Celery worker as it runs on a host: `python -m workers`, a real broker, and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from tests.conftest import RedisServer
from tests.workers.conftest import Attempt, Host, eventually
from workers import embedded_redis
from workers.config import BASE_DIR
from workers.contract.messages import START_TASK, AttemptSpec, Request, host_key, host_queue
from workers.run_folder import read_json
from workers.watch import HostThreads


class Worker:
    def __init__(self, log: Path) -> None:
        self.log = log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers"], cwd=BASE_DIR, stdout=file, stderr=file, start_new_session=True
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def worker(host: Host, tmp_path: Path) -> Iterator[Worker]:
    """In the environment that the `host` fixture has set."""
    worker = Worker(tmp_path / "worker.log")
    yield worker
    worker.kill()


def beat(server: RedisServer) -> dict[str, Any] | None:
    try:
        with server.client() as client:
            said = client.get(host_key("testhost"))
    except redis.RedisError:
        return None
    return json.loads(said) if said else None  # type: ignore[arg-type]


def send(host: Host, spec: AttemptSpec) -> Attempt:
    """As the controller does."""
    with Celery(broker=embedded_redis.broker_url(host.config.redis_url)) as sender:
        sender.send_task(START_TASK, args=[spec.model_dump(mode="json")], queue=host_queue("testhost"))
    host.specs.append(spec)
    return Attempt(host, spec)


def test_worker_beats_starts_attempts_and_may_be_killed_meanwhile(
    host: Host, worker: Worker, redis_server: RedisServer
) -> None:
    first = eventually(lambda: beat(redis_server), what="the first beat")
    assert len(first["devices"]) == 4
    spec = host.spec([{"do": "steps", "n": 100_000, "ms": 5}])
    attempt = send(host, spec)
    send(host, spec)  # twice is harmless
    attempt.running()
    supervisor = attempt.supervisor_pid

    worker.kill()
    before = len(attempt.steps())
    eventually(lambda: len(attempt.steps()) > before + 20, what="training goes on without the worker")
    worker.start()
    again = eventually(lambda: (now := beat(redis_server)) and now["boot"] != first["boot"] and now)
    assert again["attempts"] == [attempt.uid]
    assert attempt.supervisor_pid == supervisor

    attempt.ask(Request.CANCEL)
    assert attempt.end()["end_reason"] == "cancelled"
    assert len(attempt.said("claimed")) == 1


def test_worker_survives_a_redis_that_was_killed_and_wiped(
    host: Host, worker: Worker, redis_server: RedisServer
) -> None:
    eventually(lambda: beat(redis_server), what="the first beat")
    redis_server.kill()
    time.sleep(2.0)
    redis_server.start()
    eventually(lambda: beat(redis_server), what="beats go on")
    attempt = send(host, host.spec([{"do": "steps", "n": 5}]))
    assert attempt.end()["end_reason"] == "completed"


def test_worker_stops_when_asked_and_leaves_the_attempt_alone(
    host: Host, worker: Worker, redis_server: RedisServer
) -> None:
    eventually(lambda: beat(redis_server), what="the first beat")
    attempt = send(host, host.spec([{"do": "steps", "n": 100_000, "ms": 5}])).running()
    worker.stop()
    before = len(attempt.steps())
    eventually(lambda: len(attempt.steps()) > before + 20)
    attempt.ask(Request.CANCEL)
    attempt.end()


def test_worker_looks_after_a_dead_supervisor_before_redis_is_back(
    host: Host, worker: Worker, redis_server: RedisServer
) -> None:
    attempt = host.start([{"do": "steps", "n": 100_000, "ms": 5}]).running()
    worker.kill()
    redis_server.kill()
    os.kill(attempt.supervisor_pid, signal.SIGKILL)
    worker.start()
    eventually(lambda: '"supervisor_lost"' in attempt.folder.report.read_text(), what="the recovery")
    redis_server.start()
    assert attempt.end()["end_reason"] == "supervisor_lost"
    attempt.assert_everything_stored()


def test_watcher_recovers_an_attempt_whose_supervisor_was_killed(host: Host) -> None:
    lost = host.start([{"do": "steps", "n": 100_000, "ms": 5}], devices=[0]).running()
    living = host.start([{"do": "steps", "n": 100_000, "ms": 5}], devices=[1]).running()
    pid = living.supervisor_pid
    os.kill(lost.supervisor_pid, signal.SIGKILL)
    threads = HostThreads(host.config)
    eventually(lambda: (threads.watch(), lost.said("complete"))[1], what="the watcher notices")
    assert lost.end()["end_reason"] == "supervisor_lost"
    assert living.supervisor_pid == pid
    living.ask(Request.CANCEL)
    assert living.end()["end_reason"] == "cancelled"


def test_watcher_deletes_run_folders_that_are_complete_and_old(host: Host) -> None:
    attempt = host.start([{"do": "steps", "n": 5}])
    attempt.end()
    threads = HostThreads(host.config)
    threads.watch()
    assert read_json(attempt.folder.state)["stage"] == "done"
    old = time.time() - host.config.retention_s - 1
    os.utime(attempt.folder.state, (old, old))
    threads.watch()
    assert not attempt.folder.path.parent.exists()


def test_watcher_lets_a_message_start_what_died_before_its_first_word(host: Host) -> None:
    spec = host.spec([{"do": "steps", "n": 5}], placement=3)
    attempt = Attempt(host, spec)
    attempt.folder.make()
    attempt.folder.claim(3).touch()
    threads = HostThreads(host.config)
    eventually(lambda: (threads.watch(), attempt.folder.newest_claim == -1)[1], what="the claim is given back")
    assert host.send(spec).end()["end_reason"] == "completed"


def test_a_gpu_that_is_not_there_stops_the_worker_with_a_sentence(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICES", "gpu:97")
    done = subprocess.run([sys.executable, "-m", "workers"], cwd=BASE_DIR, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "DEVICES names the GPUs 97, but nvidia-smi lists only 0 of them." in done.stderr


def test_a_wrong_setting_is_one_sentence_and_no_traceback(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICES", "tpu")
    done = subprocess.run([sys.executable, "-m", "workers"], cwd=BASE_DIR, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip() == "DEVICES must be auto, cpu, cpu:2, gpu or gpu:0,1, not “tpu”."
