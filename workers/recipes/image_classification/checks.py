"""Checks across fields of the image-classification recipe.

The estimate of memory, per rank, with P parameters and B pictures of S × S pixels per forward pass: weights, gradients, two
moments of Adam, best weights: 20 P bytes (24 P with their average); activations: of a ResNet with a small stem 40 to 310 values per
pixel and channel of the first stage (_VALUES), a sixteenth of that with the large stem; of a ViT what workers/contract/checks.py
says of transformers; the decoded pictures, as far as they are kept; the framework: half a GiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workers.contract import checks
from workers.contract.checks import GIB, Facts, Finding
from workers.recipes.image_classification.settings import SMALL_PICTURE, Architecture, ModelSource, Stem

# Million parameters with a width of 64, without the last layer.
_MILLIONS = {"resnet18": 11.2, "resnet34": 21.3, "resnet50": 23.5, "resnet101": 42.5, "resnet152": 58.1}
# Values per pixel and channel of the first stage that the backward pass needs.
_VALUES = {"resnet18": 40, "resnet34": 65, "resnet50": 150, "resnet101": 220, "resnet152": 310}
# Pretrained weights make little of pictures that are much smaller than those they were trained with.
SMALL_FOR_PRETRAINED = 96


def _small_stem(settings: Any) -> bool:
    model = settings.model
    if model.source is ModelSource.PRETRAINED:
        return False
    return model.stem is Stem.SMALL or (model.stem is Stem.AUTO and settings.data.size <= SMALL_PICTURE)


def parameters(settings: Any, facts: Facts) -> int | None:
    """None where only the other job's model says it."""
    model = settings.model
    if model.source is ModelSource.JOB:
        return facts.source.parameters if facts.source else None
    if model.architecture is Architecture.VIT:
        width, tokens = model.hidden_size, (settings.data.size // model.patch) ** 2
        return int(width * (3 * model.patch**2 + tokens + 2) + model.layers * (12 * width**2 + 13 * width))
    width = 64 if model.source is ModelSource.PRETRAINED else model.width
    return int(1e6 * _MILLIONS[str(model.architecture)] * (width / 64) ** 2)


def memory_bytes(settings: Any, facts: Facts) -> float | None:
    count, model = parameters(settings, facts), settings.model
    if count is None or model.source is ModelSource.JOB:
        return None
    batch, size = settings.training.batch_size, settings.data.size
    if model.architecture is Architecture.VIT:
        tokens = (size // model.patch) ** 2
        values = model.layers * batch * tokens * (34 * model.hidden_size + 5 * model.heads * tokens) / 2
    else:
        width = 64 if model.source is ModelSource.PRETRAINED else model.width
        values = batch * size**2 * width * _VALUES[str(model.architecture)] / (1 if _small_stem(settings) else 16)
    rows = facts.dataset.train_rows * 1.1 if facts.dataset else 0
    decoded = rows * size**2 * 3
    kept = decoded if decoded <= settings.data.cache_gib * GIB else 0
    copies = 5 + (settings.optimizer.ema_memory is not None)
    return float(4 * copies * count + 4 * values + kept + GIB / 2)


def memory_suffices(settings: Any, facts: Facts) -> Iterator[Finding]:
    most = max((host.memory_bytes for host in facts.hosts), default=0)
    needed = memory_bytes(settings, facts)
    if most and needed is not None and needed > most:
        yield Finding(
            "One rank needs about %(needed).1f GiB (%(millions).1f million parameters, pictures of %(size)d pixels), but the largest "
            "device that is online has %(most).1f GiB. Lower the batch per rank and raise accumulation instead, make the pictures "
            "smaller, or take a smaller model.",
            "warning",
            "memory_not_enough",
            "training.batch_size",
            {
                "needed": needed / GIB,
                "most": most / GIB,
                "millions": (parameters(settings, facts) or 0) / 1e6,
                "size": settings.data.size,
            },
        )


def pictures_are_kept(settings: Any, facts: Facts) -> Iterator[Finding]:
    rows = facts.dataset.train_rows if facts.dataset else 0
    needed, limit = rows * settings.data.size**2 * 3, settings.data.cache_gib
    if limit and needed > limit * GIB:
        yield Finding(
            "The %(rows)d training pictures take %(needed).1f GiB decoded, more than the %(limit)g GiB that are set for them: "
            "they are decoded again for every batch, which may take longer than the training itself. Raise the limit, if each "
            "rank has so much memory, or make the pictures smaller.",
            "warning",
            "pictures_not_kept",
            "data.cache_gib",
            {"rows": rows, "needed": needed / GIB, "limit": limit},
        )


def size_fits_model(settings: Any, facts: Facts) -> Iterator[Finding]:
    size, model = settings.data.size, settings.model
    if model.source is ModelSource.PRETRAINED and size < SMALL_FOR_PRETRAINED:
        yield Finding(
            "Pretrained weights know pictures of 224 pixels; of %(size)d the large stem leaves %(left)d × %(left)d places, and little "
            "of what was learnt is of use. Take 128 to 224 pixels, or start from scratch.",
            "warning",
            "small_for_pretrained",
            "data.size",
            {"size": size, "left": max(1, size // 32)},
        )
    if (
        model.source is ModelSource.SCRATCH
        and model.architecture is not Architecture.VIT
        and model.stem is Stem.LARGE
        and size < SMALL_PICTURE
    ):
        yield Finding(
            "The large stem leaves a sixteenth of the pixels, so that of pictures of %(size)d pixels nearly nothing is left for "
            "the last stages. Take the small stem.",
            "warning",
            "large_stem_small_picture",
            "model.stem",
            {"size": size},
        )


def batch_norm_has_a_batch(settings: Any, facts: Facts) -> Iterator[Finding]:
    model = settings.model
    if model.source is ModelSource.SCRATCH and (model.architecture is Architecture.VIT or str(model.norm) != "batch"):
        return
    if model.source is not ModelSource.JOB and settings.training.batch_size < 8:
        yield Finding(
            "BatchNorm takes its statistics from the %(size)d pictures of a rank's forward pass: they are so few that training is "
            "noisy, and accumulation or more ranks do not help. Take 16 or more, or group as the normalisation layer.",
            "warning",
            "batch_small_for_batchnorm",
            "training.batch_size",
            {"size": settings.training.batch_size},
        )


CHECKS: tuple[checks.Check, ...] = (
    checks.columns_are_there,
    checks.weights_are_usable,
    checks.batch_fits_dataset,
    checks.precision_fits_devices,
    checks.loss_scaling_is_used,
    *checks.ENGINE,
    checks.rate_fits_model,
    checks.high_rate_is_clipped,
    checks.low_rate_is_not_smothered,
    checks.warmup_ends,
    checks.world_size_is_considered,
    checks.small_set_is_regularised,
    size_fits_model,
    batch_norm_has_a_batch,
    pictures_are_kept,
    checks.ranks_fit_a_host,
    memory_suffices,
)
