"""Rows → findings, statistics, and train.jsonl and dev.jsonl: what decides whether a dataset may be trained on.

Two passes. The first reads the sources row by row into one file of JSON Lines and a few numbers per row (24 bytes,
whatever its length); then the split is decided; the second pass writes the splits. So memory grows with the number of
rows, not with the size of the files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from workers.contract.datasets import SPLITS, Finding, Reading, RowRef
from workers.contract.records import from_json_number, to_json_number
from workers.datasets import parsing
from workers.datasets.parsing import BadRow, Row, Unreadable, printable, problem

Stage = Callable[[str, int, int], None]
Numbers = npt.NDArray[Any]
Level = Literal["error", "warning", "note"]

# Row numbers that a finding names; how many there are it says in any case.
MOST_ROWS = 20
MOST_FINDINGS = 200
MOST_LABELS = 1000
SAMPLES, SAMPLE_CHARACTERS = 10, 300
# The commonest label has so many times the rows of the rarest: worth a word.
IMBALANCE = 20
HISTOGRAM_BINS = 24
_DEV = {"dev", "valid", "validation", "val", "eval", "验证", "验证集", "开发集"}
_TRAIN = {"train", "training", "训练", "训练集"}
_TEST = {"test", "testing", "测试", "测试集"}
_TRAIN_CODE, _DEV_CODE, _OUT_CODE, _OPEN_CODE = 0, 1, 2, 3
# What tables have where a value is missing.
_MISSING = re.compile(r"(nan|null|none|n/a|na|#n/a|inf|-inf|infinity)", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    path: Path
    name: str
    split: str = ""  # "": to be decided
    # An open file instead of the path, where who opened it has checked what it is.
    file: BinaryIO | None = None


@dataclass
class Outcome:
    findings: list[Finding] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    content_hash: str = ""
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def fit(self) -> bool:
        return all(finding.level != "error" for finding in self.findings)


def check(sources: list[Source], reading: Reading, scratch: Path, target: Path, stage: Stage) -> Outcome:
    """Everything. `scratch` and `target` are folders that exist; `target` gets the splits if the outcome is fit."""
    findings = Findings()
    outcome = Outcome()
    rows = _Rows(reading, findings, [source.name for source in sources])
    try:
        with (scratch / "rows.jsonl").open("wb") as lines:
            for number, source in enumerate(sources):
                rows.read(number, source, lines, stage)
    except Unreadable as error:
        findings.add("error", error.template, None, **error.values)
    else:
        rows.conclude()
        if rows.count and findings.fit:
            splits = _split_codes(rows, reading, findings)
            _check_splits(rows, splits, findings)
            if findings.fit:
                stage("looking for duplicates", 0, 0)
                outcome.statistics = _measure(rows, splits, findings)
                outcome.statistics["samples"] = _write(scratch / "rows.jsonl", splits, target, stage)
                outcome.labels = sorted(rows.labels) if not reading.labels else list(reading.labels)
                outcome.splits = dict(outcome.statistics["rows"])
                outcome.content_hash = content_hash(target)
                outcome.bytes = sum((target / f"{split}.jsonl").stat().st_size for split in SPLITS)
    outcome.columns = sorted(rows.columns)
    outcome.findings = findings.all()
    return outcome


# --- findings --------------------------------------------------------------------------------


class Findings:
    """Counted by kind; of each, the first rows."""

    def __init__(self) -> None:
        self._found: dict[tuple[Level, str, str], tuple[dict[str, Any], list[RowRef]]] = {}
        self.fit = True

    def row(self, level: Level, bad: BadRow, file: str) -> None:
        key = (level, bad.template, json.dumps(bad.values, sort_keys=True))
        if key not in self._found:
            if len(self._found) >= MOST_FINDINGS:
                return
            self._found[key] = ({**bad.values, "count": 0}, [])
        values, rows = self._found[key]
        values["count"] += 1
        if len(rows) < MOST_ROWS:
            rows.append(RowRef(file=file, row=bad.number, shown=bad.shown))
        self.fit = self.fit and level != "error"

    def add(self, level: Level, template: str, at: list[RowRef] | None = None, **values: Any) -> None:
        self._found[level, template, json.dumps(values, sort_keys=True)] = (values, at or [])
        self.fit = self.fit and level != "error"

    # The texts of these are found by name, for translation.
    def found_error(self, template: str, at: list[RowRef] | None = None, **values: Any) -> None:
        self.add("error", template, at, **values)

    def found_warning(self, template: str, at: list[RowRef] | None = None, **values: Any) -> None:
        self.add("warning", template, at, **values)

    def found_note(self, template: str, at: list[RowRef] | None = None, **values: Any) -> None:
        self.add("note", template, at, **values)

    def all(self) -> list[Finding]:
        order = {"error": 0, "warning": 1, "note": 2}
        made = [
            Finding(level=level, template=template, values=values, rows=rows)
            for (level, template, _), (values, rows) in self._found.items()
        ]
        return sorted(made, key=lambda finding: order[finding.level])


# --- the first pass --------------------------------------------------------------------------


class _Rows:
    """The rows that are right, in order, as numbers; their lines are in the scratch file."""

    def __init__(self, reading: Reading, findings: Findings, names: list[str]) -> None:
        self.reading, self.findings, self.names = reading, findings, names
        self.labels: dict[str, int] = {label: i for i, label in enumerate(reading.labels)}
        self.columns: set[str] = set()
        self.hashes, self.label_of, self.lengths = array("Q"), array("I"), array("I")
        self.number_of, self.file_of, self.split_of = array("Q"), array("B"), array("B")
        self.read_rows = 0
        self.bad_rows = 0

    @property
    def count(self) -> int:
        return len(self.hashes)

    def read(self, number: int, source: Source, lines: BinaryIO, stage: Stage) -> None:
        file = source.file or source.path.open("rb")
        with file:
            size = os.fstat(file.fileno()).st_size
            for row in parsing.rows(file, self.reading, lambda done: stage("reading rows", done, size)):
                self.read_rows += 1
                bad = row if isinstance(row, BadRow) else self._take(row, number, source.split, lines)
                if bad:
                    self.bad_rows += 1
                    level: Level = "warning" if self.reading.leave_out else "error"
                    self.findings.row(level, bad, source.name)

    def conclude(self) -> None:
        if not self.read_rows:
            self.findings.found_error("There are no rows.")
        elif not self.count:
            self.findings.found_error("No row can be used.")
        elif self.reading.leave_out and self.bad_rows:
            self.findings.found_warning("Rows with errors that were left out: %(count)d.", count=self.bad_rows)

    def _take(self, row: Row, file: int, given: str, lines: BinaryIO) -> BadRow | None:
        """Stores the row, or says why not."""
        reading, values, number = self.reading, row.values, row.number
        for column in (reading.text_column, reading.label_column, reading.weight_column, reading.split_column):
            if column and column not in values:
                shown = ", ".join(map(str, values)) or "—"
                return problem("Rows without the column “%(column)s”: %(count)d.", number, shown, column=column)
        text, label = values[reading.text_column], values[reading.label_column]
        if not isinstance(text, str):
            return problem("Rows whose text is no text: %(count)d.", number, f"{text!r:.60}")
        if not text.strip():
            return problem("Rows with an empty text: %(count)d.", number)
        if label is None or label == "" or (isinstance(label, str) and not label.strip()):
            return problem("Rows without a label: %(count)d.", number)
        if isinstance(label, bool) or not isinstance(label, str | int):
            return problem(
                "Rows whose label is neither a text nor a whole number: %(count)d.", number, f"{label!r:.60}"
            )
        if row.line:
            name = str(label)
        else:
            name = values[reading.label_column] = str(label).strip()
        try:
            encoded = text.encode("utf-8")
            name.encode("utf-8")
        except UnicodeEncodeError:
            return problem("Rows with characters that are no Unicode (lone surrogates): %(count)d.", number, text)
        if "\0" in text or "\0" in name:
            return problem("Rows with a NUL character: %(count)d.", number, text)
        if name not in self.labels:
            if reading.labels:
                return problem("Rows with a label outside of the label set: %(count)d.", number, name)
            if len(self.labels) >= MOST_LABELS:
                raise Unreadable(
                    "There are more than %(limit)d different labels: is “%(column)s” the right column?",
                    limit=MOST_LABELS,
                    column=reading.label_column,
                )
            if len(name) > 200:
                return problem(
                    "Rows with a label longer than %(limit)d characters: %(count)d.", number, name, limit=200
                )
        if reading.weight_column and (bad := self._weight(values, number, self.names[file])):
            return bad
        split = _OPEN_CODE
        if given:
            split = SPLITS.index(given)
        elif reading.split_column:
            said = str(values[reading.split_column]).strip().lower()
            if said in _TRAIN:
                split = _TRAIN_CODE
            elif said in _DEV:
                split = _DEV_CODE
            elif said in _TEST:
                split = _OUT_CODE
            else:
                shown = str(values[reading.split_column])
                return problem("Rows whose split is none of train, dev, test: %(count)d.", number, shown)
        if _MISSING.fullmatch(text.strip()) or _MISSING.fullmatch(name.strip()):
            bad = problem("Rows whose text or label looks like a missing value: %(count)d.", number, f"{text} → {name}")
            self.findings.row("warning", bad, self.names[file])
        self.hashes.append(int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little"))
        self.label_of.append(self.labels.setdefault(name, len(self.labels)))
        self.lengths.append(len(text))
        self.number_of.append(number)
        self.file_of.append(file)
        self.split_of.append(split)
        line = row.line
        if not line or (reading.text_column, reading.label_column) != ("text", "label"):
            # Under the names that the recipes' settings have by default.
            chosen = {reading.text_column, reading.label_column, "text", "label"}
            rest = {column: value for column, value in values.items() if column not in chosen}
            values = {"text": text, "label": values[reading.label_column], **rest}
            line = json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")
        if len(self.columns) < parsing.MOST_COLUMNS:
            self.columns.update(map(printable, values))
        lines.write(line + b"\n")
        return None

    def _weight(self, values: dict[str, Any], number: int, name: str) -> BadRow | None:
        """A NaN stays one: training shows what it does. Fields of tables become numbers."""
        column = self.reading.weight_column
        given = values[column]
        try:
            value = float(from_json_number(given)) if not isinstance(given, bool) else None
        except (TypeError, ValueError, OverflowError):
            value = None
        if value is None or (math.isfinite(value) and value < 0):
            return problem("Rows whose weight is no number of 0 or more: %(count)d.", number, str(given))
        if not math.isfinite(value):
            self.findings.row(
                "warning", problem("Rows whose weight is not finite: %(count)d.", number, str(given)), name
            )
        values[column] = to_json_number(value)
        return None

    def refs(self, indices: Numbers) -> list[RowRef]:
        return [RowRef(file=self.names[self.file_of[i]], row=self.number_of[i]) for i in indices[:MOST_ROWS]]


# --- the split -------------------------------------------------------------------------------


def _split_codes(rows: _Rows, reading: Reading, findings: Findings) -> Numbers:
    """0 train, 1 dev, 2 left out, per row. Label by label, so that both splits have the same shares of labels."""
    codes = np.frombuffer(rows.split_of, np.uint8).copy()
    is_open = codes == _OPEN_CODE
    if is_open.any():
        if (codes == _DEV_CODE).any():
            # A dev file was given: all else is for training.
            codes[is_open] = _TRAIN_CODE
        else:
            labels = np.frombuffer(rows.label_of, np.uint32)
            chance = random.Random(reading.seed)
            for label in sorted(rows.labels):
                of_label = np.flatnonzero(is_open & (labels == rows.labels[label]))
                for chosen in chance.sample(range(len(of_label)), round(len(of_label) * reading.dev_fraction)):
                    codes[of_label[chosen]] = _DEV_CODE
            codes[codes == _OPEN_CODE] = _TRAIN_CODE
    out = int((codes == _OUT_CODE).sum())
    if out:
        findings.found_note("Rows of the test split, which are not used: %(count)d.", count=out)
    return codes


def _check_splits(rows: _Rows, codes: Numbers, findings: Findings) -> None:
    labels = np.frombuffer(rows.label_of, np.uint32)
    names = list(rows.labels)
    counts = [np.bincount(labels[codes == code], minlength=len(names)) for code in (_TRAIN_CODE, _DEV_CODE)]
    train, dev = counts
    if not train.any():
        findings.found_error("There are no training rows.")
        return
    if not dev.any():
        findings.found_error(
            "There are no rows for evaluation: %(rows)d rows are too few to set a part of them apart, or the split names none.",
            rows=rows.count,
        )
        return
    if int((train > 0).sum()) < 2:
        known = ", ".join(name for name, count in zip(names, train, strict=True) if count)
        findings.found_error(
            "There must be two labels at least; the training rows have: %(labels)s.", labels=printable(known, 200)
        )
    for name, in_train, in_dev in sorted(zip(names, train, dev, strict=True)):
        if in_dev and not in_train:
            where = np.flatnonzero((codes == _DEV_CODE) & (labels == rows.labels[name]))
            findings.found_error(
                "The label “%(label)s” is among the dev rows but not among the training rows.",
                rows.refs(where),
                label=printable(name),
            )
    if not findings.fit:
        return
    without = [name for name, in_train, in_dev in zip(names, train, dev, strict=True) if in_train and not in_dev]
    if without:
        findings.found_warning(
            "Labels without rows for evaluation: %(labels)s.", labels=printable(", ".join(sorted(without)), 200)
        )
    unused = [name for name, count in zip(names, train, strict=True) if not count]
    if unused:
        findings.found_warning(
            "Labels of the label set without training rows: %(labels)s.", labels=printable(", ".join(unused), 200)
        )
    used = [(int(count), name) for name, count in zip(names, train, strict=True) if count]
    (fewest, rarest), (most, commonest) = min(used), max(used)
    if most >= IMBALANCE * fewest:
        findings.found_warning(
            "Labels are unbalanced: “%(commonest)s” has %(most)d training rows, “%(rarest)s” has %(fewest)d. Look at macro F1 rather than at accuracy.",
            commonest=printable(commonest), most=most, rarest=printable(rarest), fewest=fewest,
        )  # fmt: skip


# --- measuring -------------------------------------------------------------------------------


def _measure(rows: _Rows, codes: Numbers, findings: Findings) -> dict[str, Any]:
    """What pages show of a dataset. Lengths are in characters, shares from 0 to 1."""
    labels, lengths, hashes = (np.frombuffer(a, t) for a, t in ((rows.label_of, np.uint32), (rows.lengths, np.uint32), (rows.hashes, np.uint64)))  # fmt: skip
    of = {split: np.flatnonzero(codes == code) for code, split in enumerate(SPLITS)}
    names = sorted(rows.labels)
    counts = {split: np.bincount(labels[at], minlength=len(names)) for split, at in of.items()}
    edges = _edges(lengths[codes != _OUT_CODE])
    commonest = int(counts["train"].argmax())
    return {
        "rows": {split: len(at) for split, at in of.items()},
        "label_counts": {split: {name: int(counts[split][rows.labels[name]]) for name in names if counts[split][rows.labels[name]]} for split in SPLITS},
        "text_length": {split: _percentiles(lengths[at]) for split, at in of.items()},
        "length_histogram": {
            "edges": edges,
            "counts": {split: np.histogram(lengths[at], edges)[0].tolist() for split, at in of.items()},
        },
        "duplicates": _duplicates(rows, of, hashes, labels, findings),
        "baselines": {"majority": int(counts["dev"][commonest]) / len(of["dev"])},
    }  # fmt: skip


def _edges(lengths: Numbers) -> list[int]:
    """Whole numbers; the last bin takes the longest hundredth."""
    longest, most = int(lengths.max()), max(int(np.percentile(lengths, 99)), 1)
    width = max(math.ceil(most / HISTOGRAM_BINS), 1)
    edges = list(range(0, most + width, width))
    return edges if edges[-1] > longest else [*edges, longest + 1]


def _percentiles(lengths: Numbers) -> dict[str, int]:
    ordered = np.sort(lengths)
    last = len(ordered) - 1
    found = {"min": ordered[0], **{f"p{p}": ordered[round(last * p / 100)] for p in (50, 90, 99)}, "max": ordered[-1]}
    return {name: int(value) for name, value in found.items()}


def _duplicates(
    rows: _Rows, of: dict[str, Numbers], hashes: Numbers, labels: Numbers, findings: Findings
) -> dict[str, int]:
    """Texts that occur again, and those that carry different labels. Equal 8-byte hashes are taken for equal texts."""
    found: dict[str, int] = {}
    for split, at in of.items():
        again = _again(hashes[at])
        found[split] = len(again)
        if len(again):
            findings.found_warning(
                "Rows of %(split)s whose text occurs earlier in it: %(count)d.",
                rows.refs(at[again]),
                split=split,
                count=len(again),
            )
    leaked = of["dev"][np.isin(hashes[of["dev"]], hashes[of["train"]])]
    found["dev_in_train"] = len(np.unique(hashes[leaked]))
    if len(leaked):
        findings.found_warning(
            "Rows of dev whose text is among the training rows: %(count)d. The evaluation looks better than it is.",
            rows.refs(leaked),
            count=len(leaked),
        )
    used = np.concatenate(list(of.values()))
    order = used[np.lexsort((labels[used], hashes[used]))]
    same = (hashes[order][1:] == hashes[order][:-1]) & (labels[order][1:] != labels[order][:-1])
    contradicting = np.sort(order[1:][same])
    found["contradicting"] = len(contradicting)
    if len(contradicting):
        findings.found_warning(
            "Rows whose text has another label elsewhere: %(count)d.",
            rows.refs(contradicting),
            count=len(contradicting),
        )
    return found


def _again(hashes: Numbers) -> Numbers:
    """Indices of all but the first of each value, in order."""
    order = np.argsort(hashes, kind="stable")
    return np.sort(order[1:][hashes[order][1:] == hashes[order][:-1]])


# --- the second pass -------------------------------------------------------------------------


def _write(lines: Path, codes: Numbers, target: Path, stage: Stage) -> dict[str, list[dict[str, str]]]:
    """train.jsonl and dev.jsonl, flushed to disk; returns the first rows of each, cut to what a page shows."""
    samples: dict[str, list[dict[str, str]]] = {split: [] for split in SPLITS}
    files = {split: (target / f"{split}.jsonl").open("wb") for split in SPLITS}
    try:
        with lines.open("rb") as source:
            for i, line in enumerate(source):
                if i % 20_000 == 0:
                    stage("writing the splits", i, len(codes))
                if codes[i] == _OUT_CODE:
                    continue
                split = SPLITS[codes[i]]
                files[split].write(line)
                if len(samples[split]) < SAMPLES:
                    row = json.loads(line)
                    text = printable(row["text"], SAMPLE_CHARACTERS)
                    samples[split].append({"text": text, "label": printable(str(row["label"]), 200)})
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()
    for split in SPLITS:
        # Hosts read it, perhaps as another user; nobody writes it again.
        (target / f"{split}.jsonl").chmod(0o444)
    target.chmod(0o755)
    return samples


def content_hash(folder: Path) -> str:
    """SHA-256 over both splits' own."""
    whole = hashlib.sha256()
    for split in SPLITS:
        digest = hashlib.sha256()
        for block in _blocks(folder / f"{split}.jsonl"):
            digest.update(block)
        whole.update(f"{split} {digest.hexdigest()}\n".encode())
    return whole.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block
