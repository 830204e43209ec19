"""What people ask of a running attempt: a small file that rank 0 looks at now and then."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import ValidationError

from workers.contract.messages import Control

INTERVAL_S = 0.2


class ControlFile:
    """`read` costs a clock reading, and one stat(2) at most every INTERVAL_S."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.newest = Control()
        self._seen: tuple[int, int] | None = None
        self._next_look = 0.0

    def read(self) -> Control:
        now = time.monotonic()
        if now < self._next_look:
            return self.newest
        return self.look()

    def look(self) -> Control:
        """However short a time ago the last look was: before something that cannot be taken back."""
        self._next_look = time.monotonic() + INTERVAL_S
        try:
            status = os.stat(self.path)  # noqa: PTH116  (called every step; Path.stat costs twice as much)
        except FileNotFoundError:
            return self.newest
        seen = (status.st_mtime_ns, status.st_ino)
        if seen != self._seen:
            try:
                self.newest = Control.model_validate_json(self.path.read_bytes())
                self._seen = seen
            except (ValidationError, OSError) as error:
                print(f"control.json cannot be read, left aside: {error}", flush=True)
        return self.newest
