"""What a model has to beat: logistic regression on the pixels of pictures made very small.

    python -m workers.recipes.image_classification.baseline FOLDER

prints {"pixels_logistic_regression": accuracy on dev} for a prepared folder of pictures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from workers.datasets import splits
from workers.images import Images
from workers.recipes.image_classification.data import square
from workers.recipes.image_classification.settings import Fit

# Of each split, evenly over all of it: more do not change what this model reaches, and would take minutes.
MOST_ROWS = 5000
SIZE = 8


def on_pixels(folder: Path) -> float:
    """Accuracy on the dev split, 0 to 1."""
    with Images(folder) as images:
        train, dev = (_columns(folder / f"{split}.jsonl", images) for split in ("train", "dev"))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    model.fit(*train)
    return float(model.score(*dev))


def _columns(path: Path, images: Images) -> tuple[Any, list[str]]:
    rows, _step = splits.evenly(path, MOST_ROWS)
    pixels = [square(images.read(*row["image"]), SIZE, Fit.CROP).reshape(-1) / 255 for row in rows]
    return np.stack(pixels), [str(row["label"]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    json.dump({"pixels_logistic_regression": on_pixels(parser.parse_args().folder)}, sys.stdout)


if __name__ == "__main__":
    main()
