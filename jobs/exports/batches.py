"""Stored step records as typed Arrow record batches: a row per record, in the order in which each rank wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa

from jobs.models import Attempt, Cursor
from jobs.steps import read
from workers.contract.messages import Kind
from workers.contract.records import FIELDS, from_json_number

_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}
EXTRAS = "extras."


def ranks_of(attempt: Attempt) -> dict[int, int]:
    """Ranks with records, and how many bytes of lines are stored of each."""
    cursors = Cursor.objects.filter(attempt=attempt, kind=Kind.STEPS.value, offset__gt=0, rank__gte=0)
    return dict(cursors.order_by("rank").values_list("rank", "offset"))


def schema_of(attempt: Attempt, ranks: Sequence[int]) -> pa.Schema:
    """`rank`, the fields of the contract, and one column for each name that ever occurs in extras."""
    extras: dict[str, Any] = {}
    for rank in ranks:
        for extra in read.extras(attempt, rank):
            for name, value in extra.items():
                extras[name] = _wider(extras.get(name), value)
    fields = [(name, _TYPES[kind.rstrip("?")]) for name, kind in FIELDS.items() if name != "extras"]
    more = [(EXTRAS + name, type_ or pa.float64()) for name, type_ in extras.items()]
    return pa.schema([("rank", pa.int32()), *fields, *more])


def batches(attempt: Attempt, ranks: Sequence[int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Lines that are no records are left out: a table has no place for them. JSON Lines have all."""
    for rank in ranks:
        for lines in read.batches(attempt, rank):
            records = _values(lines)
            try:
                batch = _batch(records, rank, schema)
            except _NO_RECORD:
                batch = _batch([record for record in records if _fits(record, schema)], rank, schema)
            if len(batch):
                yield batch


_NO_RECORD = (pa.ArrowException, TypeError, KeyError, ValueError, AttributeError, OverflowError)


def _values(lines: list[bytes]) -> list[Any]:
    try:
        # One call for all lines: three times as fast as one each.
        values: list[Any] = orjson.loads(b"[" + b",".join(lines) + b"]")
        if len(values) == len(lines):
            return values
    except ValueError:
        pass
    values = []
    for line in lines:
        try:
            values.append(orjson.loads(line))
        except ValueError:
            continue
    return values


def _batch(records: list[Any], rank: int, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name == "rank":
            arrays.append(pa.array([rank] * len(records), pa.int32()))
        elif field.name.startswith(EXTRAS):
            name = field.name.removeprefix(EXTRAS)
            arrays.append(_array([(record["extras"] or {}).get(name) for record in records], field.type))
        else:
            arrays.append(_array([record[field.name] for record in records], field.type))
    return pa.record_batch(arrays, schema=schema)


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """NaN stays NaN and null stays null."""
    if type_ == pa.float64():
        values = [from_json_number(value) if type(value) is str else value for value in values]
    elif type_ == pa.string():
        values = [value if value is None or type(value) is str else orjson.dumps(value).decode() for value in values]
    return pa.array(values, type_)


def _fits(record: Any, schema: pa.Schema) -> bool:
    try:
        _batch([record], 0, schema)
    except _NO_RECORD:
        return False
    return True


def _wider(known: pa.DataType | None, value: Any) -> pa.DataType | None:
    """The type that holds `value` beside what was there before; None as long as there was nothing but null."""
    value = from_json_number(value)
    if value is None:
        return known
    found = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}.get(type(value), pa.string())
    if known is None or known == found:
        return found
    return pa.float64() if {known, found} == {pa.int64(), pa.float64()} else pa.string()
