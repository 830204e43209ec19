"""What the model sees: the first batch of a run with the default settings, in tokens, with the tags that are learnt.

    python -m workers.recipes.token_classification.first_batch FOLDER

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
from workers.recipes.text_classification import data as of_texts
from workers.recipes.text_classification.first_batch import MOST_ROWS
from workers.recipes.token_classification import data
from workers.recipes.token_classification.settings import TokenClassificationSettings
from workers.trainer.sampler import Position, Sampler

SHOWN_ROWS, SHOWN_TOKENS = 16, 128


def first_batch(folder: Path) -> dict[str, Any]:
    """Tokens of the model with their tags ("" of marks and further pieces: ignored), and the share of rows that are cut."""
    settings = TokenClassificationSettings()
    rows, step = splits.evenly(folder / "train.jsonl", MOST_ROWS)
    words = of_texts.words_of(BasicTokenizer(do_lower_case=True))
    tokens = of_texts.vocabulary((" ".join(row["tokens"]) for row in rows), words, settings.model.vocabulary_size)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "vocabulary.txt"
        path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
        tokenizer = ErnieTokenizer(str(path))
    most = settings.data.max_length
    encode, long = data.encoder(tokenizer, most), data.encoder(tokenizer, 4 * most)
    lengths = np.array([len(long(row["tokens"]).ids) for row in rows])
    size = settings.training.batch_size
    sampler = Sampler(len(rows), size, 1, 1, settings.training.seed, np.minimum(lengths, most))
    batch = [(int(index), encode(rows[index]["tokens"])) for index in sampler.take(Position())]
    shown = []
    for index, encoded in batch[:SHOWN_ROWS]:
        ids, tags = encoded.ids.tolist(), [""] * len(encoded.ids)
        for at, token in zip(encoded.at, encoded.tokens, strict=True):
            tags[at] = rows[index]["tags"][token]
        seen = tokenizer.convert_ids_to_tokens(ids)
        shown.append(
            {
                "row": index * step + 1,
                "pieces": [list(pair) for pair in zip(seen, tags, strict=True)][:SHOWN_TOKENS],
                "count": len(ids),
                "labelled": len(encoded.at),
                "cut": bool(lengths[index] > most),
                "unknown": ids.count(tokenizer.unk_token_id),
            }
        )
    return {
        "max_length": most,
        "vocabulary": len(tokens),
        "rows": shown,
        "batch": len(batch),
        "padded_to": max(len(encoded.ids) for _index, encoded in batch),
        "labelled": sum(len(encoded.at) for _index, encoded in batch),
        "cut_share": float((lengths > most).mean()),
        "mean_tokens": float(lengths.mean()),
        "measured_rows": len(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    json.dump(first_batch(parser.parse_args().folder), sys.stdout)


if __name__ == "__main__":
    main()
