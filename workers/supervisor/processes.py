"""Every process of an attempt, found and ended. Linux only.

The supervisor is child subreaper: whoever loses its parent becomes its child, so descendants can
be found by their parents, and by a marker in the environment if the supervisor itself was lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

MARKER = "EVENKEEL_ATTEMPT"
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_environment() -> None:
    """Other processes of this user can no longer read this one's memory and environment."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """(state, parent, start time in clock ticks) of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[1]), int(fields[19])


def start_time(pid: int) -> int | None:
    """With `pid` the name of a process for ever, as numbers are used again."""
    found = _stat(pid)
    return found and found[2]


def alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie does not."""
    found = _stat(pid)
    return found is not None and found[0] not in "ZX"


def _has_marker(pid: int, marker: bytes) -> bool:
    try:
        return marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def of_attempt(mark: str) -> list[int]:
    """Live processes that are descendants of this one or carry `mark` in their environment."""
    me = os.getpid()
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - a thousand Path objects per look are not free
        if entry.isdigit() and (found := _stat(int(entry))) and found[0] not in "ZX":
            parents[int(entry)] = found[1]
    marker = f"{MARKER}={mark}".encode()
    chosen = []
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != me:
            ancestor = parents[ancestor]
        if pid != me and (ancestor == me or _has_marker(pid, marker)):
            chosen.append(pid)
    return chosen


def reap() -> dict[int, int]:
    """Ended children since the last call: pid -> exit code, or minus the signal."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def kill_all(mark: str, ended: dict[int, int]) -> None:
    """SIGKILL until nothing of the attempt is alive; may wait long for a process in a stalled system call."""
    pause_s = 0.01
    while left := of_attempt(mark):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(reap())
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 1.0)
    ended.update(reap())


def oom_kills() -> int:
    """How many processes of this machine the kernel has killed for want of memory since its start."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except OSError:
        pass
    return 0
