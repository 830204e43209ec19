"""Evaluation on the dev split by all ranks together, exact for any number of rows."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from workers.contract.messages import Request
from workers.trainer.control import ControlFile
from workers.trainer.precision import Caster
from workers.trainer.ranks import Ranks
from workers.trainer.task import Task

LEAVE_AT_ONCE = (Request.CANCEL, Request.SUPERSEDE)


@dataclass(frozen=True)
class Evaluated:
    metrics: dict[str, Any]
    seconds: float
    rows: int


def evaluate(
    task: Task,
    model: Any,
    caster: Caster,
    ranks: Ranks,
    control: ControlFile,
    batch_size: int,
    most_rounds: int | None = None,
) -> Evaluated | Request:
    """Metrics over the whole dev split, or over its first rows in `most_rounds` rounds; or the request because of
    which all ranks stopped half-way.

    Rank r takes the rows r, r + world, …. One small reduction per round tells each rank that the
    others are alive (Gloo waits 30 s) and whether somebody asked to leave."""
    started = time.monotonic()
    mine = np.arange(ranks.rank, task.rows["dev"], ranks.world)
    rounds = math.ceil(task.rows["dev"] / ranks.world / batch_size)
    if most_rounds is not None:
        rounds = min(rounds, most_rounds)
    tally: Any = 0.0
    requests = list(Request)
    model.eval()
    try:
        with paddle.no_grad():
            for i in range(rounds):
                asked = control.read().leave if ranks.rank == 0 else None
                code = requests.index(asked) + 1 if asked in LEAVE_AT_ONCE and asked is not None else 0
                agreed = int(ranks.sum(np.array([float(code)]))[0])
                if agreed:
                    return requests[agreed - 1]
                rows = mine[i * batch_size : (i + 1) * batch_size]
                if len(rows) == 0:
                    continue
                batch = task.batch("dev", rows)
                with caster.forward():
                    outputs, losses = task.losses(model, batch)
                tally = tally + task.tally(outputs, losses, batch)
    finally:
        model.train()
    size = len(task.tally_of_nothing())
    total = ranks.sum(np.zeros(size) + tally)
    seen = min(task.rows["dev"], rounds * batch_size * ranks.world)
    return Evaluated(task.metrics(total), time.monotonic() - started, seen)
