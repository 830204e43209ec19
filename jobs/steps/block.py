"""Sealed records: BLOCK lines as typed columns, from which the same bytes come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from jobs.steps import columns, packed
from jobs.steps.columns import Column
from workers.contract.records import FIELDS, to_json_number

BLOCK = 4096

_NON_FINITE = frozenset(("nan", "inf", "-inf"))
# A line that columns cannot give back byte for byte is kept here as it is.
_LINE = "line"


def seal(batch: packed.Batch) -> bytes:
    """The block's body. Proven before it is returned: `unseal` gives the lines back."""
    try:
        body = columns.encode(_typed(batch.columns or packed.columns_of(batch.body), batch.matrix))
        if unseal(body) == batch.body:
            return body
    except packed.UNUSUAL:
        pass
    return _seal_one_by_one(batch.body)


def _seal_one_by_one(text: bytes) -> bytes:
    lines = text[:-1].split(b"\n")
    values = [_value(line) for line in lines]
    odd = {index for index, (line, value) in enumerate(zip(lines, values, strict=True)) if not _is_plain(line, value)}
    body = _with_odd_lines(lines, values, odd)
    if unseal(body) != text:
        body = _with_odd_lines(lines, values, odd=set(range(len(lines))))
        assert unseal(body) == text
    return body


def unseal(body: bytes) -> bytes:
    """The lines, each with its newline."""
    stored = columns.decode(body)
    odd = _odd_lines(stored)
    if "step" not in stored:
        return b"".join(line + b"\n" for _, line in odd)
    text = _lines(stored)
    if odd:
        lines = text[:-1].split(b"\n")
        for index, line in odd:
            lines[index] = line
        text = b"\n".join(lines) + b"\n"
    return text


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
    # Without steps all lines are odd ones.
    result = np.full((len(next(iter(stored.values())).values), packed.WIDTH), np.nan)
    if "step" in stored:
        _fill(result, stored, [name for name in packed.CHARTED if name in fields])
    for index, line in _odd_lines(stored):
        before = result[index - 1, [packed.STEP, packed.SEG]] if index else np.full(2, np.nan)
        result[index] = packed.parse(line + b"\n").matrix[0]
        if int(result[index, packed.BITS]) & packed.INVALID:
            result[index, [packed.STEP, packed.SEG]] = before
    return result


def _fill(result: packed.Matrix, stored: dict[str, Column], fields: list[str]) -> None:
    result[:, packed.STEP] = stored["step"].values
    result[:, packed.SEG] = stored["seg"].values
    skipped = stored["skipped"]
    bits = np.zeros(len(result), np.int64)
    bits += packed.SKIPPED if skipped.null is None else packed.SKIPPED * ~skipped.null
    bits += packed.CLIPPED * stored["clipped"].values + packed.FOUND_INF * stored["found_inf"].values
    for name in fields:
        index = packed.CHARTED.index(name)
        result[:, packed.FIRST_FIELD + index] = stored[name].values
        null = stored[name].null
        if null is not None:
            # What lies under a null is the value before it.
            result[null, packed.FIRST_FIELD + index] = np.nan
            bits += packed.NULL[index] * null
    result[:, packed.BITS] = bits


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
        stored = _plain(rows)
    kept = np.empty(len(lines), object)
    for index in odd:
        # Text columns hold UTF-8; Latin-1 takes any byte.
        kept[index] = lines[index].decode("latin-1")
    stored[_LINE] = Column(kept, np.array([index not in odd for index in range(len(lines))]))
    return columns.encode(stored)


def _plain(rows: Sequence[Any]) -> dict[str, Column]:
    values = packed.transposed(rows)
    return _typed(values, packed.matrix_of(values))


def _typed(rows: packed.Columns, matrix: packed.Matrix) -> dict[str, Column]:
    stored: dict[str, Column] = {}
    bits = packed.bits(matrix)
    for name, kind in FIELDS.items():
        if name in packed.CHARTED:
            index = packed.CHARTED.index(name)
            null = (bits & packed.NULL[index]) != 0
            values = np.ascontiguousarray(matrix[:, packed.FIRST_FIELD + index])
            stored[name] = Column(values, null if null.any() else None)
            continue
        items = rows[name]
        if name == "extras":
            stored |= _extras(items)
        elif name == "batch_id":
            stored[name] = _batch_ids(items, stored["epoch"])
        else:
            stored[name] = _COLUMN[kind.rstrip("?")](items)
    return stored


def _ints(items: tuple[Any, ...]) -> Column:
    if None not in items:
        return Column(np.array(items, dtype=np.int64))
    null = np.array([item is None for item in items])
    return Column(np.array([0 if item is None else item for item in items], dtype=np.int64), null)


def _floats(items: tuple[Any, ...]) -> Column:
    null = np.array([item is None for item in items]) if None in items else None
    return Column(np.array(items, dtype=np.float64), null)


