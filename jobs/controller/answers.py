"""Files in which hosts answer. A host may write anything: what one of them says must not stop the rest."""

from __future__ import annotations

from pathlib import Path

from django.db import DataError

LARGEST_PROGRESS_BYTES = 64 * 1024
# What is no answer: not of the contract's shape, or of numbers that no column holds.
NONSENSE = (ValueError, OverflowError, DataError)


def read(path: Path, most: int) -> bytes:
    """Raises ValueError if there is more than `most`. PostgreSQL keeps no NUL in texts."""
    with path.open("rb") as file:
        body = file.read(most + 1)
    if len(body) > most:
        raise ValueError("it is too large")
    return body.replace(b"\\u0000", b"\\ufffd")
