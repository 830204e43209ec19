"""Sealed records: BLOCK lines as typed columns, from which the same bytes come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from jobs.steps import columns, packed
from jobs.steps.columns import Column
from workers.contract.records import FIELDS

BLOCK = 4096

_NAMES = tuple(FIELDS)
_get = itemgetter(*_NAMES)
_NON_FINITE = frozenset(("nan", "inf", "-inf"))
# A line that columns cannot give back byte for byte is kept here as it is.
_LINE = "line"
# What a line that is no record, or an unusual one, makes of the typed columns.
_UNUSUAL = (ValueError, TypeError, KeyError, OverflowError, AttributeError)


def seal(lines: Sequence[bytes], values: Sequence[Any], matrix: packed.Matrix) -> bytes:
    """`lines` (without newlines) as a block's body; the others are what packed.parse makes of them.

    Proven before it is returned: `unseal` gives `lines` back.
    """
    joined = _joined(lines)
    try:
        body = columns.encode(_typed(values, matrix))
        # Back in one call of the encoder.
        if orjson.dumps(_records(columns.decode(body))) == joined:
            return body
    except _UNUSUAL:
        pass
    return _seal_one_by_one(lines)


def _seal_one_by_one(lines: Sequence[bytes]) -> bytes:
    values = [_value(line) for line in lines]
    odd = {index for index, (line, value) in enumerate(zip(lines, values, strict=True)) if not _is_plain(line, value)}
    body = _with_odd_lines(lines, values, odd)
    if unseal(body) != list(lines):
        body = _with_odd_lines(lines, values, odd=set(range(len(lines))))
        assert unseal(body) == list(lines)
    return body


def unseal(body: bytes) -> list[bytes]:
    """The lines, without newlines."""
    stored = columns.decode(body)
    lines = [orjson.dumps(record) for record in _records(stored)]
    for index, line in _odd_lines(stored):
        lines[index] = line
    return lines


def extras(body: bytes) -> Iterator[dict[str, Any]]:
    """The extras of the block's records, as far as there are any; the other columns are left alone."""
    wanted = {name for name in columns.names(body) if name == _LINE or name.startswith("extras")}
    stored = columns.decode(body, wanted)
    for _, line in _odd_lines(stored):
        value = _value(line)
        if isinstance(value, dict) and isinstance(value.get("extras"), dict):
            yield value["extras"]
    if "extras" in stored:
        for text in stored["extras"].to_list():
            if text is not None:
                yield orjson.loads(text)
    else:
        named = {name.removeprefix("extras."): stored[name].to_list() for name in wanted if name.startswith("extras.")}
        # One value of each kind is enough to tell what a column holds.
        for name, values in named.items():
            for value in {type(value): value for value in values}.values():
                yield {name: value}


def with_extras(body: bytes, mark: str) -> list[tuple[int, dict[str, Any]]]:
    """Step and extras (JSON values) of the records that have one whose name begins with `mark`; other columns are left alone."""
    wanted = {name for name in columns.names(body) if name in ("step", _LINE) or name.startswith("extras")}
    if not any(name.startswith(f"extras.{mark}") or name in ("extras", _LINE) for name in wanted):
        return []
    stored = columns.decode(body, wanted)
    found: list[tuple[int, dict[str, Any]]] = []
    for _, line in _odd_lines(stored):
        value = _value(line)
        if isinstance(value, dict) and isinstance(value.get("extras"), dict) and type(value.get("step")) is int:
            found.append((value["step"], value["extras"]))
    odd = {index for index, _ in _odd_lines(stored)}
    steps = stored["step"].to_list() if "step" in stored else []
    if "extras" in stored:
        texts = enumerate(stored["extras"].to_list())
        found += [(steps[i], orjson.loads(text)) for i, text in texts if text is not None and i not in odd]
    elif "extras?" in stored:
        lists = {name.removeprefix("extras."): stored[name].to_list() for name in stored if name.startswith("extras.")}
        there = np.flatnonzero(stored["extras?"].values).tolist()
        found += [(steps[i], {name: values[i] for name, values in lists.items()}) for i in there if i not in odd]
    return sorted((pair for pair in found if any(name.startswith(mark) for name in pair[1])), key=itemgetter(0))


