"""Sends the run folder's append-only files to the controller, whole lines at a time, by byte offset.

A stream of the wire is the bytes of its file, except that
- only whole lines are sent; a last line without its end is never sent for records, events and reports,
  and gets a newline for logs once its writer is dead;
- a log stops at the cap, and one line that says so follows.
Both follow from the file alone, so a relay that starts again sends the same bytes.

The controller's acknowledged offset decides everything: the relay goes back to it when what it sent
is gone from Redis without an acknowledgement, and ahead to it when someone else sent more.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from workers.contract.messages import TELEMETRY_STREAM, AttemptSpec, Kind, ack_key, supervisor_rank
from workers.run_folder import RunFolder
from workers.supervisor.lifeline import connect

POLL_S = 0.1
BATCH_BYTES = 256 * 2**10
WINDOW_BYTES = 4 * 2**20
STALLED_S = 2.0


@dataclass
class Source:
    """One stream: a file, what is done to its end, and how far it is sent."""

    rank: int
    kind: Kind
    path: Path
    cap_bytes: int | None = None
    # Wire offset of the file's first byte.
    base: int = 0
    sent: int = field(init=False)
    acked: int = field(init=False)
    last_entry: bytes | None = None
    progress_at: float = field(default_factory=time.monotonic)
    _closed: bool = False

    def __post_init__(self) -> None:
        self.sent = self.acked = self.base

    @property
    def name(self) -> str:
        return f"{self.rank}/{self.kind}"

    def close(self) -> int:
        """Nothing writes any more. Returns the bytes of a torn last line that will not be sent."""
        self._closed = True
        if self.kind is Kind.LOG:
            return 0
        return self._size() - (self.end() - self.base)

    def end(self) -> int:
        """Wire offset after the last byte that may be sent now (for logs: unless a long line is not over)."""
        size = self._size()
        if self.kind is not Kind.LOG:
            return self.base + self._line_end(size)
        if self.cap_bytes is not None and size > self.cap_bytes:
            return self.base + self._cut() + len(self._mark())
        if self._closed:
            return self.base + size + len(self._missing_newline(size))
        return self.base + self._line_end(size)

    def read(self, offset: int, limit: int) -> bytes:
        """Bytes from the wire offset: whole lines of about `limit` bytes in all, empty if there are none yet."""
        position = offset - self.base
        size = self._size()
        if self.kind is not Kind.LOG:
            while position < size:
                body = self._bytes(position, limit)
                whole = body.rfind(b"\n") + 1
                if whole or len(body) < limit:
                    return body[:whole]
                limit *= 2
            return b""
        stop, suffix = size, b""
        if self.cap_bytes is not None and size > self.cap_bytes:
            stop, suffix = self._cut(), self._mark()
        elif self._closed:
            suffix = self._missing_newline(size)
        if position >= stop:
            return suffix[position - stop :]
        body = self._bytes(position, min(limit, stop - position))
        whole = body.rfind(b"\n") + 1
        if whole:
            return body[:whole]
        if len(body) == limit:
            return body[: _character_end(body)]
        return body if suffix and position + len(body) == stop else b""

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _bytes(self, position: int, count: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(position)
                return file.read(count)
        except FileNotFoundError:
            return b""

    def _line_end(self, size: int) -> int:
        """Bytes up to and with the last newline."""
        while size > 0:
            start = max(0, size - BATCH_BYTES)
            found = self._bytes(start, size - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            size = start
        return 0

    def _cut(self) -> int:
        assert self.cap_bytes is not None
        start = max(0, self.cap_bytes - 4)
        return start + _character_end(self._bytes(start, self.cap_bytes - start))

    def _mark(self) -> bytes:
        return f"\n[The log is cut here, at its limit of {self.cap_bytes} bytes; the training went on.]\n".encode()

    def _missing_newline(self, size: int) -> bytes:
        return b"\n" if size and self._bytes(size - 1, 1) != b"\n" else b""


def _character_end(body: bytes) -> int:
    """Length without the first bytes of a UTF-8 character that goes on after the end."""
    for back in range(1, min(4, len(body)) + 1):
        byte = body[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(body) - back if length > back else len(body)
    return len(body)


def sources(folder: RunFolder, spec: AttemptSpec, log_cap_bytes: int, report_base: int = 0) -> list[Source]:
    """Every stream of this node, its report first."""
    own = supervisor_rank(spec.node)
    found = [
        Source(own, Kind.REPORT, folder.report, base=report_base),
        Source(own, Kind.LOG, folder.launcher_log, log_cap_bytes),
        Source(own, Kind.DEVICES, folder.devices),
    ]
    for rank in ranks_of(spec):
        found.append(Source(rank, Kind.EVENTS, folder.events(rank)))
        found.append(Source(rank, Kind.STEPS, folder.steps(rank)))
        found.append(Source(rank, Kind.LOG, folder.log(rank), log_cap_bytes))
    return found


def ranks_of(spec: AttemptSpec) -> list[int]:
    first = spec.node * len(spec.devices)
    return list(range(first, first + len(spec.devices)))


class Relay:
    """A thread that sends until `close`; `drained` says that every byte up to now is stored."""

    def __init__(self, streams: list[Source], spec: AttemptSpec, redis_url: str, host: str) -> None:
        self.streams = streams
        self._spec = spec
        self._redis = connect(redis_url)
        self._host = host
        self._acknowledged_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def drained(self) -> bool:
        return all(stream.acked >= stream.end() for stream in self.streams)

    @property
    def idle_s(self) -> float:
        """Seconds since anything was acknowledged."""
        return time.monotonic() - self._acknowledged_at

    def close(self) -> None:
        self._stop.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        told = False
        while not self._stop.wait(POLL_S):
            try:
                self._follow_acknowledgements()
                for stream in self.streams:
                    self._send(stream)
                told = False
            except Exception as error:  # noqa: BLE001 - Redis or disk; nothing is lost by trying again
                if not told:
                    print(f"relay: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    told = True
                self._stop.wait(0.4)

    def _follow_acknowledgements(self) -> None:
        stored: dict[bytes, bytes] = self._redis.hgetall(ack_key(self._spec.attempt))  # type: ignore[assignment]
        now = time.monotonic()
        for stream in self.streams:
            text = stored.get(stream.name.encode())
            # Absent means that Redis was wiped, not that nothing is stored.
            acked = stream.acked if text is None else int(text)
            if acked != stream.acked:
                # Less than before: the database went back to an older state.
                stream.sent = max(stream.base, acked if acked < stream.acked else max(stream.sent, acked))
                stream.acked = acked
                stream.progress_at = self._acknowledged_at = now
            elif stream.sent <= stream.acked:
                stream.progress_at = now
            elif now - stream.progress_at > STALLED_S:
                # While the controller has not come to it, sending again would only fill Redis.
                if not self._is_waiting(stream):
                    stream.sent = max(stream.base, stream.acked)
                stream.progress_at = now

    def _is_waiting(self, stream: Source) -> bool:
        entry = stream.last_entry
        return entry is not None and bool(self._redis.xrange(TELEMETRY_STREAM, entry, entry))

    def _send(self, stream: Source) -> None:
        while not self._stop.is_set() and stream.sent - stream.acked < WINDOW_BYTES:
            body = stream.read(stream.sent, BATCH_BYTES)
            if not body:
                return
            entry: dict[str, str | int | bytes] = {
                "attempt": self._spec.attempt,
                "rank": stream.rank,
                "kind": stream.kind.value,
                "offset": stream.sent,
                "body": body,
                "host": self._host,
            }
            stream.last_entry = self._redis.xadd(TELEMETRY_STREAM, entry)  # type: ignore[arg-type, assignment]
            stream.sent += len(body)
