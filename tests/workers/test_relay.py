"""The bytes that a stream offers: whole lines, whole characters, and the same ones every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.contract.messages import Kind
from workers.supervisor.relay import Source


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("relay") / "stream"


def drain(source: Source, limit: int) -> bytes:
    sent = b""
    while body := source.read(source.base + len(sent), limit):
        sent += body
    return sent


def test_only_whole_lines_of_records_are_offered(path: Path) -> None:
    path.write_bytes(b"one\ntwo\nthr")
    source = Source(0, Kind.STEPS, path)
    assert source.read(0, 100) == b"one\ntwo\n"
    assert source.read(8, 100) == b""
    assert source.close() == 3
    assert source.end() == 8


def test_a_line_longer_than_a_batch_is_offered_whole(path: Path) -> None:
    path.write_bytes(b"x" * 1000 + b"\nrest\n")
    assert Source(0, Kind.EVENTS, path).read(0, 10).startswith(b"x" * 1000 + b"\n")


def test_offsets_start_at_the_base(path: Path) -> None:
    path.write_bytes(b"one\n")
    source = Source(-1, Kind.REPORT, path, base=50)
    assert (source.sent, source.read(50, 10), source.end()) == (50, b"one\n", 54)


def test_a_file_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    source = Source(0, Kind.LOG, tmp_path / "none", 100)
    assert (source.read(0, 10), source.end(), source.close()) == (b"", 0, 0)


def test_an_open_log_line_waits_for_its_end(path: Path) -> None:
    path.write_bytes(b"done\nhalf")
    source = Source(0, Kind.LOG, path, 100)
    assert drain(source, 50) == b"done\n"
    source.close()
    assert drain(source, 50) == b"done\nhalf\n"


def test_a_long_log_line_is_split_between_characters(path: Path) -> None:
    path.write_bytes("吃".encode() * 10)
    source = Source(0, Kind.LOG, path, 1000)
    assert source.read(0, 10) == "吃吃吃".encode()


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("aé吃😀\n"), max_size=60),
    cap=st.integers(1, 120),
    limit=st.integers(4, 40),
    early=st.integers(0, 60),
)
def test_a_log_is_the_same_whenever_it_was_read(path: Path, text: str, cap: int, limit: int, early: int) -> None:
    """Reading while it grows and reading afterwards give the same bytes, and they are valid text."""
    path.write_bytes(text[:early].encode())
    growing = Source(0, Kind.LOG, path, cap)
    sent = drain(growing, limit)
    path.write_bytes(text.encode())
    growing.close()
    while body := growing.read(len(sent), limit):
        sent += body

    later = Source(0, Kind.LOG, path, cap)
    later.close()
    assert sent == drain(later, limit)
    assert len(sent) == later.end()
    sent.decode()
    assert len(text.encode()) > cap or sent == (text + "\n" * (text[-1:] not in ("", "\n"))).encode()
