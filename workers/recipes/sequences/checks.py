"""Checks across fields for numeric sequences; the general ones are workers/contract/checks.py's.

The estimate of memory, per rank, with P parameters, B samples, T time steps, width H, N layers, D directions, F features:

    weights, gradients, two moments of Adam: 16 P bytes; best weights kept aside: 4 P
    kept for the backward pass: B × T × (N × D × 8 H + F) values of 4 bytes (four gates, state, its tanh, output, input)
    the framework itself: 0.5 GiB

P = sum over layers of D × G × (input × H + H² + 2 H), G = 4 gates for lstm, 3 for gru; input: F, then D × H. The linear path
of K time steps adds K × F.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workers.contract import checks
from workers.contract.checks import GIB, DatasetFacts, Facts, Finding
from workers.recipes.sequences.settings import Goal

HALF_MOST = 65504.0  # of float16


def parameters(settings: Any, features: int) -> int:
    model = settings.model
    directions, gates, width = 1 + model.bidirectional, 4 if str(model.cell) == "lstm" else 3, model.hidden_size
    inputs = [features] + [directions * width] * (model.layers - 1)
    layers = sum(directions * gates * (size * width + width**2 + 2 * width) for size in inputs)
    return int(layers + directions * width + 1 + model.linear_steps * features)


def _features(settings: Any, facts: Facts) -> int:
    named = [name for name in (settings.data.features or "").split(",") if name.strip()]
    return len(named) or (len(facts.dataset.features) if facts.dataset else 0) or 1


def _length(settings: Any, facts: Facts) -> int:
    longest = max((facts.dataset.lengths if facts.dataset else {}).values(), default=settings.data.max_length)
    return int(min(longest, settings.data.max_length))


def suited_to(dataset: DatasetFacts) -> dict[str, str]:
    """What belongs to the sequences is most likely what is to be predicted."""
    goals = {"number": Goal.REGRESSION, "label": Goal.CLASSIFICATION, "none": Goal.NEXT_VALUE}
    return {"data.goal": str(goals[dataset.target])} if dataset.target in goals else {}


def goal_fits_dataset(settings: Any, facts: Facts) -> Iterator[Finding]:
    dataset, goal = facts.dataset, settings.data.goal
    if dataset is None or not dataset.target:
        return
    values = {"goal": str(goal)}
    if goal is Goal.REGRESSION and dataset.target != "number":
        yield Finding(
            "For “%(goal)s” each sequence needs a number as its target, and this dataset has none. Predict its label or the "
            "next value, or describe the dataset anew.",
            "error",
            "target_missing",
            "data.goal",
            values,
        )
    if goal is Goal.CLASSIFICATION and dataset.target != "label":
        yield Finding(
            "For “%(goal)s” each sequence needs a label, and this dataset has none. Predict its number or the next value, or "
            "describe the dataset anew.",
            "error",
            "target_missing",
            "data.goal",
            values,
        )
    if goal is Goal.NEXT_VALUE and max(dataset.lengths.values(), default=2) < 2:
        yield Finding(
            "The next value needs sequences of two time steps or more; here every sequence has one.",
            "error",
            "sequences_too_short",
            "data.goal",
        )


def features_are_there(settings: Any, facts: Facts) -> Iterator[Finding]:
    known = facts.dataset.features if facts.dataset else ()
    named = list(filter(None, map(str.strip, (settings.data.features or "").split(","))))
    for field, wanted in (("features", named), ("next_of", [settings.data.next_of] if settings.data.next_of else [])):
        for name in wanted:
            if known and name not in known:
                yield Finding(
                    "The dataset has no feature “%(feature)s”; it has: %(known)s.",
                    "error",
                    "feature_missing",
                    f"data.{field}",
                    {"feature": name, "known": ", ".join(known)},
                )
    if named and settings.data.next_of and settings.data.next_of not in named:
        yield Finding(
            "“%(feature)s” is to be predicted, but it is not among the features that are read: %(known)s.",
            "error",
            "feature_not_read",
            "data.next_of",
            {"feature": settings.data.next_of, "known": ", ".join(named)},
        )


def sequences_fit_length(settings: Any, facts: Facts) -> Iterator[Finding]:
    if facts.dataset is None:
        return
    limit = settings.data.max_length
    share = checks.share_longer(facts.dataset.lengths, limit)
    if share is not None and share > checks.CUT_SHARE:
        yield Finding(
            "The limit of %(limit)d time steps cuts about %(percent).1f %% of the training sequences: the model never sees "
            "their older part; the longest has %(longest)d. Raise the limit, if time and memory allow.",
            "warning",
            "sequences_are_cut",
            "data.max_length",
            {"limit": limit, "percent": 100 * share, "longest": max(facts.dataset.lengths.values())},
        )


def linear_path_fits_length(settings: Any, facts: Facts) -> Iterator[Finding]:
    steps, limit = settings.model.linear_steps, settings.data.max_length
    if steps > limit:
        yield Finding(
            "The linear path is of %(steps)d time steps, but the model reads at most %(limit)d of a sequence.",
            "error",
            "linear_path_too_long",
            "model.linear_steps",
            {"steps": steps, "limit": limit},
        )


def values_fit_precision(settings: Any, facts: Facts) -> Iterator[Finding]:
    largest = facts.dataset.largest if facts.dataset else None
    if str(settings.data.normalisation) != "none" or str(settings.precision.mode) != "fp16" or largest is None:
        return
    if largest > HALF_MOST:
        yield Finding(
            "The dataset has values up to %(largest)g, and fp16 ends at 65504: without normalisation they overflow in the "
            "first layer. Normalise, or choose float32 or bf16.",
            "warning",
            "values_overflow_fp16",
            "data.normalisation",
            {"largest": largest},
        )


def memory_suffices(settings: Any, facts: Facts) -> Iterator[Finding]:
    most = max((host.memory_bytes for host in facts.hosts), default=0)
    if not most:
        return
    features, model = _features(settings, facts), settings.model
    count = parameters(settings, features)
    per_step = model.layers * (1 + model.bidirectional) * 8 * model.hidden_size + features
    kept = 4.0 * settings.training.batch_size * _length(settings, facts) * per_step
    needed = 20 * count + kept + GIB / 2
    if needed > most:
        yield Finding(
            "One rank needs about %(needed).1f GiB (%(millions).1f million parameters, %(length)d time steps), but the largest "
            "device that is online has %(most).1f GiB. Lower the batch per rank and raise accumulation instead, cut the "
            "sequences, or take a smaller model.",
            "warning",
            "memory_not_enough",
            "training.batch_size",
            {
                "needed": needed / GIB,
                "most": most / GIB,
                "millions": count / 1e6,
                "length": _length(settings, facts),
            },
        )


CHECKS: tuple[checks.Check, ...] = (
    goal_fits_dataset,
    features_are_there,
    checks.columns_are_there,
    checks.weights_are_usable,
    checks.batch_fits_dataset,
    checks.precision_fits_devices,
    checks.loss_scaling_is_used,
    *checks.ENGINE,
    checks.high_rate_is_clipped,
    checks.low_rate_is_not_smothered,
    checks.warmup_ends,
    checks.world_size_is_considered,
    checks.small_set_is_regularised,
    sequences_fit_length,
    linear_path_fits_length,
    values_fit_precision,
    checks.ranks_fit_a_host,
    memory_suffices,
)
