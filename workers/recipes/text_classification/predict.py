"""Labels for texts from an exported program, with what lies in its folder and nothing else: what is tried in the
browser is what is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.trials import Failed, Prediction, Row
from workers.recipes.likeliest import likeliest, softmax
from workers.recipes.text_classification import data, export
from workers.recipes.text_classification.inputs import SEPARATOR, padded
from workers.recipes.text_classification.model import tokenizer_of

# Exports from before there was an inference.json do not say where texts were cut; every model takes as many.
DEFAULT_MAX_LENGTH = 512


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    """Takes about as long as importing Paddle and PaddleNLP, 4 to 11 s, if that is not done yet."""
    labels: list[str] = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    read = reader(folder)
    outputs_of = export.predictor(folder)

    def predict(rows: list[Row]) -> list[Prediction]:
        given, arrays = read([row["text"] for row in rows])
        return [
            Prediction(**likeliest(labels, shares), **about)
            for shares, about in zip(softmax(outputs_of(*arrays)), given, strict=True)
        ]

    return predict


def reader(folder: Path) -> Callable[[list[str]], tuple[list[dict[str, Any]], list[Any]]]:
    """From typed lines to what a prediction says of each beside its answer, and to the program's inputs. Of a pair the two
    texts stand in one line. Raises Failed with what is wrong."""
    path = folder / export.ABOUT
    about: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    max_length: int = about.get("max_length", DEFAULT_MAX_LENGTH)
    pairs: bool = about.get("pairs", False)
    tokenizer = tokenizer_of(str(folder))
    whole = data.pieces(tokenizer)
    encode, encode_pair = data.encoder(tokenizer, max_length), data.pair_encoder(tokenizer, max_length)
    room = max_length - tokenizer.num_special_tokens_to_add(pair=pairs)

    def read(lines: list[str]) -> tuple[list[dict[str, Any]], list[Any]]:
        said, rows, firsts = [], [], []
        for number, line in enumerate(lines, 1):
            texts = two_texts(line, number) if pairs else (line,)
            ids, first = encode_pair(*texts) if pairs else (encode(line), 0)
            rows.append(np.array(ids, np.int64))
            firsts.append(first)
            said.append(
                {
                    "tokens": tokenizer.convert_ids_to_tokens(ids),
                    "cut": sum(len(whole(text, room + 1)) for text in texts) > room,
                    "unknown": tokenizer.unk_token,
                }
            )
        arrays: list[Any] = [padded(rows, tokenizer.pad_token_id)]
        if "token_type_ids" in about.get("inputs", []):
            at, lengths = np.arange(arrays[0].shape[1]), np.array(list(map(len, rows)))[:, None]
            arrays.append(((at >= np.array(firsts)[:, None]) & (at < lengths)).astype(np.int64))
        return said, arrays

    return read


def two_texts(line: str, number: int) -> tuple[str, str]:
    """“one ||| two”, or with a tab between."""
    texts = [text.strip() for text in line.replace("\t", SEPARATOR.strip()).split(SEPARATOR.strip())]
    if len(texts) != 2 or not all(texts):
        raise Failed(
            "Row %(row)d is no pair: the model reads two texts, with %(sign)s between them.",
            row=number,
            sign=SEPARATOR.strip(),
        )
    return texts[0], texts[1]
