"""The chart of one rank's records: the same cost for a thousand steps and a million, and nothing rare is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.models import Attempt

CHARTED = ("t", "loss", "loss_all", "lr", "grad_norm", "clip_norm", "loss_scale", "step_ms", "data_ms", "mem_mb")


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
    names = list(fields or CHARTED)
    return {
        "attempt": attempt.pk,
        "uid": attempt.uid,
        "number": attempt.number,
        "rank": rank,
        "available": {"first": None, "last": None, "records": 0},
        "bucket": 1,
        "step": [],
        "first_step": [],
        "fields": {name: {"mean": [], "non_finite": []} for name in names},
        "marks": {"skipped": [], "clipped": [], "found_inf": []},
        "newest": None,
        "rewound": [],
    }
