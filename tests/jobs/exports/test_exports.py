"""What is exported is what the ranks wrote: read back from each format and compared, NaN and infinities included."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
import struct
import tracemalloc
import zipfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from django.core.management import CommandError, call_command

from jobs.exports import batches, files, formats, visualdl
from jobs.models import Attempt
from jobs.steps import packed, store
from tests.browser import seed
from tests.jobs.views.conftest import MINE, People, people  # noqa: F401
from tests.jobs.views.streams import body
from workers.contract.records import FIELDS, decode, encode, jsonable

pytestmark = pytest.mark.django_db


def record(step: int, rank: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "v": 1, "seg": 0, "step": step, "applied": step, "epoch": 0, "t": step * 0.25, "loss": 1 / step, "loss_all": None,
        "lr": 5e-05 / 3, "grad_norm": math.exp(step % 7), "clip_norm": 1.0, "clipped": bool(step % 2), "loss_scale": 65536.0,
        "found_inf": False, "skipped": None, "batch_id": f"0:{step}", "samples": 32, "tokens": 900, "step_ms": 12.5,
        "data_ms": 0.1, "mem_mb": 512.0, "emulated": False, "extras": None,
    } | fields  # fmt: skip


ODD = [
    record(3, loss=math.nan, loss_all=math.nan, grad_norm=math.inf, clipped=False, skipped="non_finite_loss"),
    record(4, loss=-math.inf, loss_scale=None, clip_norm=None, found_inf=True, skipped="found_inf"),
    record(5, loss=-0.0, grad_norm=5e-324, lr=0.1 + 0.2),
    record(6, extras={"norm/embedding": 1.5, "good": True, "note": "a,\"b\"\n'c'", "zero_fraction": math.nan}),
    record(7, extras={"norm/embedding": None, "count": 3}),
    record(8, grad_norm=1.7976931348623157e308),
]


def add(attempt: Attempt, records: list[dict[str, Any]], rank: int = 0, more: bytes = b"") -> bytes:
    lines = b"".join(map(encode, records)) + more
    seed.Cursor.objects.filter(attempt=attempt, rank=rank, kind="steps").delete()
    batch = packed.parse(lines)
    store.append(attempt.pk, rank, 0, batch)
    seed.Cursor.objects.create(attempt=attempt, rank=rank, kind="steps", offset=len(lines), lines=len(batch))
    return lines


@pytest.fixture
def run(attempt: Attempt) -> dict[int, list[dict[str, Any]]]:
    """Rank 0 with more than a block and everything odd in it, rank 1 with little."""
    records = {
        0: [record(1), record(2), *ODD, *(record(step) for step in range(9, 5000))],
        1: [record(1, loss=math.nan)],
    }
    for rank, rows in records.items():
        add(attempt, rows, rank)
    return records


def whole(attempt: Attempt, what: str, format: str, rank: int | None = None) -> bytes:
    return b"".join(files.of(attempt, what, format, rank).chunks())


def flat(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "extras"} | {
        f"extras.{name}": value for name, value in (record["extras"] or {}).items()
    }


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """To the bit, and of the same type; what is wanted nowhere is null."""
    return all(repr(value) == repr(wanted.get(name)) for name, value in found.items()) and wanted.keys() <= found.keys()


def test_json_lines_are_those_of_the_rank_byte_for_byte(attempt: Attempt) -> None:
    odd = b'{"v": 1, "spaces":  true}\nno json\n'
    lines = add(attempt, [record(1), *ODD], more=odd)
    assert whole(attempt, "steps", "jsonl", 0) == lines


def test_of_several_ranks_json_lines_are_a_file_each(attempt: Attempt, run: dict[int, Any]) -> None:
    with zipfile.ZipFile(io.BytesIO(whole(attempt, "steps", "jsonl"))) as archive:
        assert archive.testzip() is None
        for rank, name in enumerate(archive.namelist()):
            assert archive.read(name) == b"".join(map(encode, run[rank]))


def test_csv_reads_back_as_the_records(attempt: Attempt, run: dict[int, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(whole(attempt, "steps", "csv").decode(), newline="")))
    wanted = [(rank, row) for rank, rows in run.items() for row in rows]
    assert len(rows) == len(wanted)
    kinds = {name: kind.rstrip("?") for name, kind in FIELDS.items()}
    kinds |= {"extras.good": "bool", "extras.note": "str", "extras.count": "int"}
    parse = {"int": int, "float": float, "bool": {"true": True, "false": False}.__getitem__, "str": str}
    for row, (rank, there) in zip(rows, wanted, strict=True):
        assert int(row.pop("rank")) == rank
        read = {name: parse[kinds.get(name, "float")](text) if text else None for name, text in row.items()}
        assert same(read, flat(there)), read


def test_parquet_has_types_and_reads_back_as_the_records(attempt: Attempt, run: dict[int, Any]) -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(whole(attempt, "steps", "parquet")))
    types = {field.name: str(field.type) for field in table.schema}
    assert (types["step"], types["loss"], types["clipped"], types["skipped"]) == ("int64", "double", "bool", "string")
    assert (types["extras.norm/embedding"], types["extras.good"], types["extras.count"]) == ("double", "bool", "int64")
    rows = table.to_pylist()
    wanted = [(rank, row) for rank, rows in run.items() for row in rows]
    assert len(rows) == len(wanted)
    for row, (rank, there) in zip(rows, wanted, strict=True):
        assert row.pop("rank") == rank
        assert same(row, flat(there)), row
    # NaN is a value, null is none.
    assert table["loss"].null_count == 0 and table["clip_norm"].null_count == 1


def test_lines_that_are_no_records_have_no_place_in_tables(attempt: Attempt) -> None:
    add(attempt, [record(1), record(2)], more=b'no json\n{"step": 3}\n[1]\n' + encode(record(4)))
    table = pyarrow.parquet.read_table(io.BytesIO(whole(attempt, "steps", "parquet")))
    assert table["step"].to_pylist() == [1, 2, 4]


def test_visualdl_reads_the_folder_back(attempt: Attempt, run: dict[int, Any], tmp_path: Path) -> None:
    from visualdl import LogReader

    seed.evaluate(attempt, 4000, 0.75, 0.5)
    call_command("export", attempt.job_id, format="visualdl", output=str(tmp_path / "log"), stderr=io.StringIO())
    paths = {path.parent.name: path for path in (tmp_path / "log").rglob("vdlrecords.*.log")}
    assert paths.keys() == {"rank-0", "rank-1", "evaluations"}
    reader = LogReader(file_path=str(paths["rank-0"]))
    assert reader.name2tags
    began = (attempt.started_at or attempt.created_at).timestamp() * 1000
    for field in ("loss", "clip_norm", "grad_norm", "loss_scale"):
        wanted = [(row["step"], row[field], row["t"]) for row in run[0] if row[field] is not None]
        found = reader.get_data("scalar", f"train/{field}")
        assert [one.id for one in found] == [step for step, _, _ in wanted]
        with np.errstate(over="ignore"):
            values = np.array([value for _, value, _ in wanted]).astype(np.float32)
        assert np.array([one.value for one in found], np.float32).tobytes() == values.tobytes()
        assert max(abs(one.timestamp - began - 1000 * t) for one, (_, _, t) in zip(found, wanted, strict=True)) < 2
    skipped = {one.id for one in reader.get_data("scalar", "train/skipped") if one.value == 1}
    assert skipped == {3, 4}
    assert [one.value for one in reader.get_data("scalar", "extras/norm/embedding")] == [1.5]
    (accuracy,) = LogReader(file_path=str(paths["evaluations"])).get_data("scalar", "dev/accuracy")
    assert (accuracy.id, accuracy.value) == (4000, 0.75)


@pytest.mark.parametrize("steps", [[1], [127, 128], [1, 2, 300, 20_000, 2_097_151, 2_097_152, 2**40], [5, 4, 900, 3]])
def test_scalars_are_encoded_as_by_protobuf(steps: list[int]) -> None:
    from visualdl.component.base_component import meta_data, scalar

    at = [1_764_511_200_000 + step for step in steps]
    values = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 3.3][: len(steps)])
    encoded = visualdl.scalars("train/损失", np.array(steps), np.array(at), values)
    wanted = [scalar("train/损失", *one).SerializeToString() for one in zip(values, steps, at, strict=True)]
    assert encoded == b"".join(struct.pack("<Q", len(one)) + one for one in wanted)
    meta = meta_data(display_name="7.1 rank 0", walltime=at[0]).SerializeToString()
    assert visualdl._meta("7.1 rank 0", at[0]) == struct.pack("<Q", len(meta)) + meta


def test_evaluations_read_back(attempt: Attempt) -> None:
    one = seed.evaluate(attempt, 100, 0.75, 0.5)
    one.metrics |= {"train": jsonable({"loss": math.nan, "accuracy": 0.9}), "formula": "=1+1", "@name": -0.5}
    one.save()
    seed.evaluate(attempt, 200, 0.8, 0.4, best=True)
    (first, second) = json.loads(whole(attempt, "evaluations", "json"))
    assert first["metrics"] == one.metrics and second["best"] is True and second["metrics"]["confusion"]
    (row, _) = csv.DictReader(io.StringIO(whole(attempt, "evaluations", "csv").decode(), newline=""))
    assert (row["step"], row["accuracy"], row["train.loss"], row["best"]) == ("100", "0.75", "nan", "false")
    assert row["formula"] == "'=1+1" and "confusion" not in row
    assert row["'@name"] == "-0.5", "a number is none"


def test_texts_of_a_trainer_are_no_formulas_in_a_spreadsheet() -> None:
    texts = ["=1+1", "+1", "-1", "@a", "\tx", "plain", None, "a=1"]
    schema = pyarrow.schema([("text", pyarrow.string()), ("number", pyarrow.float64())])
    batch = pyarrow.record_batch([pyarrow.array(texts), pyarrow.array([-1.0, -math.inf, math.nan, *range(5)])], schema)
    rows = list(csv.reader(io.StringIO(b"".join(formats.csv(schema, [batch])).decode(), newline="")))
    assert [row[0] for row in rows[1:]] == ["'=1+1", "'+1", "'-1", "'@a", "'\tx", "plain", "", "a=1"]
    assert [row[1] for row in rows[1:4]] == ["-1", "-inf", "nan"]


@pytest.mark.parametrize("format", ["csv", "parquet", "visualdl"])
def test_memory_does_not_grow_with_the_records(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fed with one block again and again. Arrow's own memory is counted by Arrow."""
    lines = [encode(record(step)) for step in range(1, 257)]
    # What is kept until the end must not hide in one large row group.
    monkeypatch.setattr(formats, "_GROUP", 1024)

    def peak(blocks: int) -> int:
        monkeypatch.setattr(batches.read, "batches", lambda attempt, rank: (lines for _ in range(blocks)))
        attempt: Any = None
        schema = batches.schema_of(attempt, [])
        records = batches.batches(attempt, [0], schema)
        pieces = {
            "csv": lambda: formats.csv(schema, records),
            "parquet": lambda: formats.parquet(schema, records),
            "visualdl": lambda: formats.archive([("a", visualdl.steps(records, datetime.now(timezone.utc), "run"))]),
        }[format]()
        tracemalloc.start()
        try:
            most = 0
            for _ in pieces:
                most = max(most, pyarrow.total_allocated_bytes())
            return most + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)  # what is imported and remembered at the first use
    assert peak(24) < 1.2 * peak(6)


