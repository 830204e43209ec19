"""When to give up: so many bad steps in a row, and the sentence that says what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.contract.records import SKIP_FOUND_INF, SKIP_GRAD, SKIP_INPUT, SKIP_LOSS
from workers.contract.states import EndReason
from workers.contract.training import LimitSettings
from workers.trainer.task import TrainingFailed


@dataclass(frozen=True)
class StepFacts:
    """What all ranks know about a step after the reduction."""

    step: int
    loss: float  # over all ranks
    losses: list[float]  # by rank; 0 where the rank had no rows
    bad_inputs: list[int]  # ranks whose own input was not finite
    bad_losses: list[int]  # ranks whose own loss was not finite
    grad_norm: float
    loss_scale: float | None
    skipped: str | None


@dataclass
class Limits:
    """Counts bad steps in a row; raises TrainingFailed on the step that reaches a limit.

    Every rank holds one and feeds it the same facts, so all leave at the same step."""

    settings: LimitSettings
    skipped: list[StepFacts] = field(default_factory=list)
    high_loss: list[StepFacts] = field(default_factory=list)
    high_norm: list[StepFacts] = field(default_factory=list)

    def check(self, facts: StepFacts) -> None:
        limit = self.settings.skip_limit
        loss_limit, norm_limit = self.settings.loss_limit, self.settings.grad_norm_limit
        _count(self.skipped, facts, facts.skipped is not None)
        # A skipped step is none that went well: it neither adds to these counts nor ends them.
        if facts.skipped is None:
            _count(self.high_loss, facts, loss_limit is not None and facts.loss > loss_limit)
            _count(self.high_norm, facts, norm_limit is not None and facts.grad_norm > norm_limit)
        if len(self.skipped) >= limit:
            raise _skips_end_it(self.skipped)
        if len(self.high_loss) >= limit:
            raise _diverged("loss", "loss", self.high_loss, loss_limit or 0.0)
        if len(self.high_norm) >= limit:
            raise _diverged("gradient norm", "grad_norm", self.high_norm, norm_limit or 0.0)


def _count(run: list[StepFacts], facts: StepFacts, bad: bool) -> None:
    if bad:
        run.append(facts)
    else:
        run.clear()


def _skips_end_it(run: list[StepFacts]) -> TrainingFailed:
    first, last = run[0], run[-1]
    collapsed = all(facts.skipped == SKIP_FOUND_INF for facts in run)
    sentences = [f"At step {first.step} {_what_was_wrong(first)}."]
    if len(run) > 1:
        sentences.append(f"All {len(run)} steps from {first.step} to {last.step} were skipped.")
    else:
        sentences.append("The step was skipped.")
    if first.loss_scale is not None and last.loss_scale is not None:
        sentences.append(f"The loss scale went from {first.loss_scale:g} to {last.loss_scale:g}.")
    sentences.append("The weights are those of the step before.")
    own = first.bad_inputs or first.bad_losses
    return TrainingFailed(
        EndReason.LOSS_SCALE_COLLAPSED if collapsed else EndReason.NON_FINITE,
        " ".join(sentences),
        rank=own[0] if own and len(own) < len(first.losses) else None,
        step=first.step,
    )


def _what_was_wrong(facts: StepFacts) -> str:
    if facts.skipped == SKIP_INPUT:
        return f"the input of {_ranks(facts.bad_inputs, facts)} held a number that is not finite{_and_loss(facts)}"
    if facts.skipped == SKIP_LOSS:
        values = ", ".join(f"{facts.losses[rank]:g}" for rank in facts.bad_losses)
        return f"the loss of {_ranks(facts.bad_losses, facts)} was {values}"
    if facts.skipped == SKIP_FOUND_INF:
        return f"the loss was {facts.loss:.4g} and the gradients overflowed at a loss scale of {facts.loss_scale:g}"
    assert facts.skipped == SKIP_GRAD
    return f"the loss was {facts.loss:.4g} but the gradient norm was {facts.grad_norm:g}"


def _and_loss(facts: StepFacts) -> str:
    values = ", ".join(f"{facts.losses[rank]:g}" for rank in facts.bad_losses)
    return f" (its loss: {values})" if values else ""


def _ranks(ranks: list[int], facts: StepFacts) -> str:
    if len(ranks) == len(facts.losses) > 1:
        return "every rank"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _diverged(what: str, name: str, run: list[StepFacts], limit: float) -> TrainingFailed:
    first, last = run[0], run[-1]
    return TrainingFailed(
        EndReason.DIVERGED,
        f"The {what} was above its limit of {limit:g} in {len(run)} applied steps in a row: "
        f"{getattr(first, name):.4g} at step {first.step}, {getattr(last, name):.4g} at step {last.step}.",
        step=first.step,
    )
