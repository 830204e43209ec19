"""Step records on their way into the database: stored as they are, counted, and what is rare made an event."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from django.db.models import F

from jobs.models import Attempt, Cursor, JobEvent
from jobs.steps import packed, store
from jobs.steps.runs import Run, extended
from workers.contract.records import SKIP_FOUND_INF

# So many events of a kind and rank; what comes after is only on the chart.
MOST_EVENTS = 500
_KEPT = 200  # characters of a trainer's word

Mask = npt.NDArray[np.bool_]


def apply(attempt: Attempt, cursor: Cursor, body: bytes) -> set[str]:
    """Stores whole lines at the cursor, in the caller's transaction. Returns what changed, for the page."""
    batch = packed.parse(body)
    matrix = batch.matrix
    store.append(attempt.pk, cursor.rank, cursor.lines, batch)
    state = cursor.state
    state["runs"] = [
        run.to_json() for run in extended([Run(**run) for run in state.get("runs", [])], matrix, cursor.lines)
    ]
    changed = {"steps"}
    bits = packed.bits(matrix)
    valid = (bits & packed.INVALID) == 0
    if valid.any():
        state["newest"] = batch.record(int(np.flatnonzero(valid)[-1]))
        skipped = valid & ((bits & packed.SKIPPED) != 0)
        odd = valid & _non_finite(batch, bits, cursor.rank)
        told = _tell(attempt, cursor, "non_finite", odd, batch)
        if cursor.rank == 0:
            # All ranks skip together, so rank 0 speaks for all.
            told = _tell(attempt, cursor, "skipped", skipped, batch) or told
            _count(attempt, cursor, bits, skipped, odd)
        if told:
            changed.add("events")
    cursor.lines += len(matrix)
    return changed


def _non_finite(batch: packed.Batch, bits: npt.NDArray[np.int64], rank: int) -> Mask:
    """Where a number that should be finite is not: a rank's own loss, and, told by rank 0 only, what all share.

    An overflow that loss scaling has caught is not one: it belongs to fp16 and shows as a skipped step.
    """

    def odd(name: str) -> Mask:
        index = packed.CHARTED.index(name)
        not_finite: Mask = ~np.isfinite(batch.matrix[:, packed.FIRST_FIELD + index]) & (
            (bits & packed.NULL[index]) == 0
        )
        return not_finite

    mask = odd("loss")
    if rank == 0:
        norm = odd("grad_norm")
        for index in np.flatnonzero(norm & ((bits & packed.SKIPPED) != 0)):
            norm[index] = batch.record(index)["skipped"] != SKIP_FOUND_INF
        mask |= odd("loss_all") | norm
    return mask


def _count(attempt: Attempt, cursor: Cursor, bits: npt.NDArray[np.int64], skipped: Mask, odd: Mask) -> None:
    newest = cursor.state["newest"]
    run = cursor.state.get("skipped")
    still = run is not None and run["end"] == cursor.lines + len(bits)
    changes: dict[str, Any] = {
        "attempted": newest["step"],
        "newest_record": newest | {"skips_in_a_row": run["count"] if still else 0},
    }
    if isinstance(newest.get("applied"), int):
        changes["applied"] = newest["applied"]
    for name, mask in (("skipped", skipped), ("clipped", (bits & packed.CLIPPED) != 0), ("non_finite", odd)):
        count = int(np.count_nonzero(mask))
        if count:
            changes[name] = F(name) + count
    Attempt.objects.filter(pk=attempt.pk).update(**changes)


def _tell(attempt: Attempt, cursor: Cursor, kind: str, mask: Mask, batch: packed.Batch) -> bool:
    """One event for each run of consecutive steps, however long: written at its first step, counted up after."""
    if not mask.any():
        return False
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    for low, high in zip(edges[::2], edges[1::2], strict=True):
        run = cursor.state.get(kind)
        if low == 0 and run is not None and run["end"] == cursor.lines:
            run = run | {
                "last": batch.record(high - 1)["step"],
                "count": run["count"] + high,
                "end": cursor.lines + high,
            }
            JobEvent.objects.filter(pk=run["event"]).update(message=_sentence(kind, run), data=_data(run))
        else:
            number = cursor.state.get(f"{kind}_events", 0) + 1
            cursor.state[f"{kind}_events"] = number
            value = batch.record(low)
            run = {
                "first": value["step"],
                "last": batch.record(high - 1)["step"],
                "count": high - low,
                "end": cursor.lines + high,
                "what": _what(kind, value),
                "event": None,
            }
            if number <= MOST_EVENTS:
                last_words = " Further ones are only on the chart." if number == MOST_EVENTS else ""
                event = JobEvent.objects.create(
                    job_id=attempt.job_id,
                    attempt=attempt,
                    kind=kind,
                    step=run["first"],
                    rank=cursor.rank,
                    actor_name=f"rank {cursor.rank}",
                    message=_sentence(kind, run) + last_words,
                    data=_data(run),
                )
                run["event"] = event.pk
        cursor.state[kind] = run
    return True


def _what(kind: str, value: dict[str, Any]) -> str:
    if kind == "skipped":
        return str(value["skipped"])[:_KEPT]
    odd = [f"{name} {value[name]}" for name in ("loss", "loss_all", "grad_norm") if isinstance(value.get(name), str)]
    return ", ".join(odd)[:_KEPT]


def _sentence(kind: str, run: dict[str, Any]) -> str:
    where = (
        f"Step {run['first']}" if run["count"] == 1 else f"{run['count']} steps from {run['first']} to {run['last']}"
    )
    return f"{where} {'skipped' if kind == 'skipped' else 'not finite'}: {run['what']}."


def _data(run: dict[str, Any]) -> dict[str, Any]:
    return {name: run[name] for name in ("first", "last", "count", "what")}
