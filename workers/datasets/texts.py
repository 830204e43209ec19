"""Texts, or pairs of texts, with a label each: their rows, findings and statistics."""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from workers.contract.datasets import SPLITS
from workers.datasets import measures, parsing, splits, tokens
from workers.datasets import rows as reading_rows
from workers.datasets.findings import Source, Stage, Work
from workers.datasets.measures import Numbers
from workers.datasets.parsing import BadRow, Block, Row, Unreadable, printable, problem
from workers.datasets.rows import Place, Rows, unwritable, without
from workers.datasets.splits import OPEN

MOST_LABELS = 1000
SAMPLE_CHARACTERS = 300
# A block in which something is not plain is halved so far, then its rows are looked at one by one.
FEW_ROWS = 32
# What tables have where a value is missing.
_LONGEST_MISSING = len("infinity")
_MISSING = re.compile(r"(nan|null|none|n/a|na|#n/a|inf|-inf|infinity)", re.IGNORECASE)


def check(work: Work) -> None:
    """See checking.py."""
    reading_rows.check(_Rows(work), work)


class TextRows(Rows):
    """Of a text, or of two, and of what is said of them. A second text that is not there is empty."""

    def texts_of(self, row: Row) -> tuple[str, str] | BadRow:
        reading, number = self.reading, row.number
        text, second = row.values[reading.text_column], ""
        if not isinstance(text, str):
            return problem("Rows whose text is no text: %(count)d.", number, f"{text!r:.60}")
        if not text.strip():
            return problem("Rows with an empty text: %(count)d.", number)
        if reading.text_b_column:
            second = row.values[reading.text_b_column]
            if not isinstance(second, str):
                return problem("Rows whose second text is no text: %(count)d.", number, f"{second!r:.60}")
            if not second.strip():
                return problem("Rows with an empty second text: %(count)d.", number)
        return text, second

    def store_texts(self, place: Place, text: str, second: str) -> None:
        # A mark between two texts is one token, as is any plain character.
        both = f"{text}.{second}" if second else text
        self.store(place, (text, second) if second else text, len(text) + len(second), both)

    @property
    def chosen(self) -> set[str]:
        """Columns that are written by their new names, and those whose names that would take."""
        reading = self.reading
        pair = {reading.text_b_column, "text_b"} if reading.text_b_column else set()
        return {reading.text_column, reading.label_column, "text", "label"} | pair

    def written(self, text: str, second: str, said: Any, values: dict[str, Any]) -> dict[str, Any]:
        chosen = self.chosen
        rest = {column: value for column, value in values.items() if column not in chosen}
        return {"text": text, **({"text_b": second} if second else {}), "label": said, **rest}

    def sample(self, row: dict[str, Any]) -> dict[str, Any]:
        second = row.get("text_b")
        text = f"{row['text']} ||| {second}" if isinstance(second, str) else str(row["text"])
        return {"text": printable(text, SAMPLE_CHARACTERS), "label": printable(str(row["label"]), 200)}


