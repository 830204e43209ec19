"""What a model has to beat: always the median, and ridge regression on how often each character occurs.

    python -m workers.recipes.text_regression.baseline FOLDER

prints {"number/<name>": mean absolute error on dev} for a folder with train.jsonl and dev.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from workers.datasets import splits
from workers.recipes.text_classification.baseline import MOST_ROWS
from workers.recipes.text_classification.settings import SECOND_TEXT
from workers.trainer.task import Floats


def baselines(folder: Path) -> dict[str, float]:
    (texts, numbers), (dev_texts, dev_numbers) = (_columns(folder / f"{split}.jsonl") for split in ("train", "dev"))
    model = make_pipeline(CountVectorizer(analyzer="char", min_df=2), Ridge(alpha=10.0)).fit(texts, numbers)
    return {
        "number/median": float(np.abs(dev_numbers - np.median(numbers)).mean()),
        "number/ridge_on_characters": float(np.abs(dev_numbers - model.predict(dev_texts)).mean()),
    }


def _columns(path: Path) -> tuple[list[str], Floats]:
    rows, _step = splits.evenly(path, MOST_ROWS)
    texts = [row["text"] + (f" {row[SECOND_TEXT]}" if SECOND_TEXT in rows[0] else "") for row in rows]
    return texts, np.array([row["label"] for row in rows], np.float64)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    json.dump(baselines(parser.parse_args().folder), sys.stdout)


if __name__ == "__main__":
    main()
