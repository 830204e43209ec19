"""From a spec to a `Run`: data, model, optimizer, and the state of a checkpoint if there is one."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
from pydantic import ValidationError

from workers.contract.fields import SettingsGroup
from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.contract.training import Precision
from workers.recipes.registry import recipe
from workers.trainer import checkpoint, gradients
from workers.trainer.averaging import WeightAverage
from workers.trainer.clipping import Clipper
from workers.trainer.control import ControlFile
from workers.trainer.loop import Progress, Run, named_parameters
from workers.trainer.modes import Statistics
from workers.trainer.optimizer import build as build_optimizer
from workers.trainer.precision import Caster, LossScaler
from workers.trainer.ranks import Ranks
from workers.trainer.recovery import restore
from workers.trainer.sampler import Position, Sampler, reseed
from workers.trainer.schedule import Schedule
from workers.trainer.spikes import Spikes
from workers.trainer.spool import Events, Steps
from workers.trainer.task import Context, Task, TrainingFailed


def start(context: Context, ranks: Ranks, events: Events) -> Run:
    settings = context.settings
    training = settings.training
    reseed(training.seed, 0, 0)  # the same initial weights on every rank
    task: Task = importlib.import_module(recipe(context.spec.recipe).module).build(context)
    for split in ("train", "dev"):
        if task.rows[split] == 0:
            raise TrainingFailed(EndReason.BAD_DATA, Text("The %(split)s split has no rows.", split=split))
    context.stage("building the model", "")
    model = task.build_model()
    gradients.dense(model)
    parameters = [parameter for _, parameter in named_parameters(model)]
    caster = Caster(settings.precision, model)
    scaler = LossScaler(settings.loss_scaling, enable=caster.mode is Precision.FP16)
    model, optimizer = caster.decorated(model, build_optimizer(model, settings.optimizer))
    sampler = Sampler(
        task.rows["train"], training.batch_size, training.accumulation, ranks.world, training.seed, task.lengths
    )
    run = Run(
        context=context,
        task=task,
        model=model,
        parallel=None,
        parameters=parameters,
        optimizer=optimizer,
        average=WeightAverage(named_parameters(model), settings.optimizer.ema_memory, optimizer._master_weights),
        caster=caster,
        scaler=scaler,
        clipper=Clipper(settings.clipping, parameters),
        spikes=Spikes(settings.spikes),
        statistics=Statistics(model),
        schedule=Schedule.of(settings.optimizer, settings.schedule, 0),
        sampler=sampler,
        ranks=ranks,
        control=ControlFile(context.folder.control),
        steps=Steps(context.folder.steps(ranks.rank)),
        events=events,
        plan={},
    )
    run.plan = _plan(run)
    if context.spec.start_from is not None:
        context.stage("loading the checkpoint", f"step {context.spec.start_from.step}")
        _go_on_from(run)
    run.schedule = Schedule.of(settings.optimizer, settings.schedule, run.plan["total_steps"])
    ranks.meet("start")
    run.parallel = ranks.parallel(model)
    return run


def _plan(run: Run) -> dict[str, Any]:
    """What is ahead, from the present position. `total_steps` is in applied steps, were none skipped."""
    settings, progress, sampler = run.context.settings, run.progress, run.sampler
    total = progress.applied + sampler.steps_left(progress.at, settings.training.epochs)
    if settings.training.max_steps is not None:
        total = min(total, settings.training.max_steps)
    return {
        "total_steps": total,
        "steps_per_epoch": sampler.steps_per_epoch,
        "epochs": settings.training.epochs,
        "max_steps": settings.training.max_steps,
        "global_batch": sampler.global_batch,
        "world_size": run.ranks.world,
        "train_rows": run.task.rows["train"],
        "dev_rows": run.task.rows["dev"],
        "parameters": int(sum(math.prod(p.shape) for p in run.model.parameters())),
        "precision": str(run.caster.mode),
        "emulated": run.caster.emulated,
        "device": run.ranks.device,
        "best_by": run.task.best_by,
        "lower_is_better": run.task.lower_is_better,
        "baselines": run.task.baselines,
        "checkpoints_compared": run.ranks.world > 1 and settings.monitoring.compare_ranks_every is not None,
    }


# What decides how many steps there are. As long as none of it changes, a continued run keeps its plan.
_SIZES = ("epochs", "max_steps", "global_batch", "train_rows")


def _go_on_from(run: Run) -> None:
    """Load the state first, then let today's settings have their way."""
    saved = checkpoint.read(run.context.folder.start)
    state, settings = saved.state, run.context.settings
    for name, value in run.task.identity.items():
        if state["identity"].get(name) != value:
            raise TrainingFailed(
                EndReason.BAD_SETTINGS,
                Text(
                    "The checkpoint does not fit these settings: its %(name)s differs. "
                    "Start from scratch, or give the settings of data and model back their old values.",
                    name=name,
                ),
            )
    old = _in_todays_names(state["settings"], settings)
    changed = _changed(old, settings.model_dump(mode="json"))
    restore(
        run,
        saved,
        moments="optimizer.kind" not in changed,
        keep_scale="loss_scaling.init_scale" not in changed,
    )
    run.best_weights = saved.best if run.ranks.rank == 0 else None
    run.progress = Progress(
        state["step"],
        state["applied"],
        Position(state["epoch"], state["offset"]),
        state["best"],
        state["best_step"],
        reached=state.get("reached", state["best"]),
        waited=state.get("waited", 0),
        evaluation_due=state.get("evaluation_due", False),
        segment=state.get("segment", 0),
    )
    # Who goes on after an early stop wants more of it: the patience begins anew.
    if run.progress.waited >= (settings.early_stopping.patience or math.inf):
        run.progress.waited = 0
    run.checkpoint_at = state["step"]

    for name, value in (("beta1", settings.optimizer.beta1), ("beta2", settings.optimizer.beta2)):
        if f"optimizer.{name}" in changed:
            _set_power(run.optimizer, f"{name}_pow_acc", value ** (state["applied"] + 1))
    plan = _plan(run)
    if all(plan[name] == state["plan"][name] for name in _SIZES):
        plan["total_steps"] = state["plan"]["total_steps"]
    run.plan = plan
    if run.ranks.rank == 0:
        run.events.say("note", level="info", text=_how_it_goes_on(run, changed), step=state["step"])


