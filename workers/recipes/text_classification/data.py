"""From JSON Lines to token ids in memory, with checks that name the row."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.records import from_json_number
from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.recipes.text_classification.settings import DataSettings
from workers.trainer.task import Floats, Rows, TrainingFailed

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
Pieces = Callable[[str], list[str]]


@dataclass(frozen=True)
class Texts:
    """One split as read."""

    texts: list[str]
    labels: Rows  # indices into the dataset's labels
    weights: Floats


def read(path: Path, settings: DataSettings, labels: list[str]) -> Texts:
    """The rows of one split. BAD_DATA with the row (from 1) for a column that is missing or of the wrong kind."""
    index = {label: i for i, label in enumerate(labels)}
    texts: list[str] = []
    classes: list[int] = []
    weights: list[float] = []
    try:
        lines = path.open(encoding="utf-8")
    except FileNotFoundError:
        raise TrainingFailed(EndReason.BAD_DATA, Text("The dataset has no %(file)s.", file=path.name)) from None
    with lines:
        for number, line in enumerate(lines, 1):
            where = {"row": number, "file": path.name}
            try:
                row = json.loads(line)
            except ValueError:
                raise TrainingFailed(
                    EndReason.BAD_DATA, Text("row %(row)d of %(file)s is not JSON.", **where)
                ) from None
            text = _column(row, settings.text_column, where)
            if not isinstance(text, str):
                problem = Text(
                    "row %(row)d of %(file)s: “%(column)s” is not a text: %(value)s.",
                    column=settings.text_column,
                    value=repr(text),
                    **where,
                )
                raise TrainingFailed(EndReason.BAD_DATA, problem)
            label = str(_column(row, settings.label_column, where))
            if label not in index:
                problem = Text(
                    "row %(row)d of %(file)s has the label “%(label)s”, not one of: %(labels)s.",
                    label=label,
                    labels=", ".join(labels),
                    **where,
                )
                raise TrainingFailed(EndReason.BAD_DATA, problem)
            texts.append(text)
            classes.append(index[label])
            weights.append(_weight(row, settings.weight_column, where) if settings.weight_column else 1.0)
    if not texts:
        raise TrainingFailed(EndReason.BAD_DATA, Text("%(file)s has no rows.", file=path.name))
    return Texts(texts, np.array(classes, np.int64), np.array(weights, np.float64))


def _column(row: Any, name: str, where: dict[str, Any]) -> Any:
    if not isinstance(row, dict) or name not in row:
        has = ", ".join(row) if isinstance(row, dict) else "none"
        problem = Text(
            "row %(row)d of %(file)s has no column “%(column)s”; it has: %(columns)s.",
            column=name,
            columns=has,
            **where,
        )
        raise TrainingFailed(EndReason.BAD_DATA, problem)
    return row[name]


def _weight(row: Any, name: str, where: dict[str, Any]) -> float:
    """A NaN or an infinity is a number here: a broken row must be seen in training, with its rank and step."""
    value = from_json_number(_column(row, name, where))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (math.isfinite(value) and value < 0):
        problem = Text(
            "row %(row)d of %(file)s: “%(column)s” is not a number of 0 or more: %(value)s.",
            column=name,
            value=repr(value),
            **where,
        )
        raise TrainingFailed(EndReason.BAD_DATA, problem)
    return float(value)


# --- tokens ----------------------------------------------------------------------------------

# Chinese characters are tokens of their own; what is between them is left to PaddleNLP.
_PARTS = re.compile(r"[\u4e00-\u9fff]|[^\u4e00-\u9fff]+")
# Longer texts cannot matter: no token that counts begins after so many characters per token.
_CHARACTERS_PER_TOKEN = 16


def words_of(basic_tokenizer: Any) -> Pieces:
    """PaddleNLP's basic tokenizer, several times faster on Chinese: it puts spaces around every
    Chinese character, so the stretches between them can be done, and remembered, one by one."""

    @lru_cache(maxsize=1 << 16)
    def between(part: str) -> tuple[str, ...]:
        return tuple(basic_tokenizer.tokenize(part))

    def words(text: str) -> list[str]:
        found: list[str] = []
        for part in _PARTS.findall(text):
            if len(part) == 1 and "\u4e00" <= part <= "\u9fff":
                found.append(part)
            else:
                found.extend(between(part))
        return found

    return words


def vocabulary(texts: Iterable[str], words: Pieces, size: int) -> list[str]:
    """Special tokens, then the most frequent characters; within a word as “##c”, as WordPiece wants it."""
    counts: Counter[str] = Counter()
    for text in texts:
        for word in words(text):
            counts[word[0]] += 1
            counts.update("##" + character for character in word[1:])
    frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [*SPECIAL, *(token for token, _ in frequent[: size - len(SPECIAL)])]


def encoder(tokenizer: Any, max_length: int) -> Callable[[str], list[int]]:
    """Text to ids, cut to `max_length` with both marks: the same ids as `tokenizer(text)` gives."""
    words = words_of(tokenizer.basic_tokenizer)
    wordpiece = tokenizer.wordpiece_tokenizer
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    special = tuple(tokenizer.all_special_tokens)

    @lru_cache(maxsize=1 << 16)
    def ids(word: str) -> tuple[int, ...]:
        return tuple(tokenizer.convert_tokens_to_ids(wordpiece.tokenize(word)))

    def encode(text: str) -> list[int]:
        text = text[: max_length * _CHARACTERS_PER_TOKEN]
        if "[" in text and any(token in text for token in special):
            whole: list[int] = tokenizer(text, max_length=max_length, truncation=True)["input_ids"]
            return whole
        found = [first]
        for word in words(text):
            found.extend(ids(word))
            if len(found) >= max_length:
                break
        return [*found[: max_length - 1], last]

    return encode


def encode_all(texts: list[str], encode: Callable[[str], list[int]], progress: Callable[[str], None]) -> list[Rows]:
    told = time.monotonic()
    rows = []
    for i, text in enumerate(texts):
        rows.append(np.array(encode(text), np.int64))
        if time.monotonic() - told > 2:
            told = time.monotonic()
            progress(f"{i + 1} of {len(texts)}")
    return rows


def fingerprint(items: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(items).encode()).hexdigest()[:16]
