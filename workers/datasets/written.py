"""What is known of the files of a checked dataset, by their bytes alone. Only the standard library: supervisors import it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from workers.contract.datasets import SPLITS

READ_BYTES = 2 * 2**20


def content_hash(digests: Mapping[str, str]) -> str:
    """SHA-256 in hex, over those of the splits' files (split -> hex)."""
    whole = "".join(f"{split} {digests[split]}\n" for split in SPLITS)
    return hashlib.sha256(whole.encode()).hexdigest()


def count_rows(split: Path) -> int:
    """Lines of a split's file; a last one without its end counts."""
    count, last = 0, b"\n"
    with split.open("rb") as file:
        while block := file.read(READ_BYTES):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")
