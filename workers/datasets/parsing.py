"""Files → rows. A row is parsed, never executed; one that cannot be read is a fact with its line number, and reading goes on.

`rows` reads one by one, and says what a row is. `blocks` gives the same rows, a few thousand at once where all of them are
plain: several times faster. Whatever is not plain it leaves to the way one by one.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson

from workers.contract.datasets import WEIGHT, Reading

# A longer line or field is a quotation mark that was never closed, or no table at all.
LONGEST_LINE_BYTES = 1 << 20
# How much of a file is looked at to guess how it is read.
HEAD_BYTES = 256 * 1024
PREVIEW_ROWS = 8
# What is read at once: its rows stay in the processor's cache.
BLOCK_BYTES = 256 * 1024
MOST_COLUMNS = 1000
# A longer sentence is a file without blank lines.
MOST_TOKENS = 10_000
# Levels of a JSON value. json reads and writes some 990, depending on who calls it, and orjson 1024.
MOST_LEVELS = 100
BOM = codecs.BOM_UTF8

Values = dict[str, Any]


@dataclass(slots=True)
class Row:
    number: int  # the line in the file at which it begins, from 1
    values: Values
    line: bytes  # as JSON in UTF-8, without end; of JSON Lines as it was in the file


@dataclass(frozen=True)
class BadRow:
    number: int
    template: str
    shown: str = ""
    values: dict[str, str | int] = field(default_factory=dict)


@dataclass(slots=True)
class Block:
    """Rows without fault, one after the other: of a table as fields, of JSON Lines as objects and as lines."""

    numbers: Sequence[int]
    columns: list[str]  # of a table
    fields: list[list[str]]
    objects: list[Values]  # of JSON Lines
    lines: list[bytes]

    def __len__(self) -> int:
        return len(self.numbers)

    def column(self, name: str) -> list[Any]:
        """Of all rows. Raises KeyError or ValueError if some have none of that name."""
        if self.objects:
            return [values[name] for values in self.objects]
        at = self.columns.index(name)
        return [fields[at] for fields in self.fields]

    def halves(self) -> tuple[Block, Block]:
        half = len(self) // 2
        first, last = (
            Block(self.numbers[part], self.columns, self.fields[part], self.objects[part], self.lines[part])
            for part in (slice(half), slice(half, None))
        )
        return first, last

    def rows(self) -> Iterator[Row]:
        """As `rows` gives them."""
        if self.objects:
            for number, line in zip(self.numbers, self.lines, strict=True):
                yield Row(number, json.loads(line.decode()), line)
        else:
            for number, fields in zip(self.numbers, self.fields, strict=True):
                yield Row(number, dict(zip(self.columns, fields, strict=True)), b"")


def problem(template: str, number: int, shown: str = "", **values: str | int) -> BadRow:
    """One kind of fault. `template` counts rows: the same fault in many rows is one finding."""
    return BadRow(number, template, printable(shown), values)


class Unreadable(Exception):
    """Nothing of the file can be used. `template` is translated by the web side. `however`: in whichever way it is read."""

    however = False

    def __init__(self, template: str, **values: str | int) -> None:
        super().__init__(template % values)
        self.template, self.values = template, values


def printable(text: str, most: int = 60) -> str:
    """Short, on one line, and storable: no NUL, no lone surrogates, no control characters."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(c if c.isprintable() else "·" for c in cut).encode("utf-8", "replace").decode()


# --- rows ------------------------------------------------------------------------------------


def rows(
    file: BinaryIO, reading: Reading, progress: Callable[[int], None] = lambda done: None
) -> Iterator[Row | BadRow]:
    """All rows in order; blank lines are passed over. `progress` is told the bytes read. Raises Unreadable."""
    _refuse_other_formats(file)
    lines = _Lines(file, reading.encoding, progress)
    if reading.format == "conll":
        yield from _sentences(lines, reading.delimiter)
    else:
        yield from _objects(lines) if reading.format == "jsonl" else _Table(lines, reading).rows()


