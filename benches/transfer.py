"""A large file through the whole of it: upload in parts, check to the end, downloads. With how much memory, and how fast?

The way is the real one: the processes of `manage.py up` on a data folder of their own, HTTP to uvicorn. The file is made up
while it is sent. TRANSFER_BYTES says how large it is, 2 GiB by default; three times as much must be free on the disk.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benches import environment as bench

if TYPE_CHECKING:
    from tests.end_to_end.visitor import Visitor

BYTES = int(os.environ.get("TRANSFER_BYTES", 2 * 2**30))
PART = 8 * 2**20
READ = 2**20
WEB_GOAL, CHECK_GOAL = 64 * 2**20, 1536 * 2**20
# Its first batch needs Paddle, which takes its time to load.
CHECK_GOAL_S = 60 + 540 * BYTES / 2**31
CHARACTERS = "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里"


def rows() -> Iterator[bytes]:
    """A table of short Chinese texts, none twice, a fiftieth of them in quotation marks."""
    chance = random.Random(7)
    some = "".join(chance.choices(CHARACTERS, k=2_000_000))
    yield b"text,label\n"
    number = 0
    while True:
        lines = []
        for number in range(number + 1, number + 10_001):  # noqa: B020 -- goes on where it was
            start = chance.randrange(len(some) - 50)
            text = some[start : start + chance.randrange(15, 45)]
            row = f'"{text},{number}"' if number % 50 == 0 else f"{text}{number}"
            lines.append(f"{row},{'正负'[number % 2]}\n")
        yield "".join(lines).encode()


def parts() -> Iterator[bytes]:
    """BYTES of them, in parts of PART; the last row may be cut, which is then filled up with characters of its label."""
    held, left = b"", BYTES
    for body in rows():
        held += body
        while len(held) >= PART and left:
            part, held = held[: min(PART, left)], held[min(PART, left) :]
            left -= len(part)
            if not left:
                part = part[: part.rindex(b"\n")].ljust(len(part) - 1) + b"\n"
            yield part
        if not left:
            return


class Peak:
    """Most resident memory of a process while the block runs, and how long it took. The kernel keeps the mark."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def __enter__(self) -> Peak:
        (self._folder / "clear_refs").write_text("5")
        self.before = self._status("VmRSS")
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.peak = self._status("VmHWM")

    def _status(self, name: str) -> int:
        lines = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


class CheckWatch(threading.Thread):
    """Most resident memory and processor time of the process of a check."""

    def __init__(self, worker: int) -> None:
        super().__init__(daemon=True)
        self._worker = psutil.Process(worker)
        self.peak, self.cpu_s = 0, 0.0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.5):
            for process in self._worker.children():
                try:
                    if "workers.datasets.run" in process.cmdline():
                        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                        found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
                        self.peak, times = max(self.peak, found), process.cpu_times()
                        self.cpu_s = times.user + times.system
                except (psutil.Error, OSError, StopIteration):
                    continue


def upload(client: Visitor, web: int) -> tuple[Peak, str]:
    announced = json.dumps([{"field": "file", "name": "large.csv", "bytes": BYTES}])
    answer = client.post(
        "/datasets/new/", {"source": "file", "name": "large", "announced": announced}, Accept="application/json"
    )
    said = json.loads(answer.read())
    offset = 0
    with Peak(web) as peak:
        for part in parts():
            answer = client.ask("POST", f"{said['uploads'][0]}?offset={offset}", part, Accept="application/json")
            offset = json.loads(answer.read())["offset"]
    assert offset == BYTES, offset
    return peak, said["next"]


def download(client: Visitor, web: int, url: str) -> tuple[Peak, int]:
    with Peak(web) as peak:
        answer = client.ask("GET", url)
        assert answer.status == 200, (answer.status, url)
        size = 0
        while block := answer.read(READ):
            size += len(block)
        assert size == int(answer.headers["Content-Length"]), size
    return peak, size


def told(what: str, peak: Peak, size: int) -> bool:
    grown = max(peak.peak - peak.before, 0)
    print(
        f"{what:32}{size / 2**30:>7.2f} GiB{peak.seconds:>8.0f} s{size / peak.seconds / 2**20:>7.0f} MiB/s"
        f"   web {peak.before / 2**20:.0f} MiB, at most {grown / 2**20:.0f} more",
        flush=True,
    )
    return grown <= WEB_GOAL


def measure(folder: Path) -> bool:
    from jobs.models import Artifact, Dataset
    from tests.end_to_end.stack import DatabaseOf, Stack, until
    from tests.end_to_end.visitor import Visitor

    stack = Stack(folder)
    try:
        stack.prepare()
        with DatabaseOf(stack.data_dir):
            stack.start()
            pids = {name: _pid(stack, name) for name in ("web", "worker")}
            client = Visitor(stack.url)
            job = stack.submit([])
            artifact = Artifact.objects.create(
                attempt=job.newest, name="model", key="large", bytes=BYTES, sha256="0" * 64
            )
            storage = stack.data_dir / "storage"
            storage.mkdir(exist_ok=True)
            with (storage / "large.tar").open("wb") as file:
                file.truncate(BYTES)
            peak, size = download(client, pids["web"], f"/jobs/{job.pk}/artifacts/{artifact.pk}/")
            met = told("download of a result", peak, size)
            peak, page = upload(client, pids["web"])
            met = told("upload in parts of 8 MiB", peak, BYTES) and met
            dataset = Dataset.objects.get()
            watch = CheckWatch(pids["worker"])
            watch.start()
            started = time.perf_counter()
            reading = {
                "format": "table", "encoding": "utf-8", "delimiter": "comma", "header": "on", "quotes": "on",
                "text_column": "text", "label_column": "label", "dev_fraction": "0.1", "seed": "1", "leave_out": "on",
            }  # fmt: skip
            assert client.post(f"{page}describe/", reading).status == 302

            def ended() -> Any:
                time.sleep(0.9)
                dataset.refresh_from_db()
                return dataset.state in ("ready", "refused")

            until(ended, "the check", 7200)
            watch.done.set()
            assert dataset.state == "ready", dataset.findings
            seconds = time.perf_counter() - started
            print(
                f"{'check, first batch included':32}{BYTES / 2**30:>7.2f} GiB{seconds:>8.0f} s"
                f"   {sum(dataset.splits.values()):,} rows, {watch.cpu_s:.0f} s of processor time, "
                f"at most {watch.peak / 2**20:.0f} MiB",
                flush=True,
            )
            met = met and watch.peak <= CHECK_GOAL and seconds <= CHECK_GOAL_S
            peak, size = download(client, pids["web"], f"/datasets/{dataset.pk}/train.jsonl")
            met = told("download of the training rows", peak, size) and met
            return met
    finally:
        stack.stop()


def _pid(stack: Any, name: str) -> int:
    child = stack.children.named(name)
    assert child is not None and child.process is not None
    pid: int = child.process.pid
    return pid


def main() -> int:
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; "
        f"{bench.database_name()}\n"
    )
    with tempfile.TemporaryDirectory(prefix="evenkeel-transfer-") as folder:
        met = measure(Path(folder))
    print(
        f"\nGoals: web at most {WEB_GOAL // 2**20} MiB more, the check at most {CHECK_GOAL // 2**20} MiB "
        f"and {CHECK_GOAL_S:.0f} s: {'met' if met else 'MISSED'}. Load {os.getloadavg()[0]:.1f} after."
    )
    print("Bounded by: one core of web, which copies parts and chunks; one core of the check.")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
