"""Registering a dataset: read and check every row, measure, copy below STORAGE_ROOT. What is registered never changes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User

from jobs.models import Dataset

SPLITS = ("train", "dev")
MOST_ERRORS = 20


class Unfit(Exception):
    """What is wrong with the files, a line each, with row numbers from 1."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


@dataclass(frozen=True)
class Row:
    line: bytes  # as it was in the file, without its end
    text: str
    label: str
    columns: tuple[str, ...]


def register(
    source: Path,
    *,
    name: str,
    owner: User | None = None,
    shared: bool = False,
    description: str = "",
    text_column: str = "text",
    label_column: str = "label",
    dev_fraction: float = 0.1,
    seed: int = 2026,
    baseline: bool = True,
) -> tuple[Dataset, bool]:
    """The registered version, and whether it is new: the same rows under the same name are registered once.

    `source` is a folder with train.jsonl and dev.jsonl, or with one .jsonl file, or such a file. One file is
    split, label by label, with `seed`. Raises Unfit.
    """
    name = name.strip()
    if not name or len(name) > 100:
        raise Unfit(["The name must have 1 to 100 characters."])
    splits = _read(source, text_column, label_column, dev_fraction, seed)
    content = {split: b"".join(row.line + b"\n" for row in rows) for split, rows in splits.items()}
    content_hash = _hash(content)
    known = Dataset.objects.filter(name=name, content_hash=content_hash).first()
    if known is not None:
        return known, False
    key = f"datasets/{content_hash}"
    folder = settings.STORAGE_ROOT / key
    _store(content, folder)
    statistics = measure(splits)
    if baseline:
        statistics["baselines"] |= measured_baselines(folder, text_column, label_column)
    return Dataset.objects.get_or_create(
        name=name,
        content_hash=content_hash,
        defaults={
            "owner": owner,
            "shared": shared,
            "description": description,
            "key": key,
            "columns": sorted({column for rows in splits.values() for row in rows for column in row.columns}),
            "labels": sorted({row.label for row in splits["train"]}),
            "splits": {split: len(rows) for split, rows in splits.items()},
            "statistics": statistics,
        },
    )


# --- reading and checking -------------------------------------------------------------------


def _read(source: Path, text_column: str, label_column: str, dev_fraction: float, seed: int) -> dict[str, list[Row]]:
    files = _files(source)
    errors: list[str] = []
    read = {split: _rows(path, text_column, label_column, errors) for split, path in files.items()}
    if not errors and "dev" not in read:
        read = _split(read["train"], dev_fraction, seed)
    if not errors:
        known = {row.label for row in read["train"]}
        if len(known) < 2:
            errors.append(f"There must be two labels at least; the training rows have {', '.join(known) or 'none'}.")
        unknown = {row.label for row in read["dev"]} - known
        errors += [
            f"The label “{label}” is among the dev rows but not among the training rows." for label in sorted(unknown)
        ]
    if errors:
        raise Unfit([*errors[:MOST_ERRORS], *(["… and more."] if len(errors) > MOST_ERRORS else [])])
    return read


def _files(source: Path) -> dict[str, Path]:
    if source.is_file():
        return {"train": source}
    if not source.is_dir():
        raise Unfit([f"There is no file or folder {source}."])
    both = {split: source / f"{split}.jsonl" for split in SPLITS}
    if all(path.is_file() for path in both.values()):
        return both
    found = sorted(source.glob("*.jsonl"))
    if len(found) != 1:
        raise Unfit(
            [f"{source} must have train.jsonl and dev.jsonl, or one .jsonl file; it has {len(found)} such files."]
        )
    return {"train": found[0]}


def _rows(path: Path, text_column: str, label_column: str, errors: list[str]) -> list[Row]:
    rows: list[Row] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            line = line.strip().removeprefix(b"\xef\xbb\xbf")
            if not line:
                continue
            try:
                rows.append(_row(line, text_column, label_column))
            except ValueError as error:
                errors.append(f"Row {number} of {path.name}: {error}.")
                if len(errors) > MOST_ERRORS:
                    return rows
    if not rows and not errors:
        errors.append(f"{path.name} has no rows.")
    return rows


