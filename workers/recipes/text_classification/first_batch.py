"""What the model sees: the first batch of a run with the default settings, in tokens.

    python -m workers.recipes.text_classification.first_batch FOLDER [--text-column …] [--label-column …]

prints a JSON object for a folder with train.jsonl. The tokens are those of the recipe's own character vocabulary.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from paddlenlp.transformers import ErnieTokenizer
from paddlenlp.transformers.bert.tokenizer import BasicTokenizer

from workers.datasets import splits
from workers.recipes.text_classification import data
from workers.recipes.text_classification.inputs import SEPARATOR
from workers.recipes.text_classification.settings import TextClassificationSettings
from workers.trainer.sampler import Position, Sampler

# Of a larger dataset so many rows stand for all: the picture stays the same, and takes seconds.
MOST_ROWS = 50_000
SHOWN_CHARACTERS = 300


def first_batch(folder: Path, text_column: str, label_column: str) -> dict[str, Any]:
    """Texts, labels and tokens of the batch, the share of texts that are cut, and how often no token was known."""
    settings = TextClassificationSettings()
    rows, step = splits.evenly(folder / "train.jsonl", MOST_ROWS)
    texts = [row[text_column] for row in rows]
    second = data.second_column(rows[0], settings.data)
    seconds = [str(row[second]) for row in rows] if second else None
    words = data.words_of(BasicTokenizer(do_lower_case=True))
    tokens = data.vocabulary(texts + (seconds or []), words, settings.model.vocabulary_size)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "vocabulary.txt"
        path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
        tokenizer = ErnieTokenizer(str(path))
    most = settings.data.max_length
    given = list(zip(texts, seconds, strict=True)) if seconds else [(text,) for text in texts]

    def encode(row: tuple[str, ...], limit: int) -> list[int]:
        return pairs[limit](*row)[0] if seconds else singles[limit](row[0])

    singles = {limit: data.encoder(tokenizer, limit) for limit in (most, 4 * most)}
    pairs = {limit: data.pair_encoder(tokenizer, limit) for limit in (most, 4 * most)}
    lengths = np.array([len(encode(row, 4 * most)) for row in given])
    cut = np.minimum(lengths, most)
    sampler = Sampler(len(rows), settings.training.batch_size, 1, 1, settings.training.seed, cut)
    shown = []
    for index in sampler.take(Position()):
        ids = encode(given[index], most)
        shown.append(
            {
                "row": int(index) * step + 1,
                "text": SEPARATOR.join(given[index])[:SHOWN_CHARACTERS],
                "label": str(rows[index][label_column]),
                "tokens": tokenizer.convert_ids_to_tokens(ids),
                "cut": bool(lengths[index] > most),
                "unknown": ids.count(tokenizer.unk_token_id),
            }
        )
    return {
        "max_length": most,
        "vocabulary": len(tokens),
        "rows": shown,
        "padded_to": max(len(row["tokens"]) for row in shown),
        "cut_share": float((lengths > most).mean()),
        "mean_tokens": float(lengths.mean()),
        "measured_rows": len(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--label-column", default="label")
    options = parser.parse_args()
    json.dump(first_batch(options.folder, options.text_column, options.label_column), sys.stdout)


if __name__ == "__main__":
    main()
