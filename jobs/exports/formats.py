"""Record batches as CSV and Parquet, and files as one zip archive, piece by piece."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

# Rows of a row group: few enough to stay in memory, enough to keep the file's footer small.
_GROUP = 1 << 16


class _Outflow(io.RawIOBase):
    """A file that is only written to; `take` brings away what came since the last time."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._size += len(part)
        return len(part)

    def take(self) -> bytes:
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken


# What a spreadsheet would take for a formula.
FORMULA = re.compile(r"^[=+\-@\t\r]")


def csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """NaN is nan, infinities are inf and -inf, null is empty; numbers read back to the last bit. A text that a spreadsheet
    would take for a formula has a ' before it."""
    outflow = _Outflow()
    with pa.csv.CSVWriter(outflow, schema) as writer:
        for batch in batches:
            writer.write_batch(_harmless(batch))
            yield outflow.take()
    yield outflow.take()


def _harmless(batch: pa.RecordBatch) -> pa.RecordBatch:
    for index, field in enumerate(batch.schema):
        if field.type == pa.string():
            column = pc.replace_substring_regex(batch.column(index), FORMULA.pattern, r"'\0")
            batch = batch.set_column(index, field, column)
    return batch


def parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    outflow = _Outflow()
    with pa.parquet.ParquetWriter(outflow, schema, compression="zstd") as writer:
        group: list[pa.RecordBatch] = []
        for batch in batches:
            group.append(batch)
            if sum(map(len, group)) >= _GROUP:
                writer.write_table(pa.Table.from_batches(group, schema))
                group.clear()
            yield outflow.take()
        if group:
            writer.write_table(pa.Table.from_batches(group, schema))
    yield outflow.take()


def archive(files: Iterable[tuple[str, Iterable[bytes]]]) -> Iterator[bytes]:
    """A zip archive; each file is read only when its turn comes, and sizes need not be known."""
    outflow = _Outflow()
    with zipfile.ZipFile(outflow, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as whole:
        for name, parts in files:
            with whole.open(zipfile.ZipInfo(name), "w", force_zip64=True) as file:
                for part in parts:
                    file.write(part)
                    yield outflow.take()
    yield outflow.take()
