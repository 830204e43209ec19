"""What the model sees: the first batch of a run with the default settings, normalised.

    python -m workers.recipes.sequences.first_batch FOLDER

prints a JSON object for a folder with train.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from workers.recipes.sequences import data
from workers.recipes.sequences.settings import Goal, SequencesSettings
from workers.trainer.sampler import Position, Sampler

SHOWN_ROWS, SHOWN_STEPS, SHOWN_FEATURES = 16, 200, 8


def first_batch(folder: Path) -> dict[str, Any]:
    """The first rows of the batch with their newest time steps, the normalisation, and the share that is cut."""
    settings = SequencesSettings()
    # Whatever belongs to a sequence, the next value can always be predicted.
    path, chosen = folder / "train.jsonl", settings.data.model_copy(update={"goal": Goal.NEXT_VALUE})
    sequences = data.read(path, chosen, [])
    lengths = np.diff(sequences.begins)
    most = settings.data.max_length
    cut = np.minimum(lengths, most)
    normalisation = data.normalisation(sequences, data.samples(sequences, chosen), chosen)
    lengths_differ = len(np.unique(cut)) > 1
    sampler = Sampler(
        len(lengths), settings.training.batch_size, 1, 1, settings.training.seed, cut if lengths_differ else None
    )
    taken = sampler.take(Position())
    said = _said(path)
    rows = []
    for index in taken[:SHOWN_ROWS].tolist():
        end = int(sequences.begins[index + 1])
        values = sequences.values[end - min(int(cut[index]), SHOWN_STEPS) : end, :SHOWN_FEATURES]
        seen = (values - np.array(normalisation.shift[:SHOWN_FEATURES])) / np.array(
            normalisation.scale[:SHOWN_FEATURES]
        )
        rows.append(
            {
                "row": index + 1,
                "id": sequences.ids[index],
                "steps": int(lengths[index]),
                "said": said[index],
                "values": [[round(float(value), 4) for value in column] for column in seen.T],
            }
        )
    return {
        "features": [
            {"name": name, "mean": shift, "deviation": scale}
            for name, shift, scale in zip(sequences.features, normalisation.shift, normalisation.scale, strict=True)
        ],
        "max_length": most,
        "rows": rows,
        "batch": len(taken),
        "padded_to": int(cut[taken].max()),
        "cut_share": float((lengths > most).mean()),
    }


def _said(path: Path) -> list[Any]:
    """The target or label of each row; None where there is none."""
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [row.get("target", row.get("label")) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    json.dump(first_batch(parser.parse_args().folder), sys.stdout)


if __name__ == "__main__":
    main()
