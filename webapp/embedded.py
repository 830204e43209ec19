"""The processes of an installation on one machine: started together, started again when they die, stopped together.

`manage.py up` is the only user. Production starts the same commands under systemd or in containers.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import redis

from workers import embedded_redis

BASE_DIR = Path(__file__).resolve().parent.parent
NEEDED_BYTES = 2 * 2**30
LOG_BYTES = 10 * 2**20
# Every process of an installation carries this variable, with the data folder as its value.
MARK = "EVENKEEL_UP"
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
# One that has lived so long is well: its next end is answered at once again.
WELL_S = 60.0
# Hosts hold no credential of the database or of the web side.
NOT_FOR_HOSTS = ("DATABASE_URL", "SECRET_KEY")

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Unusable(Exception):
    """Why nothing can be started here: one sentence for people."""


# --- what must hold before anything starts --------------------------------------------------


@contextmanager
def held(data_dir: Path) -> Iterator[None]:
    """The data folder is ours until the end. The lock goes with this process, however it ends."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (data_dir / "up.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unusable(
                f"Evenkeel is already running on {data_dir}; stop it first, or choose another folder with DATA_DIR=."
            ) from None
        yield


def check_disk(data_dir: Path) -> None:
    free = shutil.disk_usage(data_dir).free
    if free < NEEDED_BYTES:
        raise Unusable(
            f"Only {free / 2**30:.1f} GiB of disk are free at {data_dir}, and 2 GiB are needed: "
            "make room, or choose another folder with DATA_DIR=."
        )


def check_port(address: str, port: int) -> None:
    with socket.socket() as probe:
        # As the server will: a port that only waits out its last connections is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except PermissionError:
            raise Unusable(f"Port {port} is reserved for root; choose one above 1023 with PORT=.") from None
        except OSError:
            raise Unusable(
                f"Port {port} is taken by another program; choose another one with PORT={port + 1}."
            ) from None


def wait_for_redis(url: str, *, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
                client.ping()
            return
        except redis.RedisError as error:
            if time.monotonic() > deadline:
                parts = urlsplit(url)
                where = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
                raise Unusable(f"The Redis server at {where} does not answer: {error}.") from None
        time.sleep(0.05)


# --- processes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    name: str
    argv: list[str]
    env: dict[str, str]
    # After SIGTERM; then it is killed.
    patience_s: float = 10.0


def parts(data_dir: Path, address: str, port: int) -> list[Part]:
    """In the order of starting; stopped the other way round. Redis only if there is no REDIS_URL."""
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
        "DATA_DIR": str(data_dir),
        "PYTHONUNBUFFERED": "1",
        MARK: str(data_dir),
    }
    for_hosts = {name: value for name, value in env.items() if name not in NOT_FOR_HOSTS}
    # Two slots at least, so that a data-parallel job has a place. A GPU is used when DEVICES says so.
    if not for_hosts.get("DEVICES"):
        for_hosts["DEVICES"] = f"cpu:{max(2, os.cpu_count() or 1)}"
    python = sys.executable
    listen = ["--host", address, "--port", str(port)]
    uvicorn = ["uvicorn", "webapp.asgi:application", "--timeout-graceful-shutdown", "3", "--lifespan", "off"]
    # Who asks is for jobs/throttle.py to say: uvicorn would take the word of anybody on this machine.
    uvicorn.append("--no-proxy-headers")
    found = []
    if not os.environ.get("REDIS_URL"):
        found.append(Part("redis", embedded_redis.command(data_dir), env, 5.0))
    found += [
        Part("controller", [python, "manage.py", "controller"], env),
        Part("web", [python, "-m", *uvicorn, *listen, "--no-server-header"], env, 8.0),
        Part("worker", [python, "-m", "workers"], for_hosts),
    ]
    return found


