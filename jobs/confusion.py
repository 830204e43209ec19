"""What was taken for what: the confusion counts of an evaluation as a table, figures per label, and the pairs that are mixed up most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A larger table can neither be read nor shown on a phone.
MOST_IN_TABLE = 30
MOST_LABELS, MOST_PAIRS = 200, 50


@dataclass(frozen=True)
class Cell:
    count: int
    share: float  # of the row
    right: bool

    @property
    def tenth(self) -> int:
        """0 for nothing, then 1 to 10: the shade."""
        return min(int(self.share * 10) + 1, 10) if self.count else 0


@dataclass(frozen=True)
class Row:
    label: str
    cells: list[Cell]


@dataclass(frozen=True)
class Label:
    """Of one label. A share of nothing is None: what never occurs has no recall, what is never predicted no precision."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    support: int


@dataclass(frozen=True)
class Pair:
    label: str
    predicted: str
    count: int
    share: float  # of the rows with that label


@dataclass(frozen=True)
class Confusion:
    rows: list[Row]  # empty if there are too many labels for a table
    labels: list[Label]  # the worst recognised first if there are too many for a table
    pairs: list[Pair]  # most mixed up first
    label_count: int

    @property
    def too_many(self) -> bool:
        return not self.rows


def of(metrics: Mapping[str, Any], names: Sequence[Any] = ()) -> Confusion | None:
    """From the metrics of an evaluation; None if the recipe reports no confusion. `names` for records without labels."""
    counts = metrics.get("confusion")
    if not isinstance(counts, list) or not counts:
        return None
    size = len(counts)
    labels = [str(name) for name in metrics.get("labels") or names][:size]
    labels += [str(index) for index in range(len(labels), size)]
    supports = [sum(row) for row in counts]
    predicted = [sum(column) for column in zip(*counts, strict=True)]
    rows = [
        Row(label, [Cell(count, count / support if support else 0.0, i == j) for j, count in enumerate(row)])
        for i, (label, row, support) in enumerate(zip(labels, counts, supports, strict=True))
    ]
    figures = [
        Label(
            label,
            counts[i][i] / predicted[i] if predicted[i] else None,
            counts[i][i] / supports[i] if supports[i] else None,
            2 * counts[i][i] / (supports[i] + predicted[i]) if supports[i] + predicted[i] else None,
            supports[i],
        )
        for i, label in enumerate(labels)
    ]
    pairs = [
        Pair(row.label, labels[j], cell.count, cell.share)
        for row in rows
        for j, cell in enumerate(row.cells)
        if cell.count and not cell.right
    ]
    pairs.sort(key=lambda pair: (-pair.count, -pair.share))
    if size > MOST_IN_TABLE:
        rows = []
        figures.sort(key=lambda label: (label.f1 is None, label.f1 or 0.0))
    return Confusion(rows, figures[:MOST_LABELS], pairs[:MOST_PAIRS], size)
