"""Gradient norms of an attempt: how they are spread, what a clip at which length would cut, and which part of the model
they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from django.utils.translation import gettext as _

from jobs import dry_run
from jobs.models import Attempt, Job
from jobs.steps import packed, read
from workers.contract.records import GROUP_NORM, ZERO_GRADIENTS, from_json_number
from workers.contract.training import ClipMode

Floats = npt.NDArray[np.float64]

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


def is_of_the_norm(settings: Mapping[str, Any]) -> bool:
    """Whether the limit in the records is one of the norm of the whole gradient."""
    return (settings.get("clipping") or {}).get("mode") not in (ClipMode.VALUE, ClipMode.PER_TENSOR)


POINTS = 300
# About 400,000 steps; of more, each so-manieth 4,096.
MOST_BLOCKS = 100
# What a faulty or foreign trainer says must not fill a page.
MOST_GROUPS = 200


def over_time(attempt: Attempt, rank: int, *, first: int = 0, last: int | None = None) -> dict[str, Any]:
    """The norms of groups at the steps where they were recorded, ready for JSON.

    {"number": 1, "bucket": 3, "every": 1,    records per point; one in so many stretches of 4,096 steps was read
     "step": [50, 100, …],                    x: the last step of each point
     "groups": [{"name": "embeddings", "norm": […], "non_finite": [[step, nan, inf], …]}, …],   in the order of the model
     "zeros": […]}                            share of gradient elements that were zero

    Of several records in a point, a norm is the greatest finite one, and zeros their mean; null: not there. What is not
    finite is never left out: x of the point, and how many records of each kind.
    """
    found, every = read.with_extras(attempt, rank, GROUP_NORM, first=first, last=last, most_blocks=MOST_BLOCKS)
    names = list(dict.fromkeys(name for _, extras in found for name in extras if name.startswith(GROUP_NORM)))
    # Of a record with another order of names, or other names, the places are those of the first.
    names = names[:MOST_GROUPS]
    bucket = max(1, -(-len(found) // POINTS))
    starts = range(0, len(found), bucket)
    steps = [found[min(at + bucket, len(found)) - 1][0] for at in starts]
    zeros = _numbers(found, ZERO_GRADIENTS)
    groups: list[dict[str, Any]] = []
    for name in names:
        values = _numbers(found, name)
        nan, inf = np.isnan(values) & _there(found, name), np.isinf(values)
        finite = np.where(np.isfinite(values), values, -1.0)
        greatest = np.maximum.reduceat(finite, starts) if len(found) else finite
        counts = [(int(a), int(b)) for a, b in zip(_sums(nan, starts), _sums(inf, starts), strict=True)]
        groups.append(
            {
                "name": name.removeprefix(GROUP_NORM),
                "norm": [value if value >= 0 else None for value in greatest.tolist()],
                "non_finite": [[step, *count] for step, count in zip(steps, counts, strict=True) if any(count)],
            }
        )
    shares = [zeros[at : at + bucket] for at in starts]
    return {
        "number": attempt.number,
        "bucket": bucket,
        "every": every,
        "step": steps,
        "groups": groups,
        "zeros": [float(np.nanmean(part)) if np.isfinite(part).any() else None for part in shares],
    }


def _numbers(found: list[tuple[int, dict[str, Any]]], name: str) -> Floats:
    """NaN where it is not there, or no number."""
    values = (from_json_number(extras.get(name)) for _, extras in found)
    return np.array([value if isinstance(value, float | int) else math.nan for value in values], dtype=np.float64)


def _there(found: list[tuple[int, dict[str, Any]]], name: str) -> npt.NDArray[np.bool_]:
    return np.array([extras.get(name) is not None for _, extras in found], dtype=bool)


def _sums(marks: npt.NDArray[np.bool_], starts: range) -> npt.NDArray[np.int64]:
    return np.add.reduceat(marks.astype(np.int64), starts) if len(marks) else np.zeros(0, np.int64)


def words() -> dict[str, str]:
    return {
        "nothing": _("The norms of the parts of the model are recorded every so many steps; none yet."),
        "greatest": _("greatest of %(count)s records"),
        "sampled": _(
            "Of a run this long, one in %(count)s stretches of 4,096 steps is shown; zoom in for all of them."
        ),
        "all": _("all"),
        "none": _("none"),
    }


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
