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


def append(attempt: int, rank: int, start: int, body: bytes, matrix: packed.Matrix) -> None:
    """Whole lines as one row of the tail; `start` is the number of records before them."""
    StepTail.objects.create(
        attempt_id=attempt,
        rank=rank,
        start=start,
        count=len(matrix),
        last_step=_steps(matrix)[1],
        body=body,
        packed=packed.to_bytes(matrix),
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
    rows = list(
        StepTail.objects.filter(attempt=tail.attempt, rank=tail.rank)
        .order_by("start")
        .values_list("pk", "start", "body", "packed")
    )
    if not rows:
        return
    start = rows[0][1]
    body = b"".join(bytes(row[2]) for row in rows)
    matrix = np.concatenate([packed.from_bytes(bytes(row[3])) for row in rows])
    lines = body[:-1].split(b"\n")
    whole = len(lines) // BLOCK * BLOCK
    blocks = [_Sealed.of(lines[at : at + BLOCK], matrix[at : at + BLOCK], start + at) for at in range(0, whole, BLOCK)]
    with transaction.atomic():
        gone, _ = StepTail.objects.filter(pk__in=[row[0] for row in rows]).delete()
        if gone != len(rows):
            # Another controller has sealed them; nothing of this is needed.
            transaction.set_rollback(True)
            return
        for sealed in blocks:
            sealed.write(tail.attempt, tail.rank)
        if whole < len(lines):
            rest = b"\n".join(lines[whole:]) + b"\n"
            append(tail.attempt, tail.rank, start + whole, rest, matrix[whole:])


@dataclass(frozen=True)
class _Sealed:
    start: int
    first_step: int
    last_step: int
    body: bytes
    levels: dict[int, levels.Buckets]

    @classmethod
    def of(cls, lines: list[bytes], matrix: packed.Matrix, start: int) -> _Sealed:
        values, _ = packed.parse(b"\n".join(lines) + b"\n")
        first_step, last_step = _steps(matrix)
        return cls(
            start=start,
            first_step=first_step,
            last_step=last_step,
            body=block.seal(lines, values),
            levels=levels.of_block(matrix, start),
        )

    def write(self, attempt: int, rank: int) -> None:
        StepBlock.objects.create(
            attempt_id=attempt,
            rank=rank,
            index=self.start // BLOCK,
            count=BLOCK,
            first_step=self.first_step,
            last_step=self.last_step,
            body=self.body,
        )
        for width, buckets in self.levels.items():
            index = self.start // (width * levels.ROW)
            row = StepLevel.objects.filter(attempt=attempt, rank=rank, bucket=width, index=index).first()
            if row is None:
                row = StepLevel(attempt_id=attempt, rank=rank, bucket=width, index=index)
            else:
                buckets = levels.joined([levels.decode(bytes(row.body)), buckets])
            row.count, row.body = len(buckets), levels.encode(buckets)
            row.save()
