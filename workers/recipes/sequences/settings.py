"""Settings of the recipe for numeric sequences, and nothing that needs Paddle."""

from __future__ import annotations

from workers.contract.choices import Choice
from workers.contract.fields import SettingsGroup, other_default, setting
from workers.contract.training import (
    ClippingSettings,
    ModelSource,
    OptimizerSettings,
    RecipeSettings,
    StartSettings,
    label_smoothing_setting,
    weight_column_setting,
)


class Goal(Choice):
    REGRESSION = "regression"
    CLASSIFICATION = "classification"
    NEXT_VALUE = "next_value"


class Scaling(Choice):
    ROBUST = "robust"
    ZSCORE = "zscore"
    NONE = "none"


class Cell(Choice):
    LSTM = "lstm"
    GRU = "gru"


class Loss(Choice):
    SQUARED = "squared"
    ABSOLUTE = "absolute"
    HUBER = "huber"


class DataSettings(SettingsGroup):
    """What is read of each sequence, and what the model is to say about it."""

    goal: Goal = setting(
        Goal.REGRESSION,
        "Predict",
        "regression: the number that belongs to a sequence; classification: its label; next_value: what a feature will be "
        "at the next time step.",
        basic=True,
    )
    features: str | None = setting(
        None,
        "Features",
        "Names of the features that the model reads, with commas between. Empty: all of the dataset.",
        basic=True,
        max_length=2000,
    )
    next_of: str | None = setting(
        None,
        "Feature to predict",
        "For “next_value”: which one, of the dataset's. Empty: the first of those that are read.",
        basic=True,
        max_length=100,
        only="goal=next_value",
    )
    next_every: int | None = setting(
        None,
        "Predict every",
        "For “next_value”: a sample ends at every so-manieth time step of a sequence. Empty: one sample per sequence, whose "
        "last time step is predicted from those before.",
        unit="time steps",
        ge=1,
        le=1_000_000,
        only="goal=next_value",
    )
    max_length: int = setting(
        512,
        "Longest sequence",
        "Time steps that the model reads; of longer sequences the oldest are left out.",
        unit="time steps",
        basic=True,
        ge=1,
        le=100_000,
    )
    normalisation: Scaling = setting(
        Scaling.ROBUST,
        "Normalisation",
        "Of every feature, and of the number that is predicted, by the training rows. robust: minus the median, over the "
        "spread of the middle half, which rare, huge values do not move; zscore: minus the mean, over the standard "
        "deviation; none: raw. Part of the exported model, which reads and gives raw numbers.",
        basic=True,
    )
    weight_column: str | None = weight_column_setting()


class ModelSettings(StartSettings):
    """Recurrent layers; the last one's state after the last time step goes through one linear layer. Beside them, if wanted,
    a linear path from the newest time steps to the output."""

    source: ModelSource = setting(
        ModelSource.SCRATCH,
        "Start from",
        "scratch: random weights; job: the model another job of this recipe exported, which must have the same sizes.",
    )
    cell: Cell = setting(Cell.LSTM, "Cell", "gru has three quarters of the weights of lstm.", basic=True)
    hidden_size: int = setting(
        64, "Hidden size", "Width of a layer's state, in each direction.", basic=True, ge=1, le=4096
    )
    layers: int = setting(1, "Layers", "Recurrent layers, one on the other.", basic=True, ge=1, le=16)
    bidirectional: bool = setting(
        False, "Both directions", "A second set of cells reads the sequence backwards; twice the weights."
    )
    open_forget_gate: bool = setting(
        True,
        "Open forget gate",
        "lstm only: the forget gate's bias begins at 1, so that the state is kept until training says otherwise "
        "(Jozefowicz et al. 2015). Off: it begins near 0.",
        only="cell=lstm",
    )
    linear_steps: int = setting(
        0,
        "Linear path",
        "So many of the newest time steps also go straight to the output, beside the recurrent layers, through weights that "
        "begin at 0: the state of a cell is never beyond 1, so that it hardly follows values far from the usual (as in LSTNet, "
        "Lai et al. 2018). Where a sequence has fewer, the rest count as usual values. 0: none.",
        unit="time steps",
        ge=0,
        le=1000,
    )
    loss: Loss = setting(
        Loss.SQUARED,
        "Loss",
        "Of numbers: squared and absolute error, or huber: squared up to 1 and absolute beyond, so that outliers pull less. "
        "In units of the normalised target.",
        basic=True,
    )


class RegularisationSettings(SettingsGroup):
    """Against learning the training rows by heart."""

    dropout: float = setting(
        0.0, "Dropout", "Share of a layer's outputs set to zero in training, after each recurrent layer.",
        basic=True, ge=0, lt=1,
    )  # fmt: skip
    label_smoothing: float = label_smoothing_setting()


class RecurrentOptimizerSettings(OptimizerSettings):
    __doc__ = OptimizerSettings.__doc__
    learning_rate: float = other_default(OptimizerSettings, "learning_rate", 3e-3)


class RecurrentClippingSettings(ClippingSettings):
    __doc__ = ClippingSettings.__doc__
    max_norm: float | None = other_default(ClippingSettings, "max_norm", 5.0)


class SequencesSettings(RecipeSettings):
    """Train an LSTM or GRU that says a number, a label or the next value of each sequence."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    optimizer: RecurrentOptimizerSettings = RecurrentOptimizerSettings()
    clipping: RecurrentClippingSettings = RecurrentClippingSettings()
    regularisation: RegularisationSettings = RegularisationSettings()