def matrix(body: bytes, fields: Sequence[str] = packed.CHARTED) -> packed.Matrix:
    """The block's packed.Matrix; of the charted fields only `fields` are filled in."""
    stored = columns.decode(body, {"step", "seg", "skipped", "clipped", "found_inf", _LINE, *fields})
    step = stored["step"].values
    result = np.full((len(step), packed.WIDTH), np.nan)
    result[:, packed.STEP] = step
    result[:, packed.SEG] = stored["seg"].values
    skipped = stored["skipped"]
    bits = np.zeros(len(step), np.int64)
    bits += packed.SKIPPED if skipped.null is None else packed.SKIPPED * ~skipped.null
    bits += packed.CLIPPED * stored["clipped"].values + packed.FOUND_INF * stored["found_inf"].values
    for index, name in enumerate(packed.CHARTED):
        if name in fields:
            result[:, packed.FIRST_FIELD + index] = stored[name].values
            null = stored[name].null
            if null is not None:
                bits += packed.NULL[index] * null
    result[:, packed.BITS] = bits
    for index, line in _odd_lines(stored):
        before = result[index - 1, [packed.STEP, packed.SEG]] if index else np.full(2, np.nan)
        result[index] = packed.parse(line + b"\n")[1][0]
        if int(result[index, packed.BITS]) & packed.INVALID:
            result[index, [packed.STEP, packed.SEG]] = before
    return result


# --- how ------------------------------------------------------------------------------------


def _with_odd_lines(lines: Sequence[bytes], values: Sequence[Any], odd: set[int]) -> bytes:
    stored: dict[str, Column] = {}
    if len(odd) < len(lines):
        # The place of an odd line is taken by a plain one, so that it spoils no column's type.
        rows = list(values)
        plain = next(value for index, value in enumerate(values) if index not in odd)
        for index, value in enumerate(values):
            if index in odd:
                rows[index] = plain
            else:
                plain = value
        stored = _typed(rows, packed.matrix_of(rows))
    kept = np.empty(len(lines), object)
    for index in odd:
        # Text columns hold UTF-8; Latin-1 takes any byte.
        kept[index] = lines[index].decode("latin-1")
    stored[_LINE] = Column(kept, np.array([index not in odd for index in range(len(lines))]))
    return columns.encode(stored)


def _typed(rows: Sequence[Any], matrix: packed.Matrix) -> dict[str, Column]:
    stored: dict[str, Column] = {}
    bits = packed.bits(matrix)
    for (name, kind), column in zip(FIELDS.items(), zip(*map(_get, rows), strict=True), strict=True):
        if name in packed.CHARTED:
            index = packed.CHARTED.index(name)
            null = (bits & packed.NULL[index]) != 0
            values = np.ascontiguousarray(matrix[:, packed.FIRST_FIELD + index])
            stored[name] = Column(values, null if null.any() else None)
            continue
        items = list(column)
        if name == "extras":
            stored |= _extras(items)
        elif name == "batch_id":
            stored[name] = _batch_ids(items, stored["epoch"])
        else:
            stored[name] = _COLUMN[kind.rstrip("?")](items)
    return stored


def _ints(items: list[Any]) -> Column:
    if None not in items:
        return Column(np.array(items, dtype=np.int64))
    null = np.array([item is None for item in items])
    return Column(np.array([0 if item is None else item for item in items], dtype=np.int64), null)


def _floats(items: list[Any]) -> Column:
    null = np.array([item is None for item in items]) if None in items else None
    return Column(np.array(items, dtype=np.float64), null)


