"""The one reduction of a step: what ranks must agree on, and what each says of itself."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.contract import records
from workers.contract.messages import Request
from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.trainer.limits import StepFacts
from workers.trainer.ranks import Ranks
from workers.trainer.task import Floats, TrainingFailed

REQUESTS = list(Request)
# Places in the vector that is summed; after them a code, a loss and a fingerprint of each rank.
LEAVE, CHECKPOINT, FOUND_INF, APPLIED, LOSS_SUM, WEIGHT_SUM, NORM, PER_RANK = range(8)
_APPLIED, _NORM, _WEIGHT = Text("number of applied steps"), Text("gradient norm"), Text("weight of the batch")
FINE, BAD_LOSS, BAD_INPUT, BAD_GRADIENT = range(4)


@dataclass(frozen=True)
class Word:
    """What one rank has to say about a step."""

    leave: Request | None  # of rank 0, as is `checkpoint`
    checkpoint: int
    found_inf: bool
    applied: int
    loss_sum: float  # of its own samples, weighted
    weight: float
    norm: float  # of the averaged gradient
    code: int
    loss: float  # the mean of its own samples
    fingerprint: int = 0  # of its weights; 0: not taken at this step


@dataclass(frozen=True)
class Agreed:
    leave: Request | None
    checkpoint: int
    found_inf: bool
    loss_sum: float
    norm: float
    codes: list[float]  # of each rank
    losses: list[float]


def agree(ranks: Ranks, word: Word, whole_weight: float, step: int) -> Agreed:
    """Every rank's word as one. TrainingFailed if they no longer do the same."""
    own = np.zeros(PER_RANK + 3 * ranks.world)
    own[LEAVE] = 0 if word.leave is None else REQUESTS.index(word.leave) + 1
    own[CHECKPOINT], own[FOUND_INF], own[APPLIED] = word.checkpoint, word.found_inf, word.applied
    own[LOSS_SUM], own[WEIGHT_SUM], own[NORM] = word.loss_sum, word.weight, word.norm
    own[PER_RANK + ranks.rank :: ranks.world] = word.code, word.loss, word.fingerprint
    summed = ranks.sum(own)
    if ranks.world > 1:
        _same_everywhere(summed, own, ranks.world, whole_weight, step)
    # Lists, not arrays: for a handful of numbers they are several times as fast.
    codes, losses, fingerprints = summed[PER_RANK:].reshape(3, ranks.world).tolist()
    if len(set(fingerprints)) > 1:
        raise _other_weights(np.array(fingerprints), step)
    return Agreed(
        leave=REQUESTS[int(summed[LEAVE]) - 1] if summed[LEAVE] else None,
        checkpoint=int(summed[CHECKPOINT]),
        found_inf=bool(summed[FOUND_INF]),
        loss_sum=float(summed[LOSS_SUM]),
        norm=float(summed[NORM]) / ranks.world,
        codes=codes,
        losses=losses,
    )


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


def _same_everywhere(summed: Floats, own: Floats, world: int, whole_weight: float, step: int) -> None:
    """Ranks that no longer do the same must not go on: their weights differ from here on."""
    for name, here, mean in (
        (_APPLIED, float(own[APPLIED]), float(summed[APPLIED]) / world),
        (_NORM, float(own[NORM]), float(summed[NORM]) / world),
        (_WEIGHT, whole_weight, float(summed[WEIGHT_SUM])),
    ):
        if math.isfinite(mean) and math.isfinite(here) and abs(mean - here) > 1e-6 * abs(mean):
            raise TrainingFailed(
                EndReason.TRAINER_ERROR,
                Text(
                    "At step %(step)d the ranks no longer agree: the %(name)s is %(here).9g on one and %(mean).9g over all.",
                    step=step,
                    name=name,
                    here=here,
                    mean=mean,
                ),
                step=step,
            )


def _other_weights(fingerprints: Floats, step: int) -> TrainingFailed:
    values, counts = np.unique(fingerprints, return_counts=True)
    usual = fingerprints[0] if len(values) == len(fingerprints) else values[counts.argmax()]
    others = np.flatnonzero(fingerprints != usual).tolist()
    return TrainingFailed(
        EndReason.TRAINER_ERROR,
        Text(
            "Before step %(step)d the weights of ranks %(others)s were no longer those of the other ranks. All ranks start "
            "from the same and see the same gradients, so that one of them computed or received something else.",
            step=step,
            others=", ".join(map(str, others)),
        ),
        step=step,
    )
