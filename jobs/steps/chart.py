"""The chart of one rank's records: the same cost for a thousand steps and a million, and nothing rare is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from django.db import connection
from django.db.models import Max

from jobs.models import Attempt, StepBlock
from jobs.steps import block, levels
from jobs.steps.block import BLOCK
from jobs.steps.packed import CHARTED, from_bytes
from jobs.steps.runs import Run, Stretch, history
from workers.contract.messages import Kind


def series(
    attempt: Attempt,
    rank: int,
    *,
    first: int | None = None,
    last: int | None = None,
    points: int = 1000,
    fields: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Steps `first` to `last` (both included; None: all there is) in at most about `points` points, ready for JSON.

    `fields` is a choice of CHARTED (default: all). A number is a JSON number, "nan", "inf", "-inf", or null for
    "not there" (loss scaling not used, no clipping).

        {
          "attempt": 7, "uid": "…", "number": 1, "rank": 0,
          "available": {"first": 1, "last": 5120, "records": 5120},   steps that are stored; null, null, 0 if none
          "bucket": 8,                  records per point; 1: every record is a point
          "step": [8, 16, …],           x: last step of each point, ascending
          "first_step": [1, 9, …],      first step of each point (= step if bucket is 1)
          "fields": {
            "loss": {
              "mean": […],              over the finite values; if there is none, "nan", "inf" or "-inf"; null: not there
              "min": […], "max": […],   finite extremes, so a spike of one step stays; left out if bucket is 1 (= mean)
                                        (buckets are rounded to seven digits, single records are exact)
              "non_finite": [[step, nan, inf, -inf], …]   sparse: x of the point and how many of each
            }, …
          },
          "marks": {                    sparse, never sampled away: [x of the point, how many steps in it]
            "skipped": [[step, count], …], "clipped": […], "found_inf": […]
          },
          "newest": {…} | null,         the newest stored record, whole
          "rewound": [                  parts of the history that a rewind has replaced, oldest first; usually empty
            {"first_step": […], "step": […], "fields": {…}, "marks": {…}, "seg": 0}
          ]
        }

    The last point always ends with the newest stored step (within `last`).
    """
    names = tuple(name for name in CHARTED if fields is None or name in fields)
    store = _Store(attempt, rank, names)
    current, replaced = history(store.runs, store.end, first, last, store.find)
    bucket, level = _widths(sum(stretch.end - stretch.start for stretch in current), points)
    line = _line(store, current, bucket, level)
    return {
        "attempt": attempt.pk,
        "uid": attempt.uid,
        "number": attempt.number,
        "rank": rank,
        "available": store.available(),
        "bucket": bucket,
        **line,
        "newest": store.newest,
        "rewound": [{**_line(store, [stretch], bucket, level), "seg": stretch.seg} for stretch in replaced],
    }


