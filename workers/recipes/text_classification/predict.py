"""Labels for texts from an exported program, with what lies in its folder and nothing else: what is tried in the
browser is what is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from paddlenlp.transformers import ErnieTokenizer

from workers.contract.trials import Prediction, Row, Score
from workers.recipes.text_classification import data, export

# Exports from before there was an inference.json do not say where texts were cut; every model takes as many.
DEFAULT_MAX_LENGTH = 512


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    """Takes about as long as importing Paddle and PaddleNLP, 4 to 11 s, if that is not done yet."""
    labels: list[str] = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    about = folder / export.ABOUT
    max_length: int = json.loads(about.read_text())["max_length"] if about.exists() else DEFAULT_MAX_LENGTH
    tokenizer = ErnieTokenizer.from_pretrained(str(folder))
    encode, one_more = data.encoder(tokenizer, max_length), data.encoder(tokenizer, max_length + 1)
    logits_of = export.predictor(folder)

    def predict(rows: list[Row]) -> list[Prediction]:
        texts = [row["text"] for row in rows]
        tokens = [encode(text) for text in texts]
        ids = np.full((len(tokens), max(map(len, tokens))), tokenizer.pad_token_id, np.int64)
        for i, row in enumerate(tokens):
            ids[i, : len(row)] = row
        return [
            Prediction(
                scores=[
                    Score(label=labels[i], probability=float(shares[i])) for i in np.argsort(-shares, kind="stable")
                ],
                tokens=tokenizer.convert_ids_to_tokens(tokens[n]),
                cut=len(one_more(texts[n])) > max_length,
                unknown=tokenizer.unk_token,
            )
            for n, shares in enumerate(_softmax(logits_of(ids)))
        ]

    return predict


def _softmax(logits: Any) -> Any:
    raised = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.minimum(raised / raised.sum(axis=-1, keepdims=True), 1.0)
