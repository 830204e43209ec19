"""Rows and pictures of a prepared dataset: decoded by threads, brought to one size, and kept where there is room."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from workers.contract.states import EndReason
from workers.contract.texts import Text, clause
from workers.images import Images, NoPicture, Pixels, upright
from workers.recipes.image_classification.settings import Fit
from workers.recipes.weights import weight_of
from workers.trainer.task import Floats, Rows, TrainingFailed

# Enough for a mean and a deviation of each colour.
MEASURED_ROWS = 2000
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
# A colour that never changes stays what it is.
LEAST_DEVIATION = 1e-3


@dataclass(frozen=True)
class Split:
    """The rows of one split, without their pixels."""

    ids: list[str]
    places: list[tuple[int, int]]  # of the pictures in images.bin: offset and bytes
    labels: Rows  # indices into the dataset's labels
    weights: Floats

    def __len__(self) -> int:
        return len(self.ids)


def read(path: Path, labels: list[str], weight_column: str | None = None) -> Split:
    """The rows of one split. BAD_DATA with the row (from 1) for what is missing or of the wrong kind."""
    index = {label: i for i, label in enumerate(labels)}
    ids: list[str] = []
    places: list[tuple[int, int]] = []
    classes: list[int] = []
    weights: list[float] = []
    try:
        lines = path.open(encoding="utf-8")
    except FileNotFoundError:
        raise TrainingFailed(EndReason.BAD_DATA, Text("The dataset has no %(file)s.", file=path.name)) from None
    with lines:
        for number, line in enumerate(lines, 1):
            where: dict[str, Any] = {"row": number, "file": path.name}
            try:
                row = json.loads(line)
                offset, size = map(int, row["image"])
                label = str(row["label"])
            except (ValueError, KeyError, TypeError):
                raise TrainingFailed(
                    EndReason.BAD_DATA, Text("Row %(row)d of %(file)s is not a picture with a label.", **where)
                ) from None
            if label not in index:
                problem = Text(
                    "Row %(row)d of %(file)s has the label “%(label)s”, not one of: %(labels)s.",
                    label=label,
                    labels=", ".join(labels[:50]),
                    **where,
                )
                raise TrainingFailed(EndReason.BAD_DATA, problem)
            ids.append(str(row.get("id", number)))
            places.append((offset, size))
            classes.append(index[label])
            weights.append(weight_of(row, weight_column, where))
    return Split(ids, places, np.array(classes, np.int64), np.array(weights, np.float64))


# --- pixels --------------------------------------------------------------------------------


def square(data: bytes, size: int, fit: Fit) -> Pixels:
    """A picture file as uint8 [size, size, 3]; larger ones are averaged, not thinned out. Raises NoPicture."""
    picture = upright(data).convert("RGB")
    if fit is Fit.CROP:
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    elif fit is Fit.PAD:
        picture = ImageOps.pad(picture, (size, size), Image.Resampling.BILINEAR, color=0)
    else:
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture)


class Pictures:
    """All pictures of a dataset as squares. Each is decoded when it is first asked for, and then kept if all fit."""

    def __init__(
        self, folder: Path, splits: dict[Any, Split], size: int, fit: Fit, cache_gib: float, threads: int
    ) -> None:
        self.size, self.fit, self.splits = size, fit, splits
        try:
            self._images = Images(folder)
        except (OSError, ValueError):
            raise TrainingFailed(EndReason.BAD_DATA, Text("The dataset has no pictures.")) from None
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decoder")
        self.bytes = sum(map(len, splits.values())) * size * size * 3
        self.kept = self.bytes <= cache_gib * 2**30
        # Pages of it take memory once they are written.
        self._cache = {
            name: np.zeros((len(split), size, size, 3), np.uint8) for name, split in splits.items() if self.kept
        }
        self._there = {name: np.zeros(len(split), bool) for name, split in splits.items()}

    def of(self, name: Any, rows: Rows) -> Pixels:
        """uint8 [rows, size, size, 3]. BAD_DATA with the row (from 1) if one cannot be decoded."""
        if not self.kept:
            return np.stack(list(self._decoded(name, rows.tolist())))
        cache, there = self._cache[name], self._there[name]
        missing = np.unique(rows[~there[rows]]).tolist()
        for row, pixels in zip(missing, self._decoded(name, missing), strict=True):
            cache[row] = pixels
            there[row] = True
        return cache[rows]

    def _decoded(self, name: Any, rows: list[int]) -> Iterable[Pixels]:
        split = self.splits[name]

        def one(row: int) -> Pixels:
            try:
                return square(self._images.read(*split.places[row]), self.size, self.fit)
            except (NoPicture, ValueError) as error:
                problem = Text(
                    "The picture of row %(row)d of %(file)s cannot be decoded: %(problem)s.",
                    row=row + 1,
                    file=f"{name}.jsonl",
                    problem=clause(str(error)[:300]),
                )
                raise TrainingFailed(EndReason.BAD_DATA, problem) from None

        return self._threads.map(one, rows)

    def measured(self, name: Any = "train") -> tuple[list[float], list[float]]:
        """Mean and deviation of each colour, from 0 to 1, over MEASURED_ROWS evenly chosen pictures."""
        count = len(self.splits[name])
        rows = np.unique(np.linspace(0, count - 1, min(count, MEASURED_ROWS)).astype(np.int64))
        total, squares = np.zeros(3), np.zeros(3)
        for start in range(0, len(rows), 64):
            pixels = self.of(name, rows[start : start + 64]).reshape(-1, 3).astype(np.float64) / 255
            total += pixels.sum(axis=0)
            squares += (pixels**2).sum(axis=0)
        number = len(rows) * self.size**2
        mean = total / number
        deviation = np.sqrt(np.maximum(squares / number - mean**2, 0.0))
        return mean.tolist(), np.where(deviation < LEAST_DEVIATION, 1.0, deviation).tolist()
