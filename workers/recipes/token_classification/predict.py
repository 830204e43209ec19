"""Tags for texts from an exported program, with what lies in its folder and nothing else: what is tried in the browser is
what is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.trials import Entity, Prediction, Row
from workers.datasets import tagging
from workers.recipes.likeliest import softmax
from workers.recipes.text_classification import export
from workers.recipes.text_classification.inputs import padded
from workers.recipes.text_classification.model import tokenizer_of
from workers.recipes.token_classification import data


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    names: list[str] = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    about: dict[str, Any] = json.loads((folder / export.ABOUT).read_text(encoding="utf-8"))
    tokenizer = tokenizer_of(str(folder))
    encode = data.encoder(tokenizer, about["max_length"])
    whole = data.encoder(tokenizer, 10 * about["max_length"])
    outputs_of = export.predictor(folder)

    def predict(rows: list[Row]) -> list[Prediction]:
        texts = [row["text"] for row in rows]
        places = [tagging.split(text, about["tokens"]) for text in texts]
        tokens = [[text[first:last] for first, last in of] for text, of in zip(texts, places, strict=True)]
        encoded = [encode(of) for of in tokens]
        logits = outputs_of(padded([of.ids for of in encoded], tokenizer.pad_token_id))
        return [
            Prediction(
                spans=_spans(names, places[i], encoded[i], softmax(logits[i])),
                tokens=tokenizer.convert_ids_to_tokens(encoded[i].ids.tolist()),
                cut=len(whole(tokens[i]).ids) > len(encoded[i].ids),
                unknown=tokenizer.unk_token,
            )
            for i in range(len(rows))
        ]

    return predict


def _spans(names: list[str], places: list[tuple[int, int]], encoded: data.Encoded, shares: Any) -> list[Entity]:
    """Entities by their places in the text; of tags without a scheme each token that is not O. How sure: the least sure of its
    tokens."""
    of = tagging.Tags(names)
    said = np.full(len(places), of.border, np.int64)
    sure = np.zeros(len(places))
    chosen = shares[encoded.at].argmax(axis=-1)
    said[encoded.tokens] = chosen
    sure[encoded.tokens] = shares[encoded.at, chosen]
    if of.scheme == "none":
        kept = np.flatnonzero((said != of.border) & (said != of.outside))
        found = [(int(i), int(i) + 1, names[said[i]]) for i in kept]
    else:
        found = [(int(first), int(last), of.types[kind]) for first, last, kind in of.spans(said)]
    return [
        Entity(
            start=places[first][0],
            end=places[last - 1][1],
            label=kind,
            probability=float(np.clip(sure[first:last].min(), 0, 1)),
        )
        for first, last, kind in found
    ]