# --- the view and the command ------------------------------------------------------------------


def test_only_the_owner_and_staff_take_it_away(people: People, attempt: Attempt) -> None:  # noqa: F811
    add(attempt, [record(1)])
    for format in files.FORMATS["steps"]:
        assert people.ask(f"/jobs/{attempt.job_id}/metrics/?format={format}") == MINE
    seed.evaluate(attempt, 1, 0.5, 0.5)
    assert people.ask(f"/jobs/{attempt.job_id}/metrics/?what=evaluations&format=json") == MINE


@pytest.mark.django_db(transaction=True)  # it is read in threads
def test_a_download_comes_in_pieces_and_whole(people: People, attempt: Attempt, run: dict[int, Any]) -> None:  # noqa: F811
    answer = people.owner.get(f"/jobs/{attempt.job_id}/metrics/", {"format": "jsonl", "rank": "0"})
    assert answer["Content-Disposition"].endswith(f"job-{attempt.job_id}-attempt-1-steps-rank-0.jsonl")
    found = asyncio.run(body(answer)).splitlines()
    assert [repr(decode(line)) for line in found] == [repr(row) for row in run[0]]


@pytest.mark.parametrize(
    "query",
    ["format=exe", "what=secrets", "rank=7", "attempt=2", "what=evaluations&format=csv", "rank=x", "format=json"],
)
def test_what_there_is_not_is_not_found(people: People, attempt: Attempt, query: str) -> None:  # noqa: F811
    add(attempt, [record(1)])
    assert people.owner.get(f"/jobs/{attempt.job_id}/metrics/?{query}").status_code == 404


def test_the_command_writes_whole_files(attempt: Attempt, run: dict[int, Any], tmp_path: Path) -> None:
    for format in ("csv", "parquet", "jsonl"):
        path = tmp_path / f"a.{format}"
        call_command("export", attempt.job_id, format=format, rank=0, output=str(path), stderr=io.StringIO())
        assert path.read_bytes() == whole(attempt, "steps", format, 0)
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "a.parquet", "a.jsonl"}
    with pytest.raises(CommandError, match="only as csv, json"):
        call_command("export", attempt.job_id, what="evaluations", format="parquet")
    with pytest.raises(CommandError, match="no evaluations yet"):
        call_command("export", attempt.job_id, what="evaluations")
    with pytest.raises(CommandError, match="no such job"):
        call_command("export", attempt.job_id, attempt=9)
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("export", attempt.job_id, output=str(tmp_path / "nowhere" / "a.csv"))
    with pytest.raises(CommandError, match="not empty"):
        call_command("export", attempt.job_id, format="visualdl", output=str(tmp_path))
