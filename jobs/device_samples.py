"""What a node's devices and ranks used, over time: stored compactly, and read for charts of any length.

A row of DeviceSamples holds up to an hour as a float32 matrix; that is 40 bytes per sample of two CPU ranks and 240 of
eight GPUs, so 0.3 to 2 MB per day and node. A chart goes through them row by row and keeps only its buckets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from django.db.models import Max, Min, Sum
from django.utils.translation import gettext as _

from jobs.models import Attempt, DeviceSamples, Placement
from workers.contract.messages import SAMPLE_S

Matrix = npt.NDArray[Any]

PER_ROW, ROW_S = 360, 3600.0
# A faulty host must not fill the table: samples that come faster are left out, and so are devices beyond so many.
NEAREST_S = SAMPLE_S / 5
MOST_FIELDS = 400
# Two samples further apart have a gap between them.
GAP_S = 2.5 * SAMPLE_S

_MOST = float(np.finfo("<f4").max)
# A clock that is this far ahead of ours is wrong, and what comes after it would be left out as older.
AHEAD_S = 3600.0

_HOST = ("cpu", "load1", "memory_available", "disk_free")
_RANK = ("cpu", "memory")
_GPU = ("utilisation", "memory", "memory_total", "temperature", "power")


# --- taking --------------------------------------------------------------------------------


def append(attempt: Attempt, node: int, lines: bytes) -> None:
    """Whole lines of a node's stream. One that makes no sense is left out: a gap is all that can come of it."""
    row = DeviceSamples.objects.filter(attempt=attempt, node=node).order_by("first_at").last()
    peaks, latest = dict(attempt.peak_memory), time.time() + AHEAD_S
    for line in lines.splitlines():
        try:
            at, values = _values(orjson.loads(line), node, peaks)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
        if at > latest or (row is not None and at - row.last_at < NEAREST_S):
            continue
        if row is None or row.fields != list(values) or row.count >= PER_ROW or at - row.first_at > ROW_S:
            if row is not None:
                row.save()
            row = DeviceSamples(attempt=attempt, node=node, first_at=at, fields=list(values), count=0, body=b"")
        row.body = bytes(row.body) + np.array([at - row.first_at, *values.values()], "<f4").tobytes()
        row.count, row.last_at = row.count + 1, at
    if row is not None:
        row.save()
    if peaks != attempt.peak_memory:
        attempt.peak_memory = peaks
        Attempt.objects.filter(pk=attempt.pk).update(peak_memory=peaks)


def _values(line: dict[str, Any], node: int, peaks: dict[str, int]) -> tuple[float, dict[str, float]]:
    """When, and what by name; the most memory of each rank and GPU goes into `peaks`."""
    if line["kind"] != "sample":
        raise ValueError("no sample")
    values = {name: _number(line["host"].get(name)) for name in _HOST}
    for rank, said in line["ranks"].items():
        values |= {f"rank{int(rank)}.{name}": _number(said.get(name)) for name in _RANK}
        _most(peaks, f"rank{int(rank)}", said.get("peak"))
    for gpu, said in line.get("gpus", {}).items():
        values |= {f"gpu{int(gpu)}.{name}": _number(said.get(name)) for name in _GPU}
        _most(peaks, f"{node}/gpu{int(gpu)}", said.get("memory"))
    if len(values) > MOST_FIELDS:
        raise ValueError("too many devices")
    return datetime.fromisoformat(line["at"]).timestamp(), values


def _number(value: Any) -> float:
    """As float32 holds it: infinity is no number in JSON."""
    return float(value) if isinstance(value, int | float) and abs(value) <= _MOST else math.nan


def _most(peaks: dict[str, int], name: str, value: Any) -> None:
    if isinstance(value, int) and 0 <= value < 2**63 and len(peaks) < MOST_FIELDS:
        peaks[name] = max(peaks.get(name, 0), value)


# --- reading -------------------------------------------------------------------------------


def chart(attempt: Attempt, *, points: int = 300, after: float | None = None) -> dict[str, Any]:
    """Per node: times (seconds since 1970), and per field the mean, least and greatest of each bucket; None where nothing is
    known. With `after` only what is newer, as it is, at most `points` of it."""
    kept = DeviceSamples.objects.filter(attempt=attempt)
    if after is not None:
        kept = kept.filter(last_at__gt=after)
    hosts = dict(Placement.objects.filter(attempt=attempt).order_by("pk").values_list("node", "host__name"))
    spans = (
        kept.order_by("node").values("node").annotate(first=Min("first_at"), last=Max("last_at"), count=Sum("count"))
    )
    nodes = []
    for span in spans:
        rows = kept.filter(node=span["node"]).order_by("first_at").iterator(chunk_size=24)
        buckets = _Buckets(span["first"], span["last"], span["count"], points if after is None else None)
        for at, fields, matrix in _matrices(rows):
            if after is not None:
                at, matrix = at[at > after][:points], matrix[at > after][:points]
            if len(at):
                buckets.add(at, fields, matrix)
        nodes.append({"node": span["node"], "host": hosts.get(span["node"], ""), **buckets.columns()})
    return {"sample_s": SAMPLE_S, "nodes": nodes}