def blocks(
    file: BinaryIO, reading: Reading, progress: Callable[[int], None] = lambda done: None
) -> Iterator[Block | Row | BadRow]:
    """The same rows in the same order from a file that can seek. `reading` names the columns of the text and the label."""
    _refuse_other_formats(file)
    lines = _Lines(file, reading.encoding, progress)
    table = _Table(lines, reading)
    while raw := lines.peek(BLOCK_BYTES):
        end = lines.position + len(raw)
        block, used = None, 0
        # With the first line come the mark of the encoding and the names of the columns.
        if lines.number:
            block, used = _objects_at_once(raw, lines, reading) if reading.format == "jsonl" else table.at_once(raw)
        if block is not None:
            lines.skip(used, raw)
            if len(block):
                yield block
            continue
        lines.back()
        if not lines.number:
            end = 1  # the first row only
        yield from _objects(lines, end) if reading.format == "jsonl" else table.rows(end)


class _Lines:
    """Decoded lines. What was wrong with those since the last call of `take_fault` is kept there."""

    def __init__(self, file: BinaryIO, encoding: str, progress: Callable[[int], None]) -> None:
        self._file, self.encoding, self._progress = file, encoding, progress
        self.number = 0
        self.position = 0
        self._fault: tuple[str, str, dict[str, str | int]] | None = None

    def __iter__(self) -> Iterator[str]:
        while raw := self._file.readline(LONGEST_LINE_BYTES + 1):
            self.number += 1
            self.position += len(raw)
            if self.number % 2000 == 1:
                self._progress(self.position)
            if len(raw) > LONGEST_LINE_BYTES and not raw.endswith(b"\n"):
                self._problem("Rows with a line longer than %(limit)s: %(count)d.", "", limit="1 MiB")
                # Without the quotation mark that its rest would have closed: the rows after it are whole.
                raw = raw[:100].replace(b'"', b"")
                while (rest := self._file.readline(LONGEST_LINE_BYTES)) and not rest.endswith(b"\n"):
                    self.position += len(rest)
                self.position += len(rest)
            if self.number == 1 and self.encoding == "utf-8":
                raw = raw.removeprefix(BOM)
            try:
                text = raw.decode(self.encoding)
            except UnicodeDecodeError as error:
                text = raw.decode(self.encoding, "replace")
                if not self._fault:
                    around = raw[max(error.start - 20, 0) : error.start + 8].decode(self.encoding, "replace")
                    self._problem("Rows that are not %(encoding)s: %(count)d.", around, encoding=self.encoding.upper())
            if "\0" in text:
                self._problem("Rows with a NUL character: %(count)d.", text)
                text = text.replace("\0", "")
            yield text
        self._progress(self.position)

    def _problem(self, template: str, shown: str, **values: str | int) -> None:
        self._fault = (template, shown, values)

    def take_fault(self, number: int) -> BadRow | None:
        fault, self._fault = self._fault, None
        return fault and problem(fault[0], number, fault[1].strip(), **fault[2])

    def peek(self, size: int) -> bytes:
        """The next whole lines; `skip` or `back` must follow. The last may be cut if it is far too long."""
        raw = self._file.read(size)
        return raw if raw.endswith(b"\n") else raw + self._file.readline(LONGEST_LINE_BYTES + 1)

    def back(self) -> None:
        self._file.seek(self.position)

    def skip(self, used: int, raw: bytes) -> None:
        self.position += used
        self.number += raw.count(b"\n", 0, used) + (used == len(raw) and not raw.endswith(b"\n"))
        self._progress(self.position)
        if used < len(raw):
            self.back()


# --- JSON Lines ------------------------------------------------------------------------------


def _objects(lines: _Lines, end: int | None = None) -> Iterator[Row | BadRow]:
    """To the end of the file, or to the line that ends at `end` or after it."""
    for line in lines:
        number, fault = lines.number, lines.take_fault(lines.number)
        if fault:
            yield fault
        elif line := line.strip():
            yield _object(line, number)
        if end is not None and lines.position >= end:
            return


class TooDeep(ValueError):
    pass


