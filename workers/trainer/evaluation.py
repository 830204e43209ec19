"""Evaluation on the dev split by all ranks together, exact for any number of rows; and of a sample of the training rows, to compare with."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.contract.messages import Request
from workers.trainer.control import ControlFile
from workers.trainer.modes import evaluating
from workers.trainer.precision import Caster
from workers.trainer.ranks import Ranks
from workers.trainer.task import Floats, Rows, Split, Task

LEAVE_AT_ONCE = (Request.CANCEL, Request.SUPERSEDE)
# These wait for a checkpoint, and for nothing else: an evaluation may take longer than the time that ranks have to leave.
SAVE_AND_LEAVE = (Request.PAUSE, Request.DRAIN, Request.TIME_LIMIT)
# Of the training rows at most so many are measured, and never more than there are dev rows: an evaluation takes at
# most twice the time of the dev split alone.
MOST_TRAIN_ROWS = 2000


@dataclass(frozen=True)
class Evaluated:
    metrics: dict[str, Any]  # of the dev split
    seconds: float
    rows: int
    train: dict[str, Any] | None = None  # the same metrics of the sample, as far as they are numbers


def evaluate(
    task: Task,
    model: Any,
    caster: Caster,
    ranks: Ranks,
    control: ControlFile,
    batch_size: int,
    most_rounds: int | None = None,
    train_rows: Rows | None = None,
) -> Evaluated | Request:
    """Metrics over the whole dev split, or over its first rows in `most_rounds` rounds, and over `train_rows`; or the
    request because of which all ranks stopped half-way."""
    started = time.monotonic()
    dev_rows = np.arange(task.rows["dev"])
    if most_rounds is not None:
        dev_rows = dev_rows[: most_rounds * batch_size * ranks.world]
    with evaluating(model):
        dev = _tally(task, model, caster, ranks, control, batch_size, "dev", dev_rows)
        if isinstance(dev, Request):
            return dev
        train: dict[str, Any] | None = None
        if train_rows is not None:
            tally = _tally(task, model, caster, ranks, control, batch_size, "train", train_rows)
            if isinstance(tally, Request):
                return tally
            train = {name: value for name, value in task.metrics(tally).items() if isinstance(value, (int, float))}
    return Evaluated(task.metrics(dev), time.monotonic() - started, len(dev_rows), train)


def asked_of_all(ranks: Ranks, asked: Request | None, heeded: Sequence[Request]) -> Request | None:
    """What rank 0 was `asked` to do, on all ranks, if it is among those `heeded` here."""
    requests = list(Request)
    code = requests.index(asked) + 1 if asked is not None and asked in heeded else 0
    agreed = int(ranks.sum(np.array([float(code)]))[0])
    return requests[agreed - 1] if agreed else None


def train_sample(task: Task) -> Rows:
    """The training rows that every evaluation measures: always the same ones, whatever the seed and the ranks, so that
    jobs on one dataset compare. Rows of like length next to each other: less padding."""
    count = min(MOST_TRAIN_ROWS, task.rows["dev"], task.rows["train"])
    draw = np.random.Generator(np.random.PCG64(task.rows["train"]))
    rows = np.sort(draw.choice(task.rows["train"], count, replace=False)).astype(np.int64)
    return rows if task.lengths is None else rows[np.argsort(task.lengths[rows], kind="stable")]


def _tally(
    task: Task,
    model: Any,
    caster: Caster,
    ranks: Ranks,
    control: ControlFile,
    batch_size: int,
    split: Split,
    rows: Rows,
) -> Floats | Request:
    """Sums over `rows`, by all ranks: rank r takes the rows r, r + world, …. One small reduction per round tells each
    rank that the others are alive (Gloo waits 30 s) and whether somebody asked to leave."""
    mine = rows[ranks.rank :: ranks.world]
    tally: Any = 0.0
    for i in range(math.ceil(len(rows) / ranks.world / batch_size)):
        asked = control.read().leave if ranks.rank == 0 else None
        agreed = asked_of_all(ranks, asked, LEAVE_AT_ONCE + SAVE_AND_LEAVE)
        if agreed is not None:
            return agreed
        taken = mine[i * batch_size : (i + 1) * batch_size]
        if len(taken) == 0:
            continue
        batch = task.batch(split, taken)
        with caster.weights(), caster.forward():
            outputs, losses = task.losses(model, batch)
        tally = tally + task.tally(outputs, losses, batch)
    return ranks.sum(np.zeros(len(task.tally_of_nothing())) + tally)
