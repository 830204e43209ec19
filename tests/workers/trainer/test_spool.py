"""The append-only files of a rank."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers.contract import records
from workers.trainer.__main__ import explain
from workers.trainer.spool import Events, Spool, Steps

RECORD = dict.fromkeys(records.FIELDS, 0) | {
    "grad_norm": float("nan"),
    "loss": float("inf"),
    "batch_id": "0:0",
    "skipped": "non_finite_loss",
    "extras": None,
}

WRITER = """
import mmap, struct, sys
from pathlib import Path
from tests.workers.trainer.test_spool import RECORD
from workers.trainer.spool import Steps

file = open(sys.argv[2], "r+b")
counter = mmap.mmap(file.fileno(), 8)
steps, n = Steps(Path(sys.argv[1])), 0
while True:
    n += 1
    steps.record({**RECORD, "step": n})
    counter[:8] = struct.pack("<q", n)
"""


def test_a_record_is_in_the_file_when_the_call_returns(tmp_path: Path) -> None:
    Steps(tmp_path / "steps").record({**RECORD, "step": 3})
    (line,) = (tmp_path / "steps").read_bytes().splitlines()
    decoded = records.decode(line)
    assert decoded["step"] == 3
    assert decoded["loss"] == float("inf")
    assert decoded["grad_norm"] != decoded["grad_norm"]


def test_sigkill_at_full_speed_loses_no_record(tmp_path: Path) -> None:
    spool, counter = tmp_path / "steps", tmp_path / "counter"
    counter.write_bytes(bytes(8))
    for _ in range(3):
        spool.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(spool), str(counter)], cwd=Path.cwd())
        deadline = time.monotonic() + 90
        while not spool.exists() or spool.stat().st_size < 100_000:
            assert time.monotonic() < deadline and writer.poll() is None
            time.sleep(0.001)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        with counter.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            (returned,) = struct.unpack("<q", shared[:8])
        # A write may be killed in the middle, where its line crosses two pages: that one was never called written.
        whole, _, _ = spool.read_bytes().rpartition(b"\n")
        steps = [records.decode(line)["step"] for line in whole.splitlines()]
        assert steps == list(range(1, len(steps) + 1))
        assert returned <= len(steps) <= returned + 1


def test_half_a_line_of_a_writer_that_died_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b'{"kind":"a"}\n{"kind":"b"' + b"x" * 100_000)
    Events(path).say("c")
    first, second = path.read_bytes().splitlines()
    assert first == b'{"kind":"a"}'
    assert b'"kind":"c"' in second


def test_a_file_of_nothing_but_half_a_line_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b'{"kind"')
    Spool(path).append(b"whole\n")
    assert path.read_bytes() == b"whole\n"


def test_events_keep_nan_and_infinity(tmp_path: Path) -> None:
    Events(tmp_path / "events").say("evaluation", metrics={"loss": float("nan"), "accuracy": float("-inf")})
    assert b'"metrics":{"loss":"nan","accuracy":"-inf"}' in (tmp_path / "events").read_bytes()


def test_a_full_disk_is_named_as_the_reason() -> None:
    with pytest.raises(OSError) as caught:
        Spool(Path("/dev/full")).append(b"line\n")
    assert caught.value.errno == errno.ENOSPC
    assert explain(caught.value, 1).reason == "disk_full"
