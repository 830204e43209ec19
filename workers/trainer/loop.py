"""The training loop. Read `train` from top to bottom: it is the whole story of a step."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from operator import mul
from typing import Any

import numpy as np
import paddle

from workers.contract import records
from workers.contract.messages import Request
from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.contract.training import SpikeAction
from workers.trainer import checkpoint, gradients
from workers.trainer.agreement import (
    BAD_GRADIENT,
    BAD_INPUT,
    BAD_LOSS,
    FINE,
    Word,
    agree,
    facts_of,
    fingerprint,
    same_weights,
)
from workers.trainer.averaging import WeightAverage
from workers.trainer.checkpoint import Arrays
from workers.trainer.clipping import Clipper
from workers.trainer.control import ControlFile
from workers.trainer.dry_run import measure
from workers.trainer.evaluation import LEAVE_AT_ONCE, SAVE_AND_LEAVE, evaluate, train_sample
from workers.trainer.limits import Limits, why_skipped
from workers.trainer.memory import Memory
from workers.trainer.modes import Statistics
from workers.trainer.precision import Caster, LossScaler
from workers.trainer.ranks import Ranks
from workers.trainer.recovery import calls_for_rewind, may_rewind, rewind, rewinds_for_spikes, snapshot_of
from workers.trainer.sampler import Position, Sampler, reseed
from workers.trainer.schedule import Schedule
from workers.trainer.spikes import Spikes
from workers.trainer.spool import Events, Steps
from workers.trainer.task import Batch, Context, Floats, Rows, Task

REASONS = {
    Request.CANCEL: EndReason.CANCELLED,
    Request.SUPERSEDE: EndReason.SUPERSEDED,
    Request.PAUSE: EndReason.PAUSED,
    Request.DRAIN: EndReason.DRAINED,
    Request.FINISH: EndReason.FINISHED_EARLY,
    Request.TIME_LIMIT: EndReason.TIME_LIMIT,
}
LOG_EVERY_S = 10.0


@dataclass
class Progress:
    """The counters of a run, equal on all ranks; all of them are part of a checkpoint."""

    step: int = 0  # attempted optimizer steps
    applied: int = 0
    at: Position = field(default_factory=Position)  # the next global batch
    best: float | None = None
    best_step: int | None = None
    evaluated_at: int | None = None  # the step of the newest evaluation
    evaluation_due: bool = False  # one was broken off, to leave; who goes on from here makes it first
    reached: float | None = None  # what an evaluation must be above, by the least gain, to count as better
    waited: int = 0  # evaluations in a row that were not better
    segment: int = 0  # of the records; a rewind begins a new one
    rewinds: int = 0  # of this attempt; not part of a checkpoint


@dataclass
class Run:
    """An attempt at work on one rank."""

    context: Context
    task: Task
    model: Any  # the bare model
    parallel: Any  # the same, gradients averaged over ranks
    parameters: list[Any]  # those that are trained
    optimizer: Any
    average: WeightAverage
    caster: Caster
    scaler: LossScaler
    clipper: Clipper
    spikes: Spikes
    statistics: Statistics
    schedule: Schedule
    sampler: Sampler
    ranks: Ranks
    control: ControlFile
    steps: Steps
    events: Events
    plan: dict[str, Any]
    progress: Progress = field(default_factory=Progress)
    best_weights: Arrays | None = None  # rank 0 only
    checkpoint_at: int | None = None  # the step of the newest checkpoint
    stopped_early: str = ""  # why
    began: float = 0.0


def train(run: Run) -> EndReason:
    """Train to the planned end, or until all ranks agree to leave. TrainingFailed when a limit is reached."""
    settings, task, ranks, progress = run.context.settings, run.task, run.ranks, run.progress
    training, watched = settings.training, settings.monitoring
    sampler, scaler, clipper, optimizer, events = run.sampler, run.scaler, run.clipper, run.optimizer, run.events
    parameters, group_of = run.parameters, gradients.groups([name for name, _ in named_parameters(run.model)])
    apart = watched.local_norms and ranks.world > 1
    compared = watched.compare_ranks_every if ranks.world > 1 else None
    limits, memory = Limits(settings.limits), Memory(ranks.device)
    most_input = settings.limits.input_limit
    weighted = bool((task.weights != 1.0).any())
    checkpoints_made, logged = 0, 0.0
    leave: Request | None = None
    dry_run = run.context.spec.dry_run_steps
    last_step = math.inf if dry_run is None else progress.step + dry_run
    if may_rewind(run) and dry_run is None:
        checkpoint.make_moments(optimizer, parameters)
        run.checkpoint_at = None
        _checkpoint(run)  # of the beginning, to have one of this attempt's own
    run.model.train()
    run.began = time.monotonic()
    if progress.evaluation_due:
        leave = _evaluate(run)
        if leave is not None:
            return REASONS[leave]

    while (
        not _no_longer_better(run)
        and progress.at.epoch < training.epochs
        and progress.applied < (training.max_steps or math.inf)
        and progress.step < last_step
    ):
        started = time.perf_counter()
        step = progress.step + 1

        # The data: every rank knows the whole global batch, and takes its share of it.
        reseed(training.seed, step, ranks.rank)
        taken = sampler.take(progress.at)
        shares = sampler.share(taken, ranks.rank)
        # A rank without rows (a last batch smaller than the ranks) goes along with one that counts 0.
        batches = [task.batch("train", rows) for rows in shares or [taken[:1]]]
        weights = [task.weights[batch.rows] if shares else np.zeros(1) for batch in batches]
        whole_weight, own_weight = float(len(taken)), float(sum(map(len, shares)))
        if weighted:
            whole_weight, own_weight = _count(task.weights[taken]), sum(map(_count, weights))
        bad_input = not all(
            [_fine(array, most_input) for batch in batches for array in batch.arrays.values()]
            + [_fine(weight, most_input) for weight in weights if weighted or most_input]
        )
        data_s = time.perf_counter() - started

        # Forward and backward, micro-batch by micro-batch. Ranks average their gradients in the last one, or after it if
        # each first looks at its own. The backward pass begins with what each sample counts for, which is the gradient of
        # the weighted, scaled sum of the losses, without the 0.1 ms that this sum would take.
        lr = run.schedule.rate(progress.applied)
        scale = scaler.value
        share = np.float32(scale or 1.0) * np.float32(ranks.world / (whole_weight or 1.0))
        alike = bool(shares) and not weighted
        losses = []
        run.statistics.remember()
        with run.caster.weights():
            for i, (batch, weight) in enumerate(zip(batches, weights, strict=True)):
                with ranks.without_sync(run.parallel, apart or i < len(batches) - 1):
                    with run.caster.forward():
                        _, loss = task.losses(run.parallel, batch)
                    if loss.ndim == 0:  # of a single sample
                        loss = loss.reshape([1])
                    loss.backward(_seed(share, weight, alike))
                    losses.append(loss.detach())
        own_norm = None
        if apart:
            own_norm = gradients.norm_of(parameters) / (scale or 1.0)
            ranks.average(parameters)

        # Unscale, then measure: the norms are of the true gradient, before clipping, over all ranks.
        # Reading them, with the loss, is the one time that the host waits for the device here.
        scaler.unscale_(optimizer)
        grads = gradients.of(parameters)
        by_group = watched.group_norms_every is not None and step % watched.group_norms_every == 0
        flag, zeros = scaler.flag(), [gradients.zeros(grads)] if by_group else []
        read = paddle.concat([*gradients.squares(grads), *flag, *zeros, *losses]).numpy().tolist()
        count = len(grads.tensors)
        norms = gradients.norms(grads, read[:count])
        norm, overflow = gradients.total(norms), bool(flag and read[count])
        loss_sum = _weighted(read[count + len(flag) + len(zeros) :], weights, alike)
        own_mean = loss_sum / (own_weight or 1.0)

        # One exchange per step carries all that ranks must agree on.
        asked = run.control.read() if ranks.rank == 0 else None
        word = Word(
            leave=asked.leave if asked else None,
            checkpoint=asked.checkpoint if asked else 0,
            loss_sum=loss_sum,
            weight=own_weight,
            code=_code(bad_input, loss_sum, own_norm),
            loss=own_mean,
            whole_weight=whole_weight,
            applied=progress.applied,
            fingerprint=fingerprint(parameters) if compared and step % compared == 0 else 0,
            found_inf=overflow or not math.isfinite(norm),
            norm=norm,
        )
        agreed = agree(ranks, word, step)
        facts = facts_of(agreed, step, whole_weight, scale)
        leave, found_inf = agreed.leave, agreed.found_inf
        spike = run.spikes.check(facts.loss, agreed.norm) if facts.skipped is None else None
        if spike and (settings.spikes.action is SpikeAction.SKIP or rewinds_for_spikes(run)):
            facts = facts._replace(skipped=records.SKIP_SPIKE)

        # Clip, then step; or leave the step out, on all ranks, in every precision.
        limit = clipper.limit
        clipped = facts.skipped is None and clipper.clip(grads, norms)
        if facts.skipped is None:
            optimizer.set_lr(lr)
            scaler.apply(optimizer)
            progress.applied += 1  # which moves the schedule
            run.caster.after_step()
            run.average.follow(progress.applied)
        else:
            run.statistics.put_back()
            scaler.skip(overflow=found_inf)
        scaler.update()
        optimizer.clear_grad(set_to_zero=False)  # who gets none in the next step is then left alone, as after a resume
        at, progress.at, progress.step = progress.at, sampler.after(progress.at), step

        extras: dict[str, Any] = {}
        if by_group or (watched.group_norms_every is not None and not math.isfinite(norm)):
            parts = gradients.by_group(norms, grads.numbers, group_of)
            extras |= {f"{records.GROUP_NORM}{group}": value for group, value in parts.items()}
        if by_group:
            extras[records.ZERO_GRADIENTS] = read[count + len(flag)] / gradients.elements(grads)
        if own_norm is not None:
            extras[records.LOCAL_NORM] = own_norm
        if spike:
            extras[records.SPIKE] = spike.what
        if weighted:
            extras[records.COUNTED] = own_weight
        run.steps.record(
            {
                "v": records.VERSION,
                "seg": progress.segment,
                "step": step,
                "applied": progress.applied,
                "epoch": at.epoch,
                "t": time.monotonic() - run.began,
                "loss": own_mean if shares else facts.loss,
                "loss_all": facts.loss,
                "lr": lr,
                "grad_norm": norm,
                "clip_norm": limit,
                "clipped": clipped,
                "loss_scale": scale,
                "found_inf": found_inf,
                "skipped": facts.skipped,
                "batch_id": f"{at.epoch}:{sampler.index(at)}",
                "samples": sum(map(len, shares)),
                "tokens": _tokens(batches, shares),
                "step_ms": (time.perf_counter() - started) * 1e3,
                "data_ms": data_s * 1e3,
                "mem_mb": memory.mb(),
                "emulated": run.caster.emulated,
                "extras": extras or None,
            }
        )

        # What is rare.
        if scaler.value != scale and ranks.rank == 0:
            events.say("scale", step=step, old=scale, new=scaler.value, ranks=facts.bad_gradients)
        if spike and ranks.rank == 0:
            events.say("spike", step=step, **asdict(spike), sigmas=spike.sigmas, skipped=facts.skipped is not None)
        if bad_input:
            _name_bad_rows(run, batches, weights)
        if ranks.rank == 0 and time.monotonic() - logged > LOG_EVERY_S:
            logged = time.monotonic()
            total = run.plan["total_steps"]
            print(f"step {step} of {total}: loss {facts.loss:.4g}, norm {norm:.4g}, lr {lr:.3g}", flush=True)
        rewinding = dry_run is None and calls_for_rewind(run, facts)
        if not rewinding:
            limits.check(facts)
        if facts.skipped in (records.SKIP_LOSS, records.SKIP_GRAD) and ranks.rank == 0:
            events.say("note", level="warning", text=why_skipped(facts, most_input), step=step)
        if leave in LEAVE_AT_ONCE:
            return REASONS[leave]
        if dry_run is not None:  # steps only; what else takes time is measured once at the end
            if leave is not None:
                return REASONS[leave]
            continue
        if rewinding:
            rewind(run, facts)
            limits.begin_anew()
            _checkpoint(run)  # who dies now comes back to after the bad batch
        applied_now = facts.skipped is None
        every = settings.checkpoints.evaluate_every_steps
        if (applied_now and progress.applied % every == 0) if every else progress.at.epoch > at.epoch:
            leave = _evaluate(run) or leave
            if leave in LEAVE_AT_ONCE:
                return REASONS[leave]
        asked_for = agreed.checkpoint
        if asked_for > checkpoints_made or (applied_now and progress.applied % settings.checkpoints.every_steps == 0):
            checkpoints_made = max(checkpoints_made, asked_for)
            _checkpoint(run)
        if leave in SAVE_AND_LEAVE:
            _checkpoint(run)
            return REASONS[leave]
        if leave is Request.FINISH:
            break

    if dry_run is not None:
        return REASONS[left] if (left := measure(run, memory)) else EndReason.COMPLETED
    reason = REASONS[leave] if leave is Request.FINISH else EndReason.COMPLETED
    leave = _evaluate(run)
    if leave in LEAVE_AT_ONCE:
        return REASONS[leave]
    _checkpoint(run)
    return reason if leave is None else REASONS[leave]


def named_parameters(model: Any) -> list[tuple[str, Any]]:
    """Those that are trained, by their name in the model."""
    return [(name, parameter) for name, parameter in model.named_parameters() if not parameter.stop_gradient]


def _count(weights: Floats) -> float:
    """What rows count for together. Broken weights are left out of the sum, so that one rank's NaN
    shows in its own loss and not, through the shared denominator, in everybody's."""
    return float(weights[np.isfinite(weights)].sum())