@dataclass
class Child:
    """A part's process, and its successors."""

    part: Part
    logs: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    wait_s: float = SHORTEST_WAIT_S
    due: float = 0.0

    @property
    def log(self) -> Path:
        return self.logs / f"{self.part.name}.log"

    def start(self) -> None:
        rotate(self.log)
        parent = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal is for the parent, which stops things in order.
            self.process = subprocess.Popen(
                self.part.argv,
                cwd=BASE_DIR,
                env=self.part.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.started = time.monotonic()
        self.due = 0.0

    def tend(self) -> str | None:
        """Start it again if it is time; what there is to say, if anything."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        now = time.monotonic()
        if not self.due:
            if now - self.started > WELL_S:
                self.wait_s = SHORTEST_WAIT_S
            self.due = now + self.wait_s
            said = (
                f"{self.part.name} ended ({ended_how(code)}); it is started again in {self.wait_s:g} s, see {self.log}"
            )
            self.wait_s = min(2 * self.wait_s, LONGEST_WAIT_S)
            return said
        if now >= self.due:
            self.start()
        return None

    def stop(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self.part.patience_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


@dataclass
class Children:
    """All of an installation, in the order of starting."""

    all: list[Child] = field(default_factory=list)

    @classmethod
    def of(cls, some: Iterable[Part], logs: Path) -> Children:
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls([Child(part, logs) for part in some])

    def named(self, name: str) -> Child | None:
        return next((child for child in self.all if child.part.name == name), None)

    def start(self, *names: str) -> None:
        for child in self.all:
            if child.part.name in names and child.process is None:
                child.start()

    def tend(self, say: Callable[[str], None]) -> None:
        for child in self.all:
            said = child.tend()
            if said:
                say(said)

    def stop(self) -> None:
        for child in reversed(self.all):
            child.stop()


def ended_how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))


# --- what is left ---------------------------------------------------------------------------


def processes_of(data_dir: Path, scratch_root: Path) -> dict[int, str]:
    """pid -> command line of every live process of this installation except our own, descendants included.

    Supervisors hide their environment and ranks have one of their own: these are known by a run folder among a
    Python's arguments, or by the name of an attempt whose folder is here.
    """
    mark = f"{MARK}={data_dir}".encode()
    attempts = scratch_root / "attempts"
    runs = os.fsencode(attempts) + b"/"
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    marked = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_bytes()
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        pid = int(entry.name)
        state, parent = stat[stat.rindex(b")") + 2 :].split()[:2]
        if state == b"Z":
            continue
        parents[pid] = int(parent)
        commands[pid] = b" ".join(argv).decode(errors="replace").strip()
        if b"python" in Path(os.fsdecode(argv[0])).name.encode() and any(arg.startswith(runs) for arg in argv[1:]):
            marked.add(pid)
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # someone else's
            continue
        if mark in environment or _is_of_attempt(environment, attempts):
            marked.add(pid)
    found = {}
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor not in marked:
            ancestor = parents[ancestor]
        if ancestor in marked and pid != os.getpid():
            found[pid] = commands[pid]
    return found


def _is_of_attempt(environment: list[bytes], attempts: Path) -> bool:
    prefix = b"EVENKEEL_ATTEMPT="
    names = [line.removeprefix(prefix).split(b"/")[0] for line in environment if line.startswith(prefix)]
    return any(name and (attempts / os.fsdecode(name)).is_dir() for name in names)


def run_processes(data_dir: Path, scratch_root: Path) -> dict[int, str]:
    """Of those, the ones that belong to an attempt: supervisors, launchers, ranks."""
    runs = str(scratch_root / "attempts") + "/"
    return {pid: line for pid, line in processes_of(data_dir, scratch_root).items() if runs in line}


def kill_all(data_dir: Path, scratch_root: Path, *, timeout_s: float = 10.0) -> list[str]:
    """SIGKILL to all that is left, again and again until nothing is; the command lines of what would not die."""
    deadline = time.monotonic() + timeout_s
    while left := processes_of(data_dir, scratch_root):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            return list(left.values())
        time.sleep(0.1)
    return []
