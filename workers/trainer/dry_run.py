"""After the steps of a dry run: what else a real run takes time, disk and memory for, each done once and thrown away."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

from workers.contract.messages import Request
from workers.contract.texts import Text
from workers.trainer import checkpoint
from workers.trainer.evaluation import LEAVE_AT_ONCE, asked_of_all, evaluate, train_sample
from workers.trainer.memory import Memory

if TYPE_CHECKING:
    from workers.trainer.loop import Run

# A large dev split is measured in part, and the rest is reckoned.
MOST_ROUNDS = 20


def measure(run: Run, memory: Memory) -> Request | None:
    """Every rank says its peak, rank 0 also how long an evaluation and a checkpoint take. The request that broke it off."""
    run.context.stage("measuring", "")
    batch_size = run.context.settings.training.batch_size
    result = evaluate(run.task, run.model, run.caster, run.ranks, run.control, batch_size, MOST_ROUNDS)
    if isinstance(result, Request):
        return result
    saved = _checkpoint(run)
    left = asked_of_all(run.ranks, run.control.look().leave if run.ranks.rank == 0 else None, LEAVE_AT_ONCE)
    if left is not None:  # while it was written; a pause or the time limit comes too late, since all is done
        return left
    found: dict[str, Any] = {"rank": run.ranks.rank, "peak_mb": memory.peak_mb()}
    if run.ranks.rank == 0:
        # A real one takes all rows of dev and a sample of the training rows.
        rows = run.task.rows["dev"] + len(train_sample(run.task))
        found |= {"evaluation_s": result.seconds * rows / result.rows, **saved}
    run.events.say("measured", **found)
    return None


def _checkpoint(run: Run) -> dict[str, Any]:
    """Written as a real one is, with best weights in it, and removed at once: nobody hears of it."""
    from workers.trainer.recovery import snapshot_of

    started = time.monotonic()
    if run.ranks.rank == 0:
        run.best_weights = checkpoint.weights_of(run.model)
    snapshot = snapshot_of(run) if run.ranks.rank == 0 else None

    def work() -> str | checkpoint.Written:
        assert snapshot is not None
        bad = snapshot.not_finite()
        return bad or checkpoint.write(run.context.folder, snapshot, keep=1)

    written = run.ranks.alone(work)
    seconds = time.monotonic() - started
    if isinstance(written, str):
        text = Text("After the last step %(what)s is not finite: a real run could not save a checkpoint.", what=written)
        run.events.say("note", level="error", text=text, step=run.progress.step)
    if not isinstance(written, checkpoint.Written):
        return {"checkpoint_s": None, "checkpoint_bytes": None}
    shutil.rmtree(run.context.folder.path / written.path, ignore_errors=True)
    return {"checkpoint_s": seconds, "checkpoint_bytes": written.bytes}
