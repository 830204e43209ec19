"""Texts with spans (entities, tags) as pages draw them: parts with a colour per type, the same on every page of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from workers.datasets import tagging

COLOURS = 6


def kinds(labels: Sequence[str]) -> list[str]:
    """Types of a dataset's tags in order; of tags without a scheme the tags."""
    tags = tagging.Tags([str(label) for label in labels])
    return tags.types or [tag for tag in tags.names if tag != tagging.OUTSIDE]


def colour(kind: str, known: Sequence[str]) -> int:
    """1 to COLOURS."""
    return (known.index(kind) if kind in known else len(known)) % COLOURS + 1


def parts_of(text: str, found: Iterable[dict[str, Any]]) -> list[list[str]]:
    """From places in a text (see contract/trials.py) to parts, [text, type or ""]. What overlaps is left out."""
    parts: list[list[str]] = []
    at = 0
    for span in sorted(found, key=lambda one: one["start"]):
        if not at <= span["start"] < span["end"] <= len(text):
            continue
        parts += [[text[at : span["start"]], ""], [text[span["start"] : span["end"]], span["label"]]]
        at = span["end"]
    return [part for part in [*parts, [text[at:], ""]] if part[0]]