def _seed(share: np.float32, weight: Floats, alike: bool) -> Any:
    """What the backward pass of a micro-batch begins with, float32 [n]. Where all rows count alike, as in most jobs, nothing
    is copied to the device."""
    if alike:
        return _same_seed(len(weight), float(share))
    return paddle.to_tensor(share * weight.astype(np.float32))


@lru_cache(maxsize=8)
def _same_seed(count: int, share: float) -> Any:
    """Made once for many steps: a backward pass begins with a copy."""
    return paddle.full([count], share, "float32")


def _weighted(losses: list[float], weights: list[Floats], alike: bool) -> float:
    """Sum of the losses [n]."""
    if alike:
        return sum(losses)
    return float(sum(map(mul, losses, [count for weight in weights for count in weight.tolist()])))


def _tokens(batches: list[Batch], shares: list[Rows]) -> int | None:
    counts = [batch.tokens for batch in batches if batch.tokens is not None]
    if not counts:
        return None
    return sum(counts) if shares else 0


def _fine(array: Any, most: float | None) -> bool:
    """Whether all is finite, and within ± `most`."""
    if array.dtype.kind != "f" or not len(array):
        return True
    return bool(np.isfinite(array).all() if most is None else (np.abs(array) <= most).all())


def _code(bad_input: bool, loss: float, norm: float | None) -> int:
    """What is wrong on this rank, if anything; `norm` is that of its own gradient, where it is measured."""
    if bad_input:
        return BAD_INPUT
    if not math.isfinite(loss):
        return BAD_LOSS
    return FINE if norm is None or math.isfinite(norm) else BAD_GRADIENT


