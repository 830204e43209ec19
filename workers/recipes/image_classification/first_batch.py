"""What the model sees: the first batch of a run with the default settings.

    python -m workers.recipes.image_classification.first_batch FOLDER

prints a JSON object for a prepared folder of pictures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from workers.datasets import splits
from workers.recipes.image_classification.data import Pictures, read
from workers.recipes.image_classification.settings import ImageClassificationSettings
from workers.trainer.sampler import Position, Sampler

SHOWN_ROWS = 32
# Of a larger dataset so many rows stand for all: the picture stays the same, and takes seconds.
MOST_ROWS = 50_000


def first_batch(folder: Path) -> dict[str, Any]:
    """The first rows of the batch, the size that pictures are brought to and how, and mean and deviation of each colour."""
    settings, path = ImageClassificationSettings(), folder / "train.jsonl"
    chosen = settings.data
    rows, step = splits.evenly(path, MOST_ROWS)
    split = read(path, sorted({str(row["label"]) for row in splits.evenly(path, sys.maxsize)[0]}))
    mean, deviation = Pictures(folder, {"train": split}, chosen.size, chosen.fit, 0.0, 1).measured()
    taken = Sampler(len(rows), settings.training.batch_size, 1, 1, settings.training.seed, None).take(Position())
    shown = [{"row": i * step + 1, **rows[i]} for i in taken[:SHOWN_ROWS].tolist()]
    return {
        "rows": [{name: row.get(name) for name in ("row", "id", "image", "size", "label")} for row in shown],
        "batch": len(taken),
        "size": chosen.size,
        "fit": str(chosen.fit),
        "mean": mean,
        "deviation": deviation,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    json.dump(first_batch(parser.parse_args().folder), sys.stdout)


if __name__ == "__main__":
    main()