def _row(line: bytes, text_column: str, label_column: str) -> Row:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.colno})") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    for column in (text_column, label_column):
        if column not in value:
            raise ValueError(f"no column “{column}”; it has {', '.join(value) or 'none'}")
    text, label = value[text_column], value[label_column]
    if not isinstance(text, str):
        raise ValueError(f"“{text_column}” is not a text but {text!r:.60}")
    if not text.strip():
        raise ValueError(f"“{text_column}” is empty")
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        raise ValueError(f"“{label_column}” is not a label but {label!r:.60}")
    return Row(line, text, str(label), tuple(value))


def _split(rows: list[Row], dev_fraction: float, seed: int) -> dict[str, list[Row]]:
    """Label by label, so that both splits have the same shares of labels; the order of the file is kept."""
    chance = random.Random(seed)
    by_label: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        by_label.setdefault(row.label, []).append(i)
    dev: set[int] = set()
    for label in sorted(by_label):
        dev.update(chance.sample(by_label[label], round(len(by_label[label]) * dev_fraction)))
    if not dev or len(dev) == len(rows):
        raise Unfit([f"{len(rows)} rows are too few to set {dev_fraction:g} of them apart for evaluation."])
    return {
        "train": [row for i, row in enumerate(rows) if i not in dev],
        "dev": [row for i, row in enumerate(rows) if i in dev],
    }


# --- measuring ------------------------------------------------------------------------------


def measure(splits: dict[str, list[Row]]) -> dict[str, Any]:
    """What the form and the job page show of a dataset. Lengths are in characters, shares from 0 to 1."""
    texts = {split: [row.text for row in rows] for split, rows in splits.items()}
    labels = {split: Counter(row.label for row in rows) for split, rows in splits.items()}
    distinct = {split: set(of_split) for split, of_split in texts.items()}
    commonest = labels["train"].most_common(1)[0][0]
    return {
        "rows": {split: len(rows) for split, rows in splits.items()},
        "label_counts": {split: dict(sorted(counts.items())) for split, counts in labels.items()},
        "text_length": {split: _percentiles([len(text) for text in of_split]) for split, of_split in texts.items()},
        "duplicates": {
            **{split: len(texts[split]) - len(distinct[split]) for split in splits},
            "dev_in_train": len(distinct["dev"] & distinct["train"]),
        },
        "baselines": {"majority": labels["dev"][commonest] / len(splits["dev"])},
    }


def _percentiles(lengths: list[int]) -> dict[str, int]:
    ordered = sorted(lengths)
    last = len(ordered) - 1
    return {"min": ordered[0], **{f"p{p}": ordered[round(last * p / 100)] for p in (50, 90, 99)}, "max": ordered[-1]}


def measured_baselines(folder: Path, text_column: str, label_column: str) -> dict[str, float]:
    """In a process of its own, and only where the trainer's packages are: web has no scikit-learn. {} without."""
    if importlib.util.find_spec("sklearn") is None:
        return {}
    command = [sys.executable, "-m", "workers.recipes.text_classification.baseline", str(folder)]
    command += ["--text-column", text_column, "--label-column", label_column]
    result = subprocess.run(command, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        raise RuntimeError(f"The baseline could not be computed: {result.stderr.strip()[-500:]}")
    found: dict[str, float] = json.loads(result.stdout)
    return found


# --- storing --------------------------------------------------------------------------------


def _hash(content: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(f"{split} {len(content[split])}\n".encode())
        digest.update(content[split])
    return digest.hexdigest()


def _store(content: dict[str, bytes], folder: Path) -> None:
    """All files or none: a folder of this name is always whole."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        for split, body in content.items():
            with (temporary / f"{split}.jsonl").open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
        # Hosts read it, perhaps as another user.
        temporary.chmod(0o755)
        temporary.rename(folder)
    except FileExistsError:  # someone else was faster, with the same bytes
        pass
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