def _name_bad_rows(run: Run, batches: list[Any], weights: list[Floats]) -> None:
    most = run.context.settings.limits.input_limit
    for batch, weight in zip(batches, weights, strict=True):
        for name, array in [("weight", weight), *batch.arrays.items()]:
            if _fine(array, most):
                continue
            bad = ~(np.abs(array) <= (np.finfo(array.dtype).max if most is None else most)).reshape(len(array), -1).all(
                axis=1
            )
            rows = ", ".join(str(row + 1) for row in batch.rows[bad][:10])
            where = {"rank": run.ranks.rank, "name": name, "rows": rows}
            if most is None:
                text = Text("Not finite in the training rows of rank %(rank)d: %(name)s of row %(rows)s.", **where)
            else:
                text = Text(
                    "Not finite, or beyond ±%(limit)g, in the training rows of rank %(rank)d: %(name)s of row %(rows)s.",
                    limit=most,
                    **where,
                )
            run.events.say("note", level="warning", text=text, step=run.progress.step)


def _evaluate(run: Run) -> Request | None:
    """Evaluate unless that was done at this very step; keep the best weights. The request that broke it off, if one did."""
    if run.progress.evaluated_at == run.progress.step:
        return None
    run.statistics.take_from_first(run.ranks)
    with run.average.in_place():
        return _evaluate_these(run)


