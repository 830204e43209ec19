"""Geometry of the pictures on a dataset's page; templates draw it as SVG."""

from __future__ import annotations

from typing import Any

from workers.contract.datasets import SPLITS

MOST_BARS = 40
WIDTH, HEIGHT, BASE = 640, 180, 150


def label_bars(counts: dict[str, dict[str, int]]) -> dict[str, Any]:
    """A row per label, the commonest first: counts per split, and widths in per cent of the longest."""
    labels = {label for of_split in counts.values() for label in of_split}
    total = {label: sum(counts[split].get(label, 0) for split in counts) for label in labels}
    order = sorted(labels, key=lambda label: (-total[label], label))
    longest = max([counts[split].get(label, 0) for split in counts for label in labels], default=1) or 1
    rows = sum(total.values()) or 1
    bars = [
        {
            "label": label,
            "share": total[label] / rows,
            "splits": [
                {
                    "split": split,
                    "count": counts.get(split, {}).get(label, 0),
                    "width": f"{100 * counts.get(split, {}).get(label, 0) / longest:.2f}",
                }
                for split in SPLITS
            ],
        }
        for label in order[:MOST_BARS]
    ]
    return {"rows": bars, "more": max(len(order) - MOST_BARS, 0)}


def histogram(lengths: dict[str, Any] | None) -> dict[str, Any] | None:
    """Bars of the share of each split's rows per length, train as areas and dev as narrower bars before them."""
    if not lengths:
        return None
    edges, counts = lengths["edges"], lengths["counts"]
    shares = {split: [n / (sum(counts[split]) or 1) for n in counts[split]] for split in SPLITS}
    highest = max(max(of_split) for of_split in shares.values()) or 1
    step = WIDTH / (len(edges) - 1)
    bars = []
    for split in SPLITS:
        inset = 0.06 if split == "train" else 0.3
        for i, share in enumerate(shares[split]):
            height = (BASE - 10) * share / highest
            bars.append(
                {
                    "split": split,
                    "x": f"{step * (i + inset):.1f}",
                    "y": f"{BASE - height:.1f}",
                    "width": f"{step * (1 - 2 * inset):.1f}",
                    "height": f"{height:.1f}",
                    "first": edges[i],
                    "last": edges[i + 1] - 1,
                    "count": counts[split][i],
                }
            )
    marks = sorted({0, (len(edges) - 1) // 4, (len(edges) - 1) // 2, 3 * (len(edges) - 1) // 4})
    ticks = [{"x": f"{step * i:.1f}", "text": str(edges[i])} for i in marks]
    return {"bars": bars, "ticks": ticks, "longest": edges[-1] - 1}


LINE_WIDTH, LINE_HEIGHT, DEVIATIONS = 400, 40, 4.0


def sequence_lines(first_batch: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Rows of the batch, each with the points of a line per feature; a gap is where a value is not finite."""
    rows = []
    for row in (first_batch or {}).get("rows", []):
        longest = max(map(len, row["values"]), default=1)
        step = LINE_WIDTH / max(longest - 1, 1)
        lines = [
            " ".join(f"{step * i:.1f},{_height(value):.1f}" for i, value in enumerate(values) if value == value)
            for values in row["values"]
        ]
        rows.append({**row, "lines": lines})
    return rows


def _height(value: float) -> float:
    return LINE_HEIGHT / 2 * (1 - max(-DEVIATIONS, min(value, DEVIATIONS)) / DEVIATIONS)
