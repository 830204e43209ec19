"""One tiny run of every recipe: the files of its dataset, and settings with which a step takes a few milliseconds.

Who adds a recipe adds a line to EXAMPLES; the tests of what every recipe must do then run with it.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GOOD, BAD, OTHER = (
    "好喜欢美妙",
    "坏讨厌丑差",
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经",
)
LARGE = 1000.0


@dataclass(frozen=True)
class Example:
    write: Callable[[Path], None]  # the prepared dataset, into a folder that need not be there yet
    settings: dict[str, dict[str, Any]]
    labels: tuple[str, ...] = ("neg", "pos")
    # What is left to chance in a step: dropout, augmentation. Resuming must bring that back too.
    chance: dict[str, dict[str, Any]] = field(default_factory=lambda: {"regularisation": {"dropout": 0.2}})


def write_texts(folder: Path, train: int = 64, dev: int = 21, **columns: dict[int, Any]) -> None:
    """Rows whose label follows from the characters. `columns`: name -> {training row, from 1: value}; all others get 1.0."""

    def row(draw: random.Random, split: str, number: int) -> dict[str, Any]:
        label = draw.choice(["neg", "pos"])
        words = draw.choices(OTHER, k=draw.randint(2, 10)) + draw.choices(GOOD if label == "pos" else BAD, k=2)
        draw.shuffle(words)
        more = {name: values.get(number, 1.0) if split == "train" else 1.0 for name, values in columns.items()}
        return {"text": "".join(words), "label": label, **more}

    _write(folder, train, dev, row)


def write_numbers(folder: Path, train: int = 96, dev: int = 21) -> None:
    """The number is a thousand and how many good characters there are."""

    def row(draw: random.Random, split: str, number: int) -> dict[str, Any]:
        good = draw.randint(0, 5)
        words = draw.choices(OTHER, k=draw.randint(1, 6)) + draw.choices(GOOD, k=good)
        draw.shuffle(words)
        return {"text": "".join(words), "label": LARGE + good}

    _write(folder, train, dev, row)


def write_tokens(folder: Path, train: int = 96, dev: int = 21) -> None:
    """Characters of which the good and the bad ones are spans, one after the other; longer rows are cut."""

    def row(draw: random.Random, split: str, number: int) -> dict[str, Any]:
        tokens: list[str] = []
        tags: list[str] = []
        for _ in range(draw.randint(1, 6)):
            kind, of = draw.choice([("O", OTHER), ("GOOD", GOOD), ("BAD", BAD)])
            found = draw.choices(of, k=draw.randint(1, 3))
            tokens += found
            tags += ["O"] * len(found) if kind == "O" else [f"B-{kind}"] + [f"I-{kind}"] * (len(found) - 1)
        return {"tokens": tokens, "tags": tags}

    _write(folder, train, dev, row)


def write_sequences(folder: Path, train: int = 64, dev: int = 21, label: bool = False, steps: int = 20) -> None:
    """Sequences of different lengths whose target is the mean of the last three of “x”; the label says whether it is high."""

    def row(draw: random.Random, split: str, number: int) -> dict[str, Any]:
        x = [draw.lognormvariate(3, 1) for _ in range(draw.randint(3, steps))]
        mean = sum(x[-3:]) / 3
        found: dict[str, Any] = {"id": f"s{number}", "features": {"x": x, "same": [5.0] * len(x)}}
        return found | ({"label": "neg" if mean < 25 else "pos"} if label else {"target": mean})

    _write(folder, train, dev, row)


def write_pictures(folder: Path, train: int = 64, dev: int = 21) -> None:
    """Small pictures of several shapes, noisy, the left or the right half darker."""
    import numpy as np
    from PIL import Image

    from workers.images import write_folder

    draw = np.random.Generator(np.random.PCG64(7))

    def row(split: str, number: int) -> tuple[str, bytes, dict[str, str]]:
        label = str(draw.choice(["neg", "pos"]))
        height, width = draw.integers(8, 14, 2)
        pixels = draw.integers(90, 166, (height, width, 3))
        half = slice(None, width // 2) if label == "neg" else slice(width // 2, None)
        pixels[:, half] -= 80
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
        return f"{split}{number}.png", file.getvalue(), {"label": label}

    folder.mkdir(parents=True, exist_ok=True)
    write_folder(
        folder,
        {split: [row(split, number) for number in range(count)] for split, count in (("train", train), ("dev", dev))},
    )


# Of a character: which of four rows of a column are dark, for two columns.
GLYPHS = {"a": (1, 0), "b": (3, 1), "c": (0, 2), "d": (2, 3), "e": (0, 1), "f": (2, 0)}


def glyphs(text: str, side: int = 4) -> Any:
    """uint8 [4 × side, about 3 × side a character]: each character is two dark squares one after the other, then a gap."""
    import numpy as np

    pixels = np.full((4 * side, 3 * side * len(text) + side), 220, np.uint8)
    for i, character in enumerate(text):
        for column, row in enumerate(GLYPHS[character]):
            x, y = side * (3 * i + column) + side // 2, side * row
            pixels[y : y + side, x : x + side] = 30
    return pixels


def write_lines(folder: Path, train: int = 64, dev: int = 21, said: dict[str, dict[int, str]] | None = None) -> None:
    """Pictures of one to five characters. `said`: split -> {row, from 1: what is said to stand there}."""
    from PIL import Image

    from workers.images import write_folder

    draw = random.Random(7)

    def row(split: str, number: int) -> tuple[str, bytes, dict[str, str]]:
        text = "".join(draw.choices("".join(GLYPHS), k=draw.randint(1, 5)))
        file = io.BytesIO()
        Image.fromarray(glyphs(text, draw.choice([3, 4, 5]))).save(file, "PNG")
        return f"{split}{number}.png", file.getvalue(), {"text": (said or {}).get(split, {}).get(number, text)}

    folder.mkdir(parents=True, exist_ok=True)
    write_folder(
        folder,
        {
            split: [row(split, number) for number in range(1, count + 1)]
            for split, count in (("train", train), ("dev", dev))
        },
    )


def _write(folder: Path, train: int, dev: int, row: Callable[[random.Random, str, int], dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(7)
    for split, count in (("train", train), ("dev", dev)):
        lines: Iterator[str] = (
            json.dumps(row(draw, split, number), ensure_ascii=False) + "\n" for number in range(1, count + 1)
        )
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")


_TEXTS: dict[str, dict[str, Any]] = {
    "model": {"hidden_size": 16, "layers": 1, "heads": 2, "vocabulary_size": 100},
    "data": {"max_length": 16},
    "training": {"batch_size": 4, "max_steps": 8, "epochs": 50},
    "optimizer": {"learning_rate": 1e-3},
}

EXAMPLES: dict[str, Example] = {
    "text_classification": Example(write_texts, _TEXTS),
    "text_regression": Example(write_numbers, _TEXTS),
    "token_classification": Example(
        write_tokens, {**_TEXTS, "data": {"max_length": 12}}, labels=("O", "B-BAD", "I-BAD", "B-GOOD", "I-GOOD")
    ),
    "sequences": Example(
        write_sequences,
        {
            "model": {"hidden_size": 8},
            "data": {"max_length": 16},
            "training": {"batch_size": 4, "max_steps": 8, "epochs": 50},
            "optimizer": {"learning_rate": 1e-2},
        },
        chance={"model": {"hidden_size": 8, "layers": 2, "linear_steps": 5}, "regularisation": {"dropout": 0.3}},
    ),
    "image_classification": Example(
        write_pictures,
        {
            "model": {"width": 8},
            "data": {"size": 8},
            "training": {"batch_size": 4, "max_steps": 8, "epochs": 50},
            "optimizer": {"learning_rate": 3e-3},
        },
        chance={
            "regularisation": {"dropout": 0.2, "drop_path": 0.2},
            "augmentation": {"rotation": 10.0, "brightness": 0.2, "contrast": 0.2, "erasing": 0.3, "mixup": 0.2},
            # BatchNorm over a few pictures has steep gradients: the loss scale has far to fall.
            "limits": {"skip_limit": 60},
        },
    ),
    "text_lines": Example(
        write_lines,
        {
            "data": {"height": 16},
            "model": {"channels": 4, "hidden_size": 8, "layers": 1},
            "training": {"batch_size": 4, "max_steps": 8, "epochs": 50},
            "optimizer": {"learning_rate": 1e-2},
        },
    ),
}