def from_json(text: str) -> Any:
    """Raises JSONDecodeError, ValueError of a number that is too long, and TooDeep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise TooDeep from None
    if text.count("[") + text.count("{") > MOST_LEVELS:
        level, depth = [value], 0
        while level := [inner for outer in level for inner in _inside(outer)]:
            depth += 1
            if depth > MOST_LEVELS:
                raise TooDeep
    return value


def _inside(value: Any) -> Iterator[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (one for one in inner if isinstance(one, dict | list))


def _object(line: str, number: int) -> Row | BadRow:
    try:
        value = from_json(line)
    except json.JSONDecodeError as error:
        return problem("Rows that are not JSON: %(count)d.", number, f"{error.msg}: {line[max(error.pos - 20, 0) :]}")
    except TooDeep:
        return problem("Rows nested more than %(limit)d levels deep: %(count)d.", number, line, limit=MOST_LEVELS)
    except ValueError:
        return problem("Rows that are not JSON: %(count)d.", number, line)
    if not isinstance(value, dict):
        return problem("Rows that are not JSON objects: %(count)d.", number, line)
    return Row(number, value, line.encode("utf-8"))


def _objects_at_once(raw: bytes, before: _Lines, reading: Reading) -> tuple[Block | None, int]:
    """None if they are not all plain objects. orjson takes less than json does, and what it takes it reads alike, but for
    numbers; so it is used where they are only looked at."""
    used = len(raw)
    if before.encoding != "utf-8":
        try:
            raw = raw.decode(before.encoding).encode("utf-8")
        except UnicodeDecodeError:
            return None, 0
    lines = raw.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if b"\0" in raw or _has_longer_line(raw) or _may_be_deep(raw, lines):
        return None, 0
    lines = list(map(bytes.strip, lines))
    numbers: Sequence[int] = range(before.number + 1, before.number + 1 + len(lines))
    if not all(lines):
        numbers = [number for number, line in zip(numbers, lines, strict=True) if line]
        lines = list(filter(None, lines))
    kept = (reading.text_column, reading.label_column) == ("text", "label")
    try:
        objects = list(map(orjson.loads, lines) if kept else (json.loads(line.decode()) for line in lines))
    except ValueError:
        return None, 0
    if set(map(type, objects)) - {dict}:
        return None, 0
    return Block(numbers, [], [], objects, lines), used


def _may_be_deep(raw: bytes, lines: list[bytes]) -> bool:
    """Most often no block has so many brackets, and its lines need not be looked at."""
    if raw.count(b"[") + raw.count(b"{") <= len(lines) + MOST_LEVELS - 1:
        return False
    return any(line.count(b"[") + line.count(b"{") > MOST_LEVELS for line in lines)


# --- CoNLL -----------------------------------------------------------------------------------

# A token that CoNLL-U repeats in parts, or one that is only meant.
_RANGE = re.compile(r"\d+[-.]\d+")
_COLUMNS_OF_CONLLU = 10
_COMMENT = re.compile(r"#\s+([^\s=]+)\s*=\s(.*)")


def _sentences(lines: _Lines, delimiter: str) -> Iterator[Row | BadRow]:
    """A row per sentence: of each column, by its number from 1, what stands in its lines, and as “weight” what a comment
    “# weight = …” right before it says. Blank lines end a sentence; other comments (“# name = value”, and “# …” that is no
    token) and -DOCSTART- are passed over. A row's number is that of the sentence's first line, a fault's that of its line."""
    columns, start = 0, 0
    sentence: list[list[str]] = []
    said: dict[str, str] = {}
    bad: BadRow | None = None
    for line in itertools.chain(lines, [""]):
        number = lines.number
        fault = lines.take_fault(number)
        fields = line.strip("\r\n").split("\t") if delimiter == "\t" else line.split()
        blank = not line.strip()
        if blank or fields[0] == "-DOCSTART-":
            if sentence or bad:
                yield bad or Row(start, _columns_of(sentence) | said, b"")
            sentence, bad, said = [], fault, {}
            continue
        if fault:
            bad = bad or fault
            continue
        if not sentence and not bad and (comment := _COMMENT.match(line)):
            if comment[1] == WEIGHT:
                said[WEIGHT] = comment[2].strip()
            continue
        if (
            line.startswith("#")
            and not sentence
            and not bad
            and (len(fields) == 1 or len(fields) != columns > 1 or not columns)
        ):
            continue
        if len(fields) == _COLUMNS_OF_CONLLU and _RANGE.fullmatch(fields[0]):
            continue
        columns = columns or len(fields)
        if len(fields) != columns:
            bad = bad or problem(
                "Sentences with a line of another number of columns than %(columns)d: %(count)d.",
                number,
                f"{len(fields)}: {line.strip()}",
                columns=columns,
            )
        if not sentence:
            start = number
        sentence.append(fields)
        if len(sentence) > MOST_TOKENS:
            bad = bad or problem("Rows with more than %(limit)d tokens: %(count)d.", start, limit=MOST_TOKENS)
            sentence = []


