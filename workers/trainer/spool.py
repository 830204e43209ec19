"""The append-only files of a rank: step records and events, whole lines, straight to the kernel."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from workers.contract import records
from workers.contract.texts import spoken


class Spool:
    """Appends whole lines with one write(2) each.

    There is no buffer in this process: a line is the kernel's once `append` returns, so SIGKILL at
    full speed loses none. There is no fsync either: it would stop a step for milliseconds, and a
    host that loses power has lost the attempt anyway. Raises OSError (ENOSPC) when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _cut_torn_tail(path, self.fd)

    def append(self, line: bytes) -> None:
        written = os.write(self.fd, line)
        while written < len(line):  # only when the disk is nearly full, or a signal came in between
            written += os.write(self.fd, line[written:])

    def close(self) -> None:
        os.close(self.fd)


class Steps(Spool):
    """Step records of this rank."""

    def record(self, record: dict[str, Any]) -> None:
        self.append(records.encode(record))


class Events(Spool):
    """What this rank's trainer says; the kinds are listed in workers/contract/messages.py."""

    def say(self, kind: str, **data: Any) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        self.append(records.dumps({"kind": kind, "at": at, **spoken(data)}) + b"\n")


def _cut_torn_tail(path: Path, fd: int) -> None:
    """A writer that died within a write left half a line. It was never shipped (only whole lines
    are), and the next line must not be glued to it."""
    size = os.fstat(fd).st_size
    if size == 0:
        return
    with path.open("rb") as file:
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
    if end < size:
        os.ftruncate(fd, end)