def _widths(records: int, points: int) -> tuple[int, int]:
    """Records per point, and of the stored bucket that divides it (1: the records themselves)."""
    bucket = max(1, -(-records // max(points, 1)))
    level = max((width for width in levels.LEVELS if width <= bucket), default=1)
    bucket = -(-bucket // level) * level
    return bucket, max((width for width in levels.LEVELS if bucket % width == 0), default=1)


# In SQL, for the page asks for a chart up to four times a second, and the ORM takes longer to put these three together
# than their rows take to be read and made into points (2.5 of 4 ms).
_TAIL = "SELECT start, packed FROM jobs_steptail WHERE attempt_id = %s AND rank = %s ORDER BY start"
_STATE = "SELECT state FROM jobs_cursor WHERE attempt_id = %s AND rank = %s AND kind = %s"
_LEVEL = """
    SELECT body FROM jobs_steplevel WHERE attempt_id = %s AND rank = %s AND bucket = %s AND "index" >= %s AND "index" < %s
    ORDER BY "index"
"""


def _fetch(sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


class _Store:
    """What is stored of one rank, read so that sealing in the meantime neither hides nor doubles a record.

    Sealing moves records from the tail into blocks, in one transaction. The tail is read first, and of the
    rest only what was sealed before it. No transaction: on SQLite it would take the writer's lock.
    """

    def __init__(self, attempt: Attempt, rank: int, fields: tuple[str, ...]) -> None:
        self.attempt, self.rank = attempt.pk, rank
        self.rows = {"attempt": attempt, "rank": rank}
        self.fields = fields
        tail = _fetch(_TAIL, self.attempt, rank)
        found = _fetch(_STATE, self.attempt, rank, Kind.STEPS.value)
        state = orjson.loads(found[0][0]) if found else {}
        self.runs = [Run(**run) for run in state.get("runs", [])]
        self.newest: dict[str, Any] | None = state.get("newest")
        self.tail = np.concatenate([from_bytes(bytes(packed)) for _, packed in tail]) if tail else None
        if tail:
            # What was before the tail was sealed when it was read.
            self.sealed = self.tail_start = tail[0][0]
        else:
            last = StepBlock.objects.filter(**self.rows).aggregate(last=Max("index"))["last"]
            self.sealed = self.tail_start = 0 if last is None else (last + 1) * BLOCK
        self.end = self.tail_start + (0 if self.tail is None else len(self.tail))

    def available(self) -> dict[str, int | None]:
        runs = [run for run in self.runs if run.start < self.end]
        return {
            "first": min((run.first_step for run in runs), default=None),
            "last": runs[-1].last_step if runs else None,
            "records": self.end,
        }

    def find(self, run: Run, end: int, step: int) -> int:
        if run.dense:
            return min(run.start + step - run.first_step, end)
        firsts = StepBlock.objects.filter(**self.rows, index__gt=run.start // BLOCK, index__lt=-(-end // BLOCK))
        low, high = run.start, min(end, self.sealed)
        for index, first_step in firsts.order_by("index").values_list("index", "first_step"):
            if first_step >= step:
                high = min(high, index * BLOCK)
                break
            low = index * BLOCK
        for part in [*self._records(low, high), *self._tail(max(run.start, self.sealed), end)]:
            later = np.flatnonzero(part.first_step >= step)
            if len(later):
                return int(part.start[later[0]])
        return high if high < self.sealed else end

    def buckets(self, stretch: Stretch, level: int) -> Iterator[tuple[levels.Buckets, bool]]:
        """Of the records of `stretch`: whole stored buckets where they lie within it, single records (True) elsewhere."""
        start, end = stretch.start, min(stretch.end, self.sealed)
        low, high = -(-start // level) * level, end // level * level
        if level == 1 or low >= high:
            low = high = end
        for part in self._records(start, low):
            yield part, True
        for part in self._stored(low, high, level):
            yield part, False
        for part in self._records(high, end):
            yield part, True
        for part in self._tail(max(start, self.sealed), stretch.end):
            yield part, True

    def _stored(self, start: int, end: int, level: int) -> Iterator[levels.Buckets]:
        if start >= end:
            return
        row = level * levels.ROW
        for (body,) in _fetch(_LEVEL, self.attempt, self.rank, level, start // row, -(-end // row)):
            yield _within(levels.decode(bytes(body), self.fields), start, end)

    def _records(self, start: int, end: int) -> Iterator[levels.Buckets]:
        if start >= end:
            return
        rows = StepBlock.objects.filter(**self.rows, index__gte=start // BLOCK, index__lt=-(-end // BLOCK))
        for index, body in rows.order_by("index").values_list("index", "body"):
            matrix = block.matrix(bytes(body), self.fields)
            yield _within(levels.of_records(matrix, index * BLOCK, self.fields), start, end)

    def _tail(self, start: int, end: int) -> Iterator[levels.Buckets]:
        if self.tail is not None and start < end:
            part = self.tail[start - self.tail_start : end - self.tail_start]
            yield levels.of_records(part, start, self.fields)


def _within(buckets: levels.Buckets, start: int, end: int) -> levels.Buckets:
    low, high = np.searchsorted(buckets.start, [start, end])
    return buckets if low == 0 and high == len(buckets) else levels.sliced(buckets, int(low), int(high))


def _line(store: _Store, stretches: list[Stretch], bucket: int, level: int) -> dict[str, Any]:
    parts = [pair for stretch in stretches for pair in store.buckets(stretch, level) if len(pair[0])]
    if not parts:
        return {
            "step": [],
            "first_step": [],
            "fields": {
                name: {"mean": [], **({} if bucket == 1 else {"min": [], "max": []}), "non_finite": []}
                for name in store.fields
            },
            "marks": {name: [] for name in _MARKS},
        }
    # By the records' numbers, so that points stay where they are while more records come in.
    if level == bucket > 1:
        # What is stored is what is wanted; only the records around it have to be put together.
        points = levels.joined(
            [levels.by_width(part, bucket) if len(part) and single else part for part, single in parts]
        )
    else:
        points = levels.joined([part for part, _ in parts])
        if bucket > 1:
            points = levels.by_width(points, bucket)
    return {
        "step": points.last_step.tolist(),
        "first_step": points.first_step.tolist(),
        "fields": _fields(points, wide=bucket > 1),
        "marks": {name: _sparse(points, getattr(points, name)) for name in _MARKS},
    }


_MARKS = ("skipped", "clipped", "found_inf")


def _sparse(points: levels.Buckets, *counts: levels.Ints) -> list[list[int]]:
    """[x, count, …] of the points where there is something to count."""
    there = np.flatnonzero(sum(counts))
    if not len(there):
        return []
    rows: list[list[int]] = np.stack([points.last_step[there], *(count[there] for count in counts)], axis=1).tolist()
    return rows


def _fields(points: levels.Buckets, *, wide: bool) -> dict[str, Any]:
    shown = {"mean": points.mean, **({"min": points.min, "max": points.max} if wide else {})}
    if wide:
        shown = {name: _rounded(values) for name, values in shown.items()}
    result: dict[str, Any] = {}
    for row, field in enumerate(points.fields):
        nan, pos_inf, neg_inf = points.nan[row], points.pos_inf[row], points.neg_inf[row]
        lists: dict[str, list[Any]] = {name: values[row].tolist() for name, values in shown.items()}
        for index in np.flatnonzero(points.finite[row] == 0).tolist():
            text = "nan" if nan[index] else "inf" if pos_inf[index] else "-inf" if neg_inf[index] else None
            for numbers in lists.values():
                numbers[index] = text
        result[field] = {**lists, "non_finite": _sparse(points, nan, pos_inf, neg_inf)}
    return result


# By the binary exponent of a value, what to multiply it with so that seven digits are before the point.
_FACTORS = 10.0 ** np.clip(6 - np.floor(np.arange(-1100, 1100) * np.log10(2.0)), -300, 300)


def _rounded(values: levels.Floats) -> levels.Floats:
    """To seven digits or one more: half the JSON, and finer than any screen."""
    _, exponent = np.frexp(values)
    factor = _FACTORS[exponent + 1100]
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.rint(values * factor) / factor
    return np.where(np.isfinite(rounded), rounded, values)
