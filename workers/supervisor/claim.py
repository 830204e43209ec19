"""Who may act: one live supervisor per run folder, one action per placement, one attempt per device.

All on the host's own disk. Locks are flocks: the kernel frees them with their process, whatever
kills it, and no child inherits them.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from workers.contract.messages import AttemptSpec
from workers.run_folder import RunFolder


def try_lock(path: Path, *, patience_s: float = 0.0) -> int | None:
    """The descriptor of an exclusive lock on `path`, or None if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(0.02)


def is_locked(path: Path) -> bool:
    """Whether a live process holds `path`. Takes the lock for a moment; hence the others' patience."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def claim(folder: RunFolder, placement: int) -> bool:
    """True for the first caller of this placement only, for ever."""
    try:
        os.close(os.open(folder.claim(placement), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return True
    except FileExistsError:
        return False


class Devices:
    """The locks of an attempt's devices on this host."""

    def __init__(self, scratch_root: Path, spec: AttemptSpec) -> None:
        self._paths = [scratch_root / "devices" / f"{spec.device_kind}-{index}.lock" for index in sorted(spec.devices)]
        self._held: list[int] = []

    def take(self) -> str | None:
        """All of them, or none; then the name of one that is busy."""
        for path in self._paths:
            descriptor = try_lock(path, patience_s=0.5)
            if descriptor is None:
                self.release()
                return path.stem
            self._held.append(descriptor)
        return None

    def release(self) -> None:
        while self._held:
            os.close(self._held.pop())
