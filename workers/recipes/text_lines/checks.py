"""Checks across fields for text lines; the general ones are workers/contract/checks.py's.

The estimate of memory, per rank, with P parameters, B lines of height H and width W, C channels, L recurrent layers of width S in
D directions, R pixels per step: weights, gradients, two moments of Adam, best weights: 20 P bytes (24 P with their average);
activations, three values per output of a convolution (itself, normalised, masked) and eight S per step and direction:

    4 B (3 H W C (1 + ½ + ¼ + ¼ + ¼) + L D 8 S W / R)

the lines that are kept decoded; the framework: half a GiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workers.contract import checks
from workers.contract.checks import GIB, Facts, Finding
from workers.recipes.text_lines.fitting import steps_of, width_at

MEASURED_HEIGHT = 32
SQUEEZED_SHARE = 0.01
# So many of the narrowest lines of a split are known one by one (workers/datasets/pictures.py).
SATURATED = 300
BATCH_FOR_STATISTICS = 8


def texts_fit_lines(settings: Any, facts: Facts) -> Iterator[Finding]:
    """CTC gives a loss of 0 for a text that needs more steps than there are: those rows would never be learnt."""
    data, reduction = settings.data, settings.model.reduction
    rows = facts.dataset.tightest if facts.dataset else ()
    bad = [
        (needed, available)
        for needed, *size in rows
        if needed > (available := steps_of(width_at((size[0], size[1]), data.height, data.max_width), reduction))
    ]
    if not bad:
        return
    needed, available = max(bad, key=lambda pair: pair[0] - pair[1])
    count = f"{len(bad)}+" if len(bad) >= SATURATED else str(len(bad))
    values = {"count": count, "needed": needed, "available": available, "reduction": reduction}
    if data.leave_out:
        yield Finding(
            "Lines that are left out, because their texts need more steps than their pictures give with %(reduction)d pixels per "
            "step: %(count)s; one needs %(needed)d, and there are %(available)d. With fewer pixels per step or a greater height "
            "there is room.",
            "warning",
            "texts_left_out",
            "model.reduction",
            values,
        )
    else:
        yield Finding(
            "Lines whose texts need more steps than their pictures give with %(reduction)d pixels per step: %(count)s; one needs "
            "%(needed)d, and there are %(available)d. CTC cannot learn them. Take fewer pixels per step or a greater height, or "
            "leave such lines out.",
            "error",
            "texts_do_not_fit",
            "model.reduction",
            values,
        )


def lines_fit_width(settings: Any, facts: Facts) -> Iterator[Finding]:
    widths = facts.dataset.line_widths if facts.dataset else ()
    data = settings.data
    scale = data.height / MEASURED_HEIGHT
    share = checks.share_longer({f"p{i}": round(width * scale) for i, width in enumerate(widths)}, data.max_width)
    if share is not None and share > SQUEEZED_SHARE:
        yield Finding(
            "At a height of %(height)d pixels about %(percent).1f %% of the training lines are wider than %(limit)d pixels and are "
            "squeezed to it, which makes their letters narrower; the widest has %(widest)d. Raise the limit, if memory allows.",
            "warning",
            "lines_are_squeezed",
            "data.max_width",
            {
                "height": data.height,
                "percent": 100 * share,
                "limit": data.max_width,
                "widest": round(widths[-1] * scale),
            },
        )


def batch_norm_has_a_batch(settings: Any, facts: Facts) -> Iterator[Finding]:
    if settings.training.batch_size < BATCH_FOR_STATISTICS:
        yield Finding(
            "BatchNorm takes its statistics from the %(size)d lines of a rank's forward pass: they are so few that training is "
            "noisy, and accumulation or more ranks do not help. Take 16 or more.",
            "warning",
            "batch_small_for_batchnorm",
            "training.batch_size",
            {"size": settings.training.batch_size},
        )


def parameters(settings: Any) -> int:
    """Without the last layers, whose size is that of the characters."""
    model = settings.model
    c, s = model.channels, model.hidden_size
    convolutions = 9 * c * ((3 if settings.data.colour else 1) + 2 * c + 8 * c + 16 * c + 32 * c)
    norms = 4 * (1 + 2 + 4 + 4 + 8) * c
    directions, gates = 1 + model.bidirectional, 4 if str(model.cell) == "lstm" else 3
    high = steps_of(settings.data.height, 16)
    inputs = [8 * c * high] + [directions * s] * (model.layers - 1)
    return int(convolutions + norms + sum(directions * gates * (size * s + s**2 + 2 * s) for size in inputs))


def memory_bytes(settings: Any, facts: Facts) -> float:
    data, model, batch = settings.data, settings.model, settings.training.batch_size
    widths = facts.dataset.line_widths if facts.dataset else ()
    scale = data.height / MEASURED_HEIGHT
    width = min(widths[-1] * scale if widths else data.max_width, data.max_width)
    convolutions = 3 * data.height * width * model.channels * 2.25
    recurrent = model.layers * (1 + model.bidirectional) * 8 * model.hidden_size * width / model.reduction
    colours = 3 if data.colour else 1
    middle = widths[len(widths) // 2] * scale if widths else width
    rows = facts.dataset.train_rows * 1.1 if facts.dataset else 0
    kept = min(rows * middle * data.height * colours, data.cache_gib * GIB)
    copies = 5 + (settings.optimizer.ema_memory is not None)
    return float(4 * copies * parameters(settings) + 4 * batch * (convolutions + recurrent) + kept + GIB / 2)


def memory_suffices(settings: Any, facts: Facts) -> Iterator[Finding]:
    most = max((host.memory_bytes for host in facts.hosts), default=0)
    needed = memory_bytes(settings, facts)
    if most and needed > most:
        yield Finding(
            "One rank needs about %(needed).1f GiB (%(millions).1f million parameters), but the largest device that is online has "
            "%(most).1f GiB. Lower the batch per rank and raise accumulation instead, lower the widest line, or take a smaller "
            "model.",
            "warning",
            "memory_not_enough",
            "training.batch_size",
            {"needed": needed / GIB, "most": most / GIB, "millions": parameters(settings) / 1e6},
        )


CHECKS: tuple[checks.Check, ...] = (
    checks.columns_are_there,
    checks.weights_are_usable,
    texts_fit_lines,
    checks.batch_fits_dataset,
    checks.precision_fits_devices,
    checks.loss_scaling_is_used,
    *checks.ENGINE,
    checks.high_rate_is_clipped,
    checks.low_rate_is_not_smothered,
    checks.warmup_ends,
    checks.world_size_is_considered,
    checks.small_set_is_regularised,
    lines_fit_width,
    batch_norm_has_a_batch,
    checks.ranks_fit_a_host,
    memory_suffices,
)
