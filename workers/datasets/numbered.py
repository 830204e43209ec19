"""Texts, or pairs of texts, with a number each: their rows, findings and statistics. A row is written as
{"text": …, "text_b": … (of pairs), "label": number, and its other columns}."""

from __future__ import annotations

from array import array
from typing import Any, BinaryIO

import numpy as np

from workers.datasets import measures
from workers.datasets import rows as reading_rows
from workers.datasets.findings import Source, Work
from workers.datasets.measures import Numbers
from workers.datasets.parsing import BadRow, Row, problem
from workers.datasets.rows import unwritable, without
from workers.datasets.splits import TRAIN
from workers.datasets.texts import TextRows

LARGEST = 3.0e38  # of float32


def check(work: Work) -> None:
    """See checking.py."""
    reading_rows.check(_Rows(work), work)


class _Rows(TextRows):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.targets = array("d")

    def take(self, row: Row, file: int, source: Source, lines: BinaryIO) -> BadRow | None:
        reading, values, number = self.reading, row.values, row.number
        columns = (
            reading.text_column,
            reading.text_b_column,
            reading.label_column,
            reading.weight_column,
            reading.split_column,
        )
        if bad := without(row, columns):
            return bad
        texts = self.texts_of(row)
        if isinstance(texts, BadRow):
            return texts
        text, second = texts
        if bad := unwritable(number, text, text, second):
            return bad
        said = values[reading.label_column]
        if said is None or (isinstance(said, str) and not said.strip()):
            return problem("Rows without a number: %(count)d.", number)
        target = _number(said)
        if target is None:
            return problem("Rows whose number is none: %(count)d.", number, f"{said!r:.60}")
        if not abs(target) <= LARGEST:
            return problem("Rows whose number is not finite, or beyond float32: %(count)d.", number, str(said))
        place = self.place(row, file, source)
        if isinstance(place, BadRow):
            return place
        self.targets.append(target)
        self.store_texts(place, text, second)
        self.write(self.written(text, second, target, values), lines)
        return None

    def judge(self, codes: Numbers) -> None:
        trained = np.frombuffer(self.targets, np.float64)[codes == TRAIN]
        if np.ptp(trained) == 0:
            self.findings.found_error("All training rows have the same number: there is nothing to learn.")

    def measure(self, codes: Numbers) -> dict[str, Any]:
        """As of texts with labels, with `target_values` instead of their counts."""
        targets, of = np.frombuffer(self.targets, np.float64), measures.of_splits(codes)
        median = np.median(targets[of["train"]])
        return {
            **self.sizes(codes),
            "target": "number",
            "target_values": {split: measures.summary(targets[at]) for split, at in of.items()},
            "duplicates": self.duplicates(codes).counted,
            "baselines": {"number/median": float(np.abs(targets[of["dev"]] - median).mean())},
        }


def _number(said: Any) -> float | None:
    if isinstance(said, bool) or not isinstance(said, str | int | float):
        return None
    try:
        return float(said)
    except (ValueError, OverflowError):
        return None
