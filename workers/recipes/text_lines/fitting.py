"""How wide a line becomes, how many steps the model then has for its text, and how many CTC needs. Without NumPy: the web
side asks it too."""

from __future__ import annotations

from itertools import pairwise


def width_at(size: tuple[int, int], height: int, most: int) -> int:
    """Of a picture of (width, height) pixels at another height, its shape kept; at most `most`."""
    width, high = size
    return min(max(round(width * height / high), 1), most)


def steps_of(width: int, reduction: int) -> int:
    """The model halves the width, rounding up, until a step stands for `reduction` pixels."""
    while reduction > 1:
        width, reduction = (width + 1) // 2, reduction // 2
    return width


def needed_steps(text: str) -> int:
    """One for each character, and one between two that are the same: without a blank they would count as one."""
    return len(text) + sum(a == b for a, b in pairwise(text))
