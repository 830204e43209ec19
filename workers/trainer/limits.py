"""When to give up: so many bad steps in a row, and the sentence that says what happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from workers.contract.records import SKIP_FOUND_INF, SKIP_GRAD, SKIP_INPUT, SKIP_LOSS, SKIP_SPIKE
from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.contract.training import BadStep, LimitSettings
from workers.trainer.task import TrainingFailed


class StepFacts(NamedTuple):
    """What all ranks know about a step once they have told each other."""

    step: int
    loss: float  # over all ranks
    losses: list[float]  # by rank; 0 where the rank had no rows
    bad_inputs: list[int]  # ranks whose own input was not finite
    bad_losses: list[int]  # ranks whose own loss was not finite
    bad_gradients: list[int]  # ranks whose own gradient was not finite, where that is measured
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
        if self.settings.on_bad_step is BadStep.STOP and facts.skipped in (SKIP_INPUT, SKIP_LOSS, SKIP_GRAD):
            raise _skips_end_it([facts], self.settings.input_limit)
        loss_limit, norm_limit = self.settings.loss_limit, self.settings.grad_norm_limit
        _count(self.skipped, facts, facts.skipped is not None)
        # A skipped step is none that went well: it neither adds to these counts nor ends them.
        if facts.skipped is None:
            _count(self.high_loss, facts, loss_limit is not None and facts.loss > loss_limit)
            _count(self.high_norm, facts, norm_limit is not None and facts.grad_norm > norm_limit)
        if len(self.skipped) >= limit:
            raise _skips_end_it(self.skipped, self.settings.input_limit)
        if len(self.high_loss) >= limit:
            first, last = self.high_loss[0], self.high_loss[-1]
            text = Text(
                "The loss was above its limit of %(limit)g in %(count)d applied steps in a row: %(first).4g at step "
                "%(first_step)d, %(last).4g at step %(last_step)d.",
                **_above(self.high_loss, loss_limit, first.loss, last.loss),
            )
            raise TrainingFailed(EndReason.DIVERGED, text, step=first.step)
        if len(self.high_norm) >= limit:
            first, last = self.high_norm[0], self.high_norm[-1]
            text = Text(
                "The gradient norm was above its limit of %(limit)g in %(count)d applied steps in a row: %(first).4g at "
                "step %(first_step)d, %(last).4g at step %(last_step)d.",
                **_above(self.high_norm, norm_limit, first.grad_norm, last.grad_norm),
            )
            raise TrainingFailed(EndReason.DIVERGED, text, step=first.step)

    def begin_anew(self) -> None:
        """After a rewind."""
        for run in (self.skipped, self.high_loss, self.high_norm):
            run.clear()


def _count(run: list[StepFacts], facts: StepFacts, bad: bool) -> None:
    if bad:
        run.append(facts)
    else:
        run.clear()


def why_skipped(facts: StepFacts, input_limit: float | None) -> Text:
    return Text.joined(_what_was_wrong(facts, input_limit), Text("The step was skipped."))


def _skips_end_it(run: list[StepFacts], input_limit: float | None) -> TrainingFailed:
    first, last = run[0], run[-1]
    sentences = [_what_was_wrong(first, input_limit)]
    if len(run) > 1:
        span = {"count": len(run), "first": first.step, "last": last.step}
        sentences.append(Text("All %(count)d steps from %(first)d to %(last)d were skipped.", **span))
    else:
        sentences.append(Text("The step was skipped."))
    if first.loss_scale is not None and last.loss_scale is not None:
        scales = {"old": first.loss_scale, "new": last.loss_scale}
        sentences.append(Text("The loss scale went from %(old)g to %(new)g.", **scales))
    sentences.append(Text("The weights are those of the step before."))
    own = first.bad_inputs or first.bad_losses or first.bad_gradients
    return TrainingFailed(
        _reason(run),
        Text.joined(*sentences),
        rank=own[0] if own and len(own) < len(first.losses) else None,
        step=first.step,
    )


def _reason(run: list[StepFacts]) -> EndReason:
    reasons = {facts.skipped for facts in run}
    if reasons == {SKIP_FOUND_INF}:
        return EndReason.LOSS_SCALE_COLLAPSED
    return EndReason.DIVERGED if reasons == {SKIP_SPIKE} else EndReason.NON_FINITE


def _what_was_wrong(facts: StepFacts, input_limit: float | None) -> Text:
    step = facts.step
    values = ", ".join(f"{facts.losses[rank]:g}" for rank in facts.bad_losses)
    if facts.skipped == SKIP_INPUT:
        ranks = _ranks(facts.bad_inputs, facts)
        if not values and input_limit is not None:
            return Text(
                "At step %(step)d the input of %(ranks)s held a number that is not finite or lies beyond ±%(limit)g.",
                step=step,
                ranks=ranks,
                limit=input_limit,
            )
        if not values:
            return Text(
                "At step %(step)d the input of %(ranks)s held a number that is not finite.", step=step, ranks=ranks
            )
        return Text(
            "At step %(step)d the input of %(ranks)s held a number that is not finite (its loss: %(values)s).",
            step=step,
            ranks=ranks,
            values=values,
        )
    if facts.skipped == SKIP_LOSS:
        ranks = _ranks(facts.bad_losses, facts)
        return Text("At step %(step)d the loss of %(ranks)s was %(values)s.", step=step, ranks=ranks, values=values)
    if facts.bad_gradients:
        return Text(
            "At step %(step)d the loss was %(loss).4g, and the gradient of %(ranks)s was not finite.",
            step=step,
            loss=facts.loss,
            ranks=_ranks(facts.bad_gradients, facts),
        )
    if facts.skipped == SKIP_FOUND_INF:
        return Text(
            "At step %(step)d the loss was %(loss).4g and the gradients overflowed at a loss scale of %(scale)g.",
            step=step,
            loss=facts.loss,
            scale=facts.loss_scale,
        )
    if facts.skipped == SKIP_SPIKE:
        return Text(
            "At step %(step)d the loss was %(loss).4g and the gradient norm %(norm).4g, far above those of the steps before.",
            step=step,
            loss=facts.loss,
            norm=facts.grad_norm,
        )
    assert facts.skipped == SKIP_GRAD
    return Text(
        "At step %(step)d the loss was %(loss).4g but the gradient norm was %(norm)g.",
        step=step,
        loss=facts.loss,
        norm=facts.grad_norm,
    )


def _ranks(ranks: list[int], facts: StepFacts) -> Text:
    if len(ranks) == len(facts.losses) > 1:
        return Text("every rank")
    if len(ranks) == 1:
        return Text("rank %(rank)d", rank=ranks[0])
    return Text("ranks %(ranks)s", ranks=", ".join(map(str, ranks)))


def _above(run: list[StepFacts], limit: float | None, first: float, last: float) -> dict[str, float]:
    return {
        "limit": limit or 0.0,
        "count": len(run),
        "first": first,
        "first_step": run[0].step,
        "last": last,
        "last_step": run[-1].step,
    }
