"""Ranks of which the first does something alone for longer than Gloo waits for a silent peer."""

from __future__ import annotations

import time
from pathlib import Path

from workers.trainer.ranks import Ranks


def main(folder: str) -> int:
    ranks = Ranks("cpu")

    def work() -> str:
        time.sleep(float((Path(folder) / "seconds").read_text()))
        return "done"

    return 0 if ranks.alone(work) == ("done" if ranks.rank == 0 else None) else 1
