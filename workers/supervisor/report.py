"""The supervisor's own stream: report.jsonl, one line per fact."""

from __future__ import annotations

import errno
import os
import threading
from datetime import datetime, timezone
from typing import Any

import orjson

from workers.contract import records
from workers.contract.texts import spoken
from workers.run_folder import RunFolder


class Report:
    """Appends lines; several threads may. A torn last line, which nobody was sent, is removed when it opens."""

    def __init__(self, folder: RunFolder) -> None:
        self._lock = threading.Lock()
        self._file = os.open(folder.report, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        content = folder.report.read_bytes()
        whole = content.rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        self.size_at_start = whole
        self.lines: list[dict[str, Any]] = [orjson.loads(line) for line in content[:whole].splitlines()]

    def say(self, kind: str, **fields: Any) -> None:
        """Raises OSError if the disk is full; the file then is as it was."""
        line = {"kind": kind, "at": datetime.now(timezone.utc).isoformat(), **spoken(fields)}
        content = records.dumps(line) + b"\n"
        with self._lock:
            size = os.fstat(self._file).st_size
            written = os.write(self._file, content)
            if written < len(content):
                os.ftruncate(self._file, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.lines.append(line)

    def said(self, kind: str) -> list[dict[str, Any]]:
        with self._lock:
            return [line for line in self.lines if line["kind"] == kind]