def _evaluate_these(run: Run) -> Request | None:
    progress, task = run.progress, run.task
    run.context.stage("evaluating", "")
    batch_size = run.context.settings.training.batch_size
    sample = train_sample(task)
    result = evaluate(task, run.model, run.caster, run.ranks, run.control, batch_size, train_rows=sample)
    progress.evaluation_due = isinstance(result, Request)
    if isinstance(result, Request):
        return result
    progress.evaluated_at = progress.step
    value = result.metrics[task.best_by]
    # Equal on all ranks, since the metrics are.
    better = _is_better(task, value, progress.best, 0.0)
    if _is_better(task, value, progress.reached, run.context.settings.early_stopping.min_delta):
        progress.reached, progress.waited = value, 0
    else:
        progress.waited += 1
    if better:
        progress.best, progress.best_step = value, progress.step
    if run.ranks.rank == 0:
        if better:
            run.best_weights = checkpoint.weights_of(run.model)
        run.events.say(
            "evaluation",
            step=progress.step,
            applied=progress.applied,
            epoch=progress.at.epoch,
            metrics=result.metrics | {"train": result.train},
            seconds=result.seconds,
            best=better,
        )
        print(f"evaluation at step {progress.step}: {task.best_by} {value:.4f}", flush=True)
    run.context.stage("training", "")
    return None