def _columns_of(sentence: list[list[str]]) -> Values:
    return {str(number): list(column) for number, column in enumerate(zip(*sentence, strict=True), 1)}


# --- tables ----------------------------------------------------------------------------------


class _Table:
    def __init__(self, lines: _Lines, reading: Reading) -> None:
        csv.field_size_limit(LONGEST_LINE_BYTES)
        self._lines, self._reading = lines, reading
        self._columns: list[str] = []

    def _reader(self, lines: Iterator[str]) -> Any:
        reading = self._reading
        return csv.reader(lines, delimiter=reading.delimiter, quoting=_quoting(reading.quotes), strict=True)

    def rows(self, end: int | None = None) -> Iterator[Row | BadRow]:
        """To the end of the file, or to the row that ends at `end` or after it."""
        lines, reading = self._lines, self._reading
        table = self._reader(iter(lines))
        while end is None or lines.position < end:
            number = lines.number + 1
            try:
                fields = next(table)
            except StopIteration:
                return
            except csv.Error as error:
                fault = lines.take_fault(number)
                if "new-line character" in str(error):
                    fault = fault or problem(
                        "Rows with a carriage return that ends no line: %(count)d. Save the file with the line ends of Unix or Windows.",
                        number,
                    )
                yield fault or problem(
                    "Rows whose quotation marks or line ends do not fit: %(count)d.", number, str(error)
                )
                continue
            fault = lines.take_fault(number)
            if not self._columns:
                if not fields and not fault:
                    continue
                if fault and reading.header:
                    raise Unreadable(
                        "The row with the names of the columns cannot be read as %(encoding)s.",
                        encoding=reading.encoding.upper(),
                    )
                self._columns = column_names(fields, reading.header)
                if reading.header:
                    continue
            columns = self._columns
            if fault:
                yield fault
            elif len(fields) == len(columns):
                yield Row(number, dict(zip(columns, fields, strict=True)), b"")
            elif any(field.strip() for field in fields):
                shown = f"{len(fields)}: {reading.delimiter.join(fields)}"
                yield problem(
                    "Rows with another number of columns than %(columns)d: %(count)d.",
                    number,
                    shown,
                    columns=len(columns),
                )

    def at_once(self, raw: bytes) -> tuple[Block | None, int]:
        """The rows before the first that is not plain, and how many bytes they take; None if there are none."""
        columns, before = self._columns, self._lines.number
        try:
            text = raw.decode(self._lines.encoding)
        except UnicodeDecodeError:
            return None, 0
        if not columns or "\0" in text or _has_longer_line(raw) or text.count("\r") != text.count("\r\n"):
            return None, 0
        found: list[list[str]] = []
        numbers: Sequence[int]
        used = len(raw)
        if self._reading.quotes and '"' in text:
            table = self._reader(io.StringIO(text, newline="\n"))
            starts = []
            at = 0
            try:
                for fields in table:
                    found.append(fields)
                    starts.append(before + 1 + at)
                    at = table.line_num
            except csv.Error:
                # Most often a field of several lines that the block's end cuts.
                used = _bytes_of(raw, at)
            numbers = starts
        else:
            lines = text.split("\n")
            if not lines[-1]:
                lines.pop()
            try:
                found = list(self._reader(iter(lines)))
            except csv.Error:
                return None, 0
            numbers = range(before + 1, before + 1 + len(found))
        if not used:
            return None, 0
        if set(map(len, found)) - {len(columns)}:
            if not all(len(fields) == len(columns) or not any(map(str.strip, fields)) for fields in found):
                return None, 0
            whole = [len(fields) == len(columns) for fields in found]
            numbers = [number for number, keep in zip(numbers, whole, strict=True) if keep]
            found = [fields for fields, keep in zip(found, whole, strict=True) if keep]
        return Block(numbers, columns, found, [], []), used


