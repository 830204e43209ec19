"""Rows of a prepared dataset: the texts as numbers, the lines as pixels of one height, and what cannot be learnt.

A row is {"id": "receipts/17.png", "image": [offset, bytes], "size": [width, height], "text": "17.50"}, and perhaps has a weight.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from workers.contract.states import EndReason
from workers.contract.texts import Text, clause
from workers.images import Images, NoPicture, Pixels, upright
from workers.recipes.text_lines.fitting import needed_steps, steps_of, width_at
from workers.recipes.text_lines.settings import TextLinesSettings
from workers.recipes.weights import weight_of
from workers.trainer.task import Floats, Rows, TrainingFailed

BLANK = 0  # the class of CTC that stands for no character
ROWS_NAMED = 5


@dataclass(frozen=True)
class Lines:
    """The rows of one split, without their pixels. `numbers`: of each row in its file, from 1."""

    numbers: Rows
    ids: list[str]
    places: list[tuple[int, int]]  # of the pictures in images.bin: offset and bytes
    sizes: list[tuple[int, int]]
    texts: list[str]
    weights: Floats

    def __len__(self) -> int:
        return len(self.ids)

    def without(self, left_out: set[int]) -> Lines:
        """Places in these lists, from 0."""
        kept = [i for i in range(len(self)) if i not in left_out]
        return Lines(
            self.numbers[kept],
            [self.ids[i] for i in kept],
            [self.places[i] for i in kept],
            [self.sizes[i] for i in kept],
            [self.texts[i] for i in kept],
            self.weights[kept],
        )


def read(path: Path, weight_column: str | None = None) -> Lines:
    """The rows of one split. BAD_DATA with the row (from 1) for what is missing or of the wrong kind."""
    ids: list[str] = []
    places: list[tuple[int, int]] = []
    sizes: list[tuple[int, int]] = []
    texts: list[str] = []
    weights: list[float] = []
    try:
        lines = path.open(encoding="utf-8")
    except FileNotFoundError:
        raise TrainingFailed(EndReason.BAD_DATA, Text("The dataset has no %(file)s.", file=path.name)) from None
    with lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                offset, size = map(int, row["image"])
                width, height = map(int, row["size"])
                text = row["text"]
                if not isinstance(text, str) or width < 1 or height < 1:
                    raise ValueError
            except (ValueError, KeyError, TypeError, AttributeError):
                raise TrainingFailed(
                    EndReason.BAD_DATA,
                    Text(
                        "Row %(row)d of %(file)s is not a picture with its text.",
                        row=number,
                        file=path.name,
                    ),
                ) from None
            ids.append(str(row.get("id", number)))
            places.append((offset, size))
            sizes.append((width, height))
            texts.append(text)
            weights.append(weight_of(row, weight_column, {"row": number, "file": path.name}))
    return Lines(np.arange(1, len(ids) + 1), ids, places, sizes, texts, np.array(weights, np.float64))


def characters(texts: Iterable[str]) -> list[str]:
    """All that occur, by their code; class 0 is CTC's blank, so the first of them is class 1."""
    return sorted(set().union(*texts))


def encoded(text: str, known: dict[str, int]) -> list[int]:
    """Classes of those characters that are known."""
    return [known[character] for character in text if character in known]


# --- what cannot be learnt -------------------------------------------------------------------


@dataclass(frozen=True)
class Impossible:
    """Of one split: places of rows without a text, and of those whose text needs more steps than there are."""

    empty: list[int]
    too_long: list[int]

    def __bool__(self) -> bool:
        return bool(self.empty or self.too_long)


def impossible(lines: Lines, settings: TextLinesSettings) -> Impossible:
    """CTC's kernels do not say so: they give a loss of exactly 0, or end the process by SIGFPE [measured]."""
    empty, too_long = [], []
    for i, text in enumerate(lines.texts):
        if not text:
            empty.append(i)
        elif needed_steps(text) > steps(lines.sizes[i], settings):
            too_long.append(i)
    return Impossible(empty, too_long)


def steps(size: tuple[int, int], settings: TextLinesSettings) -> int:
    width = width_at(size, settings.data.height, settings.data.max_width)
    return steps_of(width, settings.model.reduction)


