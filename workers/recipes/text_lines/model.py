"""CRNN: convolutions, recurrent layers over the columns, and linear layers from both to the characters and CTC's blank."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from safetensors.numpy import load_file

from workers.contract.states import EndReason
from workers.contract.texts import Text, clause
from workers.recipes.text_lines.settings import Cell, TextLinesSettings
from workers.trainer.task import TrainingFailed

WEIGHTS, CONFIGURATION, CHARACTERS = "model.safetensors", "config.json", "characters.txt"
HALVINGS = 4  # of the height
PER_CHARACTER = ("head.", "shortcut.")  # layers with a column for each character


@dataclass(frozen=True)
class Configuration:
    """All that is needed to build the model again; `config.json` of an exported one, with the characters in their file."""

    height: int
    max_width: int
    colour: bool
    channels: int
    reduction: int
    cell: str
    hidden_size: int
    layers: int
    bidirectional: bool

    @classmethod
    def of(cls, settings: TextLinesSettings) -> Configuration:
        data, model = settings.data, settings.model
        return cls(
            height=data.height,
            max_width=data.max_width,
            colour=data.colour,
            channels=model.channels,
            reduction=model.reduction,
            cell=str(model.cell),
            hidden_size=model.hidden_size,
            layers=model.layers,
            bidirectional=model.bidirectional,
        )

    def dump(self) -> dict[str, Any]:
        return asdict(self)


class Convolution(paddle.nn.Layer):  # type: ignore[misc]
    """3 × 3, BatchNorm, ReLU; then the greatest of `down` rows and `across` columns. What lies beyond a line's width stays
    zero, as it is beyond the edge of a line that stands alone."""

    def __init__(self, inputs: int, outputs: int, down: int, across: int) -> None:
        super().__init__()
        self.conv = paddle.nn.Conv2D(inputs, outputs, 3, padding=1, bias_attr=False)
        self.norm = paddle.nn.BatchNorm2D(outputs)
        self.pool = (down, across)

    def forward(self, x: Any, widths: Any) -> tuple[Any, Any]:
        x = F.relu(self.norm(self.conv(x))) * within(x, widths)
        if self.pool == (1, 1):
            return x, widths
        # After a ReLU the zeros beyond the edge are never the greatest.
        x = F.max_pool2d(x, self.pool, self.pool, ceil_mode=True)
        return x, (widths + 1) // 2 if self.pool[1] == 2 else widths


def within(x: Any, widths: Any) -> Any:
    """[n, 1, 1, width of x]: 1 where a column belongs to the line."""
    inside = paddle.arange(x.shape[3], dtype="int64") < widths.unsqueeze(-1)
    return inside.astype(x.dtype).unsqueeze(1).unsqueeze(1)


class LineReader(paddle.nn.Layer):  # type: ignore[misc]
    """pictures [n, 1 or 3, height, width] from 0 (black) to 255 and widths [n], int64, to logits [n, steps, classes], of which
    class 0 is the blank, and how many steps of each count [n]. What stands after a line's width is never looked at."""

    def __init__(self, configuration: Configuration, characters: list[str], dropout: float = 0.0) -> None:
        super().__init__()
        self.configuration, self.characters = configuration, characters
        c, across = configuration.channels, [2] * (configuration.reduction.bit_length() - 1)
        across += [1] * (HALVINGS - len(across))
        sizes = [3 if configuration.colour else 1, c, 2 * c, 4 * c, 4 * c, 8 * c]
        pools = [(2, across[0]), (2, across[1]), (1, 1), (2, across[2]), (2, across[3])]
        self.convolutions = paddle.nn.LayerList(
            [Convolution(a, b, *pool) for a, b, pool in zip(sizes, sizes[1:], pools, strict=False)]
        )
        high = configuration.height
        for _ in range(HALVINGS):
            high = (high + 1) // 2
        width, directions = 8 * c * high, 1 + configuration.bidirectional
        kind = paddle.nn.LSTM if configuration.cell == Cell.LSTM else paddle.nn.GRU
        direction = "bidirect" if configuration.bidirectional else "forward"
        size = configuration.hidden_size
        # One by one, so that each has a gradient norm of its own.
        self.recurrent = paddle.nn.LayerList(
            [
                kind(width if i == 0 else directions * size, size, direction=direction)
                for i in range(configuration.layers)
            ]
        )
        self.dropout = paddle.nn.Dropout(dropout)
        self.head = paddle.nn.Linear(directions * size, 1 + len(characters))
        # Past the recurrent layers (Retsinas et al. 2022, “CTC shortcut”): the convolutions learn letters at once, and the
        # plateau at which everything is a blank is left after some 60 steps instead of several hundred [measured].
        self.shortcut = paddle.nn.Linear(width, 1 + len(characters))

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Each weight once: Paddle's recurrent layers list theirs under two names, of which the first stays."""
        tensors: dict[int, tuple[str, Any]] = {}
        for name, tensor in super().state_dict(*args, **options).items():
            tensors.setdefault(id(tensor), (name, tensor))
        return dict(tensors.values())

    def forward(self, pictures: Any, widths: Any) -> tuple[Any, Any]:
        x = (pictures / 127.5 - 1.0) * within(pictures, widths)
        for convolution in self.convolutions:
            x, widths = convolution(x, widths)
        # [n, channels, rows, columns] to a vector per column.
        x = columns = x.transpose([0, 3, 1, 2]).flatten(2)
        for layer in self.recurrent:
            x, _ = layer(x, sequence_length=widths)
            x = self.dropout(x)
        return self.head(x) + self.shortcut(columns), widths


