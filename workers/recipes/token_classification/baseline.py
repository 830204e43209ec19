"""What a model has to beat: each token gets the tag that it most often has in the training rows, an unknown one the commonest.

    python -m workers.recipes.token_classification.baseline FOLDER

prints {"entities/most_frequent_tag": F1 of entities on dev} for a folder with train.jsonl and dev.jsonl; of tags without
a scheme {"tags/most_frequent_tag": share of tokens that are right}.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from workers.datasets import splits, tagging
from workers.recipes.token_classification import metrics

MOST_ROWS = 50_000


def baselines(folder: Path) -> dict[str, float]:
    train, dev = (splits.evenly(folder / f"{split}.jsonl", MOST_ROWS)[0] for split in ("train", "dev"))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    of_all: Counter[str] = Counter()
    for row in train:
        of_all.update(row["tags"])
        for token, tag in zip(row["tokens"], row["tags"], strict=True):
            counts[token][tag] += 1
    commonest = of_all.most_common(1)[0][0]
    known = {token: of.most_common(1)[0][0] for token, of in counts.items()}
    names = tagging.in_order({*of_all, *(tag for row in dev for tag in row["tags"])})
    tags, index = tagging.Tags(names), {name: i for i, name in enumerate(names)}
    actual = [np.array([index[tag] for tag in row["tags"]]) for row in dev]
    said = [np.array([index[known.get(token, commonest)] for token in row["tokens"]]) for row in dev]
    found = metrics.metrics(metrics.tally(tags, actual, said, 0.0, 0), tags)
    if tags.scheme == "none":
        return {"tags/most_frequent_tag": found["accuracy"]}
    return {"entities/most_frequent_tag": found["f1"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    json.dump(baselines(parser.parse_args().folder), sys.stdout)


if __name__ == "__main__":
    main()
