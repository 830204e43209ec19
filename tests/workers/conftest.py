"""A GPU host in a temporary folder, and a small controller that stores what its supervisors send."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.conftest import RedisServer
from workers.config import Config
from workers.contract.messages import TELEMETRY_STREAM, AttemptSpec, Control, Request, ack_key, request_key
from workers.run_folder import RunFolder, read_json
from workers.supervisor import processes
from workers.supervisor.claim import is_locked
from workers.supervisor.start import start_attempt, start_recovery


def eventually(
    condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "", diagnosis: Callable[[], str] = str
) -> Any:
    """The first true value of `condition`; fails the test when it takes longer than that."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"did not happen within {timeout_s} s: {what or condition}\n{diagnosis()}")
        time.sleep(0.02)
    return value


class Controller:
    """Accepts batches at its cursors only, acknowledges, deletes, and mirrors requests: as the real one does."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.stored: dict[tuple[str, str], bytearray] = defaultdict(bytearray)
        self.requests: dict[str, Control] = {}
        self.refused = 0
        self.paused = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def stream(self, attempt: str, name: str) -> bytes:
        return bytes(self.stored[attempt, name])

    def lines(self, attempt: str, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream(attempt, name).splitlines()]

    def report(self, attempt: str, node: int = 0) -> list[dict[str, Any]]:
        return self.lines(attempt, f"{-1 - node}/report")

    def said(self, attempt: str, kind: str, node: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.report(attempt, node) if line["kind"] == kind]

    def _run(self) -> None:
        client = self.server.client()
        mirrored = 0.0
        while not self._stop.wait(0.02):
            try:
                if not self.paused:
                    self._ingest(client)
                if time.monotonic() - mirrored > 0.3:
                    self._mirror(client)
                    mirrored = time.monotonic()
            except redis.RedisError:
                self._stop.wait(0.05)
        client.close()

    def _ingest(self, client: redis.Redis) -> None:
        for _, entries in client.xread({TELEMETRY_STREAM: "0"}, count=200) or []:  # type: ignore[union-attr]
            for entry, fields in entries:
                attempt = fields[b"attempt"].decode()
                name = f"{fields[b'rank'].decode()}/{fields[b'kind'].decode()}"
                cursor = self.stored[attempt, name]
                offset, body = int(fields[b"offset"]), fields[b"body"]
                if offset > len(cursor):
                    self.refused += 1
                else:
                    cursor += body[len(cursor) - offset :]
                client.hset(ack_key(attempt), name, len(cursor))
                client.xdel(TELEMETRY_STREAM, entry)

    def _mirror(self, client: redis.Redis) -> None:
        for (attempt, name), content in list(self.stored.items()):
            client.hset(ack_key(attempt), name, len(content))
        for attempt, control in list(self.requests.items()):
            client.set(request_key(attempt), control.model_dump_json())


class Host:
    """Starts attempts on a host of its own, as the Celery task does."""

    def __init__(self, config: Config, controller: Controller) -> None:
        self.config = config
        self.controller = controller
        self.specs: list[AttemptSpec] = []

    def spec(self, script: list[dict[str, Any]], **changes: Any) -> AttemptSpec:
        values: dict[str, Any] = {
            "attempt": uuid.uuid4().hex,
            "job": 1,
            "number": 1,
            "name": "test",
            "recipe": "scripted",
            "settings": {"script": script},
            "devices": [0],
            "grace_s": 5.0,
        }
        return AttemptSpec.model_validate(values | changes)

    def start(self, script: list[dict[str, Any]], **changes: Any) -> Attempt:
        return self.send(self.spec(script, **changes))

    def send(self, spec: AttemptSpec) -> Attempt:
        self.specs.append(spec)
        start_attempt(spec, self.config)
        return Attempt(self, spec)

    def leftovers(self, spec: AttemptSpec) -> list[int]:
        """Processes of a node of an attempt, wherever they hang in the tree."""
        marker = f"{processes.MARKER}={spec.attempt}/{spec.node}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and marker in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def close(self) -> None:
        for spec in self.specs:
            folder = RunFolder.of(self.config.scratch_root, spec.attempt, spec.node)
            if is_locked(folder.lock):
                state = read_json(folder.state)
                if state:
                    with suppress(ProcessLookupError):
                        os.kill(state["pid"], 9)


class Attempt:
    def __init__(self, host: Host, spec: AttemptSpec) -> None:
        self.host = host
        self.controller = host.controller
        self.spec = spec
        self.uid = spec.attempt
        self.folder = RunFolder.of(host.config.scratch_root, spec.attempt, spec.node)

    def said(self, kind: str) -> list[dict[str, Any]]:
        return self.controller.said(self.uid, kind, self.spec.node)

    def one(self, kind: str) -> dict[str, Any]:
        (line,) = self.said(kind)
        return line

    def until(self, kind: str, timeout_s: float = 60.0) -> dict[str, Any]:
        return eventually(lambda: self.said(kind), timeout_s, f"report “{kind}”", self.diagnosis)[0]  # type: ignore[no-any-return]

    def end(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until all is stored and the supervisor is gone; the line that says how it ended."""
        self.until("complete", timeout_s)
        eventually(lambda: not is_locked(self.folder.lock), what="the supervisor leaves")
        assert self.host.leftovers(self.spec) == []
        return self.one("ended")

    def ask(self, leave: Request | None = None, checkpoint: int = 0) -> None:
        self.controller.requests[self.uid] = Control(leave=leave, checkpoint=checkpoint)

    def limit(self, seconds: float | None) -> None:
        """Another time limit than its own; 0 is none. Returns when a supervisor that starts now would read it."""
        control = self.controller.requests[self.uid] = Control(time_limit_s=seconds)
        with self.controller.server.client() as client:
            told = control.model_dump_json().encode()
            eventually(lambda: client.get(request_key(self.uid)) == told, what="the request is told")

    def recover(self) -> None:
        start_recovery(self.folder)

    @property
    def supervisor_pid(self) -> int:
        return int(read_json(self.folder.state)["pid"])

    def process(self, rank: int) -> dict[str, int]:
        return eventually(lambda: read_json(self.folder.process(rank)), what="the shim starts")  # type: ignore[no-any-return]

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return self.controller.lines(self.uid, f"{rank}/steps")

    def running(self, steps: int = 3) -> Attempt:
        self.until("running")
        eventually(lambda: len(self.steps()) >= steps, what="steps arrive")
        return self

    def files(self) -> dict[str, bytes]:
        """What should be stored: every stream's file on the host."""
        own = -1 - self.spec.node
        paths = {f"{own}/report": self.folder.report, f"{own}/log": self.folder.launcher_log}
        paths[f"{own}/devices"] = self.folder.devices
        first = self.spec.node * len(self.spec.devices)
        for rank in range(first, first + len(self.spec.devices)):
            paths[f"{rank}/steps"] = self.folder.steps(rank)
            paths[f"{rank}/events"] = self.folder.events(rank)
            paths[f"{rank}/log"] = self.folder.log(rank)
        return {name: path.read_bytes() if path.exists() else b"" for name, path in paths.items()}

    def assert_everything_stored(self) -> None:
        for name, content in self.files().items():
            assert self.controller.stream(self.uid, name) == content, name

    def diagnosis(self) -> str:
        try:
            report = self.folder.report.read_text() if self.folder.report.exists() else ""
            return report + self.folder.supervisor_log.read_text()[-3000:]
        except OSError:
            return ""


@pytest.fixture
def controller(redis_server: RedisServer) -> Iterator[Controller]:
    controller = Controller(redis_server)
    yield controller
    controller.close()


@pytest.fixture
def host(
    tmp_path: Path, redis_server: RedisServer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Host]:
    for name in ("DATA_DIR", "STORAGE_ROOT", "SCRATCH_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    monkeypatch.setenv("HOST_NAME", "testhost")
    monkeypatch.setenv("DEVICES", "cpu:4")
    monkeypatch.setenv("EVENKEEL_RECIPES", "tests.scripted.recipe")
    host = Host(Config.from_environment(), controller)
    yield host
    host.close()
