"""Gradient norms of an attempt: how they are spread, what a clip at which length would cut, and which part of the model
they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs import dry_run
from jobs.models import Attempt, Job
from jobs.steps import packed, read
from workers.contract.records import GROUP_NORM, ZERO_GRADIENTS, from_json_number

# What happened a hundred thousand steps ago says nothing about a clip for what comes.
NEWEST = 20_000
PERCENTILES = (10, 50, 90, 99)
# Fewer say nothing either.
LEAST = 20


@dataclass(frozen=True)
class Spread:
    norms: dry_run.Norms
    clips: list[dry_run.Clip]
    percentiles: list[tuple[int, float]]
    first: int  # step
    last: int
    after_warmup: bool
    clipped: float  # share of the steps, by whatever the settings say


@dataclass(frozen=True)
class Group:
    name: str
    norm: float
    share: float | None  # of the squared norm of all; None where something is not finite


@dataclass(frozen=True)
class Groups:
    step: int
    groups: list[Group]
    zeros: float | None


def part(job: Job, attempt: Attempt) -> dict[str, Any]:
    if job.dry_run:
        return {"norms": None, "norm_groups": groups(attempt)}
    found = spread(attempt)
    return {
        "norms": found,
        "norms_picture": dry_run.picture(found.norms) if found else [],
        "norm_groups": groups(attempt),
    }


def spread(attempt: Attempt) -> Spread | None:
    """Of the newest steps, those of the warm-up left out once there are enough others; None while there are too few."""
    matrix = read.newest(attempt, 0, ("grad_norm",), NEWEST)
    matrix = matrix[(packed.bits(matrix) & packed.INVALID) == 0]
    if not len(matrix):
        return None
    warmup = dry_run.warmup(attempt.settings, attempt.plan) or 0
    later = matrix[matrix[:, packed.STEP] > warmup]
    after_warmup = len(later) >= LEAST
    matrix = later if after_warmup else matrix
    values = matrix[:, packed.FIRST_FIELD + packed.CHARTED.index("grad_norm")]
    finite = values[np.isfinite(values)]
    if len(finite) < LEAST:
        return None
    return Spread(
        norms=dry_run.norms_of(finite, len(values) - len(finite)),
        clips=dry_run.clips_of(finite, dry_run.max_norm_of(attempt.settings)),
        percentiles=[
            (p, float(value)) for p, value in zip(PERCENTILES, np.percentile(finite, PERCENTILES), strict=True)
        ],
        first=int(matrix[0, packed.STEP]),
        last=int(matrix[-1, packed.STEP]),
        after_warmup=after_warmup,
        clipped=float(((packed.bits(matrix) & packed.CLIPPED) != 0).mean()),
    )


def groups(attempt: Attempt) -> Groups | None:
    """The newest record that has them: it comes every so many steps, and with every gradient that is not finite."""
    record = read.newest_with(attempt, 0, f'"{GROUP_NORM}')
    if record is None:
        return None
    extras: Mapping[str, Any] = record["extras"]
    norms = {name.removeprefix(GROUP_NORM): value for name, value in extras.items() if name.startswith(GROUP_NORM)}
    whole = sum(value**2 for value in norms.values())
    zeros = from_json_number(extras.get(ZERO_GRADIENTS))
    return Groups(
        step=record["step"],
        groups=[
            Group(name, value, value**2 / whole if whole and math.isfinite(whole) else None)
            for name, value in norms.items()
        ],
        zeros=zeros,
    )
