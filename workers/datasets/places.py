"""Which files a dataset may be read from: uploads below STORAGE_ROOT, and what lies below one of DATASET_ROOTS."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from workers.contract.datasets import is_plain_key
from workers.datasets.parsing import CONLL_SUFFIXES, Unreadable

SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".jsonl", ".json", ".ndjson", *CONLL_SUFFIXES)


def open_below(path: Path, roots: Sequence[Path]) -> BinaryIO:
    """The regular file at the absolute `path`, if it lies below one of `roots` once all links are followed.

    Whether it does is asked of the opened file itself: a link that is changed meanwhile opens nothing else.
    Raises Unreadable, with the same text for what is not there and what is not allowed: nobody can probe for files.
    """
    refused = Unreadable(
        "There is no such file below the folders that datasets may come from: %(path)s.", path=str(path)[:300]
    )
    if not path.is_absolute() or path.suffix.lower() not in SUFFIXES:
        raise refused
    try:
        # Not blocking: opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        raise refused from None
    real = Path(f"/proc/self/fd/{descriptor}").readlink()
    regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    if (
        not regular
        or real.suffix.lower() not in SUFFIXES
        or not any(real.is_relative_to(root.resolve()) for root in roots)
    ):
        os.close(descriptor)
        raise refused
    return os.fdopen(descriptor, "rb")


def open_key(key: str, storage_root: Path) -> BinaryIO:
    """An uploaded file. Raises Unreadable."""
    path = storage_root / key
    if not is_plain_key(key) or not path.is_file():
        raise Unreadable("The uploaded file is no longer in the storage: upload it again.")
    return path.open("rb")