def _in_todays_names(old: dict[str, Any], today: SettingsGroup) -> dict[str, Any]:
    """Settings of a checkpoint that an earlier version wrote; what it did not know had today's defaults."""
    try:
        return type(today).model_validate(old).model_dump(mode="json")
    except ValidationError:
        return old


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Dotted names of settings that differ."""
    return [
        f"{group}.{name}"
        for group, fields in new.items()
        for name, value in fields.items()
        if old.get(group, {}).get(name) != value
    ]


def _set_power(optimizer: Any, accumulator: str, value: float) -> None:
    """The bias correction of Adam with another β: as if it had been used from the first step on."""
    for tensor in optimizer._accumulators.get(accumulator, {}).values():
        tensor.set_value(np.full(tensor.shape, value, dtype=np.float32))


def _how_it_goes_on(run: Run, changed: list[str]) -> Text:
    progress = run.progress
    where = {"step": progress.step, "applied": progress.applied, "epoch": progress.at.epoch}
    if progress.at.offset:
        text = Text(
            "Goes on from the checkpoint at step %(step)d (%(applied)d applied), epoch %(epoch)d after %(offset)d of "
            "%(rows)d rows.",
            offset=progress.at.offset,
            rows=run.sampler.rows,
            **where,
        )
    else:
        text = Text("Goes on from the checkpoint at step %(step)d (%(applied)d applied), epoch %(epoch)d.", **where)
    if {"training.batch_size", "training.accumulation", "devices.devices_per_node"} & set(changed):
        batches = Text(
            "Batches of %(rows)d rows from there on, in the same order of rows.", rows=run.sampler.global_batch
        )
        text = Text.joined(text, batches)
    if "training.seed" in changed:
        text = Text.joined(text, Text("The new seed changes the order of the rest of this epoch."))
    return Text.joined(text, Text("Changed: %(settings)s.", settings=", ".join(changed)) if changed else "")
