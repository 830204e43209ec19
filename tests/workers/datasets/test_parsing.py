"""Whatever the bytes: rows come out as they were written, or a fault with its line number."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract.datasets import Reading
from workers.datasets import parsing
from workers.datasets.parsing import BadRow, Row, Unreadable, look, rows

TABLE = Reading(format="table")
LINES = Reading(format="jsonl")


def read(body: bytes, reading: Reading) -> list[Row | BadRow]:
    return list(rows(io.BytesIO(body), reading))


def values(body: bytes, reading: Reading) -> list[dict[str, Any]]:
    return [row.values for row in read(body, reading) if isinstance(row, Row)]


def faults(body: bytes, reading: Reading) -> list[tuple[int, str]]:
    found = [row for row in read(body, reading) if isinstance(row, BadRow)]
    return [(row.number, row.template % {**row.values, "count": 1}) for row in found]


# --- what is written is read -----------------------------------------------------------------

CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=30)


@given(st.lists(st.tuples(CELL, CELL), max_size=20), st.sampled_from(",;\t|"), st.sampled_from(["utf-8", "gb18030"]))
def test_any_table_comes_back(cells: list[tuple[str, str]], delimiter: Any, encoding: Any) -> None:
    written = io.StringIO()
    table = csv.writer(written, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    table.writerows([("text", "label"), *cells])
    reading = Reading(format="table", delimiter=delimiter, encoding=encoding)
    assert values(written.getvalue().encode(encoding), reading) == [{"text": a, "label": b} for a, b in cells]


@given(
    st.lists(
        st.dictionaries(CELL, st.none() | st.booleans() | st.integers() | CELL, max_size=4), min_size=1, max_size=20
    )
)
def test_any_json_lines_come_back(objects: list[dict[str, Any]]) -> None:
    body = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in objects).encode()
    assert values(body, LINES) == objects


@given(st.binary(max_size=3000), st.sampled_from([TABLE, LINES, Reading(format="table", delimiter="\t", quotes=False)]))
def test_any_bytes_are_rows_or_faults_in_order(body: bytes, reading: Reading) -> None:
    try:
        found = read(body, reading)
    except Unreadable as error:
        assert str(error)
        return
    numbers = [row.number for row in found]
    assert numbers == sorted(set(numbers))
    assert all(1 <= number <= body.count(b"\n") + 1 for number in numbers)
    for row in found:
        if isinstance(row, BadRow):
            row.shown.encode()
            assert row.template % {**row.values, "count": 1}


@given(st.binary(max_size=3000), st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.txt"]))
def test_a_look_at_any_bytes_is_a_guess_or_a_reason(body: bytes, name: str) -> None:
    try:
        assert len(look(io.BytesIO(body), name).rows) <= parsing.PREVIEW_ROWS
    except Unreadable as error:
        assert str(error)


# --- what can be wrong -----------------------------------------------------------------------


def test_a_ragged_row_is_named_and_the_next_is_read() -> None:
    body = b"text,label\ngood,a\nonly one\nthree,b,c\n\nfine,b\n"
    assert [values["text"] for values in values(body, TABLE)] == ["good", "fine"]
    assert faults(body, TABLE) == [(n, "Rows with another number of columns than 2: 1.") for n in (3, 4)]


def test_rows_are_counted_by_lines_of_the_file_also_after_a_field_of_several() -> None:
    body = b'text,label\n"two\nlines",a\nragged\n'
    assert [(row.number) for row in read(body, TABLE)] == [2, 4]


def test_a_wrong_encoding_is_named_with_its_row() -> None:
    body = "text,label\n好,a\n".encode() + "坏,b\n".encode("gb18030")
    assert faults(body, TABLE) == [(3, "Rows that are not UTF-8: 1.")]
    assert values(body, TABLE) == [{"text": "好", "label": "a"}]


def test_a_mark_at_the_beginning_is_no_part_of_the_first_name() -> None:
    assert values(b"\xef\xbb\xbftext,label\nx,a\n", TABLE) == [{"text": "x", "label": "a"}]
    assert values(b'\xef\xbb\xbf{"text": "x"}\n', LINES) == [{"text": "x"}]


def test_a_nul_is_a_fault() -> None:
    assert faults(b"text,label\nx\0y,a\n", TABLE) == [(2, "Rows with a NUL character: 1.")]
    assert faults(b'{"text": "x\0y"}\n', LINES) == [(1, "Rows with a NUL character: 1.")]


@pytest.mark.parametrize("reading", [TABLE, LINES])
def test_a_huge_line_is_passed_over_without_being_held(reading: Reading) -> None:
    head = b"text,label\n" if reading is TABLE else b'{"text": "a"}\n'
    good = b"x,a\n" if reading is TABLE else b'{"text": "x"}\n'
    body = head + b"y" * (3 * parsing.LONGEST_LINE_BYTES) + b"\n" + good
    assert faults(body, reading) == [(2, "Rows with a line longer than 1 MiB: 1.")]
    assert values(body, reading)[-1]["text"] == "x"


def test_a_huge_quoted_field_takes_no_row_after_it_along() -> None:
    body = b'text,label\nx,a\n"' + b"y" * (2 * parsing.LONGEST_LINE_BYTES) + b'",b\n"z",c\n'
    assert faults(body, TABLE) == [(3, "Rows with a line longer than 1 MiB: 1.")]
    assert [row["text"] for row in values(body, TABLE)] == ["x", "z"]


@pytest.mark.parametrize("depth", [101, 985, 995, 1010, 100_000])
def test_what_is_nested_too_deep_for_those_who_read_it_later_is_a_fault_of_its_row(depth: int) -> None:
    plain = b'{"text": "a", "label": "b"}\n'
    deep = b'{"text": "a", "label": "b", "more": ' + b"[" * depth + b"]" * depth + b"}\n"
    good = [parsing.Row, parsing.Block]
    for items in (read(plain + deep, LINES), list(parsing.blocks(io.BytesIO(plain + plain + deep), LINES))):
        bad = [item for item in items if type(item) not in good]
        assert [one.template for one in bad if isinstance(one, BadRow)] == [
            "Rows nested more than %(limit)d levels deep: %(count)d."
        ]
    (fits,) = values(deep.replace(b"[" * depth, b"[" * 99).replace(b"]" * depth, b"]" * 99), LINES)
    assert set(fits) == {"text", "label", "more"}
    assert values(b'{"text": "' + b"[" * 5000 + b'", "label": "b"}\n', LINES), "in a text they nest nothing"


def test_names_of_columns_have_no_byte_order_mark_left() -> None:
    assert values(2 * parsing.BOM + b"text, label\na,b\n", TABLE) == [{"text": "a", "label": "b"}]


def test_carriage_returns_that_end_no_line_are_told_in_words() -> None:
    first, bad, last = read(b"text,label\na,b\nc,d\re,f\r\ng,h\n", TABLE)
    assert isinstance(first, Row) and isinstance(last, Row) and isinstance(bad, BadRow)
    assert bad.number == 3 and "carriage return" in bad.template


def test_a_quotation_mark_that_is_never_closed_is_named_where_it_opens() -> None:
    body = b'text,label\ngood,a\n"open,b\n' + b"more,a\n" * 10
    assert [number for number, _text in faults(body, TABLE)] == [3]


def test_without_quotation_marks_a_tab_separates_and_nothing_else_counts() -> None:
    reading = Reading(format="table", delimiter="\t", quotes=False)
    assert values('text\tlabel\n"好"说\t1\n'.encode(), reading) == [{"text": '"好"说', "label": "1"}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"PK\x03\x04xyz", "Excel"),
        (b"\x1f\x8b\x08", "compressed"),
        ("text".encode("utf-16"), "UTF-16"),
        (b"\x80\x04\x95", "pickle"),
        (b'[{"text": "x"}]', "JSON array"),
        (b"PAR1", "Parquet"),
    ],
)
def test_other_formats_are_refused_by_name(body: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        read(body, LINES)


def test_names_of_columns_must_be_there_once() -> None:
    with pytest.raises(Unreadable, match="Column 2 has no name"):
        read(b"text,,label\n", TABLE)
    with pytest.raises(Unreadable, match="“text” is in the first row twice"):
        read(b"text,text\n", TABLE)


# --- guesses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "name", "expected"),
    [
        (b'{"text": "x", "label": 1}\n', "a.jsonl", {"format": "jsonl"}),
        (b"text;label\na;b\n", "a.csv", {"format": "table", "delimiter": ";", "header": True}),
        (b"label\ttext_a\n1\tx, y\n", "a.tsv", {"delimiter": "\t", "quotes": False, "text_column": "text_a"}),
        ("标签,内容\n正,好书\n".encode("gb18030"), "a.csv", {"encoding": "gb18030", "label_column": "标签"}),
        (b"1\tgreat\n0\tbad\n", "a.tsv", {"header": False, "text_column": "1"}),
        (b"text,label,split\nx,a,train\n", "a.csv", {"split_column": "split"}),
    ],
)
def test_the_guess(body: bytes, name: str, expected: dict[str, Any]) -> None:
    guess = look(io.BytesIO(body), name).reading.model_dump()
    assert {key: guess[key] for key in expected} == expected


def test_a_character_cut_by_the_end_of_the_look_is_no_wrong_encoding() -> None:
    body = b"text,label\n" + ("好" * 200_000).encode()
    assert look(io.BytesIO(body), "a.csv").reading.encoding == "utf-8"
