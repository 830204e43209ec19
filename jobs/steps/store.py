"""Writes of the step store: accepted lines go to the tail, and from there, BLOCK at a time, into sealed blocks and levels.

Only the controller writes, and everything here runs in its transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from django.db import transaction
from django.db.models import Count, Sum

from jobs.models import StepBlock, StepLevel, StepTail
from jobs.steps import block, levels, packed
from jobs.steps.block import BLOCK

# A slow job adds a record at a time; from so many rows on they are made one.
MOST_ROWS = 64


def append(attempt: int, rank: int, start: int, batch: packed.Batch) -> None:
    """Whole lines after those that are stored; `start` is the number of records before them.

    As one row of the tail, or, when they come faster than a quarter of a block at a time, sealed at once:
    what is not written twice is not written twice.
    """
    if len(batch) >= BLOCK // 4:
        rows = _rows(attempt, rank)
        if sum(len(row.matrix) for row in rows) + len(batch) >= BLOCK:
            whole = packed.joined([*_stored(rows), batch])
            _delete(rows)
            _write(attempt, rank, *_split(start + len(batch) - len(whole), whole))
            return
    _append(attempt, rank, start, batch)


def _append(attempt: int, rank: int, start: int, batch: packed.Batch) -> None:
    StepTail.objects.create(
        attempt_id=attempt,
        rank=rank,
        start=start,
        count=len(batch),
        last_step=_steps(batch.matrix)[1],
        body=batch.body,
        packed=packed.to_bytes(batch.matrix),
    )


def _steps(matrix: packed.Matrix) -> tuple[int, int]:
    """Least and greatest step; 0, 0 if there is no record."""
    step = matrix[(packed.bits(matrix) & packed.INVALID) == 0, packed.STEP]
    return (int(step.min()), int(step.max())) if len(step) else (0, 0)


@dataclass(frozen=True)
class Tail:
    attempt: int
    rank: int
    rows: int
    records: int


def overlong(attempts: Iterable[int] | None = None) -> list[Tail]:
    """Tails that have a block's worth of records, or too many rows."""
    rows = StepTail.objects.all() if attempts is None else StepTail.objects.filter(attempt__in=list(attempts))
    counted = rows.values("attempt", "rank").annotate(rows=Count("pk"), records=Sum("count")).order_by()
    return [Tail(**row) for row in counted if row["records"] >= BLOCK or row["rows"] > MOST_ROWS]


def seal(tail: Tail) -> None:
    """Moves whole blocks out of the tail and makes what is left one row. Encodes first, then one short transaction."""
    rows = _rows(tail.attempt, tail.rank)
    if not rows:
        return
    blocks, rest = _split(rows[0].start, *_stored(rows))
    try:
        with transaction.atomic():
            _delete(rows)
            _write(tail.attempt, tail.rank, blocks, rest)
    except Taken:
        pass


@dataclass(frozen=True)
class _Row:
    pk: int
    start: int
    body: bytes
    matrix: packed.Matrix


def _rows(attempt: int, rank: int) -> list[_Row]:
    rows = StepTail.objects.filter(attempt=attempt, rank=rank).order_by("start")
    return [
        _Row(pk, start, bytes(body), packed.from_bytes(bytes(matrix)))
        for pk, start, body, matrix in rows.values_list("pk", "start", "body", "packed")
    ]


def _stored(rows: list[_Row]) -> list[packed.Batch]:
    """What `rows` hold as one batch, or none."""
    if not rows:
        return []
    return [packed.stored(b"".join(row.body for row in rows), np.concatenate([row.matrix for row in rows]))]


class Taken(Exception):
    """Another controller has sealed the same rows; what was begun must be rolled back."""


def _delete(rows: list[_Row]) -> None:
    gone, _ = StepTail.objects.filter(pk__in=[row.pk for row in rows]).delete()
    if gone != len(rows):
        raise Taken


@dataclass(frozen=True)
class _Rest:
    start: int
    batch: packed.Batch | None


def _split(start: int, batch: packed.Batch) -> tuple[list[_Sealed], _Rest]:
    whole = len(batch) // BLOCK * BLOCK
    blocks = [_Sealed.of(batch.part(at, at + BLOCK), start + at) for at in range(0, whole, BLOCK)]
    return blocks, _Rest(start + whole, batch.part(whole, len(batch)) if whole < len(batch) else None)


def _write(attempt: int, rank: int, blocks: list[_Sealed], rest: _Rest) -> None:
    StepBlock.objects.bulk_create(
        StepBlock(
            attempt_id=attempt,
            rank=rank,
            index=sealed.start // BLOCK,
            count=BLOCK,
            first_step=sealed.first_step,
            last_step=sealed.last_step,
            body=sealed.body,
        )
        for sealed in blocks
    )
    _write_levels(attempt, rank, blocks)
    if rest.batch is not None:
        _append(attempt, rank, rest.start, rest.batch)


def _write_levels(attempt: int, rank: int, blocks: list[_Sealed]) -> None:
    """Each row once, however many blocks add to it."""
    new: dict[tuple[int, int], list[levels.Buckets]] = {}
    for sealed in blocks:
        for width, buckets in sealed.levels.items():
            new.setdefault((width, sealed.start // (width * levels.ROW)), []).append(buckets)
    rows = StepLevel.objects.filter(attempt=attempt, rank=rank, index__in={index for _, index in new})
    there = {(row.bucket, row.index): row for row in rows if (row.bucket, row.index) in new}
    changed: list[StepLevel] = []
    for (width, index), parts in new.items():
        row = there.get((width, index))
        if row is not None:
            parts = [levels.decode(bytes(row.body)), *parts]
        buckets = levels.joined(parts)
        changed.append(
            StepLevel(
                attempt_id=attempt,
                rank=rank,
                bucket=width,
                index=index,
                count=len(buckets),
                body=levels.encode(buckets),
            )
        )
    # One statement for all five levels.
    StepLevel.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["attempt", "rank", "bucket", "index"],
        update_fields=["count", "body"],
    )


@dataclass(frozen=True)
class _Sealed:
    start: int
    first_step: int
    last_step: int
    body: bytes
    levels: dict[int, levels.Buckets]

    @classmethod
    def of(cls, batch: packed.Batch, start: int) -> _Sealed:
        first_step, last_step = _steps(batch.matrix)
        return cls(
            start=start,
            first_step=first_step,
            last_step=last_step,
            body=block.seal(batch),
            levels=levels.of_block(batch.matrix, start),
        )
