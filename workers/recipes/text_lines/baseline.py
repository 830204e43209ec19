"""What a model has to beat: who always reads what is written most often, and who reads what stands in the training line that
looks most like it.

    python -m workers.recipes.text_lines.baseline FOLDER

prints {"cer/<name>": character error rate on dev} for a prepared folder of text lines.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.neighbors import NearestNeighbors

from workers.datasets import splits
from workers.images import Images, upright
from workers.recipes.text_lines import metrics

# Evenly over each split: more do not change much, and would take minutes.
MOST_ROWS = {"train": 5000, "dev": 1000}
SIZE = (64, 12)


def baselines(folder: Path) -> dict[str, float]:
    """Character error rates on the dev split; 1 is what reading nothing has."""
    train, dev = (splits.evenly(folder / f"{split}.jsonl", most)[0] for split, most in MOST_ROWS.items())
    written, texts = [row["text"] for row in train], [row["text"] for row in dev]
    commonest = Counter(written).most_common(1)[0][0]
    with Images(folder) as images:
        seen, asked = (np.stack([_small(images, row) for row in rows]) for rows in (train, dev))
    nearest = NearestNeighbors(n_neighbors=1).fit(seen).kneighbors(asked, return_distance=False)[:, 0]
    return {
        "cer/commonest_text": _error_rate([commonest] * len(texts), texts),
        "cer/nearest_line": _error_rate([written[i] for i in nearest.tolist()], texts),
    }


def _error_rate(read: list[str], texts: list[str]) -> float:
    return float(metrics.metrics(metrics.tally(read, texts, 0.0))["cer"])


def _small(images: Images, row: dict[str, Any]) -> Any:
    """Its pixels, made few, without its brightness and contrast; and how long it is for its height."""
    picture = upright(images.read(*row["image"])).convert("L").resize(SIZE, Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, np.float32).reshape(-1)
    pixels = (pixels - pixels.mean()) / (pixels.std() + 1.0)
    return np.append(pixels, 10 * np.log(row["size"][0] / row["size"][1])).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    json.dump(baselines(parser.parse_args().folder), sys.stdout)


if __name__ == "__main__":
    main()
