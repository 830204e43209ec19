"""How many tokens a text has for the character vocabulary that training from scratch builds, without that vocabulary and
without Paddle: one per character that is left once spaces, controls and accents are taken away, as PaddleNLP does."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

# [CLS] and [SEP].
MARKS = 2
_HANGUL = (0xAC00, 0xD7A4)
# One token each, and no other characters lie between: not worth asking.
_PLAIN = ((0x3400, 0xA000), (0x20000, 0x32400))
_END_OF_TEXTS = 0xE0000  # beyond are tags, selectors and private characters


def count(texts: list[str]) -> npt.NDArray[Any]:
    """Of each text, both marks included. All texts must be encodable."""
    per_character = _per_character()[np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)]
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    # Sums up to each text's end: reduceat would give an empty text the next one's first character.
    sums = np.concatenate(([0], np.cumsum(per_character, dtype=np.int64)))[ends]
    return np.diff(sums, prepend=0).astype(np.uint32) + np.uint32(MARKS)


@cache
def _per_character() -> npt.NDArray[Any]:
    found = np.zeros(0x110000, np.uint8)
    for first, end in _PLAIN:
        found[first:end] = 1
    hangul = np.arange(*_HANGUL)
    # A syllable falls apart into two or three letters.
    found[hangul] = np.where((hangul - _HANGUL[0]) % 28, 3, 2)
    done = (*_PLAIN, _HANGUL, (0xD800, 0xF900))
    for code in range(0x20000):
        if not any(first <= code < end for first, end in done):
            found[code] = _tokens_of(chr(code))
    found[_END_OF_TEXTS:] = 0
    return found


def _tokens_of(character: str) -> int:
    if unicodedata.category(character).startswith("C") or character == "\ufffd":
        return 0
    letters = unicodedata.normalize("NFD", character.lower())
    return sum(unicodedata.category(c) != "Mn" and not c.isspace() for c in letters)
