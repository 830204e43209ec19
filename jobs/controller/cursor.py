"""Exactly once: bytes of a stream are taken only at the offset where what is stored ends."""

from __future__ import annotations

from collections.abc import Iterable


def accept(offset: int, pieces: Iterable[tuple[int, bytes]]) -> tuple[bytes, bool]:
    """The bytes of `pieces` that go on at `offset`, and whether something beyond a gap was refused.

    What is stored already is trimmed, so doubled and overlapping pieces add nothing.
    """
    taken: list[bytes] = []
    gap = False
    for start, body in pieces:
        if start > offset:
            gap = True
        elif start + len(body) > offset:
            taken.append(body[offset - start :])
            offset = start + len(body)
    return b"".join(taken), gap
