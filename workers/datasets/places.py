"""Which files and folders a dataset may be read from: uploads below STORAGE_ROOT, and what lies below one of DATASET_ROOTS."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from workers.contract.datasets import is_plain_key
from workers.datasets.findings import Source
from workers.datasets.parsing import CONLL_SUFFIXES, Unreadable

SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".jsonl", ".json", ".ndjson", *CONLL_SUFFIXES)
# Of pictures.
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


def is_known(name: str) -> bool:
    """Whether the file's name ends as rows or archives do."""
    return name.lower().endswith((*SUFFIXES, *ARCHIVES))


def is_rows(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVES)


def source_below(path: Path, name: str, split: str, roots: Sequence[Path]) -> Source:
    """A file, or a folder of pictures, as `open_below` opens one. Raises Unreadable."""
    if is_known(path.name):
        return Source(path, name, split, open_below(path, roots))
    return Source(folder_below(path, roots), name, split)


def folder_below(path: Path, roots: Sequence[Path]) -> Path:
    """The real path of the folder at the absolute `path`, if it lies below one of `roots`. Raises Unreadable."""
    try:
        real = path.resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        raise _refusal(path) from None
    below = path.is_absolute() and any(real.is_relative_to(root.resolve()) for root in roots)
    if not below or not real.is_dir():
        raise _refusal(path)
    return real


def _refusal(path: Path) -> Unreadable:
    return Unreadable(
        "There is no such file below the folders that datasets may come from: %(path)s.", path=str(path)[:300]
    )


def open_below(path: Path, roots: Sequence[Path]) -> BinaryIO:
    """The regular file at the absolute `path`, if it lies below one of `roots` once all links are followed.

    Whether it does is asked of the opened file itself: a link that is changed meanwhile opens nothing else.
    Raises Unreadable, with the same text for what is not there and what is not allowed: nobody can probe for files.
    """
    refused = _refusal(path)
    if not path.is_absolute() or not is_known(path.name):
        raise refused
    try:
        # Not blocking: opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        raise refused from None
    real = Path(f"/proc/self/fd/{descriptor}").readlink()
    regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    if not regular or not is_known(real.name) or not any(real.is_relative_to(root.resolve()) for root in roots):
        os.close(descriptor)
        raise refused
    return os.fdopen(descriptor, "rb")


def open_key(key: str, storage_root: Path) -> BinaryIO:
    """An uploaded file. Raises Unreadable."""
    path = storage_root / key
    if not is_plain_key(key) or not path.is_file():
        raise Unreadable("The uploaded file is no longer in the storage: upload it again.")
    return path.open("rb")