class _Rows(TextRows):
    """28 bytes a row, 36 with weights.

    A block is taken at once if all of its rows are plain; else it is halved, and in the end `take` sees them one by
    one, which alone says what is right. So there are two ways to store a row, and a test that they store the same.
    """

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.labels: dict[str, int] = {label: i for i, label in enumerate(work.reading.labels)}
        # Labels and splits as they were written in rows that were right, so that nobody need look at them again.
        self._label_codes: dict[Any, int] = {}
        self._label_lines: dict[Any, str] = {}
        self._split_codes: dict[str, int] = {}
        self._known_columns: set[tuple[str, ...]] = set()
        self.label_of = array("I")

    # --- the first pass ----------------------------------------------------------------------

    def read(self, number: int, source: Source, lines: BinaryIO, stage: Stage) -> None:
        file = source.file or source.path.open("rb")
        with file:
            size = os.fstat(file.fileno()).st_size
            for item in parsing.blocks(file, self.reading, lambda done: stage("reading rows", done, size)):
                if isinstance(item, Block):
                    self._take_block(item, number, source, lines)
                else:
                    self.take_or_report(item, number, source, lines)
        self.count_tokens()

    def _take_block(self, block: Block, file: int, source: Source, lines: BinaryIO) -> None:
        if self._take_at_once(block, file, source.split, lines):
            return
        if len(block) <= FEW_ROWS:
            for row in block.rows():
                self.take_or_report(row, file, source, lines)
        else:
            for half in block.halves():
                self._take_block(half, file, source, lines)

    def _take_at_once(self, block: Block, file: int, given: str, lines: BinaryIO) -> bool:
        """Stores all rows, or none if one of them is not plain."""
        reading, count = self.reading, len(block)
        if reading.weight_column and reading.weight_column in (
            reading.text_column,
            reading.text_b_column,
            reading.label_column,
            reading.split_column,
            "text",
            "label",
            "text_b",
        ):
            return False
        try:
            texts = block.column(reading.text_column)
            seconds = block.column(reading.text_b_column) if reading.text_b_column else []
            labels = block.column(reading.label_column)
            weights = block.column(reading.weight_column) if reading.weight_column else None
            said = block.column(reading.split_column) if reading.split_column else None
            # Columns that are not there, faults of JSON that no field of a table can have, empty texts, missing values.
            if set(map(type, texts + seconds)) != {str} or set(map(type, labels)) - {str, int}:
                return False
            stripped = list(map(str.strip, texts + seconds))
            shortest = min(map(len, stripped))
            if (
                not shortest
                or "\0" in "".join(texts + seconds)
                or (shortest <= _LONGEST_MISSING and any(map(_MISSING.fullmatch, stripped)))
            ):
                return False
            # KeyError: a label or a split that is new, or worth a word each time.
            label_codes = list(map(self._label_codes.__getitem__, labels))
            split_codes = list(map(self._split_codes.__getitem__, said)) if said and not given else None
            if weights is not None and block.objects and str in map(type, weights):
                return False  # a number in quotes, or a NaN
            numbers = _plain_weights(weights) if weights is not None else None
            token_counts = tokens.count(texts)
            if seconds:
                token_counts = token_counts + tokens.count(seconds) - np.uint32(1)  # one mark less
        except (KeyError, ValueError, TypeError, OverflowError):
            return False
        body = self._body(block, texts, seconds, labels, numbers)
        if body is None:
            return False
        lines.write(body)
        self.count_tokens()
        self.read_rows += count
        self.hashes.extend(map(hash, zip(texts, seconds, strict=True) if seconds else texts))
        self.label_of.extend(label_codes)
        self.lengths.extend(
            map(sum, zip(map(len, texts), map(len, seconds), strict=True)) if seconds else map(len, texts)
        )
        self.tokens.frombytes(token_counts.tobytes())
        self.number_of.extend(block.numbers)
        self.file_of.frombytes(bytes([file]) * count)
        if split_codes is not None:
            self.split_of.extend(split_codes)
        else:
            self.split_of.frombytes(bytes([SPLITS.index(given) if given else OPEN]) * count)
        if numbers is not None:
            self.weights.extend(numbers)
        return True

    def _body(
        self, block: Block, texts: list[str], seconds: list[str], labels: list[Any], weights: list[float] | None
    ) -> bytes | None:
        """The lines as `take` writes them. None if their columns are not yet known."""
        reading, chosen = self.reading, self.chosen
        if block.objects:
            if not set(map(tuple, block.objects)) <= self._known_columns:
                return None
            if self._is_kept:
                return b"\n".join(block.lines) + b"\n"
            bodies = [
                {"text": text, "label": label, **{name: value for name, value in values.items() if name not in chosen}}
                for text, label, values in zip(texts, labels, block.objects, strict=True)
            ]
            if seconds:
                bodies = [
                    {"text": body.pop("text"), "text_b": second, **body}
                    for body, second in zip(bodies, seconds, strict=True)
                ]
            if weights is not None:
                for body, weight in zip(bodies, weights, strict=True):
                    body[reading.weight_column] = weight
            return ("\n".join(map(self.encode, bodies)) + "\n").encode("utf-8", "replace")
        if tuple(block.columns) not in self._known_columns:
            return None
        parts = [map(json.encoder.encode_basestring, texts), map(self._label_lines.__getitem__, labels)]
        form = '{{"text": {}, "label": {}'
        if seconds:
            parts.insert(1, map(json.encoder.encode_basestring, seconds))
            form = '{{"text": {}, "text_b": {}, "label": {}'
        for name in block.columns:
            if name not in chosen:
                key = json.encoder.encode_basestring(name).replace("{", "{{").replace("}", "}}")
                form += f", {key}: {{}}"
                if weights is not None and name == reading.weight_column:
                    parts.append(map(repr, weights))
                else:
                    parts.append(map(json.encoder.encode_basestring, block.column(name)))
        return "".join(map((form + "}}\n").format, *parts)).encode("utf-8", "replace")

    @property
    def _is_kept(self) -> bool:
        """Whether lines of JSON stay as they are: text and label have the names that recipes' settings have by default."""
        reading = self.reading
        return (reading.text_column, reading.label_column) == ("text", "label") and reading.text_b_column in (
            "",
            "text_b",
        )

    def take(self, row: Row, file: int, source: Source, lines: BinaryIO) -> BadRow | None:
        reading, values, number = self.reading, row.values, row.number
        columns = (reading.text_column, reading.text_b_column, reading.label_column)
        if bad := without(row, (*columns, reading.weight_column, reading.split_column)):
            return bad
        texts = self.texts_of(row)
        if isinstance(texts, BadRow):
            return texts
        text, second = texts
        label = values[reading.label_column]
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
        if bad := unwritable(number, text, text, second, name):
            return bad
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
                    "Rows with a label longer than %(limit)d characters: %(count)d.",
                    number,
                    f"{len(name)}: {name}",
                    limit=200,
                )
        weight = values.get(reading.weight_column)
        place = self.place(row, file, source)
        if isinstance(place, BadRow):
            return place
        # What is no number of JSON, such as "2", becomes one.
        as_it_was = self._is_kept and (not isinstance(weight, str) or weight == values[reading.weight_column])
        said = values.get(reading.split_column)
        if isinstance(said, str) and not source.split and len(self._split_codes) < MOST_LABELS:
            self._split_codes[said] = place.split
        label_is_missing = _MISSING.fullmatch(name.strip())
        if label_is_missing or _MISSING.fullmatch(text.strip()) or _MISSING.fullmatch(second.strip()):
            bad = problem("Rows whose text or label looks like a missing value: %(count)d.", number, f"{text} → {name}")
            self.findings.row("warning", bad, self.names[file])
        code = self.labels.setdefault(name, len(self.labels))
        if not label_is_missing and len(self._label_codes) < 10 * MOST_LABELS:
            # Of a table as it was in the file, with spaces around it.
            self._label_codes[label] = code
            self._label_lines[label] = json.encoder.encode_basestring(name)
        self.store_texts(place, text, second)
        self.label_of.append(code)
        before = tuple(values)
        line = row.line
        if not line or not as_it_was:
            values = self.written(text, second, values[reading.label_column], values)
            line = self.encode(values).encode("utf-8", "replace")
        if before not in self._known_columns:
            if len(self.columns) < parsing.MOST_COLUMNS:
                self.columns.update(map(printable, values))
            if len(self._known_columns) < parsing.MOST_COLUMNS:
                self._known_columns.add(before)
        lines.write(line + b"\n")
        return None

    # --- the split, and measuring ------------------------------------------------------------

    def strata(self) -> Iterable[Numbers]:
        labels = np.frombuffer(self.label_of, np.uint32)
        return (labels == self.labels[label] for label in sorted(self.labels))

    def judge(self, codes: Numbers) -> None:
        labels = np.frombuffer(self.label_of, np.uint32)
        splits.check_labels(self.labels, labels, codes, self.refs, self.findings)

    def measure(self, codes: Numbers) -> dict[str, Any]:
        labels = np.frombuffer(self.label_of, np.uint32)
        label_counts = measures.counts(labels, codes, self.labels)
        duplicates = self.duplicates(codes, labels)
        if len(duplicates.contradicting):
            self.findings.found_warning(
                "Rows whose text has another label elsewhere: %(count)d.",
                self.refs(duplicates.contradicting),
                count=len(duplicates.contradicting),
            )
        return {
            **self.sizes(codes),
            "label_counts": label_counts,
            "duplicates": duplicates.counted,
            "baselines": {"majority": measures.majority(label_counts)},
        }

    def label_set(self) -> list[str]:
        return list(self.reading.labels) or sorted(self.labels)


def _plain_weights(given: list[Any]) -> list[float]:
    """Raises ValueError or TypeError if one is not a finite number of 0 or more."""
    if set(map(type, given)) - {str, int, float}:
        raise TypeError
    weights = list(map(float, given))
    if not all(0 <= weight < math.inf for weight in weights):
        raise ValueError
    return weights
