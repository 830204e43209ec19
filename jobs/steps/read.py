"""Reads of single records, in the order in which the rank wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from jobs.models import Attempt, StepBlock, StepTail
from jobs.steps import block, packed
from workers.contract import records as contract


def lines(attempt: Attempt, rank: int) -> Iterator[bytes]:
    """Every stored line with its newline, byte for byte as the rank wrote it."""
    for part in _parts(attempt, rank, -1):
        yield from part


def batches(attempt: Attempt, rank: int) -> Iterator[list[bytes]]:
    """The same lines, some thousands at a time. No query stays open between two of them, so each may be
    fetched in another thread."""
    return _parts(attempt, rank, -1)


def records(attempt: Attempt, rank: int, after_step: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
    """Records with a later step than `after_step`, NaN and infinities as floats; lines that are no record are left out."""
    found: list[dict[str, Any]] = []
    for part in _parts(attempt, rank, after_step):
        for line in part:
            if limit is not None and len(found) >= limit:
                return found
            try:
                record = contract.decode(line)
                if record["step"] > after_step:
                    found.append(record)
            except (ValueError, TypeError, KeyError):
                continue
    return found


def extras(attempt: Attempt, rank: int) -> Iterator[dict[str, Any]]:
    """What stands in the extras of the records; of sealed ones at little cost, and at least one value of each kind."""
    for body in _sealed(attempt, rank):
        yield from block.extras(body)
    for _, tail in _tail(attempt, rank, -1):
        for line in tail[:-1].split(b"\n"):
            try:
                value = contract.decode(line)["extras"]
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
            if isinstance(value, dict):
                yield value


def with_extras(
    attempt: Attempt, rank: int, mark: str, *, first: int = 0, last: int | None = None, most_blocks: int
) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """Step and extras (JSON values) of the records that have one whose name begins with `mark`, in order of steps; and of
    so many sealed blocks only one was read: of a run of millions of steps not all are."""
    tail = _tail(attempt, rank, first - 1)
    blocks = StepBlock.objects.filter(attempt=attempt, rank=rank, last_step__gte=first)
    if last is not None:
        blocks = blocks.filter(first_step__lte=last)
    if tail:
        blocks = blocks.filter(index__lt=tail[0][0] // block.BLOCK)
    indices = list(blocks.order_by("index").values_list("index", flat=True))
    every = max(1, -(-len(indices) // most_blocks))
    found: list[tuple[int, dict[str, Any]]] = []
    # From the newest back, so that the newest is among them; one at a time.
    for index in reversed(indices[::-1][::every]):
        body = blocks.filter(index=index).values_list("body", flat=True).first()
        if body is not None:
            found += block.with_extras(bytes(body), mark)
    wanted = f'"{mark}'.encode()
    for _, body in tail:
        for line in body[:-1].split(b"\n"):
            if wanted in line:
                try:
                    record = orjson.loads(line)
                    found.append((int(record["step"]), dict(record["extras"])))
                except (ValueError, TypeError, KeyError):
                    continue
    return [pair for pair in found if pair[0] >= first and (last is None or pair[0] <= last)], every


def newest(attempt: Attempt, rank: int, fields: Sequence[str], least: int) -> packed.Matrix:
    """The packed.Matrix of the newest records: `least` of them and what else is in the same block, or all there are."""
    # The tail first, see _parts.
    tail = list(StepTail.objects.filter(attempt=attempt, rank=rank).order_by("start").values_list("start", "packed"))
    parts = [packed.from_bytes(bytes(body)) for _, body in tail]
    blocks = StepBlock.objects.filter(attempt=attempt, rank=rank)
    if tail:
        blocks = blocks.filter(index__lt=tail[0][0] // block.BLOCK)
    missing = least - sum(map(len, parts))
    if missing > 0:
        for body in blocks.order_by("-index").values_list("body", flat=True)[: -(-missing // block.BLOCK)]:
            parts.insert(0, block.matrix(bytes(body), fields))
    return np.concatenate(parts) if parts else np.empty((0, packed.WIDTH))


def newest_with(attempt: Attempt, rank: int, text: str) -> dict[str, Any] | None:
    """The newest record whose line has `text` in it, of the tail and the newest block; NaN and infinities as floats."""
    wanted = text.encode()
    bodies = StepTail.objects.filter(attempt=attempt, rank=rank).order_by("-start").values_list("body", flat=True)
    for body in bodies:
        if (found := _last_with(bytes(body)[:-1].split(b"\n"), wanted)) is not None:
            return found
    sealed = (
        StepBlock.objects.filter(attempt=attempt, rank=rank).order_by("-index").values_list("body", flat=True).first()
    )
    return None if sealed is None else _last_with(block.unseal(bytes(sealed))[:-1].split(b"\n"), wanted)


def _last_with(lines: list[bytes], wanted: bytes) -> dict[str, Any] | None:
    for line in reversed(lines):
        if wanted in line:
            try:
                return contract.decode(line)
            except (ValueError, TypeError, KeyError):
                continue
    return None


def _parts(attempt: Attempt, rank: int, after_step: int) -> Iterator[list[bytes]]:
    # The tail first: what is sealed in the meantime is then not missed, and not read twice either.
    tail = _tail(attempt, rank, after_step)
    for body in _sealed(attempt, rank, after_step, tail[0][0] // block.BLOCK if tail else None):
        yield [line + b"\n" for line in block.unseal(body)[:-1].split(b"\n")]
    for _, body in tail:
        yield [line + b"\n" for line in body[:-1].split(b"\n")]


def _tail(attempt: Attempt, rank: int, after_step: int) -> list[tuple[int, bytes]]:
    rows = StepTail.objects.filter(attempt=attempt, rank=rank, last_step__gt=after_step)
    return [(start, bytes(body)) for start, body in rows.order_by("start").values_list("start", "body")]


def _sealed(attempt: Attempt, rank: int, after_step: int = -1, below: int | None = None) -> Iterator[bytes]:
    """One at a time: a block is megabytes of lines, and an attempt may have thousands."""
    blocks = StepBlock.objects.filter(attempt=attempt, rank=rank, last_step__gt=after_step)
    if below is not None:
        blocks = blocks.filter(index__lt=below)
    done = -1
    while found := blocks.filter(index__gt=done).order_by("index").values_list("index", "body").first():
        done = found[0]
        yield bytes(found[1])
