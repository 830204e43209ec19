"""Recurrent layers and a linear one, for sequences of different lengths."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from safetensors.numpy import load_file

from workers.contract.states import EndReason
from workers.contract.texts import Text, clause
from workers.recipes.sequences.data import Normalisation
from workers.recipes.sequences.settings import Cell, Goal, ModelSettings
from workers.trainer.task import TrainingFailed

# Of the linear path, times the others': its weights have farther to go, and until they are there, a huge value in a time step
# that does not matter moves the output as far.
PATH_RATE = 3.0
WEIGHTS, CONFIGURATION = "model.safetensors", "config.json"


@dataclass(frozen=True)
class Configuration:
    """All that is needed to build the model again; `config.json` of an exported one."""

    goal: str
    features: list[str]
    cell: str
    hidden_size: int
    layers: int
    bidirectional: bool
    max_length: int
    normalisation: Normalisation
    labels: list[str] = field(default_factory=list)
    predicts: str = ""  # a feature, for next values
    linear_steps: int = 0

    def dump(self) -> dict[str, Any]:
        return asdict(self)


class Recurrent(paddle.nn.Layer):  # type: ignore[misc]
    """values [samples, steps, features] and lengths [samples] to logits [samples, labels], or to [samples]: a number in
    units of the normalised target. Values are raw; the normalisation is part of the model. What stands after a
    sample's length is never looked at. With `linear_steps`, what those of the newest time steps give in a LinearPath is added."""

    constants = ("shift", "scale")

    def __init__(self, configuration: Configuration, dropout: float = 0.0, open_forget_gate: bool = False) -> None:
        super().__init__()
        self.configuration = configuration
        self.numbers = configuration.goal != Goal.CLASSIFICATION
        self.lstm = configuration.cell == Cell.LSTM
        self.directions = 2 if configuration.bidirectional else 1
        normalisation = configuration.normalisation
        self.register_buffer("shift", paddle.to_tensor(np.array(normalisation.shift, np.float32)))
        self.register_buffer("scale", paddle.to_tensor(np.array(normalisation.scale, np.float32)))
        size = configuration.hidden_size
        self.rnn = (paddle.nn.LSTM if self.lstm else paddle.nn.GRU)(
            len(configuration.features),
            size,
            num_layers=configuration.layers,
            direction="bidirect" if configuration.bidirectional else "forward",
            dropout=dropout if configuration.layers > 1 else 0.0,
        )
        self.dropout = paddle.nn.Dropout(dropout)
        outputs = 1 if self.numbers else len(configuration.labels)
        self.head = paddle.nn.Linear(size * self.directions, outputs)
        steps = configuration.linear_steps
        self.linear_path = LinearPath(steps, len(configuration.features), outputs) if steps else None
        if self.lstm and open_forget_gate:
            _open_forget_gates(self.rnn, size)

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Each weight once: Paddle's recurrent layers list theirs under two names, of which the first stays."""
        tensors: dict[int, tuple[str, Any]] = {}
        for name, tensor in super().state_dict(*args, **options).items():
            tensors.setdefault(id(tensor), (name, tensor))
        return dict(tensors.values())

    def forward(self, values: Any, lengths: Any) -> Any:
        values = (values - self.shift) / self.scale
        _, state = self.rnn(values, sequence_length=lengths)
        hidden = state[0] if self.lstm else state  # [layers × directions, samples, size]
        last = hidden[-1] if self.directions == 1 else paddle.concat([hidden[-2], hidden[-1]], axis=-1)
        said = self.head(self.dropout(last))
        if self.linear_path is not None:
            said = said + self.linear_path(values, lengths)
        return said.squeeze(-1) if self.numbers else said


class LinearPath(paddle.nn.Layer):  # type: ignore[misc]
    """Normalised values [samples, steps, features] and lengths [samples] to [samples, outputs], linear in the newest
    `steps` of each sample; steps that it does not have are 0. The autoregressive part of LSTNet (Lai et al. 2018, section 3.6),
    here over all features. It begins at 0: the model is then the one without it."""

    def __init__(self, steps: int, features: int, outputs: int) -> None:
        super().__init__()
        self.steps = steps
        # Rows in the order of the data: oldest step first, of each all features.
        begins, rate = paddle.nn.initializer.Constant(0.0), PATH_RATE
        attributes = paddle.ParamAttr(initializer=begins, learning_rate=rate)
        self.weight = self.create_parameter([steps * features, outputs], attr=attributes)

    def forward(self, values: Any, lengths: Any) -> Any:
        at = lengths.unsqueeze(-1) - self.steps + paddle.arange(self.steps)  # [samples, steps]
        newest = paddle.take_along_axis(values, at.clip(min=0).unsqueeze(-1), axis=1)
        newest = paddle.where((at >= 0).unsqueeze(-1), newest, paddle.zeros_like(newest))
        # No matrix product, which level O1 does in half precision: values are far from the usual here, beyond 65504 they are
        # infinite in fp16, and infinity times a weight of 0 is NaN.
        return (newest.flatten(1).unsqueeze(-1) * self.weight).sum(axis=1)


class RawUnits(paddle.nn.Layer):  # type: ignore[misc]
    """The model as it is exported: numbers come out in the units of the data."""

    def __init__(self, model: Recurrent) -> None:
        super().__init__()
        self.model = model
        self.numbers = model.numbers
        normalisation = model.configuration.normalisation
        self.shift, self.factor = normalisation.target_shift, normalisation.target_scale

    def forward(self, values: Any, lengths: Any) -> Any:
        said = self.model(values, lengths)
        return said * self.factor + self.shift if self.numbers else said


def build(configuration: Configuration, settings: ModelSettings, dropout: float, exported: Path | None) -> Recurrent:
    """With random weights, or those of the folder `exported`. The normalisation is this dataset's own in either case."""
    model = Recurrent(configuration, dropout, settings.open_forget_gate)
    if exported is None:
        return model
    own = model.state_dict()
    try:
        weights = load_file(exported / WEIGHTS)
    except OSError as error:
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text("The exported model cannot be read: %(problem)s.", problem=clause(str(error))),
        ) from None
    for name in sorted((own.keys() | weights.keys()) - {"shift", "scale"}):
        there, here = (list(of[name].shape) if name in of else None for of in (weights, own))
        if there != here:
            raise TrainingFailed(
                EndReason.BAD_SETTINGS,
                Text(
                    "The model of job %(job)d does not fit: “%(name)s” is %(there)s there and %(here)s here. Give cell, sizes, "
                    "features and labels the values of that job.",
                    job=settings.job,
                    name=name,
                    there=str(there),
                    here=str(here),
                ),
            )
        own[name].set_value(weights[name])
    return model


def _open_forget_gates(rnn: Any, size: int) -> None:
    """Gates lie in the order input, forget, cell, output; of the two biases one is enough."""
    for name, bias in rnn.named_parameters():
        if name.startswith("bias_ih"):
            value = bias.numpy()
            value[size : 2 * size] = 1.0
            bias.set_value(value)
        elif name.startswith("bias_hh"):
            value = bias.numpy()
            value[size : 2 * size] = 0.0
            bias.set_value(value)
