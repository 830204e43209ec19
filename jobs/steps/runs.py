"""Runs: stretches of records whose steps only grow. A rewind starts another; nearly every attempt has one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from jobs.steps import packed

# Of an attempt that rewinds more often, the oldest runs are shown as one.
MOST = 1000


@dataclass(frozen=True)
class Run:
    """Records `start` up to the start of the next run; dense: no step between first and last is missing."""

    start: int
    first_step: int
    last_step: int
    seg: int
    dense: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Stretch:
    """Records `start` to `end` (not included) of one run."""

    start: int
    end: int
    seg: int


def extended(runs: list[Run], matrix: packed.Matrix, start: int) -> list[Run]:
    """`runs` with the records of `matrix`, whose first is record number `start`."""
    valid = np.flatnonzero((packed.bits(matrix) & packed.INVALID) == 0)
    if not len(valid):
        return runs
    runs = list(runs)
    step = matrix[valid, packed.STEP].astype(np.int64)
    seg = matrix[valid, packed.SEG].astype(np.int64)
    breaks = (np.flatnonzero((np.diff(step) < 0) | (np.diff(seg) != 0)) + 1).tolist()
    for low, high in zip([0, *breaks], [*breaks, len(step)], strict=True):
        first, last = int(step[low]), int(step[high - 1])
        dense = last - first == high - low - 1 and int(valid[high - 1] - valid[low]) == high - low - 1
        run = runs[-1] if runs else None
        if run and low == 0 and run.seg == seg[0] and first >= run.last_step:
            dense = dense and run.dense and start + int(valid[0]) - run.start == first - run.first_step
            runs[-1] = replace(run, last_step=last, dense=dense)
        else:
            runs.append(Run(start + int(valid[low]), first, last, int(seg[low]), dense))
    if len(runs) > MOST:
        merged = replace(runs[0], last_step=runs[-MOST].last_step, dense=False)
        runs = [merged, *runs[1 - MOST :]]
    return runs


def history(
    runs: list[Run], end: int, first: int | None, last: int | None, find: Callable[[Run, int, int], int]
) -> tuple[list[Stretch], list[Stretch]]:
    """The records of steps `first` to `last` as the attempt's history now stands, and those that rewinds replaced.

    `end` is the number of all records; `find(run, end, step)` the number of the run's first record
    whose step is at least `step`.
    """
    current: list[Stretch] = []
    replaced: list[Stretch] = []
    limit: int | None = None  # steps from here on are told by a later run
    ends = [*(run.start for run in runs[1:]), end]
    for run, run_end in reversed(list(zip(runs, ends, strict=False))):
        run_end = min(run_end, end)
        if run.start >= run_end:
            continue

        def at(step: int | None, otherwise: int, run: Run = run, run_end: int = run_end) -> int:
            if step is None or step > run.last_step:
                return otherwise if step is None else run_end
            return run.start if step <= run.first_step else find(run, run_end, step)

        low, high = at(first, run.start), at(None if last is None else last + 1, run_end)
        cut = min(max(at(limit, run_end), low), max(high, low))
        if low < cut:
            current.append(Stretch(low, cut, run.seg))
        if cut < high:
            replaced.append(Stretch(cut, high, run.seg))
        limit = run.first_step if limit is None else min(limit, run.first_step)
    return current[::-1], replaced[::-1]