def refusal(split: str, lines: Lines, found: Impossible, settings: TextLinesSettings) -> Text:
    """Why a split cannot be trained on, with its rows."""
    parts: list[Text] = []
    file = f"{split}.jsonl"
    if found.empty:
        parts.append(
            Text(
                "Rows of %(file)s without a text: %(count)d (%(rows)s).",
                count=len(found.empty),
                file=file,
                rows=_named(lines, found.empty),
            )
        )
    if found.too_long:
        first = found.too_long[0]
        parts.append(
            Text(
                "Rows of %(file)s with a text that needs more steps than the picture gives: %(count)d (%(rows)s). The "
                "first needs %(needed)d, and there are %(steps)d.",
                count=len(found.too_long),
                file=file,
                rows=_named(lines, found.too_long),
                needed=needed_steps(lines.texts[first]),
                steps=steps(lines.sizes[first], settings),
            )
        )
    return Text.joined(*parts)


def _named(lines: Lines, places: list[int]) -> str:
    named = ", ".join(f"{lines.numbers[i]} = {lines.ids[i]}" for i in places[:ROWS_NAMED])
    return named + (" …" if len(places) > ROWS_NAMED else "")


# --- pixels ----------------------------------------------------------------------------------


def scaled(picture: Image.Image, height: int, max_width: int, *, colour: bool) -> Pixels:
    """An upright picture as uint8 [1 or 3, height, width]."""
    picture = picture.convert("RGB" if colour else "L")
    size = (width_at(picture.size, height, max_width), height)
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)  # averages where it gets smaller
    pixels = np.asarray(picture)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)) if colour else pixels[None]


class Pictures:
    """The lines of all splits. Each is decoded when it is first asked for, and then kept as long as there is room."""

    def __init__(self, folder: Path, splits: dict[Any, Lines], settings: TextLinesSettings) -> None:
        self.splits, self.settings = splits, settings.data
        try:
            self._images = Images(folder)
        except (OSError, ValueError):
            raise TrainingFailed(EndReason.BAD_DATA, Text("The dataset has no pictures.")) from None
        self._room = int(self.settings.cache_gib * 2**30)
        self._kept: dict[tuple[Any, int], Pixels] = {}

    def of(self, split: Any, row: int) -> Pixels:
        """uint8 [1 or 3, height, width]. BAD_DATA with the row (from 1) if it cannot be decoded."""
        pixels = self._kept.get((split, row))
        if pixels is None:
            pixels = self._decoded(split, row)
            if pixels.nbytes <= self._room:
                self._room -= pixels.nbytes
                self._kept[split, row] = pixels
        return pixels

    def _decoded(self, split: Any, row: int) -> Pixels:
        lines, settings = self.splits[split], self.settings
        try:
            picture = upright(self._images.read(*lines.places[row]))
            return scaled(picture, settings.height, settings.max_width, colour=settings.colour)
        except (NoPicture, ValueError) as error:
            problem = Text(
                "The picture of row %(row)d of %(file)s cannot be decoded: %(problem)s.",
                row=int(lines.numbers[row]),
                file=f"{split}.jsonl",
                problem=clause(str(error)[:300]),
            )
            raise TrainingFailed(EndReason.BAD_DATA, problem) from None


def side_by_side(pictures: list[Pixels]) -> tuple[Pixels, Rows]:
    """uint8 [n, 1 or 3, height, widest] with zeros after the end of each, and the widths [n]."""
    widths = np.array([pixels.shape[2] for pixels in pictures], np.int64)
    channels, height, _ = pictures[0].shape
    together: Pixels = np.zeros((len(pictures), channels, height, int(widths.max())), np.uint8)
    for i, pixels in enumerate(pictures):
        together[i, :, :, : widths[i]] = pixels
    return together, widths


def padded(labels: list[list[int]]) -> tuple[npt.NDArray[np.int32], Rows]:
    """int32 [n, longest, at least 1] with blanks after the end of each, and the lengths [n]."""
    lengths = np.array([len(label) for label in labels], np.int64)
    together = np.full((len(labels), max(int(lengths.max()), 1)), BLANK, np.int32)
    for i, label in enumerate(labels):
        together[i, : len(label)] = label
    return together, lengths
