"""Checks across fields: settings that are right one by one, and together, or on this dataset and these hosts, are not.

Pure functions of settings and facts. An error blocks; a warning asks for consent; advice is only shown. Every text says why, and what to do;
its template is English with named %-places, and the web side translates it.

The estimate of memory, per rank, with P parameters, B samples per forward pass, L tokens, width H, N layers, A heads:

    weights, gradients, two moments of Adam: 16 P bytes (one of SGD: 12 P); best weights kept aside: 4 P; their average: 4 P
    activations kept for the backward pass: N × B × L × (34 H + 5 A L) values of 2 bytes, half of that count each
    (Korthikanti et al. 2022, "Reducing activation recomputation", eq. 2 gives it in bytes at 16 bits; twice at 32)
    the framework itself: 1 GiB

and of the disk a run needs on its host: 16 P bytes per checkpoint (weights, moments, best weights), of which there are
`keep` and the one being written; 12 P for the two exports and their archives; 450 bytes per step and rank of records.
P of random weights: H (vocabulary + 512 + 2) + N (12 H² + 13 H) + H². Of other weights it is known by their name
(workers/contract/known_models.py), or if a job told it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from workers.contract.known_models import Shape, shape_of

# Advice is shown and asks for nothing.
Level = Literal["error", "warning", "advice"]
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """`template` comes first, so that the extraction of texts finds it."""

    template: str
    level: Level
    code: str
    setting: str  # dotted; the one to change first
    values: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.template % self.values


@dataclass(frozen=True)
class DatasetFacts:
    train_rows: int
    # Per training text: "min", "p50", "p90", …, "max" -> length. Empty: not measured.
    lengths: dict[str, int] = field(default_factory=dict)
    # In tokens of a character vocabulary, the two marks included; else in characters.
    in_tokens: bool = False
    columns: tuple[str, ...] = ()  # Empty: not known.
    # The column that was checked as weights ("": none was), the share of training rows that count 0, and the number of
    # those whose weight is not finite. None: not known.
    weight_column: str | None = None
    weightless: float | None = None
    weights_not_finite: int = 0
    # Of numeric sequences: the features, what belongs to each ("number", "label", "none"; "": not known), and the value
    # that is furthest from 0.
    features: tuple[str, ...] = ()
    target: str = ""
    largest: float | None = None
    # Of text lines: (steps that CTC needs for the text, width, height) of the rows that have the fewest pixels per step and of
    # those with the longest texts, of both splits; and percentiles of the training lines' width at a height of 32 pixels.
    tightest: tuple[tuple[int, int, int], ...] = ()
    line_widths: tuple[float, ...] = ()


@dataclass(frozen=True)
class HostFacts:
    """An online host that takes attempts, with its devices of the kind that is used."""

    name: str
    kind: Literal["cpu", "gpu"]
    devices: int
    memory_bytes: int  # of its largest device
    disk_free_bytes: int
    compute_capabilities: tuple[float, ...] = ()
    device_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceFacts:
    """The job whose weights or settings this one starts from."""

    job: int
    world_size: int
    learning_rate: float
    max_norm: float | None
    parameters: int | None = None


@dataclass(frozen=True)
class Facts:
    dataset: DatasetFacts | None = None
    hosts: tuple[HostFacts, ...] = ()
    source: SourceFacts | None = None


Check = Callable[[Any, Facts], Iterator[Finding]]

PRETRAINED_RATE_LIMIT = 1e-3
# Above these a rate is high, and a clip above these is loose: from random weights, and for a pretrained model.
HIGH_RATE = {True: 1e-4, False: 1e-3}
LOOSE_CLIP = {True: 2.0, False: 5.0}
LOW_RATE = 1e-5
LOW_SGD_RATE = 1e-3
HEAVY_DROPOUT, HEAVY_DECAY = 0.3, 0.1
SMALL_ROWS = 5000
CUT_SHARE = 0.05
TENSOR_CORES, BF16_UNITS = 7.0, 8.0
ASCEND = re.compile(r"ascend|\bnpu\b", re.IGNORECASE)
MUCH_WEIGHTLESS = 0.5


# --- numbers that several checks need -------------------------------------------------------


def ranks(settings: Any) -> int:
    return int(settings.devices.devices_per_node * getattr(settings.devices, "nodes", 1))


def effective_batch(settings: Any) -> int:
    return int(settings.training.batch_size * settings.training.accumulation * ranks(settings))


def planned_steps(settings: Any, rows: int) -> int:
    steps: int = settings.training.epochs * math.ceil(rows / effective_batch(settings))
    most: int | None = settings.training.max_steps
    return steps if most is None else min(steps, most)


def is_pretrained(settings: Any) -> bool:
    return str(settings.model.source) != "scratch"


def known_shape(settings: Any) -> Shape | None:
    """Of a model that is taken from a folder or a hub and known by its name."""
    model = settings.model
    name = {"folder": model.folder, "hub": model.name}.get(str(model.source))
    return shape_of(name) if name else None


def parameters(settings: Any, facts: Facts) -> int | None:
    if is_pretrained(settings):
        known = known_shape(settings)
        return known.parameters if known else (facts.source.parameters if facts.source else None)
    model = settings.model
    width = model.hidden_size
    embeddings = width * (model.vocabulary_size + max(512, settings.data.max_length) + 2)
    return int(embeddings + model.layers * (12 * width**2 + 13 * width) + width**2)


def memory_bytes(settings: Any, count: int) -> float:
    """Of one rank; activations only where the sizes of the model are known."""
    optimizer = settings.optimizer
    copies = 5 if str(optimizer.kind) == "adamw" else 4
    needed = 4 * count * (copies + (optimizer.ema_memory is not None)) + GIB
    model, known = settings.model, known_shape(settings)
    if known or not is_pretrained(settings):
        width, layers, heads = (
            (known.hidden, known.layers, known.heads) if known else (model.hidden_size, model.layers, model.heads)
        )
        length = settings.data.max_length
        value = 4 if str(settings.precision.mode) in ("float32", "auto") else 2
        needed += value / 2 * layers * settings.training.batch_size * length * (34 * width + 5 * heads * length)
    return float(needed)


def disk_bytes(settings: Any, count: int, steps: int) -> float:
    return float((settings.checkpoints.keep + 1) * 16 * count + 12 * count + 450 * steps * ranks(settings))


@dataclass(frozen=True)
class Estimate:
    parameters: int
    memory_bytes: float  # of one rank
    disk_bytes: float


def estimate(settings: Any, facts: Facts) -> Estimate | None:
    """None if the size of the model is not known before it is loaded."""
    count = parameters(settings, facts)
    if count is None:
        return None
    rows = facts.dataset.train_rows if facts.dataset else 0
    steps = planned_steps(settings, rows) if rows else 0
    return Estimate(count, memory_bytes(settings, count), disk_bytes(settings, count, steps))


def share_longer(lengths: dict[str, int], limit: int) -> float | None:
    """Share of texts longer than `limit`, from percentiles, linear between them. None if nothing was measured."""
    points = sorted(
        (length, {"min": 0.0, "max": 1.0}.get(name, float(name[1:]) / 100 if name[1:].isdecimal() else math.nan))
        for name, length in lengths.items()
    )
    if len(points) < 2:
        return None
    if limit >= points[-1][0]:
        return 0.0
    if limit < points[0][0]:
        return 1.0
    for (short, below), (long, up_to) in pairwise(points):
        if short <= limit < long:
            return 1 - (below + (up_to - below) * (limit - short) / (long - short))
    return 0.0


# --- the checks -----------------------------------------------------------------------------


def columns_are_there(settings: Any, facts: Facts) -> Iterator[Finding]:
    columns = facts.dataset.columns if facts.dataset else ()
    for name in ("text_column", "text_b_column", "label_column", "weight_column"):
        column = getattr(settings.data, name, None)
        if name == "text_b_column" and column == "text_b":
            continue  # the default, which not every dataset has
        if columns and column and column not in columns:
            yield Finding(
                "The dataset has no column “%(column)s”; it has: %(columns)s.",
                "error",
                "column_missing",
                f"data.{name}",
                {"column": column, "columns": ", ".join(columns)},
            )


def precision_fits_devices(settings: Any, facts: Facts) -> Iterator[Finding]:
    mode = str(settings.precision.mode)
    capabilities = [value for host in facts.hosts if host.kind == "gpu" for value in host.compute_capabilities]
    ascend = next((name for host in facts.hosts for name in host.device_names if ASCEND.search(name)), None)
    if ascend and mode == "bf16" and max(capabilities, default=0.0) < BF16_UNITS:
        yield Finding(
            "Whether %(name)s computes in bf16 is not known here: of Ascend NPUs the 910B does, the 910 and 310 do not. "
            "Choose fp16, which all of them compute, or make a dry run first.",
            "warning",
            "bf16_on_ascend",
            "precision.mode",
            {"name": ascend},
        )
    # An Ascend NPU computes in fp16 as a GPU with Tensor Cores does.
    if not capabilities or ascend:
        return
    best = max(capabilities)
    if mode == "fp16" and best < TENSOR_CORES:
        yield Finding(
            "fp16 brings nothing here: no device that is online has Tensor Cores (compute capability 7.0; the best has "
            "%(best).1f) or is an Ascend NPU, so it is as slow as float32 and less stable. Choose float32.",
            "warning",
            "fp16_without_tensor_cores",
            "precision.mode",
            {"best": best},
        )
    if mode == "bf16" and best < BF16_UNITS:
        yield Finding(
            "No GPU that is online can compute in bf16 (compute capability 8.0; the best has %(best).1f). Choose fp16 "
            "from 7.0 on, or float32.",
            "error",
            "bf16_unsupported",
            "precision.mode",
            {"best": best},
        )


def loss_scaling_is_used(settings: Any, facts: Facts) -> Iterator[Finding]:
    mode = str(settings.precision.mode)
    if mode not in ("fp16", "auto") and settings.loss_scaling != type(settings.loss_scaling)():
        yield Finding(
            "Loss scaling was changed, but it is used with fp16 only; with %(mode)s it does nothing. Choose fp16, or set "
            "loss scaling back to its defaults.",
            "warning",
            "loss_scaling_unused",
            "precision.mode",
            {"mode": mode},
        )


def warmup_ends(settings: Any, facts: Facts) -> Iterator[Finding]:
    if facts.dataset is None or not facts.dataset.train_rows:
        return
    steps, warmup = planned_steps(settings, facts.dataset.train_rows), settings.schedule.warmup_steps
    if warmup is not None and warmup > steps:
        yield Finding(
            "Warm-up takes %(warmup)d steps, but the whole training has %(steps)d: the learning rate never gets to its "
            "peak. Shorten warm-up, to about a tenth of training, or train longer.",
            "warning",
            "warmup_longer_than_training",
            "schedule.warmup_steps",
            {"warmup": warmup, "steps": steps},
        )


def amp_is_used(settings: Any, facts: Facts) -> Iterator[Finding]:
    precision = settings.precision
    if str(precision.mode) == "float32" and (
        str(precision.level) != "O1" or precision.white_list or precision.black_list
    ):
        yield Finding(
            "AMP's level and lists of operators hold for fp16 and bf16 only; with float32 they do nothing. Choose one of "
            "the two, or set them back.",
            "warning",
            "amp_unused",
            "precision.mode",
        )


def limit_is_learnt(settings: Any, facts: Facts) -> Iterator[Finding]:
    if facts.dataset is None or not facts.dataset.train_rows:
        return
    steps, clipping = planned_steps(settings, facts.dataset.train_rows), settings.clipping
    if str(clipping.mode) in ("zclip", "autoclip") and clipping.adaptive_warmup >= steps:
        yield Finding(
            "%(mode)s learns from %(needed)d steps, but the whole training has %(steps)d, so that its limit never comes into "
            "force. Learn from fewer, or clip at a fixed norm.",
            "warning",
            "clip_never_learnt",
            "clipping.adaptive_warmup",
            {"mode": str(clipping.mode), "needed": clipping.adaptive_warmup, "steps": steps},
        )


def rate_fits_optimizer(settings: Any, facts: Facts) -> Iterator[Finding]:
    optimizer = settings.optimizer
    if str(optimizer.kind) == "sgd" and optimizer.learning_rate < LOW_SGD_RATE:
        yield Finding(
            "A learning rate of %(rate)g is one for adamw: with sgd the steps are as small as the gradients, and next to "
            "nothing is learnt. Usual are 0.01 to 0.1, with clipping.",
            "warning",
            "rate_low_for_sgd",
            "optimizer.learning_rate",
            {"rate": optimizer.learning_rate},
        )


def rewind_has_a_checkpoint(settings: Any, facts: Facts) -> Iterator[Finding]:
    if facts.dataset is None or not facts.dataset.train_rows:
        return
    rewinds = str(settings.limits.on_bad_step) == "rewind" or str(settings.spikes.action) == "rewind"
    steps, every = planned_steps(settings, facts.dataset.train_rows), settings.checkpoints.every_steps
    if rewinds and every >= steps:
        yield Finding(
            "A rewind goes back to the newest checkpoint, but with one every %(every)d steps and %(steps)d steps in all that "
            "is always the very beginning. Save checkpoints more often.",
            "warning",
            "rewind_to_the_beginning",
            "checkpoints.every_steps",
            {"every": every, "steps": steps},
        )


# Those about the groups that every recipe shares, of which nothing depends on the recipe.
ENGINE: tuple[Check, ...] = (amp_is_used, limit_is_learnt, rate_fits_optimizer, rewind_has_a_checkpoint)


def rate_fits_model(settings: Any, facts: Facts) -> Iterator[Finding]:
    rate = settings.optimizer.learning_rate
    if is_pretrained(settings) and str(settings.optimizer.kind) == "adamw" and rate > PRETRAINED_RATE_LIMIT:
        yield Finding(
            "A learning rate of %(rate)g destroys what a pretrained model knows: with AdamW even 0.001 is far too much "
            "for most. Usual are 1e-5 to 1e-4.",
            "warning",
            "rate_above_pretrained",
            "optimizer.learning_rate",
            {"rate": rate},
        )


def rate_fits_random_weights(settings: Any, facts: Facts, usual: float = 5e-4) -> Iterator[Finding]:
    rate = settings.optimizer.learning_rate
    if not is_pretrained(settings) and str(settings.optimizer.kind) == "adamw" and rate <= HIGH_RATE[True]:
        yield Finding(
            "The weights are random, and a learning rate of %(rate)g is one for fine-tuning a pretrained model: from scratch "
            "it learns slowly. The preset “From scratch” has %(usual)g; or choose a model to start from.",
            "advice",
            "rate_for_pretrained",
            "optimizer.learning_rate",
            {"rate": rate, "usual": usual},
        )


def high_rate_is_clipped(settings: Any, facts: Facts) -> Iterator[Finding]:
    pretrained = is_pretrained(settings)
    rate, norm, mode = settings.optimizer.learning_rate, settings.clipping.max_norm, str(settings.clipping.mode)
    # The rates are Adam's; clipping by value, and limits that learn, are no looser for a high bound.
    if rate <= HIGH_RATE[pretrained] or str(settings.optimizer.kind) != "adamw":
        return
    if mode in ("value", "zclip", "autoclip"):
        return
    if mode == "none":
        norm = None
    values = {"rate": rate, "usual": LOOSE_CLIP[pretrained]}
    if norm is None:
        yield Finding(
            "The learning rate is high (%(rate)g) and clipping is off, so that a single bad batch can ruin the weights. "
            "Clip at %(usual)g or below, or lower the rate.",
            "warning",
            "high_rate_without_clipping",
            "clipping.max_norm",
            values,
        )
    elif norm > LOOSE_CLIP[pretrained]:
        yield Finding(
            "The learning rate is high (%(rate)g) and clipping at %(norm)g is loose, so that it holds back nothing when "
            "gradients grow. Clip at %(usual)g or below, or lower the rate.",
            "warning",
            "high_rate_with_loose_clipping",
            "clipping.max_norm",
            values | {"norm": norm},
        )


def low_rate_is_not_smothered(settings: Any, facts: Facts) -> Iterator[Finding]:
    rate = settings.optimizer.learning_rate
    dropout, decay = settings.regularisation.dropout, settings.optimizer.weight_decay
    if rate < LOW_RATE and (dropout >= HEAVY_DROPOUT or decay >= HEAVY_DECAY):
        yield Finding(
            "The learning rate is low (%(rate)g) and regularisation is heavy (dropout %(dropout)g, weight decay "
            "%(decay)g): the model may learn next to nothing. Raise the rate, or lower dropout to 0.1 and decay to 0.01.",
            "warning",
            "low_rate_heavy_regularisation",
            "optimizer.learning_rate",
            {"rate": rate, "dropout": dropout, "decay": decay},
        )


def world_size_is_considered(settings: Any, facts: Facts) -> Iterator[Finding]:
    source = facts.source
    if source is None or ranks(settings) == source.world_size:
        return
    if settings.optimizer.learning_rate != source.learning_rate or settings.clipping.max_norm != source.max_norm:
        return
    yield Finding(
        "Job %(job)d ran on %(old)d ranks, this one on %(new)d, with the same learning rate and clipping. Gradients "
        "averaged over more ranks have smaller norms and allow a higher rate, over fewer ranks the other way round: "
        "scale the rate with the ranks, and look at the clipping again.",
        "warning",
        "world_size_changed",
        "devices.devices_per_node",
        {"job": source.job, "old": source.world_size, "new": ranks(settings)},
    )


def batch_fits_dataset(settings: Any, facts: Facts) -> Iterator[Finding]:
    if facts.dataset is None or not facts.dataset.train_rows:
        return
    batch, rows = effective_batch(settings), facts.dataset.train_rows
    if batch > rows:
        yield Finding(
            "The effective batch of %(batch)d (batch per rank %(size)d × accumulation %(accumulation)d × ranks %(ranks)d) "
            "is larger than the training set of %(rows)d rows. Lower one of the three.",
            "error",
            "batch_larger_than_dataset",
            "training.batch_size",
            {
                "batch": batch,
                "size": settings.training.batch_size,
                "accumulation": settings.training.accumulation,
                "ranks": ranks(settings),
                "rows": rows,
            },
        )


def small_set_is_regularised(settings: Any, facts: Facts) -> Iterator[Finding]:
    if facts.dataset is None or not 0 < facts.dataset.train_rows < SMALL_ROWS:
        return
    if settings.optimizer.weight_decay == 0 and settings.regularisation.dropout == 0:
        yield Finding(
            "With %(rows)d rows and neither weight decay nor dropout the model will learn the rows by heart. Set dropout "
            "to 0.1 to 0.3, or take the preset for small sets.",
            "warning",
            "small_set_unregularised",
            "regularisation.dropout",
            {"rows": facts.dataset.train_rows},
        )


def texts_fit_length(settings: Any, facts: Facts) -> Iterator[Finding]:
    if facts.dataset is None:
        return
    limit, counted = settings.data.max_length, facts.dataset.in_tokens
    share = share_longer(facts.dataset.lengths, limit if counted else limit - 2)  # two tokens are the marks
    if share is None or share <= CUT_SHARE:
        return
    values = {"limit": limit, "percent": 100 * share, "longest": max(facts.dataset.lengths.values())}
    if counted and not is_pretrained(settings):
        yield Finding(
            "The limit of %(limit)d tokens cuts about %(percent).1f %% of the training texts, and the model never sees the "
            "rest of them; the longest has %(longest)d tokens. Raise the limit, if memory allows.",
            "warning",
            "texts_are_cut",
            "data.max_length",
            values,
        )
    else:  # A tokenizer that was not counted with: close for Chinese, fewer tokens in other languages.
        yield Finding(
            "The limit of %(limit)d tokens cuts about %(percent).1f %% of the training texts (by their characters), and the model never sees the "
            "rest of them; the longest has about %(longest)d. Raise the limit, if memory allows.",
            "warning",
            "texts_are_cut",
            "data.max_length",
            values,
        )


def weights_are_usable(settings: Any, facts: Facts) -> Iterator[Finding]:
    column, dataset = getattr(settings.data, "weight_column", None), facts.dataset
    if column is None or dataset is None:
        return
    if dataset.columns and column not in dataset.columns:
        return
    if dataset.weight_column is not None and column != dataset.weight_column:
        yield Finding(
            "The column “%(column)s” was not checked as weights when the dataset was made: a row with anything but a number "
            "of 0 or more in it ends the job as bad data. Describe the dataset anew, with it as the weight column.",
            "warning",
            "weights_unchecked",
            "data.weight_column",
            {"column": column},
        )
        return
    if dataset.weightless == 1:
        yield Finding(
            "Every training row has the weight 0 in “%(column)s”: the loss is always 0 and nothing is learnt. Choose another "
            "column, or none.",
            "error",
            "weights_all_zero",
            "data.weight_column",
            {"column": column},
        )
    elif dataset.weightless is not None and dataset.weightless > MUCH_WEIGHTLESS:
        yield Finding(
            "%(percent).0f %% of the training rows have the weight 0 in “%(column)s”, so that they are read and not learnt "
            "from. Is it the right column?",
            "warning",
            "weights_mostly_zero",
            "data.weight_column",
            {"column": column, "percent": 100 * dataset.weightless},
        )
    if dataset.weights_not_finite:
        yield Finding(
            "%(count)d rows have a weight in “%(column)s” that is not finite: each step with one of them is skipped, and many "
            "in a row end the job. Repair or remove them.",
            "warning",
            "weights_not_finite",
            "data.weight_column",
            {"column": column, "count": dataset.weights_not_finite},
        )


def ranks_fit_a_host(settings: Any, facts: Facts) -> Iterator[Finding]:
    most = max((host.devices for host in facts.hosts), default=0)
    wanted = settings.devices.devices_per_node
    if most and wanted > most:
        yield Finding(
            "%(wanted)d ranks on one host are asked for, but no host that is online has more than %(most)d devices: the "
            "job will wait until there is one. Ask for fewer ranks to start sooner.",
            "warning",
            "more_ranks_than_devices",
            "devices.devices_per_node",
            {"wanted": wanted, "most": most},
        )


def memory_suffices(settings: Any, facts: Facts) -> Iterator[Finding]:
    count = parameters(settings, facts)
    most = max((host.memory_bytes for host in facts.hosts), default=0)
    if count is None or not most:
        return
    needed = memory_bytes(settings, count)
    if needed > most:
        yield Finding(
            "One rank needs about %(needed).1f GiB (%(millions).0f million parameters), but the largest device that is "
            "online has %(most).1f GiB. Lower the batch per rank and raise accumulation instead, shorten the texts, or "
            "take a smaller model.",
            "warning",
            "memory_not_enough",
            "training.batch_size",
            {"needed": needed / GIB, "most": most / GIB, "millions": count / 1e6},
        )


def disk_suffices(settings: Any, facts: Facts) -> Iterator[Finding]:
    count = parameters(settings, facts)
    most = max((host.disk_free_bytes for host in facts.hosts), default=0)
    if count is None or not most:
        return
    rows = facts.dataset.train_rows if facts.dataset else 0
    needed = disk_bytes(settings, count, planned_steps(settings, rows) if rows else 0)
    if needed > most:
        yield Finding(
            "Checkpoints, exports and records need about %(needed).1f GiB of disk, but no host that is online has more "
            "than %(most).1f GiB free. Keep fewer checkpoints, or take a smaller model.",
            "warning",
            "disk_not_enough",
            "checkpoints.keep",
            {"needed": needed / GIB, "most": most / GIB},
        )


CLASSIFICATION: tuple[Check, ...] = (
    columns_are_there,
    weights_are_usable,
    batch_fits_dataset,
    precision_fits_devices,
    loss_scaling_is_used,
    *ENGINE,
    rate_fits_model,
    rate_fits_random_weights,
    high_rate_is_clipped,
    low_rate_is_not_smothered,
    warmup_ends,
    world_size_is_considered,
    small_set_is_regularised,
    texts_fit_length,
    ranks_fit_a_host,
    memory_suffices,
    disk_suffices,
)

# Tags are learnt from scratch with twice the rate of labels, by the recipe's preset.
TAGS: tuple[Check, ...] = tuple(
    partial(check, usual=1e-3) if check is rate_fits_random_weights else check for check in CLASSIFICATION
)
