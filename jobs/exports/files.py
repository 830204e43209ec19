"""What can be taken away of an attempt's metrics, for the page and the command line alike."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jobs.exports import batches, formats, visualdl
from jobs.models import Attempt, Evaluation
from jobs.steps import read
from workers.contract.records import dumps, from_json_number

STEPS, EVALUATIONS = "steps", "evaluations"
FORMATS = {
    STEPS: ("csv", "jsonl", "parquet", "visualdl"),
    EVALUATIONS: ("csv", "json"),
}
_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "zip": "application/zip",
}


class Nothing(LookupError):
    """There is no such thing to export."""


@dataclass(frozen=True)
class File:
    name: str
    content_type: str
    chunks: Callable[[], Iterator[bytes]]


def of(attempt: Attempt, what: str, format: str, rank: int | None = None) -> File:
    """One file; for several files, and for a folder, a zip archive. `rank` None: all ranks. Raises Nothing."""
    if format not in FORMATS.get(what, ()):
        raise Nothing
    name = f"job-{attempt.job_id}-attempt-{attempt.number}-{what}"
    if what == EVALUATIONS:
        rows = evaluations(attempt)
        if not rows:
            raise Nothing
        make = _evaluations_csv if format == "csv" else _evaluations_json
        return File(f"{name}.{format}", _TYPES[format], lambda: iter([make(rows)]))
    ranks = chosen(attempt, rank)
    if rank is not None:
        name += f"-rank-{rank}"
    if format == "visualdl":
        folder = name.replace(STEPS, "visualdl")
        return File(f"{folder}.zip", _TYPES["zip"], lambda: formats.archive(_below(folder, folder_of(attempt, rank))))
    if format == "jsonl" and len(ranks) > 1:
        of_each = [(f"{name}-rank-{one}.jsonl", one) for one in ranks]
        every = lambda: formats.archive((path, lines(attempt, one)) for path, one in of_each)  # noqa: E731
        return File(f"{name}.jsonl.zip", _TYPES["zip"], every)
    return File(f"{name}.{format}", _TYPES[format], lambda: _steps(attempt, format, ranks))


def _below(folder: str, files: Iterator[tuple[str, Iterator[bytes]]]) -> Iterator[tuple[str, Iterator[bytes]]]:
    return ((f"{folder}/{path}", parts) for path, parts in files)


def chosen(attempt: Attempt, rank: int | None) -> list[int]:
    ranks = list(batches.ranks_of(attempt))
    ranks = ranks if rank is None else [one for one in ranks if one == rank]
    if not ranks:
        raise Nothing
    return ranks


def lines(attempt: Attempt, rank: int) -> Iterator[bytes]:
    """The records as the rank wrote them, byte for byte."""
    return (b"".join(part) for part in read.batches(attempt, rank))


def folder_of(attempt: Attempt, rank: int | None) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Files of a VisualDL log folder: a run for each rank, and one for the evaluations."""
    started = attempt.started_at or attempt.created_at
    file, title = visualdl.file_name(started), f"{attempt.job_id}.{attempt.number}"
    for one in chosen(attempt, rank):
        schema = batches.schema_of(attempt, [one])
        records = batches.batches(attempt, [one], schema)
        yield f"rank-{one}/{file}", visualdl.steps(records, started, f"{title} rank {one}")
    rows = list(Evaluation.objects.filter(attempt=attempt).order_by("step"))
    if rows:
        found = ((row.step, row.at, _numbers(row, "dev/", "train_sample/")) for row in rows)
        yield f"evaluations/{file}", visualdl.points(found, f"{title} evaluations", started)


def _steps(attempt: Attempt, format: str, ranks: list[int]) -> Iterator[bytes]:
    if format == "jsonl":
        for rank in ranks:
            yield from lines(attempt, rank)
        return
    schema = batches.schema_of(attempt, ranks)
    write = formats.csv if format == "csv" else formats.parquet
    yield from write(schema, batches.batches(attempt, ranks, schema))


# --- evaluations -----------------------------------------------------------------------------


def evaluations(attempt: Attempt) -> list[dict[str, Any]]:
    return [
        {
            "step": row.step,
            "applied": row.applied,
            "epoch": row.epoch,
            "best": row.best,
            "seconds": row.seconds,
            "at": row.at.isoformat(),
            "metrics": row.metrics,
        }
        for row in Evaluation.objects.filter(attempt=attempt).order_by("step")
    ]


def _evaluations_json(rows: list[dict[str, Any]]) -> bytes:
    return b"[\n" + b",\n".join(map(dumps, rows)) + b"\n]\n"


def _evaluations_csv(rows: list[dict[str, Any]]) -> bytes:
    """Tables, such as the confusion matrix, are only in the JSON."""
    flat = []
    for row in rows:
        metrics = row["metrics"]
        values = {name: value for name, value in metrics.items() if not isinstance(value, dict | list)}
        of_train = metrics.get("train") or {}
        values |= {f"train.{name}": value for name, value in of_train.items() if not isinstance(value, dict | list)}
        flat.append({name: value for name, value in row.items() if name != "metrics"} | values)
    names = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writerow({name: _cell(name) for name in names})
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in flat)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and formats.FORMULA.match(value) and value != "-inf":
        return "'" + value
    return value


def _numbers(row: Evaluation, of_dev: str, of_train: str) -> dict[str, float]:
    found = {}
    for prefix, metrics in ((of_dev, row.metrics), (of_train, row.metrics.get("train") or {})):
        for name, value in metrics.items():
            value = from_json_number(value)
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[prefix + str(name).replace("%", "_")] = float(value)
    return found
