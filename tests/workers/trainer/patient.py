"""Ranks of which one takes longer over something than Gloo waits for a silent peer, as the file `patience` of the run
folder says: {"seconds", "at"}. `alone`: the first does something alone; `start`: the last is slow to build its model."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from workers.trainer import __main__ as trainer
from workers.trainer import start as starting
from workers.trainer.ranks import Ranks


def main(folder: str) -> int:
    patience = json.loads((Path(folder) / "patience").read_text())
    return {"alone": _alone, "start": _start}[patience["at"]](folder, patience["seconds"])


def _alone(folder: str, seconds: float) -> int:
    ranks = Ranks("cpu")

    def work() -> str:
        time.sleep(seconds)
        return "done"

    return 0 if ranks.alone(work) == ("done" if ranks.rank == 0 else None) else 1


def _start(folder: str, seconds: float) -> int:
    original = starting.build_optimizer

    def build(*arguments: Any) -> Any:
        if os.environ["PADDLE_TRAINER_ID"] == "1":
            time.sleep(seconds)
        return original(*arguments)

    starting.build_optimizer = build
    return trainer.main(folder)
