"""Exactly once: whatever happens to the entries on their way, the database ends up equal to the file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.controller import ingest
from jobs.controller.cursor import accept
from jobs.controller.ingest import Entry
from jobs.models import Attempt, Cursor, JobEvent, LogChunk, StepBlock
from jobs.steps import block, chart, read, store
from tests.jobs.records import line
from workers.contract.messages import Kind
from workers.contract.records import dumps

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql_too]


def test_bytes_are_taken_only_where_what_is_stored_ends() -> None:
    assert accept(0, [(0, b"ab"), (2, b"cd")]) == (b"abcd", False)
    assert accept(2, [(0, b"abcd")]) == (b"cd", False)
    assert accept(4, [(0, b"abcd"), (0, b"ab")]) == (b"", False)
    assert accept(0, [(2, b"cd")]) == (b"", True)
    assert accept(0, [(2, b"cd"), (0, b"ab"), (2, b"cd")]) == (b"abcd", True)


@given(st.binary(max_size=60), st.data())
def test_any_split_doubling_and_order_gives_a_prefix_of_the_file(file: bytes, data: st.DataObject) -> None:
    ends = st.integers(0, len(file))
    spans = data.draw(st.lists(st.tuples(ends, ends).map(sorted), max_size=30))
    offset = 0
    for start, end in spans:
        body, gap = accept(offset, [(start, file[start:end])])
        assert body == file[offset : offset + len(body)]
        assert gap == (start > offset)
        offset += len(body)


_STEPS = b"".join(line(step) for step in range(1, 41))
_SAID = b"".join(
    dumps({"kind": "note", "at": "2026-01-01T00:00:00Z", "level": "info", "text": f"{number}"}) + b"\n"
    for number in range(25)
)
_LOG = bytes(range(256)) * 3
_FILES = {(0, Kind.STEPS): _STEPS, (1, Kind.STEPS): _STEPS[:9000].rpartition(b"\n")[0] + b"\n", (0, Kind.LOG): _LOG}
_FILES[0, Kind.EVENTS] = _SAID


class Relay:
    """Sends a file from any line on, never reads back what it sent but by the acknowledged offset."""

    def __init__(self, attempt: Attempt, rank: int, kind: Kind) -> None:
        self.attempt, self.rank, self.kind, self.file = attempt, rank, kind, _FILES[rank, kind]
        whole = [0] + [i + 1 for i, byte in enumerate(self.file) if byte == 10]
        self.edges = list(range(len(self.file) + 1)) if kind is Kind.LOG else whole

    def entry(self, draw: Any) -> Entry:
        first = draw(st.integers(0, len(self.edges) - 2))
        last = draw(st.integers(first + 1, len(self.edges) - 1))
        return self.between(self.edges[first], self.edges[last])

    def between(self, start: int, end: int) -> Entry:
        return Entry(b"0-1", self.attempt.uid, self.rank, self.kind, start, self.file[start:end])

    def rest(self) -> Entry | None:
        """From the acknowledged offset on, as after a stall."""
        cursor = Cursor.objects.filter(attempt=self.attempt, rank=self.rank, kind=self.kind.value).first()
        at = cursor.offset if cursor else 0
        return self.between(at, len(self.file)) if at < len(self.file) else None


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_the_database_equals_the_files_byte_for_byte_whatever_is_lost_doubled_or_reordered(
    attempt: Attempt, data: st.DataObject
) -> None:
    for model in (Cursor, JobEvent, LogChunk):
        model.objects.filter(attempt=attempt).delete()
    store.StepTail.objects.all().delete()
    relays = [Relay(attempt, rank, kind) for rank, kind in _FILES]
    for _ in range(data.draw(st.integers(0, 4))):
        entries = [data.draw(st.sampled_from(relays)).entry(data.draw) for _ in range(data.draw(st.integers(1, 8)))]
        ingest.apply(entries)
    rest = [entry for relay in relays if (entry := relay.rest())]
    if rest:
        ingest.apply(rest)
    assert b"".join(read.lines(attempt, 0)) == _FILES[0, Kind.STEPS]
    assert b"".join(read.lines(attempt, 1)) == _FILES[1, Kind.STEPS]
    chunks = LogChunk.objects.filter(attempt=attempt, rank=0).order_by("offset").values_list("offset", "body")
    assert b"".join(bytes(body) for _, body in chunks) == _LOG
    notes = JobEvent.objects.filter(attempt=attempt, kind="note").order_by("pk").values_list("message", flat=True)
    assert list(notes) == [str(number) for number in range(25)]
    attempt.refresh_from_db()
    assert attempt.attempted == 40


def test_records_are_the_same_before_and_after_sealing_while_more_come(attempt: Attempt) -> None:
    file = b"".join(line(step) for step in range(1, 10_001))
    edges = [0] + [i + 1 for i, byte in enumerate(file) if byte == 10]
    for low, high in zip(edges[:-1:777], [*edges[777::777], edges[-1]], strict=True):
        ingest.apply([Entry(b"0-1", attempt.uid, 0, Kind.STEPS, low, file[low:high])])
        for tail in store.overlong([attempt.pk]):
            store.seal(tail)
    assert b"".join(read.lines(attempt, 0)) == file
    assert StepBlock.objects.count() == 10_000 // block.BLOCK
    assert chart.series(attempt, 0)["step"][-1] == 10_000


def test_a_batch_that_another_controller_took_is_rolled_back(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ingest.accept

    def taken_meanwhile(offset: int, pieces: Any) -> tuple[bytes, bool]:
        Cursor.objects.filter(attempt=attempt, kind="steps").update(offset=offset + 1)
        return original(offset, pieces)

    monkeypatch.setattr(ingest, "accept", taken_meanwhile)
    with pytest.raises(ingest.MovedElsewhere):
        ingest.apply([Entry(b"0-1", attempt.uid, 0, Kind.STEPS, 0, line(1))])
    assert not store.StepTail.objects.exists()


def test_log_pieces_are_put_together_and_large_ones_are_not(attempt: Attempt) -> None:
    body = b"x" * 1000 + b"\n"
    for number in range(100):
        ingest.apply([Entry(b"0-1", attempt.uid, 0, Kind.LOG, number * len(body), body)])
    chunks = list(LogChunk.objects.order_by("offset"))
    assert 3 <= len(chunks) <= 5
    assert sum(chunk.length for chunk in chunks) == 100 * len(body)
    assert all(chunk.length == len(bytes(chunk.body)) for chunk in chunks)