def _bools(items: list[Any]) -> Column:
    return Column(np.array(items, dtype=bool))


def _texts(items: list[Any]) -> Column:
    values = np.empty(len(items), object)
    values[:] = items
    return Column(values, np.array([item is None for item in items]) if None in items else None)


_COLUMN: dict[str, Callable[[list[Any]], Column]] = {"int": _ints, "float": _floats, "bool": _bools, "str": _texts}


def _batch_ids(items: list[Any], epoch: Column) -> Column:
    """ "epoch:index" as the index alone."""
    try:
        index = np.array([int(item.partition(":")[2]) for item in items], dtype=np.int64)
        pairs = zip(epoch.values.tolist(), index.tolist(), strict=True)
        if [f"{e}:{i}" for e, i in pairs] == items:
            return Column(index)
    except ValueError:
        pass
    return _texts(items)


def _extras(items: list[Any]) -> dict[str, Column]:
    """One column for each name if all have the same names, and values of one type under each, else JSON texts."""
    there = [item for item in items if item is not None]
    if not there:
        return {"extras": _texts(items)}
    names = tuple(there[0])
    if all(tuple(item) == names for item in there):
        present = np.array([item is not None for item in items])
        blank = dict.fromkeys(names)
        result = {"extras?": Column(present)}
        try:
            for name in names:
                result[f"extras.{name}"] = _any([(item or blank)[name] for item in items])
            return result
        except (ValueError, OverflowError):
            pass
    return {"extras": _texts([None if item is None else orjson.dumps(item).decode() for item in items])}


def _any(items: list[Any]) -> Column:
    types = {type(item) for item in items} - {type(None)}
    null = np.array([item is None for item in items]) if None in items else None
    if types == {float} or (types == {float, str} and {i for i in items if type(i) is str} <= _NON_FINITE):
        return _floats(items)
    if types in ({int}, {bool}):
        plain = [0 if item is None else item for item in items]
        return Column(np.array(plain, dtype=bool if types == {bool} else np.int64), null)
    if types <= {str}:
        return _texts(items)
    raise ValueError("mixed types")


def _records(stored: dict[str, Column]) -> list[dict[str, Any]]:
    if "step" not in stored:
        return [{}] * len(stored[_LINE].values)
    lists = {name: column.to_list() for name, column in stored.items() if name != _LINE}
    if lists["batch_id"] and isinstance(lists["batch_id"][0], int):
        lists["batch_id"] = [f"{e}:{i}" for e, i in zip(lists["epoch"], lists["batch_id"], strict=True)]
    if "extras?" in lists:
        names = [name for name in lists if name.startswith("extras.")]
        keys = [name.removeprefix("extras.") for name in names]
        flat = zip(*(lists[name] for name in names), strict=True) if names else iter([()] * len(lists["step"]))
        lists["extras"] = [
            dict(zip(keys, row, strict=True)) if there else None
            for there, row in zip(lists["extras?"], flat, strict=True)
        ]
    else:
        lists["extras"] = [None if text is None else orjson.loads(text) for text in lists["extras"]]
    return [dict(zip(_NAMES, row, strict=True)) for row in zip(*(lists[name] for name in _NAMES), strict=True)]


def _odd_lines(stored: dict[str, Column]) -> list[tuple[int, bytes]]:
    if _LINE not in stored:
        return []
    column = stored[_LINE]
    there = range(len(column.values)) if column.null is None else np.flatnonzero(~column.null).tolist()
    return [(index, column.values[index].encode("latin-1")) for index in there]


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(lines) + b"]"


def _value(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except ValueError:
        return None


def _is_plain(line: bytes, value: Any) -> bool:
    """Whether columns give back this very line; slow, for the rare block that has an odd one."""
    try:
        return type(value) is dict and [
            orjson.dumps(record) for record in _records(_typed([value], packed.matrix_of([value])))
        ] == [line]
    except _UNUSUAL:
        return False
