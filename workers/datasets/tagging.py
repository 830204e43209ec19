"""Tags of tokens and the spans that they make; how a text falls into tokens. Used by checks, by the recipe and by pages.

Spans are those of seqeval (its default mode, which is also that of the CoNLL script): an I- that follows nothing of its type
begins a span all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]
Scheme = Literal["bio", "bioes", "none"]

OUTSIDE = "O"
# L and U (BILOU) are other letters for E and S (BIOES).
PREFIXES: dict[Scheme, str] = {"bio": "BI", "bioes": "BIESLU", "none": ""}
_AS_BIOES = {"L": "E", "U": "S"}
_TAG = re.compile(r"([BIESLU])-(.+)", re.DOTALL)


@lru_cache(maxsize=4096)
def parts(tag: str) -> tuple[str, str] | None:
    """Prefix and type; None if it has no such form."""
    match = _TAG.fullmatch(tag)
    return (_AS_BIOES.get(match[1], match[1]), match[2]) if match else None


def fits(tag: str, scheme: Scheme) -> bool:
    if scheme == "none" or tag == OUTSIDE:
        return bool(tag)
    return len(tag) > 2 and tag[1] == "-" and tag[0] in PREFIXES[scheme]


def scheme_of(tags: Iterable[str]) -> Scheme:
    """What a set of tags is: “none” if one of them has no prefix, or if all are O."""
    others = [tag for tag in tags if tag != OUTSIDE]
    schemes: tuple[Scheme, ...] = ("bio", "bioes")
    return next((one for one in schemes if others and all(fits(tag, one) for tag in others)), "none")


def type_of(tag: str) -> str:
    """Of a tag with a prefix its type; O is its own; any other tag is one by itself."""
    found = parts(tag)
    return found[1] if found else tag


def in_order(tags: Iterable[str]) -> list[str]:
    """O first, then type by type."""
    return sorted(tags, key=lambda tag: (tag != OUTSIDE, type_of(tag), tag))


class Tags:
    """A set of tags by their numbers, for spans of many tokens at once."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.scheme = scheme_of(names)
        found = [parts(name) if self.scheme != "none" else None for name in names]
        self.types = sorted({one[1] for one in found if one})
        # Between two rows, and where nothing was said. As O it is in no span.
        self.border = len(self.names)
        self.outside = self.names.index(OUTSIDE) if OUTSIDE in self.names else self.border
        prefixes = np.array([one[0] if one else OUTSIDE for one in found] + [OUTSIDE])
        self.type_of = np.array([self.types.index(one[1]) if one else -1 for one in found] + [-1])
        before, after = prefixes[:, None], prefixes[None, :]
        other = self.type_of[:, None] != self.type_of[None, :]
        closed = np.isin(before, ["E", "S", OUTSIDE])
        # [tag before, tag]: whether a span ends between them, and whether one begins.
        self._ends = (before != OUTSIDE) & (np.isin(before, ["E", "S"]) | np.isin(after, ["B", "S", OUTSIDE]) | other)
        self._begins = (after != OUTSIDE) & (np.isin(after, ["B", "S"]) | closed | other)

    def spans(self, tags: Numbers) -> Numbers:
        """[spans, (first token, one after the last, number of the type)], in order. Rows are kept apart by `border`."""
        around = np.concatenate([[self.border], tags, [self.border]])
        before, after = around[:-1], around[1:]
        begins, ends = np.flatnonzero(self._begins[before, after]), np.flatnonzero(self._ends[before, after])
        return np.stack([begins, ends, self.type_of[around[begins + 1]]], axis=1)


def spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first token, one after the last, type) of one row's tags, as `Tags.spans` finds them; none without prefixes."""
    found: list[tuple[int, int, str]] = []
    begin, before = 0, None
    for i, tag in enumerate([*tags, OUTSIDE]):
        now = None if tag == OUTSIDE else parts(tag)
        if now is None and tag != OUTSIDE:
            return []
        other = before is None or now is None or before[1] != now[1]
        if before is not None and (other or before[0] in "ES" or (now is not None and now[0] in "BS")):
            found.append((begin, i, before[1]))
        if now is not None and (other or now[0] in "BS" or (before is not None and before[0] in "ES")):
            begin = i
        before = now
    return found


def segments(tokens: Sequence[str], tags: Sequence[str], most: int) -> list[tuple[str, str]]:
    """A row as people read it: (text, type, or "" of what is in no span), cut at `most` characters. Of tags without a
    scheme each token that is not O has its own."""
    found = spans(tags)
    if not found and scheme_of(tags) == "none":
        found = [(i, i + 1, tag) for i, tag in enumerate(tags) if tag != OUTSIDE]
    made: list[tuple[str, str]] = []
    at = 0
    for first, last, kind in found:
        made += [(joined(tokens[at:first]), ""), (joined(tokens[first:last]), kind)]
        at = last
    made.append((joined(tokens[at:]), ""))
    spaced = not by_characters([tokens])
    cut: list[tuple[str, str]] = []
    for text, kind in made:
        if not text:
            continue
        if len(text) > most:
            return [*cut, (text[:most] + "…", kind)]
        most -= len(text)
        cut.append((text, kind))
        if spaced:
            cut.append((" ", ""))
    return cut


def joined(tokens: Sequence[str]) -> str:
    return ("" if by_characters([tokens]) else " ").join(tokens)


# --- tokens ----------------------------------------------------------------------------------

CHARACTERS, WORDS = "characters", "words"
# Other tokens than single characters that a row of characters may have: a number, a foreign name.
_SHARE_OF_CHARACTERS = 0.9
_EAST_ASIAN = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\u3000-\u303f"
_PIECES = re.compile(rf"[{_EAST_ASIAN}]|[^\W_{_EAST_ASIAN}]+|[^\w\s]|_")


def by_characters(rows: Iterable[Sequence[str]]) -> bool:
    """Whether the tokens of these rows are characters, by and large."""
    tokens = characters = 0
    for row in rows:
        tokens += len(row)
        characters += sum(len(token) == 1 for token in row)
    return tokens == 0 or characters >= _SHARE_OF_CHARACTERS * tokens


def split(text: str, into: str = WORDS) -> list[tuple[int, int]]:
    """Where the tokens of a text begin and end: its characters but for spaces; or words and marks, and each Chinese character
    by itself."""
    if into == CHARACTERS:
        return [(i, i + 1) for i, character in enumerate(text) if not character.isspace()]
    return [match.span() for match in _PIECES.finditer(text)]
