"""The one exchange of a step: what ranks must agree on, and what each says of itself."""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

from workers.contract import records
from workers.contract.messages import Request
from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.trainer.limits import StepFacts
from workers.trainer.ranks import Ranks
from workers.trainer.task import TrainingFailed

REQUESTS = list(Request)
# What must be the same on all ranks, and what it is called. First what explains the rest.
_SAME = {
    "whole_weight": Text("weight of the batch"),
    "applied": Text("number of applied steps"),
    "fingerprint": Text("checksum of the weights"),
    "found_inf": Text("overflow of the averaged gradient (1: yes)"),
    "norm": Text("norm of the averaged gradient"),
}
FINE, BAD_LOSS, BAD_INPUT, BAD_GRADIENT = range(4)


class Word(NamedTuple):
    """What one rank has to say about a step."""

    leave: Request | None  # of rank 0, as is `checkpoint`
    checkpoint: int
    loss_sum: float  # of its own samples, weighted
    weight: float
    code: int
    loss: float  # the mean of its own samples
    # What must be the same on all ranks: the names in `_SAME`.
    whole_weight: float  # of the global batch
    applied: int
    fingerprint: int  # of its weights; 0: not taken at this step
    found_inf: bool
    norm: float  # of the averaged gradient


class Agreed(NamedTuple):
    """Named tuples, as is `Word`: to make one takes a fraction of what a frozen dataclass does."""

    leave: Request | None
    checkpoint: int
    found_inf: bool
    loss_sum: float
    norm: float
    codes: list[float]  # of each rank
    losses: list[float]


def agree(ranks: Ranks, word: Word, step: int) -> Agreed:
    """Every rank's word as one. TrainingFailed if they no longer do the same."""
    if ranks.world == 1:
        return Agreed(word.leave, word.checkpoint, word.found_inf, word.loss_sum, word.norm, [word.code], [word.loss])
    leave = 0 if word.leave is None else REQUESTS.index(word.leave) + 1
    words = ranks.gather([leave, *word[1:]])
    asked, checkpoint, loss_sums, weights, codes, losses, *same = map(list, zip(*words, strict=True))
    _same_everywhere(same, sum(weights), step)
    return Agreed(
        leave=REQUESTS[int(asked[0]) - 1] if asked[0] else None,
        checkpoint=int(checkpoint[0]),
        found_inf=any(same[-2]),
        loss_sum=sum(loss_sums),
        norm=same[-1][0],
        codes=codes,
        losses=losses,
    )


def same_weights(ranks: Ranks, parameters: list[Any], step: int) -> None:
    """RanksDiffer if those of one rank are not those of the others, bit by bit."""
    each = [own for (own,) in ranks.gather([fingerprint(parameters)])]
    if len(set(each)) > 1:
        raise RanksDiffer("fingerprint", each, step)


def facts_of(agreed: Agreed, step: int, whole_weight: float, scale: float | None) -> StepFacts:
    return StepFacts(
        step=step,
        loss=agreed.loss_sum / (whole_weight or 1.0),
        losses=agreed.losses,
        bad_inputs=[rank for rank, code in enumerate(agreed.codes) if code == BAD_INPUT],
        bad_losses=[rank for rank, loss in enumerate(agreed.losses) if not math.isfinite(loss)],
        bad_gradients=[rank for rank, code in enumerate(agreed.codes) if code == BAD_GRADIENT],
        grad_norm=agreed.norm,
        loss_scale=scale,
        skipped=_why_skip(agreed.codes, agreed.found_inf, scale),
    )


def fingerprint(parameters: list[Any]) -> int:
    """A checksum of all bits of the weights; equal on ranks that are still the same. About 1 ms per million weights."""
    value = 0
    for parameter in parameters:
        value = zlib.crc32(parameter.numpy(), value)
    return value


def _why_skip(codes: list[float], found_inf: bool, scale: float | None) -> str | None:
    if BAD_INPUT in codes:
        return records.SKIP_INPUT
    if BAD_LOSS in codes:
        return records.SKIP_LOSS
    if found_inf:
        return records.SKIP_GRAD if scale is None else records.SKIP_FOUND_INF
    return None


class RanksDiffer(TrainingFailed):
    """They no longer do the same, and must not go on: their weights differ from here on."""

    def __init__(self, what: str, values: list[float], step: int) -> None:
        usual = max(values, key=lambda value: sum(_alike(value, other) for other in values))
        others = [rank for rank, value in enumerate(values) if not _alike(value, usual)]
        digits = ".0f" if what == "fingerprint" else ".9g"
        numbers = {
            "step": step,
            "what": _SAME[what],
            "others": ", ".join(map(str, others)),
            "here": f"{usual:{digits}}",
            "there": ", ".join(f"{values[rank]:{digits}}" for rank in others),
        }
        if 2 * len(others) < len(values):
            text = Text(
                "At step %(step)d not all ranks were alike: %(what)s was %(there)s on rank %(others)s and %(here)s on the "
                "others. All start from the same and see the same gradients, so that rank %(others)s computed, received or "
                "read something else.",
                **numbers,
            )
        else:  # two, one against the other: either may be wrong
            text = Text(
                "At step %(step)d not all ranks were alike: %(what)s was %(there)s on rank %(others)s and %(here)s on the "
                "others. All start from the same and see the same gradients, so that one of them computed, received or read "
                "something else.",
                **numbers,
            )
        single = others[0] if len(others) == 1 and len(values) > 2 else None
        super().__init__(
            EndReason.RANKS_DIFFER, text, rank=single, step=step, more={"what": what, "values": values, "ranks": others}
        )


def _same_everywhere(same: list[list[float]], weight_sum: float, step: int) -> None:
    """`same`: of each of `_SAME`, what the ranks have."""
    for what, values in zip(_SAME, same, strict=True):
        first, *rest = values
        for value in rest:
            # Equal, or both not finite, in nearly every step.
            if value != first and not _alike(value, first):
                raise RanksDiffer(what, values, step)
    whole = same[0][0]
    if not _alike(weight_sum, whole):
        raise TrainingFailed(
            EndReason.RANKS_DIFFER,
            Text(
                "At step %(step)d the shares of the ranks count for %(sum).9g together, and the whole batch for %(whole).9g: "
                "they do not read the same rows.",
                step=step,
                sum=weight_sum,
                whole=whole,
            ),
            step=step,
        )


def _alike(one: float, other: float) -> bool:
    """Whole numbers exactly, others up to rounding; what is not finite is like anything else that is not."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.isfinite(one) == math.isfinite(other)
    if one.is_integer() and other.is_integer():
        return one == other
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