def _bools(items: tuple[Any, ...]) -> Column:
    return Column(np.array(items, dtype=bool))


def _texts(items: tuple[Any, ...]) -> Column:
    values = np.empty(len(items), object)
    values[:] = items
    return Column(values, np.array([item is None for item in items]) if None in items else None)


_COLUMN: dict[str, Callable[[tuple[Any, ...]], Column]] = {
    "int": _ints,
    "float": _floats,
    "bool": _bools,
    "str": _texts,
}


def _batch_ids(items: tuple[Any, ...], epoch: Column) -> Column:
    """ "epoch:index" as the index alone; what JSON reads in "0: 7", too, is found when the lines are compared."""
    try:
        pairs = np.array(orjson.loads("[" + ",".join(items).replace(":", ",") + "]"), dtype=np.int64).reshape(-1, 2)
        if np.array_equal(pairs[:, 0], epoch.values):
            return Column(np.ascontiguousarray(pairs[:, 1]))
    except ValueError:
        pass
    return _texts(items)


def _extras(items: tuple[Any, ...]) -> dict[str, Column]:
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
                result[f"extras.{name}"] = _any(tuple((item or blank)[name] for item in items))
            return result
        except (ValueError, OverflowError):
            pass
    return {"extras": _texts(tuple(None if item is None else orjson.dumps(item).decode() for item in items))}


def _any(items: tuple[Any, ...]) -> Column:
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


def _lines(stored: dict[str, Column]) -> bytes:
    """Each record as one line, as the encoder of records writes it.

    Column by column into one template: a third of the time that a dictionary of each record and the encoder take.
    """
    slots: list[bytes] = []
    texts: list[list[bytes]] = []
    for name in FIELDS:
        if name == "extras" and "extras" not in stored:
            slot, found = b"%b", [_extras_texts(stored)]
        elif name == "extras" and stored[name].values.dtype.kind == "O":
            # They are JSON already.
            slot, found = b"%b", [[b"null" if text is None else text.encode() for text in stored[name].to_list()]]
        elif name == "batch_id" and stored[name].values.dtype.kind == "i":
            slot, found = b'"%b:%b"', [_texts_of(stored["epoch"]), _texts_of(stored[name])]
        elif _is_constant(stored[name]):
            slot, found = _literal(_texts_of(_first(stored[name]))[0]), []
        else:
            slot, found = b"%b", [_texts_of(stored[name])]
        slots.append(b'"%b":%b' % (name.encode(), slot))
        texts += found
    template = b"{" + b",".join(slots) + b"}\n"
    if not texts:
        return template % () * len(stored["step"].values)
    return b"".join(map(template.__mod__, zip(*texts, strict=True)))


def _extras_texts(stored: dict[str, Column]) -> list[bytes]:
    names = [name for name in stored if name.startswith("extras.")]
    keys = [_literal(orjson.dumps(name.removeprefix("extras."))) for name in names]
    template = b"{" + b",".join(key + b":%b" for key in keys) + b"}"
    there = stored["extras?"].values.tolist()
    rows = zip(*(_texts_of(stored[name]) for name in names), strict=True) if names else [()] * len(there)
    return [template % row if one else b"null" for one, row in zip(there, rows, strict=True)]


def _literal(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")


def _texts_of(column: Column) -> list[bytes]:
    """Each value as JSON."""
    values = column.values
    if values.dtype.kind in "fib":
        texts = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        if values.dtype.kind == "f":
            for index in np.flatnonzero(~np.isfinite(values)).tolist():
                texts[index] = orjson.dumps(to_json_number(values[index]))
    else:
        texts = list(map(orjson.dumps, values.tolist()))
    if column.null is not None:
        for index in np.flatnonzero(column.null).tolist():
            texts[index] = b"null"
    return texts


def _is_constant(column: Column) -> bool:
    if column.null is not None:
        return bool(column.null.all())
    values = column.values
    if values.dtype.kind == "f":
        values = values.view(np.int64)  # -0.0 is not 0.0, and a NaN is a NaN
    return bool((values == values[0]).all())


def _first(column: Column) -> Column:
    return Column(column.values[:1], None if column.null is None else column.null[:1])


def _odd_lines(stored: dict[str, Column]) -> list[tuple[int, bytes]]:
    if _LINE not in stored:
        return []
    column = stored[_LINE]
    there = range(len(column.values)) if column.null is None else np.flatnonzero(~column.null).tolist()
    return [(index, column.values[index].encode("latin-1")) for index in there]


def _value(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except ValueError:
        return None


def _is_plain(line: bytes, value: Any) -> bool:
    """Whether columns give back this very line; slow, for the rare block that has an odd one."""
    try:
        return type(value) is dict and _lines(_plain([value])) == line + b"\n"
    except packed.UNUSUAL:
        return False
