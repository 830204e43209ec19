"""What the model sees: the first batch of a run with the default settings.

    python -m workers.recipes.text_lines.first_batch FOLDER

prints a JSON object for a prepared folder of text lines.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from workers.datasets import splits
from workers.recipes.text_lines import data
from workers.recipes.text_lines.fitting import needed_steps, width_at
from workers.recipes.text_lines.settings import TextLinesSettings
from workers.trainer.sampler import Position, Sampler

SHOWN_ROWS = 32
# Of a larger dataset so many rows stand for all: the picture stays the same, and takes seconds.
MOST_ROWS = 50_000


def first_batch(folder: Path) -> dict[str, Any]:
    """The first rows of the batch with their widths and steps, what the batch is padded to, and the share that is squeezed."""
    settings = TextLinesSettings()
    rows, step = splits.evenly(folder / "train.jsonl", MOST_ROWS)
    height, most = settings.data.height, settings.data.max_width
    sizes = [(int(row["size"][0]), int(row["size"][1])) for row in rows]
    widths = np.array([width_at(size, height, most) for size in sizes], np.int64)
    squeezed = np.array([round(width * height / high) > most for width, high in sizes])
    lengths = widths if len(np.unique(widths)) > 1 else None
    taken = Sampler(len(rows), settings.training.batch_size, 1, 1, settings.training.seed, lengths).take(Position())
    return {
        "rows": [
            {
                "row": i * step + 1,
                **{name: rows[i].get(name) for name in ("id", "image", "size", "text")},
                "width": int(widths[i]),
                "steps": data.steps(sizes[i], settings),
                "needed": needed_steps(rows[i]["text"]),
            }
            for i in taken[:SHOWN_ROWS].tolist()
        ],
        "batch": len(taken),
        "height": height,
        "max_width": most,
        "padded_to": int(widths[taken].max()),
        "squeezed_share": float(squeezed.mean()),
        "characters": len(data.characters(row["text"] for row in rows)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    json.dump(first_batch(parser.parse_args().folder), sys.stdout)


if __name__ == "__main__":
    main()
