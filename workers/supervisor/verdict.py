"""From what is known about the ranks to one reason, one sentence, and the rank it began with."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import Any

from workers.contract.messages import Request
from workers.contract.states import EndReason, Status

# The kernel closes a dying process's connections some time before its parent learns that it has ended.
DIES_LATE_S = 2.0
_LOST_PEER = re.compile(r"\bgloo\b|\bnccl|connection (closed|reset)", re.IGNORECASE)

_BY_REQUEST = {
    Request.CANCEL: EndReason.CANCELLED,
    Request.PAUSE: EndReason.PAUSED,
    Request.DRAIN: EndReason.DRAINED,
    Request.SUPERSEDE: EndReason.SUPERSEDED,
}


@dataclass(frozen=True)
class RankExit:
    rank: int
    pid: int | None
    exit_code: int | None
    signal: int | None
    # Seconds since the epoch, by this host's clock.
    clock: float
    # Killed by the supervisor, or with the launcher or the supervisor: not the cause.
    consequence: bool = False
    # The last lines of its log, and the last step that it recorded.
    tail: str = ""
    step: int | None = None

    @property
    def failed(self) -> bool:
        return self.exit_code != 0 and not self.consequence


@dataclass(frozen=True)
class Facts:
    world: list[int]
    """The ranks of this host."""
    exits: dict[int, RankExit] = field(default_factory=dict)
    outcomes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What ranks wrote down before they ended, each with its "clock"."""
    request: Request | None = None
    grace_over: bool = False
    """The ranks did not leave in time and were killed."""
    imposed: tuple[EndReason, str] | None = None
    """The supervisor's own decision: time limit, lost lease, or a failed preparation."""
    supervisor_lost: bool = False
    launcher_exit: int | None = None
    """Exit code of the launcher, or minus its signal; None if the supervisor killed it or never started it."""
    launcher_tail: str = ""
    any_ready: bool = False
    disk_full: bool = False
    """Then a rank could not even write down why it failed."""
    oom_kills: int = 0
    """Processes the kernel has killed for want of memory while the attempt ran."""


@dataclass(frozen=True)
class Verdict:
    reason: EndReason
    detail: str
    rank: int | None = None
    step: int | None = None


def first_to_fail(exits: dict[int, RankExit]) -> RankExit | None:
    """The rank that failed first. Survivors of a lost peer abort (SIGABRT) within seconds: they come last."""
    failed = [exit for exit in exits.values() if exit.failed]
    return min(failed, key=lambda exit: (exit.signal == signal.SIGABRT, exit.clock), default=None)


def judge(facts: Facts) -> Verdict:
    """What a rank said itself, then what was asked or imposed, then how processes ended."""
    on_purpose = sorted(facts.outcomes.values(), key=lambda outcome: float(outcome["clock"]))
    first = first_to_fail({rank: exit for rank, exit in facts.exits.items() if rank not in facts.outcomes})
    for outcome in on_purpose:
        if EndReason(outcome["end_reason"]).status is not Status.SUCCEEDED:
            # A survivor may still be able to say that it lost its peer: that is not the cause.
            late_s = DIES_LATE_S if _LOST_PEER.search(str(outcome.get("detail"))) else 0.0
            if first is not None and first.clock < outcome["clock"] + late_s:
                break
            return _from_outcome(outcome)

    everyone_ended = all(
        rank in facts.outcomes or (rank in facts.exits and facts.exits[rank].exit_code == 0) for rank in facts.world
    )
    if on_purpose and everyone_ended:
        return _from_outcome(on_purpose[0])

    if facts.imposed is not None:
        return Verdict(*facts.imposed)
    if facts.request in _BY_REQUEST and not (everyone_ended and facts.any_ready):
        late = " The ranks did not leave in time and were killed." if facts.grace_over else ""
        return Verdict(_BY_REQUEST[facts.request], f"Asked to {facts.request}.{late}")
    if first is not None:
        return _from_exit(first, facts)
    if everyone_ended and facts.any_ready:
        finished = facts.request is Request.FINISH
        return Verdict(EndReason.FINISHED_EARLY if finished else EndReason.COMPLETED, "")
    if facts.supervisor_lost:
        return Verdict(
            EndReason.SUPERVISOR_LOST, "The process that looks after the ranks died; the ranks ended with it."
        )
    if facts.launcher_exit is not None and facts.launcher_exit < 0:
        return Verdict(EndReason.CRASHED_BY_SIGNAL, f"The launcher was killed by {_signal(-facts.launcher_exit)}.")
    last = last_error(facts.launcher_tail)
    return Verdict(
        EndReason.LAUNCH_FAILED,
        f"The launcher ended with exit code {facts.launcher_exit} before the ranks were running"
        + (f": {last}" if last else "."),
    )


def _from_outcome(outcome: dict[str, Any]) -> Verdict:
    reason = EndReason(outcome["end_reason"])
    rank = outcome.get("rank") if reason.status is Status.FAILED else None
    return Verdict(reason, str(outcome.get("detail") or ""), rank, outcome.get("step"))


def _from_exit(exit: RankExit, facts: Facts) -> Verdict:
    error = last_error(exit.tail) if exit.signal != signal.SIGKILL else ""
    if re.search(r"\bMemoryError\b|ResourceExhausted|[Oo]ut of memory", error):
        return Verdict(EndReason.OUT_OF_MEMORY, f"Rank {exit.rank}: {error}", exit.rank, exit.step)
    if re.search(r"No space left on device|Disk quota exceeded", error):
        return Verdict(EndReason.DISK_FULL, f"Rank {exit.rank}: {error}", exit.rank, exit.step)
    if exit.signal == signal.SIGABRT and _LOST_PEER.search(error):
        # The rank that is to blame hangs or cannot be reached, and has said nothing.
        detail = f"Rank {exit.rank} got no answer from another rank and aborted: {error}"
        return Verdict(EndReason.CRASHED_BY_SIGNAL, detail, None, exit.step)
    if exit.signal is not None:
        detail = f"Rank {exit.rank} was killed by {_signal(exit.signal)}"
        if exit.signal == signal.SIGKILL and facts.oom_kills:
            detail += ", perhaps by the kernel's out-of-memory killer, which was active on this host meanwhile"
        if exit.signal == signal.SIGABRT and error:
            detail += f"; the last line of its log: {error}"
        return Verdict(EndReason.CRASHED_BY_SIGNAL, f"{detail}.", exit.rank, exit.step)
    if facts.disk_full:
        detail = f"Rank {exit.rank} ended with exit code {exit.exit_code} when the host's disk was full."
        return Verdict(EndReason.DISK_FULL, detail, exit.rank, exit.step)
    said = f": {error}" if error else "."
    return Verdict(
        EndReason.TRAINER_ERROR, f"Rank {exit.rank} ended with exit code {exit.exit_code}{said}", exit.rank, exit.step
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_ERROR = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Iteration)\b(:.*)?$")


def last_error(text: str) -> str:
    """The last line that names an exception, else the last line that is not empty; at most 500 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if _ERROR.match(line):
            return line[:500]
    return lines[-1][:500] if lines else ""
