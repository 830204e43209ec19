"""Texts, or pairs of texts, as token ids in memory, and the batches made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import paddle
from paddlenlp.transformers.bert.tokenizer import BasicTokenizer

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.text_classification import data, model
from workers.trainer.task import Batch, Context, Floats, Rows, Split, TrainingFailed

SEPARATOR = " ||| "  # between the texts of a pair, where people see or type them in one line
SPLITS: tuple[Split, Split] = ("train", "dev")


class Inputs:
    """Both splits. `seconds` of a split are None where texts stand alone."""

    def __init__(self, context: Context, texts: dict[Split, list[str]], seconds: dict[Split, list[str] | None]) -> None:
        settings = context.settings
        if len({one is None for one in seconds.values()}) > 1:
            raise TrainingFailed(
                EndReason.BAD_DATA, Text("Only one of training and dev rows has second texts: both must have them.")
            )
        self.pairs = seconds["train"] is not None
        self._texts, self._seconds = texts, seconds
        self.pretrained = model.source(context)
        both = [text for split in SPLITS for text in texts[split]]
        others = [text for split in SPLITS for text in seconds[split] or []]
        vocabulary_of = texts["train"] + (seconds["train"] or [])
        self.tokenizer = tokenizer(context, self.pretrained, vocabulary_of)

        def told(done: str) -> None:
            context.stage("turning texts into tokens", done)

        told("")
        length = settings.data.max_length
        if self.pairs:
            ids, firsts = data.encode_pairs(both, others, data.pair_encoder(self.tokenizer, length), told)
        else:
            ids, firsts = data.encode_all(both, data.encoder(self.tokenizer, length), told), []
        count = len(texts["train"])
        self.ids: dict[Split, list[Rows]] = {"train": ids[:count], "dev": ids[count:]}
        self._firsts: dict[Split, list[int]] = {"train": firsts[:count], "dev": firsts[count:]}
        self.rows: dict[Split, int] = {split: len(texts[split]) for split in SPLITS}
        self.lengths: Rows | None = np.array([len(row) for row in self.ids["train"]])
        # Rows of like length next to each other: less padding in evaluation.
        self.dev_order = np.argsort([len(row) for row in self.ids["dev"]], kind="stable")
        self.identity: dict[str, Any] = {"vocabulary": data.fingerprint(self.tokenizer.get_vocab())}
        if self.pairs:
            self.identity["pairs"] = True

    def batch(self, split: Split, rows: Rows, of_rows: dict[str, Floats | Rows]) -> Batch:
        """Padded ids and what belongs to the rows; `of_rows` are arrays over the whole split."""
        if split == "dev":
            rows = self.dev_order[rows]
        chosen = [self.ids[split][row] for row in rows]
        ids = padded(chosen, self.tokenizer.pad_token_id)
        arrays: dict[str, Any] = {"input_ids": ids}
        if self.pairs:
            firsts = np.array([self._firsts[split][row] for row in rows])[:, None]
            lengths = np.array(list(map(len, chosen)))[:, None]
            at = np.arange(ids.shape[1])
            arrays["token_type_ids"] = ((at >= firsts) & (at < lengths)).astype(np.int64)
        arrays |= {name: values[rows] for name, values in of_rows.items()}
        return Batch(arrays, rows, sum(map(len, chosen)), {"split": split})

    def shown(self, row: int) -> str:
        """What people see of a dev row."""
        seconds = self._seconds["dev"]
        return self._texts["dev"][row] + (SEPARATOR + seconds[row] if seconds is not None else "")


def tokenizer(context: Context, pretrained: str | None, texts: Iterable[str]) -> Any:
    """The pretrained model's, or one with the characters of these texts."""
    if pretrained is not None:
        return model.tokenizer_of(pretrained)
    context.stage("building the vocabulary", "")
    settings = context.settings.model
    tokens = data.vocabulary(texts, data.words_of(BasicTokenizer(do_lower_case=True)), settings.vocabulary_size)
    folder = context.folder.path / "vocabulary"
    folder.mkdir(exist_ok=True)
    path = folder / f"rank{context.rank}.txt"
    path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return model.tokenizer_from_scratch(settings.architecture, path)


def padded(rows: list[Rows], fill: int) -> Rows:
    """[rows, the longest]"""
    ids = np.full((len(rows), max(map(len, rows))), fill, np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids


def arguments(arrays: dict[str, Any], types: bool) -> list[Any]:
    """What a model is called with: ids, and for pairs the types of the tokens if it knows any."""
    return [
        arrays[name] for name in ("input_ids", "token_type_ids") if name in arrays and (types or name == "input_ids")
    ]


def tensors(arrays: dict[str, Any], types: bool) -> list[Any]:
    return [paddle.to_tensor(array) for array in arguments(arrays, types)]
