"""From JSON Lines to token ids in memory, and which of them carry a tag."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.text_classification import data as of_texts
from workers.recipes.weights import weight_of
from workers.trainer.task import Floats, Rows, TrainingFailed


@dataclass(frozen=True)
class Tagged:
    """One split as read."""

    tokens: list[list[str]]
    tags: list[Rows]  # per row the numbers of its tokens' tags
    weights: Floats


@dataclass(frozen=True)
class Encoded:
    """A row as the model reads it. A token is known by its first piece; those that have none (blanks), or that were cut off, are
    in neither of the two."""

    ids: Rows  # with all marks
    at: Rows  # where first pieces are in `ids`
    tokens: Rows  # whose they are

    def labels(self, tags: Rows, ignored: int) -> Rows:
        """A tag for each of `ids`, which is `ignored` at marks and further pieces."""
        labels = np.full(len(self.ids), ignored, np.int64)
        labels[self.at] = tags[self.tokens]
        return labels


def read(path: Path, names: list[str], weight_column: str | None = None) -> Tagged:
    """The rows of one split. BAD_DATA with the row (from 1) for what is no list, or of another length than the other."""
    index = {name: i for i, name in enumerate(names)}
    rows: list[list[str]] = []
    tags: list[Rows] = []
    weights: list[float] = []
    try:
        lines = path.open(encoding="utf-8")
    except FileNotFoundError:
        raise TrainingFailed(EndReason.BAD_DATA, Text("The dataset has no %(file)s.", file=path.name)) from None
    with lines:
        for number, line in enumerate(lines, 1):
            written = _object(line)
            row = _row(written)
            if row is None:
                problem = Text(
                    "Row %(row)d of %(file)s has no list “tokens” with a list “tags” of the same length.",
                    row=number,
                    file=path.name,
                )
                raise TrainingFailed(EndReason.BAD_DATA, problem)
            unknown = next((tag for tag in row[1] if tag not in index), None)
            if unknown is not None:
                problem = Text(
                    "Row %(row)d of %(file)s has the tag “%(tag)s”, not one of: %(tags)s.",
                    row=number,
                    file=path.name,
                    tag=unknown,
                    tags=", ".join(index),
                )
                raise TrainingFailed(EndReason.BAD_DATA, problem)
            rows.append(row[0])
            tags.append(np.array([index[tag] for tag in row[1]], np.int64))
            weights.append(weight_of(written, weight_column, {"row": number, "file": path.name}))
    if not rows:
        raise TrainingFailed(EndReason.BAD_DATA, Text("%(file)s has no rows.", file=path.name))
    return Tagged(rows, tags, np.array(weights, np.float64))


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _row(row: Any) -> tuple[list[str], list[str]] | None:
    try:
        tokens, tags = row["tokens"], row["tags"]
    except (KeyError, TypeError):
        return None
    if not isinstance(tokens, list) or not isinstance(tags, list) or len(tokens) != len(tags) or not tokens:
        return None
    return (tokens, tags) if all(isinstance(one, str) for one in tokens + tags) else None


def encoder(tokenizer: Any, max_length: int) -> Callable[[Sequence[str]], Encoded]:
    """Tokens to ids, cut to `max_length` with all marks."""
    pieces = of_texts.pieces(tokenizer)
    # These tell a word within a text from its beginning by the blank before it.
    blank = "" if of_texts.by_words(tokenizer) else " "
    room = max_length - tokenizer.num_special_tokens_to_add(pair=False)
    unknown = tokenizer.unk_token_id
    before = tokenizer.build_inputs_with_special_tokens([unknown]).index(unknown)  # marks

    @lru_cache(maxsize=1 << 16)
    def of(token: str) -> list[int]:
        return pieces(blank + token, max_length)

    def encode(tokens: Sequence[str]) -> Encoded:
        ids: list[int] = []
        at: list[int] = []
        read: list[int] = []
        for i, token in enumerate(tokens):
            if len(ids) >= room:
                break
            found = of(token)
            if found:
                at.append(before + len(ids))
                read.append(i)
                ids.extend(found)
        marked = tokenizer.build_inputs_with_special_tokens(ids[:room])
        return Encoded(np.array(marked, np.int64), np.array(at, np.int64), np.array(read, np.int64))

    return encode
