"""Numeric sequences: their time steps, split, findings and statistics. A sequence is never divided between the splits.

All values are kept in memory, 8 bytes each and 12 to 20 more per time step, as the trainer keeps them later.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np

from workers.contract.datasets import SPLITS, WEIGHT, Reading, RowRef
from workers.contract.records import from_json_number, to_json_number
from workers.datasets import measures, parsing, splits, weights
from workers.datasets.findings import MOST_ROWS, Findings, Level, Source, Stage, Work
from workers.datasets.measures import Numbers
from workers.datasets.parsing import BadRow, Block, Row, Unreadable, printable, problem
from workers.datasets.rows import without
from workers.datasets.splits import DEV, OPEN, OUT, TRAIN, set_apart

MOST_FEATURES = 256
MOST_LABELS = 1000
# Larger than this float16 cannot hold.
HALF_MOST = 65504.0
# Which is what trains.
FLOAT32_MOST = float(np.finfo(np.float32).max)
MOST_STEPS = 50_000_000  # of all windows
WIDE_FEATURE = "value"  # what the values are called where columns are the time steps
_SAMPLE_STEPS = 12


def check(work: Work) -> None:
    """See checking.py."""
    reading, findings, outcome, scratch, stage = work.reading, work.findings, work.outcome, work.scratch, work.stage
    rows = _Rows(reading, findings, [source.name for source in work.sources])
    try:
        for number, source in enumerate(work.sources):
            rows.read(number, source, stage)
    finally:
        outcome.columns = (
            rows.features + ([rows.said] if rows.said else []) + ([WEIGHT] if reading.weight_column else [])
        )
    stage("putting the time steps in order", 0, 0)
    found = rows.conclude()
    if found is None or not findings.fit:
        return
    stage("deciding the split", 0, 0)
    codes = _split_codes(found, reading, findings)
    _check_splits(found, codes, findings)
    if not findings.fit:
        return
    if reading.weight_column:
        weights.judge(found.weights, codes, found.refs, findings)
        if not findings.fit:
            return
    outcome.statistics = _measure(found, codes, findings)
    if reading.weight_column:
        outcome.statistics |= weights.statistics(found.weights, measures.of_splits(codes))
    with (scratch / "rows.jsonl").open("wb") as lines:
        for number, line in enumerate(_lines(found)):
            if number % 1000 == 0:
                stage("writing the splits", number, len(found))
            lines.write(line)
    outcome.content_hash, first = splits.write(scratch / "rows.jsonl", codes, work.target, stage)
    outcome.statistics["samples"] = _samples(first)
    outcome.labels = (list(reading.labels) or sorted(found.labels)) if found.labels else []
    outcome.splits = dict(outcome.statistics["rows"])


# --- reading ---------------------------------------------------------------------------------


@dataclass
class _Sequence:
    """What belongs to the whole of one, by the index at which it was met first."""

    id: str
    file: int
    number: int  # its first row
    target: float | None = None
    label: str | None = None
    weight: float | None = None
    split: int = OPEN
    bad: bool = False


@dataclass
class Found:
    """Sequences without fault, in order; time steps one after another."""

    features: list[str]
    values: Numbers  # [time steps, features], float64
    begins: Numbers
    sequences: list[_Sequence]
    names: list[str]  # of the files
    labels: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def lengths(self) -> Numbers:
        return np.diff(self.begins)

    @property
    def weights(self) -> Numbers:
        """[sequences]; for where a column has them."""
        return np.array([sequence.weight for sequence in self.sequences], np.float64)

    def refs(self, indices: Any) -> list[RowRef]:
        chosen = [self.sequences[int(i)] for i in indices[:MOST_ROWS]]
        return [RowRef(file=self.names[one.file], row=one.number, shown=printable(one.id)) for one in chosen]


class _Rows:
    """Time steps as they are read: values, which sequence each is of, its row, its place."""

    def __init__(self, reading: Reading, findings: Findings, names: list[str]) -> None:
        self.reading, self.how, self.findings, self.names = reading, reading.sequences, findings, names
        wide = self.how.layout == "columns"
        self.features = [WIDE_FEATURE] if wide else list(self.how.features)
        self.said = "" if self.how.target == "none" else ("target" if self.how.target == "number" else "label")
        if not self.how.features:
            raise Unreadable("No column was chosen as a feature.")
        if len(self.features) > MOST_FEATURES:
            raise Unreadable(
                "There are %(count)d features, and at most %(limit)d can be read: choose fewer.",
                count=len(self.features),
                limit=MOST_FEATURES,
            )
        self.window = self.how.window if self.how.layout == "steps" else 0
        if self.how.layout == "steps" and not self.how.id_column and not self.window:
            raise Unreadable("Where a row is a time step, a column must say of which sequence it is.")
        if self.window and self.said:
            raise Unreadable(
                "Windows of a long sequence have no target of their own: choose none, and predict next values."
            )
        if self.said and not self.how.target_column:
            raise Unreadable("No column was chosen as the target.")
        self.values = [array("d") for _ in self.features]
        self.of, self.place = array("I"), array("d")
        self.sequences: list[_Sequence] = []
        self.index: dict[tuple[str, str], int] = {}
        self.labels: dict[str, int] = {label: i for i, label in enumerate(reading.labels)}
        self.read_rows = self.bad_rows = 0

    def read(self, file: int, source: Source, stage: Stage) -> None:
        opened = source.file or source.path.open("rb")
        with opened:
            size = os.fstat(opened.fileno()).st_size
            for item in parsing.blocks(opened, self.reading, lambda done: stage("reading rows", done, size)):
                for row in item.rows() if isinstance(item, Block) else (item,):
                    self.read_rows += 1
                    bad = row if isinstance(row, BadRow) else self._take(row, file, source.split)
                    if bad:
                        self._complain(bad, source.name)

    def _complain(self, bad: BadRow, name: str) -> None:
        self.bad_rows += 1
        level: Level = "warning" if self.reading.leave_out else "error"
        self.findings.row(level, bad, name)

    def _take(self, row: Row, file: int, given: str) -> BadRow | None:
        """Stores the time step, or the sequence, of a row, or says why not. A step that is wrong makes its sequence wrong."""
        how, values, number = self.how, row.values, row.number
        target, weight = how.target_column if self.said else "", self.reading.weight_column
        if bad := without(row, (how.id_column, how.order_column, target, weight, *how.features)):
            return bad
        name = str(values[how.id_column]).strip() if how.id_column else ("1" if self.window else str(number))
        if not name or values.get(how.id_column, "") is None:
            return problem("Rows that do not say of which sequence they are: %(count)d.", number)
        # A series that is cut into windows may have parts for training and for evaluation.
        part = str(values.get(self.reading.split_column, "")) if self.window and self.reading.split_column else ""
        known = self.index.get((given or part, name))
        if known is None or how.layout != "steps":
            known = len(self.sequences)
            self.index[given or part, name] = known
            self.sequences.append(_Sequence(printable(name, 200), file, number))
        sequence = self.sequences[known]
        bad = self._whole(sequence, row, given)
        if bad is None:
            bad = self._step(known, row) if how.layout == "steps" else self._steps(known, row)
        if bad is not None:
            sequence.bad = True
        return bad

    def _step(self, index: int, row: Row) -> BadRow | None:
        found = []
        for column in self.features:
            value = self._number(row.values[column], column, row.number)
            if isinstance(value, BadRow):
                return value
            found.append(value)
        place = 0.0
        if self.how.order_column:
            at = _place(row.values[self.how.order_column])
            if at is None:
                shown, column = str(row.values[self.how.order_column]), self.how.order_column
                return problem(
                    "Rows whose “%(column)s” is neither a number nor a time: %(count)d.",
                    row.number,
                    shown,
                    column=column,
                )
            place = at
        for kept, value in zip(self.values, found, strict=True):
            kept.append(value)
        self.of.append(index)
        self.place.append(place)
        return None

    def _steps(self, index: int, row: Row) -> BadRow | None:
        """A whole sequence in one row."""
        columns: list[list[float]] = []
        if self.how.layout == "columns":
            given = [row.values[column] for column in self.how.features]
            while given and _is_blank(given[-1]):  # a shorter sequence
                given.pop()
            lists = [(given, self.how.features)]
        else:
            lists = []
            for column in self.features:
                items = row.values[column]
                if isinstance(items, str):
                    try:
                        items = parsing.from_json(items)
                    except ValueError:
                        items = None
                if not isinstance(items, list):
                    shown = str(row.values[column])
                    return problem("Rows whose “%(column)s” is no list: %(count)d.", row.number, shown, column=column)
                lists.append((items, [column] * len(items)))
        for items, names in lists:
            found = []
            for item, column in zip(items, names, strict=False):
                value = self._number(item, column, row.number)
                if isinstance(value, BadRow):
                    return value
                found.append(value)
            columns.append(found)
        if len({len(column) for column in columns}) > 1:
            shown = ", ".join(str(len(column)) for column in columns)
            return problem("Rows whose features have different numbers of time steps: %(count)d.", row.number, shown)
        if not columns[0]:
            return problem("Rows with a sequence of no time steps: %(count)d.", row.number)
        for kept, column_values in zip(self.values, columns, strict=True):
            kept.extend(column_values)
        self.of.extend([index] * len(columns[0]))
        self.place.extend([0.0] * len(columns[0]))
        return None

    def _number(self, given: Any, column: str, number: int) -> float | BadRow:
        if type(given) is float and abs(given) <= FLOAT32_MOST:
            return given
        if _is_blank(given):
            return problem("Rows without a value of “%(column)s”: %(count)d.", number, column=column)
        value = _as_number(given)
        if value is None:
            return problem("Rows whose “%(column)s” is no number: %(count)d.", number, str(given), column=column)
        if not abs(value) <= FLOAT32_MOST:
            return problem(
                "Rows whose “%(column)s” is not finite, or beyond float32: %(count)d.",
                number,
                str(given),
                column=column,
            )
        return value

    def _whole(self, sequence: _Sequence, row: Row, given: str) -> BadRow | None:
        """Split, weight, target and label, which all rows of a sequence must agree on; a blank says nothing."""
        return (
            self._whole_split(sequence, row, given)
            or self._whole_weight(sequence, row)
            or self._whole_target(sequence, row)
        )

    def _whole_split(self, sequence: _Sequence, row: Row, given: str) -> BadRow | None:
        values, number = row.values, row.number
        split = SPLITS.index(given) if given else OPEN
        if not given and self.reading.split_column:
            said = str(values.get(self.reading.split_column, ""))
            code = splits.named(said)
            if code is None:
                return problem("Rows whose split is none of train, dev, test: %(count)d.", number, said)
            split = code
        if sequence.split not in (OPEN, split):
            return problem(
                "Rows that put their sequence into a second split, which would show the model what it is tested on: %(count)d.",
                number,
                sequence.id,
            )
        sequence.split = split
        return None

    def _whole_weight(self, sequence: _Sequence, row: Row) -> BadRow | None:
        said = row.values[self.reading.weight_column] if self.reading.weight_column else None
        if _is_blank(said):
            return None
        weight = weights.read(said, row.number)
        if isinstance(weight, BadRow):
            return weight
        # In the words of JSON, where a NaN is the same as another.
        if sequence.weight is not None and to_json_number(sequence.weight) != to_json_number(weight):
            return problem(
                "Rows whose weight is another than that of their sequence: %(count)d.", row.number, str(said)
            )
        sequence.weight = weight
        return None

    def _whole_target(self, sequence: _Sequence, row: Row) -> BadRow | None:
        values, number = row.values, row.number
        said_value = values[self.how.target_column] if self.said else None
        if not self.said or _is_blank(said_value):
            return None
        if self.said == "target":
            value = _as_number(said_value)
            if value is None or not abs(value) <= FLOAT32_MOST:
                return problem(
                    "Rows whose target is no finite number, or beyond float32: %(count)d.", number, str(said_value)
                )
            if sequence.target not in (None, value):
                return problem(
                    "Rows whose target is another than that of their sequence: %(count)d.", number, f"{value:g}"
                )
            sequence.target = value
            return None
        label = str(said_value).strip()
        if isinstance(said_value, (bool, float, list, dict)) or len(label) > 200 or not _is_storable(label):
            return problem("Rows whose label is neither a text nor a whole number: %(count)d.", number, str(said_value))
        if label not in self.labels:
            if self.reading.labels:
                return problem("Rows with a label outside of the label set: %(count)d.", number, label)
            if len(self.labels) >= MOST_LABELS:
                raise Unreadable(
                    "There are more than %(limit)d different labels: is “%(column)s” the right column?",
                    limit=MOST_LABELS,
                    column=self.how.target_column,
                )
            self.labels[label] = len(self.labels)
        if sequence.label not in (None, label):
            return problem("Rows whose label is another than that of their sequence: %(count)d.", number, label)
        sequence.label = label
        return None

    def conclude(self) -> Found | None:
        if not self.read_rows:
            self.findings.found_error("There are no rows.")
            return None
        level: Level = "warning" if self.reading.leave_out else "error"
        for sequence in self.sequences:
            if sequence.bad:
                continue
            if self.said and sequence.target is None and sequence.label is None:
                template = "Sequences without a target: %(count)d."
            elif self.reading.weight_column and sequence.weight is None:
                template = "Sequences without a weight: %(count)d."
            else:
                continue
            sequence.bad = True
            self.findings.row(level, problem(template, sequence.number, sequence.id), self.names[sequence.file])
        bad = np.array([sequence.bad for sequence in self.sequences], bool)
        if not len(bad) or bad.all():
            self.findings.found_error("No row can be used.")
            return None
        of, place = np.frombuffer(self.of, np.uint32), np.frombuffer(self.place, np.float64)
        if self.reading.leave_out and bad.any():
            self.findings.found_warning("Sequences with errors that were left out: %(count)d.", count=int(bad.sum()))
        order = np.lexsort((place, of)) if self.how.order_column else np.argsort(of, kind="stable")
        order = order[~bad[of[order]]]
        of, place = of[order], place[order]
        kept, begins = np.unique(of, return_index=True)
        sequences = [self.sequences[i] for i in kept]
        found = Found(
            self.features,
            np.column_stack([np.frombuffer(column, np.float64)[order] for column in self.values]),
            np.append(begins, len(of)).astype(np.int64),
            sequences,
            self.names,
            {name: i for i, name in enumerate(sorted({s.label for s in sequences if s.label is not None}))},
        )
        if self.how.order_column:
            same = np.flatnonzero((place[1:] == place[:-1]) & (of[1:] == of[:-1]))
            at = np.unique(np.searchsorted(kept, of[same]))
            if len(same):
                self.findings.found_warning(
                    "Time steps that have the same “%(column)s” as another of their sequence: %(count)d. They stay in the order of the file.",
                    found.refs(at),
                    column=self.how.order_column,
                    count=len(same),
                )
        if self.window:
            stride = self.how.stride or self.window
            return windows(found, self.window, stride, self.reading.dev_fraction, self.findings)
        return found


def windows(found: Found, length: int, stride: int, dev_fraction: float, findings: Findings) -> Found:
    """Each sequence cut into windows. Where nothing says the split, the end of each is for evaluation: windows overlap, and what
    comes later is what a model is asked for. Those across the border are left out, and so is what is shorter than one."""
    chosen: list[tuple[int, _Sequence]] = []
    across = short = 0
    for sequence, begin, size in zip(found.sequences, found.begins.tolist(), found.lengths.tolist(), strict=False):
        border = size - round(size * dev_fraction)
        short += size < length
        for at in range(0, size - length + 1, stride):
            split = sequence.split
            if split == OPEN:
                split = TRAIN if at + length <= border else DEV if at >= border else OUT
                if split == OUT:
                    across += 1
                    continue
            name = f"{at + 1}–{at + length}" if len(found) == 1 else f"{sequence.id} {at + 1}–{at + length}"
            window = _Sequence(name, sequence.file, sequence.number, weight=sequence.weight, split=split)
            chosen.append((begin + at, window))
    if len(chosen) * length > MOST_STEPS:
        raise Unreadable(
            "The windows have %(count)d time steps in all, more than %(limit)d: take a larger stride.",
            count=len(chosen) * length,
            limit=MOST_STEPS,
        )
    if short:
        findings.found_warning(
            "Sequences that are shorter than a window of %(window)d time steps, and left out: %(count)d.",
            window=length,
            count=short,
        )
    if across:
        findings.found_note(
            "Windows across the border between training and evaluation, which are left out: %(count)d.", count=across
        )
    if not chosen:
        raise Unreadable("No window of %(window)d time steps can be cut: all sequences are shorter.", window=length)
    starts = np.array([start for start, _sequence in chosen])
    steps = (starts[:, None] + np.arange(length)).ravel()
    begins = np.arange(len(chosen) + 1) * length
    return Found(found.features, found.values[steps], begins, [one for _start, one in chosen], found.names)


def _as_number(given: Any) -> float | None:
    if isinstance(given, bool):
        return None
    if isinstance(given, str):
        given = given.strip().replace("，", ",")
    try:
        return float(from_json_number(given))
    except (TypeError, ValueError, OverflowError):
        return None


def _is_blank(given: Any) -> bool:
    return given is None or (isinstance(given, str) and not given.strip())


def _is_storable(text: str) -> bool:
    return text.isprintable() and text.encode("utf-8", "replace").decode() == text


def _place(given: Any) -> float | None:
    """A number, or a time as ISO 8601 has it, as seconds."""
    value = _as_number(given)
    if value is not None:
        return value if math.isfinite(value) else None
    try:
        at = datetime.fromisoformat(str(given).strip().replace("Z", "+00:00"))
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()


# --- the split -------------------------------------------------------------------------------


def _split_codes(found: Found, reading: Reading, findings: Findings) -> Numbers:
    """0 train, 1 dev, 2 left out, per sequence; label by label where there are labels."""
    labels = np.array([found.labels.get(sequence.label or "", 0) for sequence in found.sequences])
    of_label = (labels == label for label in np.unique(labels))
    codes = set_apart(np.array([sequence.split for sequence in found.sequences], np.uint8), of_label, reading)
    out = int((codes == OUT).sum())
    if out:
        findings.found_note("Sequences of the test split, which are not used: %(count)d.", count=out)
    return codes


def _check_splits(found: Found, codes: Numbers, findings: Findings) -> None:
    if splits.check_splits(codes, findings) and found.labels:
        labels = np.array([found.labels[sequence.label or ""] for sequence in found.sequences])
        splits.check_labels(found.labels, labels, codes, found.refs, findings)


# --- measuring -------------------------------------------------------------------------------


def _measure(found: Found, codes: Numbers, findings: Findings) -> dict[str, Any]:
    """What pages show. Lengths are in time steps."""
    lengths = found.lengths
    of = {split: np.flatnonzero(codes == code) for code, split in ((TRAIN, "train"), (DEV, "dev"))}
    statistics: dict[str, Any] = {
        "rows": {split: len(at) for split, at in of.items()},
        "steps": {split: int(lengths[at].sum()) for split, at in of.items()},
        "sequence_length": {split: measures.percentiles(lengths[at]) for split, at in of.items()},
        "length_histogram": measures.histogram(lengths, codes),
        "features": _features(found, codes, findings),
        "duplicates": _duplicates(found, codes, findings),
        "baselines": {},
        "target": "none",
    }
    if found.labels:
        labels = np.array([found.labels[sequence.label or ""] for sequence in found.sequences])
        statistics["label_counts"] = measures.counts(labels, codes, found.labels)
        statistics["target"] = "label"
    elif found.sequences[0].target is not None:
        targets = np.array([sequence.target for sequence in found.sequences], np.float64)
        statistics["target"] = "number"
        statistics["target_values"] = {split: measures.summary(targets[at]) for split, at in of.items()}
        if np.ptp(targets[of["train"]]) == 0:
            findings.found_warning("All training sequences have the same target: there is nothing to learn.")
        if tail := measures.heavy_tail(targets[of["train"]]):
            findings.found_warning(
                "The number to predict is rarely very large: at most %(largest)g, and 99 of 100 are below %(usual)g. Where "
                "it is, the loss has spikes, or is infinite.",
                found.refs([int(of["train"][tail.at])]),
                largest=tail.largest,
                usual=tail.usual,
            )
    short = np.flatnonzero(lengths < 2)
    if len(short) == len(lengths) and statistics["target"] == "none":
        findings.found_error(
            "Nothing belongs to the sequences, and each has one time step: there is nothing to predict. Is the right column "
            "chosen as the name of the sequence?"
        )
    elif len(short):
        findings.found_note(
            "Sequences of one time step, which have no next value to predict: %(count)d.",
            found.refs(short),
            count=len(short),
        )
    return statistics


def _features(found: Found, codes: Numbers, findings: Findings) -> list[dict[str, Any]]:
    """Of the training rows."""
    steps = np.repeat(codes == TRAIN, found.lengths)
    measured = []
    for i, name in enumerate(found.features):
        values = found.values[steps, i]
        summary = measures.summary(values)
        measured.append({"name": name, **summary})
        if summary["min"] == summary["max"]:
            findings.found_warning(
                "“%(feature)s” is %(value)g in every training row: it tells the model nothing.",
                feature=printable(name),
                value=summary["min"],
            )
            continue
        if tail := measures.heavy_tail(values):
            at = int(np.flatnonzero(steps)[tail.at])
            findings.found_warning(
                "“%(feature)s” has rare, very large values: the largest is %(largest)g, and 99 of 100 are below %(usual)g. "
                "Keep normalisation and clipping on.",
                found.refs([int(np.searchsorted(found.begins, at, side="right")) - 1]),
                feature=printable(name),
                largest=tail.largest,
                usual=tail.usual,
            )  # fmt: skip
        largest = max(abs(summary["min"]), abs(summary["max"]))
        if largest > HALF_MOST:
            findings.found_note(
                "“%(feature)s” has values up to %(largest)g; fp16 ends at 65504, so it needs normalisation there.",
                feature=printable(name),
                largest=largest,
            )
    return measured


def _duplicates(found: Found, codes: Numbers, findings: Findings) -> dict[str, int]:
    """Sequences whose values are the same to the last digit."""
    hashes = np.array([hash(found.values[b:e].tobytes()) for b, e in zip(found.begins, found.begins[1:], strict=False)])
    twice = measures.duplicates(hashes, codes)
    for split, again in twice.again.items():
        if len(again):
            findings.found_warning(
                "Sequences of %(split)s that occur earlier in it: %(count)d.",
                found.refs(again),
                split=split,
                count=len(again),
            )
    if len(twice.leaked):
        findings.found_warning(
            "Sequences of dev that are among the training sequences: %(count)d. The evaluation looks better than it is.",
            found.refs(twice.leaked),
            count=len(twice.leaked),
        )
    return twice.counted


# --- writing ---------------------------------------------------------------------------------


def _lines(found: Found) -> Iterator[bytes]:
    for i, sequence in enumerate(found.sequences):
        values = found.values[found.begins[i] : found.begins[i + 1]]
        row: dict[str, Any] = {
            "id": sequence.id,
            "features": {name: values[:, k].tolist() for k, name in enumerate(found.features)},
        }
        if sequence.label is not None:
            row["label"] = sequence.label
        elif sequence.target is not None:
            row["target"] = sequence.target
        if sequence.weight is not None:
            row[WEIGHT] = to_json_number(sequence.weight)
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _samples(first: list[list[bytes]]) -> dict[str, list[dict[str, Any]]]:
    """The first sequences of each split, cut to what a page shows."""
    shown: dict[str, list[dict[str, Any]]] = {}
    for split, lines in zip(SPLITS, first, strict=True):
        shown[split] = []
        for line in lines:
            row = json.loads(line)
            features = row["features"]
            said = row.get("label", row.get("target"))
            steps = len(next(iter(features.values())))
            values = {name: column[-_SAMPLE_STEPS:] for name, column in list(features.items())[:4]}
            shown[split].append({"id": row["id"], "said": said, "steps": steps, "values": values})
    return shown
