"""From JSON Lines to token ids in memory, with checks that name the row."""

from __future__ import annotations

import hashlib
import json
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
from workers.recipes.text_classification.settings import SECOND_TEXT, DataSettings
from workers.recipes.weights import column_of, weight_of
from workers.trainer.task import Floats, Rows, TrainingFailed

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
Pieces = Callable[[str], list[str]]


@dataclass(frozen=True)
class Texts:
    """One split as read."""

    texts: list[str]
    labels: Rows  # indices into the dataset's labels
    numbers: Floats  # or the numbers that are to be said
    weights: Floats
    seconds: list[str] | None = None  # of pairs


def second_column(row: Any, settings: DataSettings) -> str | None:
    """Where a split with this first row has the second text of pairs; None if its texts stand alone."""
    name = settings.text_b_column or None
    if name == SECOND_TEXT and not (isinstance(row, dict) and name in row):
        return None  # the default, which not every dataset has
    return name


def read(path: Path, settings: DataSettings, labels: list[str] | None) -> Texts:
    """The rows of one split; without `labels` each has a number. BAD_DATA with the row (from 1) for a column that is missing or of the wrong kind."""
    index = {label: i for i, label in enumerate(labels or [])}
    numbers: list[float] = []
    texts: list[str] = []
    seconds: list[str] = []
    second: str | None = None
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
                    EndReason.BAD_DATA, Text("Row %(row)d of %(file)s is not JSON.", **where)
                ) from None
            text = _text(row, settings.text_column, where)
            second = second_column(row, settings) if number == 1 else second
            if second:
                seconds.append(_text(row, second, where))
            texts.append(text)
            if labels is None:
                numbers.append(_number(row, settings.label_column, where))
            else:
                classes.append(_label(row, settings.label_column, where, index))
            weights.append(weight_of(row, settings.weight_column, where))
    if not texts:
        raise TrainingFailed(EndReason.BAD_DATA, Text("%(file)s has no rows.", file=path.name))
    return Texts(
        texts,
        np.array(classes, np.int64),
        np.array(numbers, np.float64),
        np.array(weights, np.float64),
        seconds if second else None,
    )


def _label(row: Any, name: str, where: dict[str, Any], index: dict[str, int]) -> int:
    label = str(column_of(row, name, where))
    if label not in index:
        problem = Text(
            "Row %(row)d of %(file)s has the label “%(label)s”, not one of: %(labels)s.",
            label=label,
            labels=", ".join(index),
            **where,
        )
        raise TrainingFailed(EndReason.BAD_DATA, problem)
    return index[label]


def _number(row: Any, name: str, where: dict[str, Any]) -> float:
    """As with weights a NaN or an infinity is a number here."""
    value = from_json_number(column_of(row, name, where))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        problem = Text(
            "Row %(row)d of %(file)s: “%(column)s” is not a number: %(value)s.", column=name, value=repr(value), **where
        )
        raise TrainingFailed(EndReason.BAD_DATA, problem)
    return float(value)


def _text(row: Any, name: str, where: dict[str, Any]) -> str:
    text = column_of(row, name, where)
    if not isinstance(text, str):
        problem = Text(
            "Row %(row)d of %(file)s: “%(column)s” is not a text: %(value)s.", column=name, value=repr(text), **where
        )
        raise TrainingFailed(EndReason.BAD_DATA, problem)
    return text


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


# Those whose words and pieces are found one by one below; others are asked as a whole.
_WORDPIECE = ("ErnieTokenizer", "BertTokenizer", "RobertaChineseTokenizer", "ElectraTokenizer")


def by_words(tokenizer: Any) -> bool:
    """Whether a word's pieces are the same wherever it stands."""
    basic = getattr(tokenizer, "basic_tokenizer", None)
    return (
        type(tokenizer).__name__ in _WORDPIECE
        and basic is not None
        and bool(getattr(basic, "tokenize_chinese_chars", True))
    )


def pieces(tokenizer: Any) -> Callable[[str, int], list[int]]:
    """Text to ids without marks, at least the first so many: the same ids as the tokenizer gives."""
    special = tuple(tokenizer.all_special_tokens)

    def whole(text: str, most: int) -> list[int]:
        found: list[int] = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text[: most * _CHARACTERS_PER_TOKEN]))
        return found

    if not by_words(tokenizer):
        return whole
    words = words_of(tokenizer.basic_tokenizer)
    wordpiece = tokenizer.wordpiece_tokenizer

    @lru_cache(maxsize=1 << 16)
    def ids(word: str) -> tuple[int, ...]:
        return tuple(tokenizer.convert_tokens_to_ids(wordpiece.tokenize(word)))

    def one_by_one(text: str, most: int) -> list[int]:
        text = text[: most * _CHARACTERS_PER_TOKEN]
        if "[" in text and any(token in text for token in special):
            return whole(text, most)
        found: list[int] = []
        for word in words(text):
            found.extend(ids(word))
            if len(found) >= most:
                break
        return found

    return one_by_one


def encoder(tokenizer: Any, max_length: int) -> Callable[[str], list[int]]:
    """Text to ids, cut to `max_length` with all marks: the same ids as `tokenizer(text)` gives."""
    of = pieces(tokenizer)
    room = max_length - tokenizer.num_special_tokens_to_add(pair=False)

    def encode(text: str) -> list[int]:
        marked: list[int] = tokenizer.build_inputs_with_special_tokens(of(text, room)[:room])
        return marked

    return encode


def pair_encoder(tokenizer: Any, max_length: int) -> Callable[[str, str], tuple[list[int], int]]:
    """A pair to ids, cut to `max_length` with all marks, from the longer text first, and how many of them are of type 0:
    the same as `tokenizer(text, text_pair)` gives."""
    of = pieces(tokenizer)
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True)

    def encode(text: str, second: str) -> tuple[list[int], int]:
        a, b = of(text, room)[:room], of(second, room)[:room]
        if len(a) + len(b) > room:
            # The longer one gives way until both are alike, then both do, the second first.
            half = room // 2
            kept = min(len(b), max(half, room - len(a)))
            a, b = a[: room - kept], b[:kept]
        types: list[int] = tokenizer.create_token_type_ids_from_sequences(a, b)
        return tokenizer.build_inputs_with_special_tokens(a, b), types.count(0)

    return encode


def encode_all(texts: list[str], encode: Callable[[str], list[int]], progress: Callable[[str], None]) -> list[Rows]:
    return [np.array(ids, np.int64) for ids in told(map(encode, texts), len(texts), progress)]


def encode_pairs(
    texts: list[str],
    seconds: list[str],
    encode: Callable[[str, str], tuple[list[int], int]],
    progress: Callable[[str], None],
) -> tuple[list[Rows], list[int]]:
    """Ids, and of each pair how many are of type 0."""
    found = list(told(map(encode, texts, seconds), len(texts), progress))
    return [np.array(ids, np.int64) for ids, _first in found], [first for _ids, first in found]


def told(items: Iterable[Any], count: int, progress: Callable[[str], None]) -> Iterable[Any]:
    told = time.monotonic()
    for i, item in enumerate(items, 1):
        yield item
        if time.monotonic() - told > 2:
            told = time.monotonic()
            progress(f"{i} of {count}")


def fingerprint(items: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(items).encode()).hexdigest()[:16]