def _is_better(task: Task, value: float, before: float | None, by: float) -> bool:
    """Whether it is, by more than `by`. NaN never is."""
    if before is None:
        return not math.isnan(value)
    return (before - value if task.lower_is_better else value - before) > by


def _no_longer_better(run: Run) -> bool:
    """Whether the evaluation at this very step was one too many without a gain."""
    progress, early = run.progress, run.context.settings.early_stopping
    if early.patience is None or progress.waited < early.patience or progress.evaluated_at != progress.step:
        return False
    values = {
        "count": progress.waited,
        "metric": run.task.best_by,
        "value": progress.reached,
        "delta": early.min_delta,
        "step": progress.best_step,
    }
    if progress.reached is None:
        text = Text("Stopped early: in %(count)d evaluations in a row %(metric)s was NaN.", **values)
    elif run.task.lower_is_better:
        text = Text(
            "Stopped early: in %(count)d evaluations in a row %(metric)s did not fall below %(value).4f by more than "
            "%(delta)g. The best weights are those of step %(step)d.",
            **values,
        )
    else:
        text = Text(
            "Stopped early: in %(count)d evaluations in a row %(metric)s did not rise above %(value).4f by more than "
            "%(delta)g. The best weights are those of step %(step)d.",
            **values,
        )
    run.stopped_early = text
    if run.ranks.rank == 0:
        run.events.say("note", level="info", text=text, step=progress.step)
        print(text, flush=True)
    return True


def _checkpoint(run: Run) -> None:
    """Write a checkpoint unless there is one of this step; one that is not good is not written. Rank 0's weights are
    those of all, so that who finds ranks to differ later can go on from here."""
    progress = run.progress
    if run.checkpoint_at == progress.step:
        return
    if run.plan["checkpoints_compared"]:
        same_weights(run.ranks, run.parameters, progress.step)
    run.checkpoint_at = progress.step
    snapshot = snapshot_of(run) if run.ranks.rank == 0 else None

    def work() -> str | checkpoint.Written:
        assert snapshot is not None
        bad = snapshot.not_finite()
        return bad or checkpoint.write(run.context.folder, snapshot, run.context.settings.checkpoints.keep)

    written = run.ranks.alone(work)
    if isinstance(written, str):
        text = Text(
            "No checkpoint at step %(step)d: %(what)s is not finite. The newest good one stays.",
            step=progress.step,
            what=written,
        )
        run.events.say("note", level="error", text=text, step=progress.step)
    elif written is not None:
        run.events.say(
            "checkpoint",
            step=progress.step,
            applied=progress.applied,
            path=written.path,
            bytes=written.bytes,
            good=True,
            seconds=written.seconds,
        )
