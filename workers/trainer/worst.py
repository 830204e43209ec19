"""The dev rows that the finished model gets most wrong, for people to look at. Rank 0 alone, after training."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.contract import records
from workers.contract.messages import Request
from workers.contract.texts import Text, clause
from workers.trainer.evaluation import LEAVE_AT_ONCE
from workers.trainer.modes import evaluating

if TYPE_CHECKING:
    from workers.trainer.loop import Run

MOST_ROWS = 50
MOST_CHARACTERS = 300  # of a text
MOST_BYTES = 128 * 2**10  # of all rows together

Shown = dict[str, Any]


def report(run: Run) -> Request | None:
    """Says the worst dev rows with the model's present weights; the request because of which it left off, if one came.

    It may take as long as an evaluation by one rank. What goes wrong here must not cost anybody a finished model."""
    run.context.stage("looking for the worst dev rows", "")
    try:
        found = _worst(run)
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        words = f"{type(error).__name__}: {error}"[:500]
        text = Text("The worst dev rows could not be found: %(error)s.", error=clause(words))
        run.events.say("note", level="warning", text=text, step=run.progress.step)
        return None
    if isinstance(found, Request):
        return found
    run.events.say("worst", step=run.progress.best_step or run.progress.step, of=run.task.rows["dev"], rows=found)
    return None


def _worst(run: Run) -> list[Shown] | Request:
    task, batch_size = run.task, run.context.settings.training.batch_size
    kept: list[tuple[tuple[int, float, int], Shown]] = []
    with evaluating(run.model):
        for start in range(0, task.rows["dev"], batch_size):
            asked = run.control.read().leave
            if asked in LEAVE_AT_ONCE:
                return asked
            batch = task.batch("dev", np.arange(start, min(start + batch_size, task.rows["dev"])))
            with run.caster.weights(), run.caster.forward():
                outputs, losses = task.losses(run.model, batch)
            loss = losses.numpy().astype(np.float64).reshape(-1)  # of a single sample it may have no axis
            # NaN before infinity before the rest; of equal ones the earlier row.
            kind = np.where(np.isnan(loss), 0, np.where(np.isposinf(loss), 1, 2))
            size = np.where(kind == 2, -loss, 0.0)
            last = kept[-1][0] if len(kept) == MOST_ROWS else None
            for i in np.lexsort((batch.rows, size, kind))[:MOST_ROWS].tolist():
                place = (int(kind[i]), float(size[i]), int(batch.rows[i]) + 1)
                if last is not None and place > last:
                    break
                shown = {name: _short(value) for name, value in task.shown(outputs, batch, i).items()}
                kept.append((place, {"row": place[2], "loss": float(loss[i]), **shown}))
            kept = sorted(kept, key=lambda one: one[0])[:MOST_ROWS]
    rows = [shown for _, shown in kept]
    while len(records.dumps(rows)) > MOST_BYTES:
        rows.pop()
    return rows


def _short(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value if len(value) <= MOST_CHARACTERS else value[: MOST_CHARACTERS - 1] + "…"
    return text.encode("utf-8", "replace").decode()  # half a character is nothing that JSON could hold