def _has_longer_line(raw: bytes) -> bool:
    return len(raw) > LONGEST_LINE_BYTES and max(map(len, raw.split(b"\n"))) > LONGEST_LINE_BYTES


def _bytes_of(raw: bytes, lines: int) -> int:
    end = 0
    for _ in repeat(None, lines):
        end = raw.index(b"\n", end) + 1
    return end


def _quoting(quotes: bool) -> Literal[0, 3]:
    return csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE


def column_names(first: list[str], header: bool) -> list[str]:
    """Of a table, by its first row. Raises Unreadable."""
    if len(first) > MOST_COLUMNS:
        raise Unreadable("The first row has %(columns)d columns: is the delimiter right?", columns=len(first))
    if not header:
        return [str(i + 1) for i in range(len(first))]
    # A second byte order mark is left by tools that put one before what had one.
    names = [name.replace("\ufeff", "").strip() for name in first]
    if not all(names):
        raise Unreadable("Column %(number)d has no name in the first row.", number=names.index("") + 1)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Unreadable("The column “%(column)s” is in the first row twice.", column=printable(twice))
    return names


def _refuse_other_formats(file: BinaryIO) -> None:
    """By the first bytes; the position stays at the beginning."""
    head = file.read(4096)
    file.seek(0)
    try:
        _refuse_by(head)
    except Unreadable as error:
        error.however = True
        raise


def _refuse_by(head: bytes) -> None:
    if not head.strip(b"\r\n\t " + BOM):
        if len(head) < 4096:
            raise Unreadable("The file is empty.")
    elif head.startswith(b"PK\x03\x04"):
        raise Unreadable("This is a zip or Excel file: unpack it, or save the sheet as CSV (UTF-8).")
    elif head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")):
        raise Unreadable("This is a compressed file: unpack it first.")
    elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Unreadable("This is UTF-16: save the file as UTF-8 or GB18030.")
    elif head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        raise Unreadable("This is a Python pickle, which is never loaded: save the rows as CSV or JSON Lines.")
    elif head.startswith(b"PAR1"):
        raise Unreadable("This is a Parquet file: save the rows as CSV or JSON Lines.")
    elif head.removeprefix(BOM).lstrip().startswith(b"["):
        raise Unreadable("This begins like a JSON array: one JSON object per line is needed.")


# --- a look at the beginning -----------------------------------------------------------------

TEXT_NAMES = ("text", "text_a", "sentence", "review", "content", "文本", "评论", "内容")
SECOND_NAMES = ("text_b", "text_pair", "sentence2", "sentence_b", "hypothesis", "question2")
_FIRST_OF_PAIRS = {
    "text_b": "text_a", "text_pair": "text", "sentence2": "sentence1", "sentence_b": "sentence_a",
    "hypothesis": "premise", "question2": "question1",
}  # fmt: skip
LABEL_NAMES = ("label", "labels", "class", "category", "sentiment", "标签", "类别")
CONLL_SUFFIXES = (".conll", ".conllu", ".bio", ".iob")
_LOOKS_TAGGED = re.compile(r"O|[BIESLU]-\S+")
SPLIT_NAMES = ("split", "set", "partition", "数据集", "划分")


@dataclass
class Look:
    """How a file seems to be read, and its first rows so read."""

    reading: Reading
    columns: list[str]
    rows: list[Row]
    problems: list[BadRow]


def look(file: BinaryIO, name: str, reading: Reading | None = None) -> Look:
    """At the first HEAD_BYTES, with `reading` or a guess. Raises Unreadable."""
    _refuse_other_formats(file)
    head = file.read(HEAD_BYTES)
    if len(head) == HEAD_BYTES:
        head = head[: head.rfind(b"\n") + 1] or head
    guess = reading or _guess(head, name)
    found: list[Row] = []
    problems: list[BadRow] = []
    columns: dict[str, None] = {}
    for row in rows(_Head(head), guess):  # type: ignore[arg-type]
        if isinstance(row, BadRow):
            problems.append(row)
        else:
            if len(found) < PREVIEW_ROWS:
                found.append(row)
            if len(columns) < MOST_COLUMNS:
                columns.update(dict.fromkeys(row.values))
        if len(found) >= PREVIEW_ROWS and len(problems) >= PREVIEW_ROWS:
            break
    if reading is None:
        names = {column.lower(): column for column in columns}
        chosen: dict[str, str] = {}
        for field_name, known in (
            ("text_column", TEXT_NAMES),
            ("label_column", LABEL_NAMES),
            ("split_column", SPLIT_NAMES),
        ):
            hit = next((names[one] for one in known if one in names), "")
            if hit:
                chosen[field_name] = hit
        second = next((one for one in SECOND_NAMES if one in names), "")
        if second:
            chosen["text_b_column"] = names[second]
            if (first := _FIRST_OF_PAIRS[second]) in names:
                chosen["text_column"] = names[first]
        guess = guess.model_copy(update=chosen)
    return Look(guess, list(columns), found, problems[:PREVIEW_ROWS])


