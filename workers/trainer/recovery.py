"""The state of a run as a checkpoint holds it, and the way back to one.

Going back does not go back in time: attempted steps count on, in a new segment, and the data goes on after the batch that
was bad. What was trained since the checkpoint is lost with its batches (PaLM skips some hundred of them on purpose: a
spike comes from these batches *and* this state).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

from workers.contract.records import SKIP_GRAD, SKIP_INPUT, SKIP_LOSS, SKIP_SPIKE
from workers.contract.texts import Text
from workers.contract.training import BadStep, SpikeAction
from workers.trainer import checkpoint
from workers.trainer.checkpoint import Snapshot

if TYPE_CHECKING:
    from workers.trainer.limits import StepFacts
    from workers.trainer.loop import Run


def snapshot_of(run: Run) -> Snapshot:
    progress = run.progress
    state = {
        "format": checkpoint.FORMAT,
        "step": progress.step,
        "applied": progress.applied,
        "epoch": progress.at.epoch,
        "offset": progress.at.offset,
        "best": progress.best,
        "best_step": progress.best_step,
        "reached": progress.reached,
        "waited": progress.waited,
        "evaluation_due": progress.evaluation_due,
        "segment": progress.segment,
        "scaler": run.scaler.state(),
        "clipper": run.clipper.state(),
        "spikes": run.spikes.state(),
        "plan": run.plan,
        "identity": run.task.identity,
        "settings": run.context.settings.model_dump(mode="json"),
        "versions": {"paddle": paddle.__version__, "numpy": np.__version__},
    }
    return Snapshot(
        checkpoint.weights_of(run.model, run.optimizer),
        checkpoint.moments_of(run.model, run.optimizer),
        run.average.state(),
        run.best_weights,
        state,
    )


def restore(run: Run, saved: Snapshot, *, moments: bool = True, keep_scale: bool = True) -> None:
    """All that moves with the weights; not the counters."""
    checkpoint.check_fit(run.model, saved.weights)
    if moments:
        checkpoint.set_moments(run.model, run.optimizer, saved.moments)
    checkpoint.set_weights(run.model, saved.weights, run.optimizer)
    run.average.restore(saved.average)
    _restore_rest(run, saved.state, keep_scale=keep_scale)


def _restore_rest(run: Run, state: dict[str, Any], *, keep_scale: bool) -> None:
    if state["scaler"] is not None:
        run.scaler.restore(state["scaler"], keep_scale=keep_scale)
    run.clipper.restore(state.get("clipper"))
    run.spikes.restore(state.get("spikes"))


def may_rewind(run: Run) -> bool:
    """There must be a checkpoint of the very beginning then."""
    settings = run.context.settings
    return settings.limits.on_bad_step is BadStep.REWIND or settings.spikes.action is SpikeAction.REWIND


def rewinds_for_spikes(run: Run) -> bool:
    settings = run.context.settings
    return bool(settings.spikes.action is SpikeAction.REWIND) and run.progress.rewinds < settings.limits.most_rewinds


def calls_for_rewind(run: Run, facts: StepFacts) -> bool:
    """Whether the step that was just skipped does, while there are rewinds left."""
    settings = run.context.settings
    if run.progress.rewinds >= settings.limits.most_rewinds:
        return False
    if facts.skipped == SKIP_SPIKE:
        return bool(settings.spikes.action is SpikeAction.REWIND)
    bad = facts.skipped in (SKIP_INPUT, SKIP_LOSS, SKIP_GRAD)
    return bad and settings.limits.on_bad_step is BadStep.REWIND


def rewind(run: Run, facts: StepFacts) -> None:
    """All ranks take over the newest good checkpoint, which only rank 0 is sure to have on its disk."""
    folder, ranks, progress = run.context.folder, run.ranks, run.progress
    saved = ranks.alone(lambda: checkpoint.read(max(folder.checkpoints.glob("step-*"))))
    if saved is not None:
        restore(run, saved)
    state: dict[str, Any] = ranks.from_first(saved.state if saved else None)
    ranks.take_from_first([*checkpoint.tensors_of(run.model, run.optimizer), *run.average.averages])
    if saved is None:
        _restore_rest(run, state, keep_scale=True)
    progress.applied = state["applied"]
    progress.segment += 1
    progress.rewinds += 1
    if ranks.rank == 0:
        run.events.say(
            "rewind",
            step=progress.step,
            to_step=state["step"],
            to_applied=state["applied"],
            segment=progress.segment,
            why=facts.skipped,
        )
        left = run.context.settings.limits.most_rewinds - progress.rewinds
        if not left:
            text = Text("That was the last rewind: from now on bad steps are skipped, and spikes only recorded.")
            run.events.say("note", level="warning", text=text, step=progress.step)
        print(f"rewinds at step {progress.step} to the checkpoint of step {state['step']}", flush=True)
