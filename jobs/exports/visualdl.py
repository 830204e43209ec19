"""A log folder for VisualDL, in its own record format: its package brings far too much along for a web process.

A file is a row of records, each with its length before it (uint64, little-endian), each a protobuf message
Record{1: Value{1: id, 2: tag, 3: timestamp in ms, 4: value as float32}}, or with 10: MetaData{1: display_name}.
Scalars have 32 bits there: what is beyond their range comes out as infinity, and NaN stays NaN.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jobs.exports.batches import EXTRAS

Numbers = npt.NDArray[Any]

# Field of a step record -> tag. What is true or false is 1 or 0.
TAGS = {
    "loss": "train/loss",
    "loss_all": "train/loss_all",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "clip_norm": "train/clip_norm",
    "loss_scale": "train/loss_scale",
    "clipped": "train/clipped",
    "found_inf": "train/found_inf",
    "skipped": "train/skipped",
    "applied": "train/applied",
    "epoch": "train/epoch",
    "step_ms": "time/step_ms",
    "data_ms": "time/data_ms",
    "mem_mb": "time/mem_mb",
}


def file_name(started: datetime) -> str:
    return f"vdlrecords.{int(started.timestamp()):010d}.log"


def steps(batches: Iterable[pa.RecordBatch], started: datetime, name: str) -> Iterator[bytes]:
    """The file of one rank's records."""
    began = started.timestamp() * 1000
    yield _meta(name, int(began))
    for batch in batches:
        step = batch.column("step").to_numpy()
        t = batch.column("t").fill_null(0.0).to_numpy()
        at = (began + 1000 * np.where(np.isfinite(t), t, 0.0)).astype(np.int64)
        parts = []
        for field in batch.schema:
            tag = TAGS.get(field.name)
            if field.name.startswith(EXTRAS) and not pa.types.is_string(field.type):
                tag = "extras/" + field.name.removeprefix(EXTRAS).replace("%", "_")
            if tag is None:
                continue
            column = batch.column(field.name)
            if field.name == "skipped":
                there, value = np.ones(len(step), bool), column.is_valid().to_numpy(zero_copy_only=False)
            else:
                there = column.is_valid().to_numpy(zero_copy_only=False)
                # A null of Arrow becomes NaN here, or makes an object array; those rows are left out anyway.
                value = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
            if there.any():
                parts.append(scalars(tag, step[there], at[there], value[there]))
        yield b"".join(parts)


def points(rows: Iterable[tuple[int, datetime, Mapping[str, float]]], name: str, started: datetime) -> Iterator[bytes]:
    """A file of few scalars: (step, time, tag -> value)."""
    yield _meta(name, int(started.timestamp() * 1000))
    for step, at, values in rows:
        for tag, value in values.items():
            when = np.array([int(at.timestamp() * 1000)])
            yield scalars(tag, np.array([step]), when, np.array([value]))


def scalars(tag: str, step: Numbers, at: Numbers, value: Numbers) -> bytes:
    """One record for each element, in their order. Steps and times are not negative."""
    with np.errstate(over="ignore"):
        single = value.astype("<f4")
    step, at = step.astype(np.int64), at.astype(np.int64)
    # Numbers of as many bytes make records of one length, which a table of bytes holds.
    widths = np.stack([_width(step), _width(at)], axis=1)
    breaks = np.flatnonzero(np.any(np.diff(widths, axis=0) != 0, axis=1)) + 1
    edges = [0, *breaks.tolist(), len(step)]
    return b"".join(
        _run(tag.encode(), step[low:high], at[low:high], single[low:high], widths[low].tolist())
        for low, high in pairwise(edges)
        if low < high
    )


def _run(tag: bytes, step: Numbers, at: Numbers, value: Numbers, widths: Sequence[int]) -> bytes:
    of_step, of_at = widths
    head = b"\x12" + _varint(len(tag)) + tag + b"\x18"
    body = 1 + of_step + len(head) + of_at + 1 + 4
    before = b"\x0a" + _varint(body) + b"\x08"
    record = len(before) - 1 + body
    rows = np.empty((len(step), 8 + record), np.uint8)
    at_byte = 0

    def put(part: Any, width: int) -> None:
        nonlocal at_byte
        rows[:, at_byte : at_byte + width] = part
        at_byte += width

    put(np.frombuffer(struct.pack("<Q", record), np.uint8), 8)
    put(np.frombuffer(before, np.uint8), len(before))
    put(_varints(step, of_step), of_step)
    put(np.frombuffer(head, np.uint8), len(head))
    put(_varints(at, of_at), of_at)
    put(0x25, 1)
    put(np.ascontiguousarray(value).view(np.uint8).reshape(-1, 4), 4)
    return rows.tobytes()


def _meta(name: str, at: int) -> bytes:
    shown = name.encode()
    inner = b"\x0a" + _varint(len(shown)) + shown
    tag = b"meta_data_tag"
    value = b"\x12" + _varint(len(tag)) + tag + b"\x18" + _varint(at) + b"\x52" + _varint(len(inner)) + inner
    record = b"\x0a" + _varint(len(value)) + value
    return struct.pack("<Q", len(record)) + record


def _width(values: Numbers) -> Numbers:
    """Bytes of each as a varint."""
    width = np.ones(len(values), np.int64)
    for bits in range(7, 63, 7):
        width += values >= 1 << bits
    return width


def _varints(values: Numbers, width: int) -> Numbers:
    shifts = np.arange(0, 7 * width, 7)
    groups = (values[:, None] >> shifts) & 0x7F
    groups[:, :-1] |= 0x80
    result: Numbers = groups.astype(np.uint8)
    return result


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(parts) + bytes([value])
