"""Settings of the recipe for text lines, and nothing that needs Paddle."""

from __future__ import annotations

from pydantic import model_validator

from workers.contract.choices import Choice
from workers.contract.fields import Misfit, SettingsGroup, other_default, setting
from workers.contract.training import (
    CheckpointSettings,
    ClippingSettings,
    DeviceSettings,
    EarlyStoppingSettings,
    LimitSettings,
    LossScalingSettings,
    ModelSource,
    MonitoringSettings,
    OptimizerSettings,
    PrecisionSettings,
    ScheduleSettings,
    SpikeSettings,
    StartSettings,
    TrainingSettings,
    weight_column_setting,
)


class Metric(Choice):
    CER = "cer"
    ACCURACY = "accuracy"


class Cell(Choice):
    LSTM = "lstm"
    GRU = "gru"


class LossPer(Choice):
    CHARACTER = "character"
    LINE = "line"


class DataSettings(SettingsGroup):
    """How a picture of a line is brought to the model's size, and what counts as good."""

    height: int = setting(
        32,
        "Height",
        "Pixels that every line is scaled to; its width follows, so that letters keep their shape. 32 is usual, 48 is better "
        "for Chinese.",
        unit="pixels",
        basic=True,
        ge=16,
        le=128,
    )
    max_width: int = setting(
        960,
        "Widest line",
        "At that height; wider lines are squeezed to it.",
        unit="pixels",
        basic=True,
        ge=16,
        le=8192,
    )
    colour: bool = setting(
        False, "Colour", "The model sees red, green and blue. Off: grey, which is enough for most writing."
    )
    leave_out: bool = setting(
        False,
        "Leave out what cannot be learnt",
        "Lines without a text, and lines whose text needs more steps than their picture gives, are left out. Off: they end "
        "the job before training.",
        basic=True,
    )
    weight_column: str | None = weight_column_setting()
    best_by: Metric = setting(
        Metric.CER,
        "Best by",
        "Which weights are kept. cer: the fewest wrong characters; accuracy: the most lines without a mistake.",
        basic=True,
    )
    cache_gib: float = setting(
        2.0,
        "Keep in memory",
        "Lines stay decoded in memory up to this size, on every rank; the rest is decoded whenever it is used.",
        unit="GiB",
        ge=0,
        le=1024,
    )


class ModelSettings(StartSettings):
    """Five convolutions with BatchNorm, recurrent layers over the columns, and linear layers from both to the characters (Shi et
    al. 2015, “CRNN”). The characters are those of the training rows."""

    source: ModelSource = setting(
        ModelSource.SCRATCH,
        "Start from",
        "scratch: random weights; job: the model another job of this recipe exported, of the same sizes. Characters that it "
        "knows are taken over, new ones begin anew.",
    )
    channels: int = setting(
        32,
        "Channels",
        "Of the first convolution; the last has eight times as many. Half of it is a quarter of the work.",
        basic=True,
        ge=4,
        le=256,
    )
    reduction: int = setting(
        4,
        "Pixels per step",
        "Of the width: 2, 4 or 8. A text needs a step for each character and one more between two that are the same, so "
        "narrow letters need fewer pixels per step.",
        unit="pixels",
        ge=2,
        le=8,
    )
    cell: Cell = setting(Cell.LSTM, "Cell", "gru has three quarters of the weights of lstm.")
    hidden_size: int = setting(
        128, "Hidden size", "Width of a recurrent layer's state, in each direction.", basic=True, ge=1, le=4096
    )
    layers: int = setting(2, "Recurrent layers", "One on the other.", basic=True, ge=1, le=8)
    bidirectional: bool = setting(True, "Both directions", "A second set of cells reads the line from its end.")
    loss_per: LossPer = setting(
        LossPer.CHARACTER,
        "Loss per",
        "character: CTC's loss of a line is divided by the length of its text, so that long lines count no more than short "
        "ones; line: it is taken as it is, as PaddleOCR does.",
    )

    @model_validator(mode="after")
    def _complete(self) -> ModelSettings:
        if self.reduction not in (2, 4, 8):
            raise Misfit("There can be 2, 4 or 8 pixels per step, and not %(reduction)d.", reduction=self.reduction)
        return self


class AugmentationSettings(SettingsGroup):
    """Training lines are changed a little, anew at every step; evaluations see them as they are. 0 is off."""

    tilt: float = setting(
        0.1, "Tilt", "The ends of a line move up or down, by up to this share of its height.", ge=0, le=0.5
    )
    slant: float = setting(0.15, "Slant", "Letters lean, by up to this slope.", ge=0, le=1)
    scale: float = setting(0.08, "Scale", "Wider or narrower, higher or lower, by up to this share.", ge=0, le=0.5)
    light: float = setting(
        0.2, "Light", "Brighter or darker, with more or less contrast, by up to this share.", ge=0, lt=1
    )
    blur: float = setting(0.5, "Blur", "Share of a pixel that is spread over its neighbours, at most.", ge=0, le=1)
    noise: float = setting(0.03, "Noise", "Its standard deviation at most, where white is 1.", ge=0, le=0.5)


class RegularisationSettings(SettingsGroup):
    """Against learning the training rows by heart."""

    dropout: float = setting(
        0.1, "Dropout", "Share of a recurrent layer's outputs set to zero in training.", basic=True, ge=0, lt=1
    )


class LinesOptimizerSettings(OptimizerSettings):
    __doc__ = OptimizerSettings.__doc__
    learning_rate: float = other_default(OptimizerSettings, "learning_rate", 1e-3)


class LinesClippingSettings(ClippingSettings):
    __doc__ = ClippingSettings.__doc__
    max_norm: float | None = other_default(ClippingSettings, "max_norm", 5.0)


class TextLinesSettings(SettingsGroup):
    """Train a CRNN with CTC that reads the text on a picture of one line."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    optimizer: LinesOptimizerSettings = LinesOptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    clipping: LinesClippingSettings = LinesClippingSettings()
    precision: PrecisionSettings = PrecisionSettings()
    loss_scaling: LossScalingSettings = LossScalingSettings()
    augmentation: AugmentationSettings = AugmentationSettings()
    regularisation: RegularisationSettings = RegularisationSettings()
    limits: LimitSettings = LimitSettings()
    spikes: SpikeSettings = SpikeSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    early_stopping: EarlyStoppingSettings = EarlyStoppingSettings()
    monitoring: MonitoringSettings = MonitoringSettings()
    devices: DeviceSettings = DeviceSettings()