def _matrices(rows: Iterator[DeviceSamples]) -> Iterator[tuple[Matrix, list[str], Matrix]]:
    for row in rows:
        whole = np.frombuffer(bytes(row.body), "<f4").reshape(row.count, 1 + len(row.fields)).astype(np.float64)
        yield row.first_at + whole[:, 0], row.fields, whole[:, 1:]


@dataclass
class _Buckets:
    """Samples as they are if they are few enough (or `most` is None), else so many buckets of equal time."""

    first: float
    last: float
    count: int
    most: int | None
    _pieces: list[tuple[Matrix, list[str], dict[str, Matrix]]] = field(default_factory=list)

    @property
    def width_s(self) -> float:
        if self.most is None or self.count <= self.most:
            return 0.0
        # Twice as wide as the samples are apart: none is empty for want of punctuality.
        return max((self.last - self.first) / self.most, 2 * SAMPLE_S)

    def add(self, at: Matrix, fields: list[str], matrix: Matrix) -> None:
        if not self.width_s:
            self._pieces.append((at, fields, {"mean": matrix, "min": matrix, "max": matrix}))
            return
        # Buckets never span two rows: an hour's end makes one narrower, and that is all.
        starts = np.flatnonzero(np.diff(np.floor((at - self.first) / self.width_s), prepend=-1.0))
        sizes = np.diff(starts, append=len(at))
        known = np.add.reduceat(~np.isnan(matrix), starts, axis=0)
        with np.errstate(invalid="ignore"):
            mean = np.add.reduceat(np.nan_to_num(matrix, nan=0.0), starts, axis=0) / np.where(known, known, np.nan)
        self._pieces.append(
            (
                np.add.reduceat(at, starts) / sizes,
                fields,
                {
                    "mean": mean,
                    "min": np.fmin.reduceat(matrix, starts, axis=0),
                    "max": np.fmax.reduceat(matrix, starts, axis=0),
                },
            )
        )

    def columns(self) -> dict[str, Any]:
        """Bucketed or not, a time without samples has a point in its middle at which nothing is known."""
        names = list(dict.fromkeys(name for piece in self._pieces for name in piece[1]))
        at = np.concatenate([piece[0] for piece in self._pieces]) if self._pieces else np.array([])
        gaps = np.flatnonzero(np.diff(at) > max(GAP_S, 1.5 * self.width_s)) + 1
        times = np.insert(at, gaps, (at[gaps] + at[gaps - 1]) / 2) if len(gaps) else at
        kinds = ("mean", "min", "max") if self.width_s else ("mean",)
        return {
            "t": [round(float(time), 2) for time in times],
            "bucket_s": self.width_s,
            "fields": {name: {kind: self._column(name, kind, gaps) for kind in kinds} for name in names},
        }

    def _column(self, name: str, kind: str, gaps: Matrix) -> list[float | None]:
        pieces = [
            values[kind][:, fields.index(name)] if name in fields else np.full(len(at), np.nan)
            for at, fields, values in self._pieces
        ]
        column = np.insert(np.concatenate(pieces), gaps, np.nan)
        return [None if math.isnan(value) else float(f"{value:.4g}") for value in column]


def peak_of(attempt: Attempt) -> dict[str, int | None]:
    """The most memory that any one rank, and any one GPU, had."""
    ranks = [most for name, most in attempt.peak_memory.items() if name.startswith("rank")]
    gpus = [most for name, most in attempt.peak_memory.items() if "gpu" in name]
    return {"rank": max(ranks, default=None), "gpu": max(gpus, default=None)}


def words() -> dict[str, str]:
    """For js/devices.js: titles of charts and names of lines."""
    return {
        "gpu_utilisation": _("GPU utilisation"),
        "gpu_memory": _("GPU memory"),
        "gpu_temperature": _("GPU temperature"),
        "gpu_power": _("GPU power"),
        "rank_cpu": _("CPU cores in use"),
        "rank_memory": _("Memory of the ranks"),
        "host_cpu": _("CPU of the whole host"),
        "host_load": _("Load of the host"),
        "host_memory": _("Memory available on the host"),
        "host_disk": _("Scratch disk free"),
        "host": _("The whole host"),
        "node": _("Node"),
        "gpu": _("GPU"),
        "rank": _("rank"),
    }
