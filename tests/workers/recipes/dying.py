"""A trainer that is killed (SIGKILL, to itself) at a place that cannot be hit from outside, as the file `death` of its run
folder says: {"place", "rank", "at"}.

- `record`: within the write of the record of step `at`, of which a part is on disk
- `file`, `manifest`, `named`: within the `at`-th checkpoint: half a file written; all but the manifest written; complete,
  and nothing tidied up yet
- `evaluation`: within the `at`-th evaluation
- `outside`: not by itself; its steps take 20 ms more, so that one can hit a step from outside
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers.contract import records
from workers.trainer import __main__ as trainer
from workers.trainer import checkpoint, loop
from workers.trainer.spool import Spool, Steps


def main(path: str) -> int:
    death = json.loads((Path(path) / "death").read_text())
    place, at = death["place"], death["at"]
    if place == "outside":
        _before(Steps, "record", lambda *_: time.sleep(0.02))
    elif int(os.environ["PADDLE_TRAINER_ID"]) == death["rank"]:
        {"record": _in_a_record, "evaluation": _in_an_evaluation}.get(place, _in_a_checkpoint)(place, at)
    return trainer.main(path)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str, first: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    def both(*arguments: Any, **named: Any) -> Any:
        first(*arguments)
        return original(*arguments, **named)

    setattr(owner, name, both)


def _in_a_record(place: str, at: int) -> None:
    def die(spool: Spool, line: bytes) -> None:
        if isinstance(spool, Steps) and records.decode(line)["step"] == at:
            os.write(spool.fd, line[: len(line) // 2])
            _die()

    _before(Spool, "append", die)


def _in_an_evaluation(place: str, at: int) -> None:
    left = at

    def die(task: Any, *_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            _before(type(task), "batch", lambda *_: _die())

    _before(loop, "evaluate", die)


def _in_a_checkpoint(place: str, at: int) -> None:
    written = 0

    def count(*_: Any) -> None:
        nonlocal written
        written += 1

    def half(_: Any, path: Path) -> None:
        if written == at and path.name == "optimizer.safetensors":
            path.write_bytes(bytes(1000))
            _die()

    def unlisted(path: Path) -> None:
        if written == at and path.name == "manifest.json":
            path.unlink()
            _die()

    def untidied(_: Path) -> None:
        if written == at:
            _die()

    _before(checkpoint, "write", count)
    name, die = {"file": ("save_file", half), "manifest": ("_synced", unlisted), "named": ("_sync_folder", untidied)}[
        place
    ]
    _before(checkpoint, name, die)
