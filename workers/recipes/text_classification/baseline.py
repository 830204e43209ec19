"""What a model has to beat: logistic regression on how often each character occurs.

    python -m workers.recipes.text_classification.baseline FOLDER [--text-column …] [--label-column …]

prints {"bag_of_characters_logistic_regression": accuracy on dev} for a folder with train.jsonl and dev.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from workers.datasets import splits
from workers.recipes.text_classification.settings import SECOND_TEXT

# Of each split, evenly over all of it: more do not change what this model reaches, and would take minutes.
MOST_ROWS = 50_000


def bag_of_characters(folder: Path, text_column: str, label_column: str) -> float:
    """Accuracy on the dev split, 0 to 1."""
    train, dev = (_columns(folder / f"{split}.jsonl", text_column, label_column) for split in ("train", "dev"))
    model = make_pipeline(CountVectorizer(analyzer="char", min_df=2), LogisticRegression(max_iter=1000))
    model.fit(*train)
    return float(model.score(*dev))


def _columns(path: Path, text_column: str, label_column: str) -> tuple[list[str], list[str]]:
    rows, _step = splits.evenly(path, MOST_ROWS)
    second = SECOND_TEXT in rows[0]
    texts = [row[text_column] + (f" {row[SECOND_TEXT]}" if second else "") for row in rows]
    return texts, [str(row[label_column]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--label-column", default="label")
    options = parser.parse_args()
    accuracy = bag_of_characters(options.folder, options.text_column, options.label_column)
    json.dump({"bag_of_characters_logistic_regression": accuracy}, sys.stdout)


if __name__ == "__main__":
    main()