class Probabilities(paddle.nn.Layer):  # type: ignore[misc]
    """The model as it is exported: what is likely at each step."""

    def __init__(self, model: LineReader) -> None:
        super().__init__()
        self.model = model

    def forward(self, pictures: Any, widths: Any) -> tuple[Any, Any]:
        logits, steps = self.model(pictures, widths)
        return F.softmax(logits, axis=-1), steps


def build(configuration: Configuration, characters: list[str], dropout: float, exported: Path | None) -> LineReader:
    """With random weights, or those of the folder `exported`; the rows of characters that it does not know stay random."""
    model = LineReader(configuration, characters, dropout)
    if exported is None:
        return model
    try:
        weights = load_file(exported / WEIGHTS)
        known = read_characters(exported)
    except (OSError, ValueError) as error:
        raise TrainingFailed(
            EndReason.MODEL_UNAVAILABLE,
            Text("The exported model cannot be read: %(problem)s.", problem=clause(str(error))),
        ) from None
    places = {character: i for i, character in enumerate(known, 1)}
    # Class 0 is the blank in both.
    pairs = [(0, 0)] + [(i, places[one]) for i, one in enumerate(characters, 1) if one in places]
    here, there = map(list, zip(*pairs, strict=True))
    own = model.state_dict()
    for name, tensor in own.items():
        value = weights.get(name)
        if value is not None and name.startswith(PER_CHARACTER) and value.shape[:-1] == tuple(tensor.shape[:-1]):
            mixed = tensor.numpy()
            mixed[..., here] = value[..., there]
            value = mixed
        if value is None or list(value.shape) != list(tensor.shape):
            raise TrainingFailed(
                EndReason.BAD_SETTINGS,
                Text(
                    "The exported model does not fit: “%(name)s” is %(there)s there and %(here)s here. Give height, colour, "
                    "channels, cell, sizes and layers the values of that job.",
                    name=name,
                    there="—" if value is None else str(list(value.shape)),
                    here=str(list(tensor.shape)),
                ),
            )
        tensor.set_value(value)
    return model


def write_characters(folder: Path, characters: list[str]) -> None:
    """One in each line, in the order of the classes after the blank, as PaddleOCR's dictionaries."""
    (folder / CHARACTERS).write_bytes("".join(f"{one}\n" for one in characters).encode())


def read_characters(folder: Path) -> list[str]:
    return (folder / CHARACTERS).read_bytes().decode().split("\n")[:-1]


def read_configuration(folder: Path) -> Configuration:
    return Configuration(**json.loads((folder / CONFIGURATION).read_text(encoding="utf-8")))


def arrays_of(model: LineReader) -> dict[str, Any]:
    return {name: np.array(tensor.numpy()) for name, tensor in model.state_dict().items()}