class _Head:
    """The beginning of a file as a file: io.BytesIO, spelt out for what `rows` uses."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def read(self, count: int) -> bytes:
        part = self._body[self._at : self._at + count]
        self._at += len(part)
        return part

    def readline(self, count: int) -> bytes:
        end = self._body.find(b"\n", self._at) + 1 or len(self._body)
        return self.read(min(end - self._at, count))

    def seek(self, at: int) -> None:
        self._at = at


def _guess(head: bytes, name: str) -> Reading:
    encoding = _encoding(head)
    text = head.removeprefix(BOM).decode(encoding, "replace")
    suffix = Path(name).suffix.lower()
    if suffix in (".jsonl", ".json", ".ndjson") or text.lstrip().startswith("{"):
        return Reading(format="jsonl", encoding=encoding)
    if (separator := _separator_of_conll(text, suffix in CONLL_SUFFIXES)) is not None:
        return Reading(format="conll", delimiter=separator, encoding=encoding, kind="tokens")
    lines = [line for line in text.splitlines() if line.strip()][:50]
    delimiter = _delimiter(lines, "\t" if suffix in (".tsv", ".tab") else ",")
    first = lines[0].split(delimiter) if lines else []
    # A heading is short, and no number.
    header = all(0 < len(name.strip()) <= 40 and not _is_number(name) for name in first)
    return Reading(
        format="table",
        delimiter=delimiter,
        quotes=delimiter != "\t",
        header=header,
        encoding=encoding,
        text_column="text" if header else "1",
        label_column="label" if header else "2",
    )


def _separator_of_conll(text: str, said: bool) -> Literal["\t", " "] | None:
    """None if it does not look like CoNLL: sentences with blank lines between, whose lines end with a tag. `said`: the file's
    name says that it is."""
    lines = [line.strip("\r") for line in text.split("\n")[:500]]
    tokens = [line for line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))]
    tabs = bool(tokens) and all("\t" in line for line in tokens)
    if said:
        return "\t" if tabs else " "
    if not tokens or "" not in [line.strip() for line in lines[:-1]]:
        return None
    fields = [line.split("\t") if tabs else line.split() for line in tokens]
    tagged = sum(bool(_LOOKS_TAGGED.fullmatch(of[-1])) for of in fields)
    if len({len(of) for of in fields}) > 1 or len(fields[0]) < 2 or tagged < 0.9 * len(fields):
        return None
    return "\t" if tabs else " "


def _encoding(head: bytes) -> str:
    for encoding in ("utf-8", "gb18030"):
        try:
            codecs.getincrementaldecoder(encoding)().decode(head)
        except UnicodeDecodeError:
            continue
        return encoding
    return "utf-8"


def _delimiter(lines: list[str], expected: str) -> str:
    """The one that cuts most lines into as many fields as the first, two at least."""

    def score(delimiter: str) -> tuple[float, bool]:
        fields = [len(row) for row in _split(lines, delimiter)]
        if not fields or fields[0] < 2:
            return 0.0, delimiter == expected
        return fields.count(fields[0]) / len(fields), delimiter == expected

    return max((",", "\t", ";", "|"), key=score)


def _split(lines: list[str], delimiter: str) -> list[list[str]]:
    csv.field_size_limit(LONGEST_LINE_BYTES)
    plain = (line.replace("\0", "") + "\n" for line in lines)
    try:
        return list(csv.reader(plain, delimiter=delimiter, quoting=_quoting(delimiter != "\t")))
    except csv.Error:
        return []


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
