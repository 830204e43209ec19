"""What the launcher starts for each rank: `python workers/rank.py RUN_FOLDER`. Standard library only.

It starts the trainer with its output in the run folder, waits, and writes down how the trainer
ended. That is why the true exit of every rank is known: Paddle's launcher reports only one, and
usually a survivor's. It never outlives the launcher, nor the trainer it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _reserve(path: Path) -> Path:
    """A file of the size of any note, so that writing it needs no space on a disk that is full by then."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(b" " * 512)
    return temporary


def _write(reserved: Path, path: Path, value: dict[str, object]) -> None:
    with reserved.open("r+b") as file:
        file.write(json.dumps(value).encode())
    reserved.replace(path)


def main(folder: Path) -> int:
    launcher = os.getppid()
    _die_with_parent()
    if os.getppid() != launcher:
        return 1
    # The launcher sends SIGTERM to the others when one rank failed; a trainer that is just writing
    # down its outcome may finish that, and SIGKILL comes 3 s later anyway.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    rank = int(os.environ["PADDLE_TRAINER_ID"])
    process, exit = folder / "processes" / f"rank{rank}.json", folder / "exits" / f"rank{rank}.json"
    reserved = _reserve(process), _reserve(exit)
    arguments = json.loads((folder / "launch.json").read_text())["trainer"]
    # A session of its own, as the launcher signals the whole group of this process.
    with (folder / "logs" / f"rank{rank}.log").open("ab") as log:
        trainer = subprocess.Popen(
            [sys.executable, "-u", *arguments, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_start_of_trainer,
        )
    _write(reserved[0], process, {"rank": rank, "shim": os.getpid(), "trainer": trainer.pid})
    code = trainer.wait()
    _write(
        reserved[1],
        exit,
        {
            "rank": rank,
            "pid": trainer.pid,
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "at": datetime.now(timezone.utc).isoformat(),
            # Says who failed first.
            "clock": time.time(),
        },
    )
    return code if code >= 0 else 128 - code


def _start_of_trainer() -> None:
    _die_with_parent()
    # Ignored signals stay ignored over exec.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
