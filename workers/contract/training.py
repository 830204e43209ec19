"""Groups of settings that every recipe shares. A field appears here only if the trainer honours it."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from workers.contract.choices import Choice
from workers.contract.fields import Misfit, SettingsGroup, setting


class Precision(Choice):
    FLOAT32 = "float32"
    FP16 = "fp16"
    BF16 = "bf16"
    AUTO = "auto"


class TrainingSettings(SettingsGroup):
    """How long, and how much at a time."""

    epochs: int = setting(3, "Epochs", "Passes over the training rows.", basic=True, ge=1, le=1000)
    max_steps: int | None = setting(
        None,
        "Most steps",
        "Stop after this many applied optimizer steps, even within an epoch. Empty: only epochs count.",
        unit="steps",
        basic=True,
        ge=1,
        le=100_000_000,
    )
    batch_size: int = setting(
        32,
        "Batch per rank",
        "Samples that one rank takes through one forward pass.",
        unit="samples",
        basic=True,
        ge=1,
        le=4096,
    )
    accumulation: int = setting(
        1,
        "Accumulation",
        "Forward passes whose gradients are added up before one optimizer step. "
        "The effective batch is batch per rank × accumulation × ranks.",
        unit="passes",
        ge=1,
        le=1024,
    )
    seed: int = setting(
        2026,
        "Seed",
        "Starts initial weights, order of samples and dropout; the same seed gives the same run.",
        ge=0,
        le=2**31 - 1,
    )


class OptimizerKind(Choice):
    ADAMW = "adamw"
    SGD = "sgd"


class OptimizerSettings(SettingsGroup):
    """How gradients move the weights."""

    learning_rate: float = setting(5e-5, "Learning rate", "Peak rate, reached at the end of warm-up.", basic=True, gt=0)
    weight_decay: float = setting(
        0.01,
        "Weight decay",
        "Fraction of a weight that is taken off per step and unit of rate: decoupled with adamw; with sgd it is an L2 "
        "term in the gradient, so that momentum gathers it too.",
        basic=True,
        ge=0,
        le=1,
    )
    kind: OptimizerKind = setting(
        OptimizerKind.ADAMW, "Optimizer", "adamw: Adam with decoupled weight decay; sgd: with momentum and an L2 term."
    )
    momentum: float = setting(
        0.9, "Momentum", "For sgd: memory of the gradient. 0: plain SGD.", ge=0, lt=1, only="kind=sgd"
    )
    beta1: float = setting(
        0.9, "β₁", "For adamw: memory of the gradient's running mean.", ge=0, lt=1, only="kind=adamw"
    )
    beta2: float = setting(
        0.999, "β₂", "For adamw: memory of the squared gradient's running mean.", ge=0, lt=1, only="kind=adamw"
    )
    epsilon: float = setting(
        1e-8,
        "ε",
        "For adamw: added to the denominator; larger is calmer when gradients are tiny.",
        gt=0,
        le=1,
        only="kind=adamw",
    )
    undecayed: str | None = setting(
        "bias, norm",
        "Not decayed",
        "Parameters whose name has one of these parts, separated by commas; norm also means every normalisation layer. "
        "Empty: all are decayed.",
        max_length=500,
    )
    layer_decay: float = setting(
        1.0,
        "Layer-wise rate decay",
        "From the top of the model down, the rate of each layer is that of the one above times this. 1: the same rate "
        "everywhere; 0.8–0.95 is usual for pretrained models.",
        gt=0,
        le=1,
    )
    ema_memory: float | None = setting(
        None,
        "Weight averaging",
        "Evaluate, keep and export a running average of the weights; this share of it stays at each applied step, such "
        "as 0.999. Empty: the weights themselves.",
        ge=0,
        lt=1,
    )


class Decay(Choice):
    LINEAR = "linear"
    COSINE = "cosine"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"


class ScheduleSettings(SettingsGroup):
    """Linear warm-up to the peak rate, then decay; both count applied steps only."""

    warmup_steps: int | None = setting(
        None,
        "Warm-up steps",
        "Applied steps until the peak rate. Empty: the fraction below decides.",
        unit="steps",
        ge=0,
        le=100_000_000,
    )
    warmup_fraction: float = setting(
        0.1,
        "Warm-up fraction",
        "Share of all planned steps used for warm-up, if no number of steps is given.",
        basic=True,
        ge=0,
        le=1,
    )
    decay: Decay = setting(
        Decay.LINEAR,
        "Decay",
        "How the rate falls from its peak to the last planned step; constant: it stays at its peak.",
    )
    power: float = setting(
        2.0,
        "Power",
        "For polynomial: the exponent of what is left of training; 1 is linear.",
        gt=0,
        le=10,
        only="decay=polynomial",
    )
    final_fraction: float = setting(0.0, "Final rate", "What the rate falls to, as a share of its peak.", ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _linear_decay(cls, data: Any) -> Any:
        """Until version 0.2 there was only linear decay, on or off; stored settings and job files may still say so."""
        if isinstance(data, dict) and "linear_decay" in data:
            data = dict(data)
            linear = data.pop("linear_decay")
            if not isinstance(linear, bool):
                raise Misfit("linear_decay is true or false; better say decay: linear or constant.")
            data.setdefault("decay", Decay.LINEAR if linear else Decay.CONSTANT)
        return data


class ClipMode(Choice):
    GLOBAL_NORM = "global_norm"
    PER_TENSOR = "per_tensor"
    VALUE = "value"
    ZCLIP = "zclip"
    AUTOCLIP = "autoclip"
    NONE = "none"


class ClippingSettings(SettingsGroup):
    """Bounds the gradient before each step; its norm before clipping is recorded in any case."""

    mode: ClipMode = setting(
        ClipMode.GLOBAL_NORM,
        "Mode",
        "global_norm: the whole gradient is shortened and keeps its direction; per_tensor: each parameter's gradient by "
        "itself; value: each element; zclip: a limit that follows the running mean and deviation of the norm; autoclip: "
        "a percentile of the latest norms; none: never.",
    )
    max_norm: float | None = setting(
        1.0,
        "Clip at norm",
        "A longer gradient is shortened to this length. 1–2 for pretrained models, 5 to start with otherwise. "
        "For zclip and autoclip: the most that they may allow. Empty: no such limit; the norm is measured all the same.",
        basic=True,
        gt=0,
    )
    max_value: float = setting(
        1.0, "Clip at value", "For value: elements beyond ± this are set to it.", gt=0, le=1e30, only="mode=value"
    )
    z_limit: float = setting(
        2.5,
        "z limit",
        "For zclip: a norm so many standard deviations above its running mean is a spike.",
        gt=0,
        le=100,
        only="mode=zclip",
    )
    memory: float = setting(
        0.97,
        "z memory",
        "For zclip: share of the running mean and variance that stays at each step.",
        gt=0,
        lt=1,
        only="mode=zclip",
    )
    percentile: float = setting(
        90.0,
        "Percentile",
        "For autoclip: the limit is the norm below which so many of a hundred were; at 90, about one step in ten is clipped.",
        gt=0,
        le=100,
        only="mode=autoclip",
    )
    history: int = setting(
        1000,
        "History",
        "For autoclip: the latest norms that the percentile is of.",
        unit="steps",
        ge=10,
        le=10_000,
        only="mode=autoclip",
    )
    adaptive_warmup: int = setting(
        25,
        "Steps to learn from",
        "For zclip and autoclip: applied steps before the limit follows them; until then only “clip at norm” holds.",
        unit="steps",
        ge=2,
        le=10_000,
        only="mode=zclip,autoclip",
    )

    @model_validator(mode="after")
    def _history_suffices(self) -> ClippingSettings:
        if self.history < self.adaptive_warmup:
            raise Misfit(
                "The history (%(history)d) must hold the steps to learn from (%(warmup)d).",
                history=self.history,
                warmup=self.adaptive_warmup,
            )
        return self


class AmpLevel(Choice):
    O1 = "O1"
    O2 = "O2"


class PrecisionSettings(SettingsGroup):
    """Number format of the forward and backward pass. On CPU half precision is emulated, and records say so."""

    mode: Precision = setting(
        Precision.FLOAT32,
        "Precision",
        "fp16 needs loss scaling and a GPU of compute capability 7.0 or higher; bf16 needs 8.0. "
        "On CPU both are emulated by rounding the outputs of layers. auto: bf16 or fp16 as the GPU allows, float32 on CPU.",
        basic=True,
    )
    level: AmpLevel = setting(
        AmpLevel.O1,
        "AMP level",
        "O1: weights stay float32, and operators compute in half precision where it is safe; O2: weights and nearly all "
        "operators in half precision. On CPU O2 rounds weights, and the outputs of all layers but normalisation and embeddings.",
        only="mode=fp16,bf16,auto",
    )
    master_weights: bool = setting(
        True,
        "Master weights",
        "For O2: the optimizer keeps weights in float32. Without, steps smaller than the last bit of a weight are lost.",
        only="level=O2",
    )
    master_grad: bool = setting(
        True,
        "Master gradients",
        "For O2: gradients are turned into float32 before anything is done to them. Without, fp16 gradients can overflow.",
        only="level=O2",
    )
    white_list: str | None = setting(
        None,
        "In half precision",
        "Operators, separated by commas, that always compute in half precision, such as layer_norm. On CPU only those that "
        "are layers of their own.",
        max_length=1000,
        only="mode=fp16,bf16,auto",
    )
    black_list: str | None = setting(
        None,
        "In float32",
        "Operators, separated by commas, that never do, such as matmul_v2 or softmax; the same holds on CPU.",
        max_length=1000,
        only="mode=fp16,bf16,auto",
    )

    @model_validator(mode="after")
    def _lists_differ(self) -> PrecisionSettings:
        white, black = (
            {name.strip() for name in (text or "").split(",")} for text in (self.white_list, self.black_list)
        )
        both = (white & black) - {""}
        if both:
            raise Misfit("“%(names)s” cannot be on both lists.", names=", ".join(sorted(both)))
        return self


class LossScalingSettings(SettingsGroup):
    """Dynamic loss scaling, for fp16 only: the loss is multiplied so that small gradients survive."""

    init_scale: float = setting(65536.0, "Initial scale", "The first factor.", gt=0, le=2.0**40)
    growth_interval: int = setting(
        2000,
        "Growth interval",
        "Good steps in a row until the scale grows.",
        unit="steps",
        ge=1,
        le=100_000_000,
    )
    growth_factor: float = setting(
        2.0, "Growth factor", "What the scale is multiplied with when it grows.", gt=1, le=16
    )
    backoff_factor: float = setting(
        0.5, "Back-off factor", "What the scale is multiplied with after an overflow.", gt=0, lt=1
    )
    hysteresis: int = setting(
        1,
        "Hysteresis",
        "Overflows in a row until the scale falls; 1 is Paddle's, 2 is usual for large models.",
        unit="steps",
        ge=1,
        le=1000,
    )
    floor: float = setting(
        1.0,
        "Floor",
        "The scale never falls below this. Paddle's own scaler halves down to 0 and then writes NaN into the weights.",
        gt=0,
    )
    ceiling: float = setting(2.0**24, "Ceiling", "The scale never grows above this.", gt=0)

    @model_validator(mode="after")
    def _floor_below_start(self) -> LossScalingSettings:
        if not self.floor <= self.init_scale <= self.ceiling:
            raise Misfit(
                "The initial scale (%(scale)g) must lie between the floor (%(floor)g) and the ceiling (%(ceiling)g).",
                scale=self.init_scale,
                floor=self.floor,
                ceiling=self.ceiling,
            )
        return self


class BadStep(Choice):
    SKIP = "skip"
    STOP = "stop"
    REWIND = "rewind"


class LimitSettings(SettingsGroup):
    """When to give up. Skipped steps leave the weights untouched; a step with a high but finite loss or norm is applied."""

    skip_limit: int = setting(
        20,
        "Skipped steps in a row",
        "So many skipped steps one after the other end the attempt.",
        unit="steps",
        basic=True,
        ge=1,
        le=100_000,
    )
    on_bad_step: BadStep = setting(
        BadStep.SKIP,
        "After a bad step",
        "When input, loss or gradient is not finite: skip the step; stop at once; or rewind to the newest checkpoint and go "
        "on with the batches after the bad one. An overflow under loss scaling is not one of them: it is always skipped.",
    )
    most_rewinds: int = setting(
        2,
        "Most rewinds",
        "Of one attempt, for bad steps and spikes together; after them, bad steps are skipped and spikes recorded.",
        ge=0,
        le=100,
    )
    input_limit: float | None = setting(
        None,
        "Input limit",
        "A number in a batch beyond ± this counts as one that is not finite: the step is bad, and its row is named. "
        "Whole numbers, such as tokens, are not looked at. Empty: no limit.",
        gt=0,
    )
    loss_limit: float | None = setting(
        1e4,
        "Loss limit",
        "A loss above this in as many steps in a row as above counts as diverged. Empty: no limit.",
        gt=0,
    )
    grad_norm_limit: float | None = setting(
        None, "Gradient norm limit", "The same for the gradient norm before clipping. Empty: no limit.", gt=0
    )
    time_limit_hours: float | None = setting(
        None,
        "Time limit",
        "An attempt that has held its devices for so long is asked to save a checkpoint, and ends; a retry can go on "
        "from there. It can be changed while the job runs. Empty: no limit.",
        unit="hours",
        ge=0.01,
        le=8760,
    )


class SpikeAction(Choice):
    IGNORE = "ignore"
    RECORD = "record"
    SKIP = "skip"
    REWIND = "rewind"


class SpikeSettings(SettingsGroup):
    """A loss or gradient norm far above those of the latest steps, though finite."""

    action: SpikeAction = setting(
        SpikeAction.RECORD,
        "At a spike",
        "ignore: do not look for any; record: an event, and the step is applied; skip: an event, and the step is not applied; "
        "rewind: go back to the newest checkpoint and on with the batches after it.",
    )
    window: int = setting(
        128,
        "Window",
        "Latest steps that a step is compared with; spikes are not among them.",
        unit="steps",
        ge=8,
        le=10_000,
    )
    sigmas: float = setting(
        6.0, "Deviations", "So many standard deviations above the mean of the window is a spike.", ge=1, le=100
    )
    active_after: int = setting(
        64, "Active after", "Steps in the window before any is called a spike.", unit="steps", ge=2, le=10_000
    )

    @model_validator(mode="after")
    def _window_suffices(self) -> SpikeSettings:
        if self.window < self.active_after:
            raise Misfit(
                "The window (%(window)d) must hold the steps after which it is active (%(after)d).",
                window=self.window,
                after=self.active_after,
            )
        return self


class CheckpointSettings(SettingsGroup):
    """What is kept on the way."""

    every_steps: int = setting(
        200,
        "Checkpoint every",
        "Applied steps between two checkpoints.",
        unit="steps",
        basic=True,
        ge=1,
        le=100_000_000,
    )
    keep: int = setting(2, "Keep", "Newest good checkpoints that stay.", unit="checkpoints", ge=1, le=100)
    evaluate_every_steps: int | None = setting(
        None,
        "Evaluate every",
        "Applied steps between two evaluations. Empty: at the end of each epoch.",
        unit="steps",
        basic=True,
        ge=1,
        le=100_000_000,
    )


class EarlyStoppingSettings(SettingsGroup):
    """Ends training when evaluations no longer get better. The best weights are exported in any case."""

    patience: int | None = setting(
        None,
        "Patience",
        "So many evaluations in a row without a better result end training. Empty: train to the planned end.",
        unit="evaluations",
        ge=1,
        le=1000,
    )
    min_delta: float = setting(
        0.0,
        "Least gain",
        "A result counts as better only if it is better than the best so far by more than this, in units of the recipe's "
        "main metric; 0.001 is a tenth of a percent of accuracy.",
        ge=0,
        le=1e12,
    )


class MonitoringSettings(SettingsGroup):
    """What is watched besides what every record holds."""

    group_norms_every: int | None = setting(
        50,
        "Group norms every",
        "Attempted steps between two records that also hold the gradient norm of each part of the model and the share of "
        "gradients that are zero; the norms also come with every gradient that is not finite. Empty: never.",
        unit="steps",
        ge=1,
        le=1_000_000,
    )
    local_norms: bool = setting(
        False,
        "Norm of each rank",
        "Measure each rank's own gradient before it is averaged, so that it shows which rank overflowed. Averaging then no "
        "longer overlaps with the backward pass. With one rank it changes nothing.",
    )
    compare_ranks_every: int | None = setting(
        500,
        "Compare ranks every",
        "Attempted steps between two comparisons of the weights of all ranks, bit by bit; they are also compared before each "
        "checkpoint. A difference ends the attempt. Empty: never.",
        unit="steps",
        ge=1,
        le=1_000_000,
    )


class DeviceSettings(SettingsGroup):
    """Where it runs."""

    devices_per_node: int = setting(
        1,
        "Ranks per host",
        "Devices on one host, one data-parallel rank on each. On a CPU host a device is a slot.",
        basic=True,
        ge=1,
        le=64,
    )


# --- fields that several recipes have in groups of their own -----------------------------------


def label_smoothing_setting() -> Any:
    """Of recipes that give labels."""
    return setting(
        0.0,
        "Label smoothing",
        "Share of each label that is spread over all labels in training; 0.1 is usual where labels are in doubt.",
        ge=0,
        lt=1,
    )


def drop_path_setting(part: str) -> Any:
    """Of models with residual branches; `part` is what has one: layer, block."""
    return setting(
        0.0,
        "DropPath",
        f"Probability that the last {part}'s branch beside the residual is left out for a sample; less for the {part}s before, "
        "none at the first.",
        ge=0,
        lt=1,
    )


def weight_column_setting() -> Any:
    return setting(
        None,
        "Weight column",
        "Name of a column with one number per row that its loss is multiplied with. Empty: all rows count alike.",
        max_length=100,
    )


def job_setting(*, basic: bool) -> Any:
    return setting(
        None,
        "Job number",
        "For “job”: whose exported model to start from.",
        basic=basic,
        ge=1,
        le=1_000_000_000,
        only="source=job",
    )


# Of a model that nobody else has trained.
class ModelSource(Choice):
    SCRATCH = "scratch"
    JOB = "job"


class StartSettings(SettingsGroup):
    """What a recipe's model settings begin with. `source` is declared anew by each, in its own words."""

    source: Choice
    job: int | None = job_setting(basic=False)

    @model_validator(mode="after")
    def _job_is_named(self) -> StartSettings:
        if self.source == "job" and self.job is None:
            raise Misfit("To start from “%(source)s”, fill in “%(needed)s”.", source=self.source, needed="job")
        return self


# --- all of a recipe ---------------------------------------------------------------------------


class RecipeSettings(SettingsGroup):
    """The groups of a recipe's settings, in the order of the form. `data`, `model` and `regularisation` are the recipe's own; of the
    others it may have subclasses with other defaults.

    pydantic puts what a subclass adds at the end: a recipe with a group of its own in the middle lists all of them itself.
    """

    data: SettingsGroup = SettingsGroup()
    model: SettingsGroup = SettingsGroup()
    training: TrainingSettings = TrainingSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    clipping: ClippingSettings = ClippingSettings()
    precision: PrecisionSettings = PrecisionSettings()
    loss_scaling: LossScalingSettings = LossScalingSettings()
    regularisation: SettingsGroup = SettingsGroup()
    limits: LimitSettings = LimitSettings()
    spikes: SpikeSettings = SpikeSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    early_stopping: EarlyStoppingSettings = EarlyStoppingSettings()
    monitoring: MonitoringSettings = MonitoringSettings()
    devices: DeviceSettings = DeviceSettings()
