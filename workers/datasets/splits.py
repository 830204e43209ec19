"""From the scratch file to train.jsonl and dev.jsonl, which are never written again."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Mapping
from itertools import compress, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.contract.datasets import SPLITS, Reading, RowRef
from workers.datasets.findings import Findings, Stage
from workers.datasets.parsing import printable
from workers.datasets.written import READ_BYTES, content_hash, count_rows

Codes = npt.NDArray[Any]
TRAIN, DEV, OUT, OPEN = 0, 1, 2, 3  # of a row: where it goes; OPEN is decided once all rows are read
# The commonest label has so many times the rows of the rarest: worth a word.
IMBALANCE = 20
SAMPLES = 10

_NAMES = {
    TRAIN: {"train", "training", "训练", "训练集"},
    DEV: {"dev", "valid", "validation", "val", "eval", "验证", "验证集", "开发集"},
    OUT: {"test", "testing", "测试", "测试集"},
}


def named(word: str) -> int | None:
    """The split that is called so, if any."""
    word = word.strip().lower()
    return next((code for code, names in _NAMES.items() if word in names), None)


def set_apart(codes: Codes, strata: Iterable[Codes | bool], reading: Reading) -> Codes:
    """Decides where OPEN rows go: to train if there are DEV rows already, else a fraction of each stratum (a mask of
    rows) to dev, by the seed, so that both splits have the same shares of them."""
    codes = codes.copy()
    is_open = codes == OPEN
    if is_open.any() and not (codes == DEV).any():
        chance = random.Random(reading.seed)
        for stratum in strata:
            rows = np.flatnonzero(is_open & stratum)
            chosen = chance.sample(range(len(rows)), round(len(rows) * reading.dev_fraction))
            codes[rows[np.fromiter(chosen, np.int64, len(chosen))]] = DEV
    codes[codes == OPEN] = TRAIN
    return codes


# --- what every kind of dataset must have ----------------------------------------------------


def check_rows(read: int, count: int, bad: int, reading: Reading, findings: Findings) -> None:
    """Of `read` rows `count` can be used; `bad` are left out, if that was asked for."""
    if not read:
        findings.found_error("There are no rows.")
    elif not count:
        findings.found_error("No row can be used.")
    elif reading.leave_out and bad:
        findings.found_warning("Rows with errors that were left out: %(count)d.", count=bad)


def check_splits(codes: Codes, findings: Findings) -> bool:
    """Whether there are rows of both splits; `codes` as decided."""
    if not (codes == TRAIN).any():
        findings.found_error("There are no training rows.")
        return False
    if not (codes == DEV).any():
        findings.found_error(
            "There are no rows for evaluation: %(rows)d rows are too few to set a part of them apart, or the split names none.",
            rows=len(codes),
        )
        return False
    return True


def check_labels(
    names: Mapping[str, int], of: Codes, codes: Codes, refs: Callable[[Codes], list[RowRef]], findings: Findings
) -> None:
    """Two labels to learn, none in dev that was not learnt, and what is odd about them. `names`: the code of each label; `of` [rows]: label codes."""
    train, dev = (np.bincount(of[codes == code], minlength=len(names)) for code in (TRAIN, DEV))
    if int((train > 0).sum()) < 2:
        known = ", ".join(name for name, label in names.items() if train[label])
        findings.found_error(
            "There must be two labels at least; the training rows have: %(labels)s.", labels=printable(known, 200)
        )
    for name, label in sorted(names.items()):
        if dev[label] and not train[label]:
            findings.found_error(
                "The label “%(label)s” is among the dev rows but not among the training rows.",
                refs(np.flatnonzero((codes == DEV) & (of == label))),
                label=printable(name),
            )
    if not findings.fit:
        return
    without = sorted(name for name, label in names.items() if train[label] and not dev[label])
    if without:
        findings.found_warning(
            "Labels without rows for evaluation: %(labels)s.", labels=printable(", ".join(without), 200)
        )
    unused = [name for name, label in names.items() if not train[label]]
    if unused:
        findings.found_warning(
            "Labels of the label set without training rows: %(labels)s.", labels=printable(", ".join(unused), 200)
        )
    used = [(int(train[label]), name) for name, label in names.items() if train[label]]
    (fewest, rarest), (most, commonest) = min(used), max(used)
    if most >= IMBALANCE * fewest:
        findings.found_warning(
            "Labels are unbalanced: “%(commonest)s” has %(most)d training rows, “%(rarest)s” has %(fewest)d. Look at macro F1 rather than at accuracy.",
            commonest=printable(commonest), most=most, rarest=printable(rarest), fewest=fewest,
        )  # fmt: skip


def write(lines: Path, codes: Codes, target: Path, stage: Stage) -> tuple[str, list[list[bytes]]]:
    """The splits below `target`, flushed to disk; the code of each line says where it goes. Returns the content hash (SHA-256
    over both splits' own) and the first lines of each split."""
    first: list[list[bytes]] = [[] for _ in SPLITS]
    digests = [hashlib.sha256() for _ in SPLITS]
    files = [(target / f"{split}.jsonl").open("wb", buffering=0) for split in SPLITS]
    try:
        with lines.open("rb") as source:
            at = 0
            while block := source.readlines(READ_BYTES):
                stage("writing the splits", at, len(codes))
                of_block = codes[at : at + len(block)]
                at += len(block)
                for code, file in enumerate(files):
                    mine = list(compress(block, (of_block == code).tolist()))
                    if not mine:
                        continue
                    first[code] += mine[: SAMPLES - len(first[code])]
                    body = memoryview(b"".join(mine))
                    digests[code].update(body)
                    while body:
                        body = body[file.write(body) :]
        stage("writing the splits", at, len(codes))
        for file in files:
            os.fsync(file.fileno())
    finally:
        for file in files:
            file.close()
    for split in SPLITS:
        # Hosts read it, perhaps as another user; nobody writes it again.
        (target / f"{split}.jsonl").chmod(0o444)
    target.chmod(0o755)
    return content_hash({split: of.hexdigest() for split, of in zip(SPLITS, digests, strict=True)}), first


def evenly(split: Path, most: int) -> tuple[list[dict[str, Any]], int]:
    """At most `most` rows of a split's file, evenly over all of it, and the distance between them: 1 if they are all."""
    step = max(-(-count_rows(split) // most), 1)
    with split.open("rb") as lines:
        return [json.loads(line) for line in islice(lines, 0, None, step)], step
