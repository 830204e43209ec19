"""Columns typed for size: a record batch of Arrow, zstd-compressed, from which the very same values come back.

A column that does not change, or grows evenly, costs nothing but a word in the schema. Whole numbers
are kept as such or as differences, in the fewest bytes; floats as whole numbers of 10⁻ⁿ, as float32, or
as second differences of their bit patterns (what a linear schedule makes small), each only if exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

Array = npt.NDArray[Any]
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=3))
_META = b"columns"


@dataclass(frozen=True)
class Column:
    """Values of one column, and where they are null (None: nowhere)."""

    values: Array
    null: npt.NDArray[np.bool_] | None = None

    def to_list(self) -> list[Any]:
        """JSON values: non-finite floats as their strings, nulls as None."""
        items: list[Any] = self.values.tolist()
        if self.values.dtype.kind == "f":
            for index in np.flatnonzero(~np.isfinite(self.values)):
                value = items[index]
                items[index] = "nan" if value != value else ("inf" if value > 0 else "-inf")
        if self.null is not None:
            for index in np.flatnonzero(self.null):
                items[index] = None
        return items


def encode(columns: dict[str, Column]) -> bytes:
    """One record batch of all `columns`, which are equally long and not empty."""
    notes: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    count = 0
    for name, column in columns.items():
        count = len(column.values)
        note, array = _pack(column)
        notes[name] = note
        if array is not None:
            arrays[name] = array
    schema = pa.schema(
        [(name, array.type) for name, array in arrays.items()],
        metadata={_META: orjson.dumps({"count": count, "columns": notes})},
    )
    batch = pa.record_batch(list(arrays.values()), schema=schema) if arrays else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_OPTIONS) as writer:
        if batch is not None:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode(body: bytes, names: Collection[str] | None = None) -> dict[str, Column]:
    """The columns of `body`, or those of `names` that are there; the others are not even decompressed."""
    buffer = pa.py_buffer(body)
    schema = pa.ipc.read_schema(buffer)
    meta = orjson.loads(schema.metadata[_META])
    options = pa.ipc.IpcReadOptions(use_threads=False)
    if names is not None:
        options.included_fields = [i for i, name in enumerate(schema.names) if name in names]
    stored: dict[str, Any] = {}
    # An empty list of fields means all to Arrow.
    if schema.names and not (names is not None and not options.included_fields):
        batch = pa.ipc.open_stream(buffer, options=options).read_next_batch()
        stored = dict(zip(batch.schema.names, batch.columns, strict=True))
    return {
        name: _unpack(note, stored.get(name), meta["count"])
        for name, note in meta["columns"].items()
        if names is None or name in names
    }


def names(body: bytes) -> list[str]:
    """Of the columns; nothing is decompressed."""
    meta = orjson.loads(pa.ipc.read_schema(pa.py_buffer(body)).metadata[_META])
    return list(meta["columns"])


# --- one column ----------------------------------------------------------------------------


def _pack(column: Column) -> tuple[dict[str, Any], Any]:
    values, null = column.values, column.null
    if null is not None:
        if null.all():
            return {"kind": "null"}, None
        values = _fill_forward(values, null)
    kind = values.dtype.kind
    if kind == "O":
        if null is None and all(value == values[0] for value in values[1:]):
            return {"kind": "text", "const": values[0]}, None
        return {"kind": "text"}, pa.array(values.tolist(), pa.string(), mask=null)
    if kind == "b":
        values, note = values.astype(np.int64), {"as": "bool"}
    elif kind == "f":
        values, note = _floats(values.astype(np.float64, copy=False))
    else:
        values, note = values.astype(np.int64, copy=False), {"as": "int"}
    if values.dtype.kind == "f":
        return note | {"kind": "float"}, pa.array(values, mask=null)
    note, stored = _whole(values, note)
    if stored is None and null is not None:
        stored = np.zeros(len(values), np.int8)
    return note, None if stored is None else pa.array(stored, mask=null)


def _floats(values: npt.NDArray[np.float64]) -> tuple[Array, dict[str, Any]]:
    """The cheapest exact form: whole numbers with a note of what they are, or floats."""
    pattern = values.view(np.int64)
    if (pattern == pattern[0]).all():
        return pattern, {"as": "bits"}
    finite = bool(np.isfinite(values).all())
    decimal = _decimal(values) if finite else None
    if decimal is not None and np.ptp(decimal[0]) < 2**15:
        return decimal[0], {"as": "decimal", "digits": decimal[1]}
    single = _single(values)
    if single is not None:
        return single, {}
    if decimal is not None and np.ptp(decimal[0]) < 2**31:
        return decimal[0], {"as": "decimal", "digits": decimal[1]}
    if len(values) > 2 and np.median(np.abs(np.diff(pattern, 2).astype(np.float64))) < 2**24:
        return pattern, {"as": "bits"}
    return values, {}


def _single(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32] | None:
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
    return single if np.array_equal(single.astype(np.float64).view(np.int64), values.view(np.int64)) else None


def _decimal(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], int] | None:
    if np.abs(values).max() >= 2**53:
        return None
    for digits in range(7):
        factor = 10.0**digits
        # The first values tell nearly always that it does not fit.
        for part in (values[:64], values):
            scaled = np.round(part * factor)
            if np.abs(scaled).max() >= 2**53:
                break
            # By way of whole numbers, which have no -0.0.
            whole = scaled.astype(np.int64)
            if not _same_bits(whole / factor, part):
                break
        else:
            return whole, digits
    return None


def _same_bits(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> bool:
    return bool((np.ascontiguousarray(a).view(np.int64) == np.ascontiguousarray(b).view(np.int64)).all())


def _whole(values: npt.NDArray[np.int64], note: dict[str, Any]) -> tuple[dict[str, Any], Array | None]:
    """As they are, as differences or as second differences: whichever takes the fewest bytes. None: all are 0."""
    first = int(values[0])
    once = np.diff(values, prepend=values[:1])  # may wrap around, and back when it is summed up
    slope = int(once[1]) if len(once) > 1 else 0
    twice = np.diff(once, prepend=once[:1])
    twice[1:2] = 0
    best: tuple[int, int, Array] | None = None
    # The narrowest wins; among equals the plainest, except that all zeros beat everything.
    for order, candidate in ((0, values - first), (1, once), (2, twice)):
        if not candidate.any():
            return note | {"kind": "whole", "order": order, "first": first, "slope": slope}, None
        width = _width(candidate)
        if best is None or width.itemsize < best[0]:
            best = (width.itemsize, order, candidate.astype(width))
    assert best is not None
    return note | {"kind": "whole", "order": best[1], "first": first, "slope": slope}, best[2]


def _width(values: npt.NDArray[np.int64]) -> np.dtype[Any]:
    low, high = int(values.min()), int(values.max())
    for width in (np.int8, np.int16, np.int32):
        if np.iinfo(width).min <= low and high <= np.iinfo(width).max:
            return np.dtype(width)
    return np.dtype(np.int64)


def _unpack(note: dict[str, Any], stored: Any, count: int) -> Column:
    if note["kind"] == "null":
        return Column(np.full(count, np.nan), np.ones(count, bool))
    null = None
    if stored is not None and stored.null_count:
        null = stored.is_null().to_numpy(zero_copy_only=False)
    if note["kind"] == "text":
        values = np.empty(count, object)
        values[:] = note["const"] if stored is None else stored.to_pylist()
        return Column(values, null)
    if note["kind"] == "float":
        return Column(_plain(stored).astype(np.float64), null)
    return Column(_MEANING[note["as"]](_whole_back(note, stored, count), note), null)


def _whole_back(note: dict[str, Any], stored: Any, count: int) -> npt.NDArray[np.int64]:
    values = np.zeros(count, np.int64) if stored is None else _plain(stored).astype(np.int64)
    if note["order"] == 2:
        values = np.cumsum(values)
        values[1:] += note["slope"]
        values[:1] = 0
    if note["order"] >= 1:
        values = np.cumsum(values)
    values += note["first"]
    return values


_MEANING: dict[str, Callable[[npt.NDArray[np.int64], dict[str, Any]], Array]] = {
    "int": lambda values, note: values,
    "bool": lambda values, note: values.astype(bool),
    "bits": lambda values, note: values.view(np.float64),
    "decimal": lambda values, note: values / 10.0 ** note["digits"],
}


def _plain(stored: Any) -> Array:
    """The values buffer as it is; what lies under a null is the value before it."""
    dtype = np.dtype(stored.type.to_pandas_dtype())
    values: Array = np.frombuffer(stored.buffers()[1], dtype, count=len(stored), offset=stored.offset * dtype.itemsize)
    return values


def _fill_forward(values: Array, null: npt.NDArray[np.bool_]) -> Array:
    index = np.where(null, 0, np.arange(len(values)))
    np.maximum.accumulate(index, out=index)
    filled: Array = values[index]
    if null[0]:
        filled[: int(np.argmin(null))] = values[int(np.argmin(null))]
    return filled
