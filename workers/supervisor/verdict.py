"""From what is known about the ranks to one reason, one sentence, and the rank it began with."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import Any

from workers.contract.messages import Request
from workers.contract.states import EndReason, Status
from workers.contract.texts import Text, clause

# The kernel closes a dying process's connections some time before its parent learns that it has ended.
DIES_LATE_S = 2.0
_LOST_PEER = re.compile(r"\bgloo\b|\bnccl|connection (closed|reset)", re.IGNORECASE)

_BY_REQUEST = {
    Request.CANCEL: EndReason.CANCELLED,
    Request.PAUSE: EndReason.PAUSED,
    Request.DRAIN: EndReason.DRAINED,
    Request.SUPERSEDE: EndReason.SUPERSEDED,
    Request.TIME_LIMIT: EndReason.TIME_LIMIT,
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
    """The supervisor's own decision: lost lease, or a failed preparation."""
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


def guilty(exits: dict[int, RankExit], outcomes: dict[int, dict[str, Any]]) -> RankExit | None:
    """Whom to call the first to fail. Ranks that agreed to end left at the same step, and which of them was gone first
    is chance: then it is the one that they named, or none."""
    first = first_to_fail(exits)
    if first is None or first.rank not in outcomes:
        return first
    said = outcomes[first.rank]
    what = (said["end_reason"], said.get("step"), said.get("rank"))
    together = [o for o in outcomes.values() if (o["end_reason"], o.get("step"), o.get("rank")) == what]
    return first if len(together) < 2 else exits.get(said.get("rank", -1))


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
        late = Text("The ranks did not leave in time and were killed.") if facts.grace_over else ""
        return Verdict(_BY_REQUEST[facts.request], Text.joined(_asked(facts.request), late))
    if first is not None:
        return _from_exit(first, facts)
    if everyone_ended and facts.any_ready:
        finished = facts.request is Request.FINISH
        return Verdict(EndReason.FINISHED_EARLY if finished else EndReason.COMPLETED, "")
    if facts.supervisor_lost:
        return Verdict(
            EndReason.SUPERVISOR_LOST, Text("The process that looks after the ranks died; the ranks ended with it.")
        )
    if facts.launcher_exit is not None and facts.launcher_exit < 0:
        text = Text("The launcher was killed by %(signal)s.", signal=_signal(-facts.launcher_exit))
        return Verdict(EndReason.CRASHED_BY_SIGNAL, text)
    last, code = last_error(facts.launcher_tail), str(facts.launcher_exit)
    if last:
        text = Text(
            "The launcher ended with exit code %(code)s before the ranks were running: %(error)s.",
            code=code,
            error=clause(last),
        )
    else:
        text = Text("The launcher ended with exit code %(code)s before the ranks were running.", code=code)
    return Verdict(EndReason.LAUNCH_FAILED, text)


def _asked(request: Request) -> Text:
    match request:
        case Request.CANCEL:
            return Text("Asked to cancel.")
        case Request.PAUSE:
            return Text("Asked to pause.")
        case Request.DRAIN:
            return Text("Asked to drain.")
        case _:
            return Text("Asked to supersede.")


def _from_outcome(outcome: dict[str, Any]) -> Verdict:
    reason = EndReason(outcome["end_reason"])
    rank = outcome.get("rank") if reason.status is Status.FAILED else None
    detail = str(outcome.get("detail") or "")
    if outcome.get("said"):
        detail = Text.of(detail, outcome["said"])
    return Verdict(reason, detail, rank, outcome.get("step"))


def _from_exit(exit: RankExit, facts: Facts) -> Verdict:
    error = last_error(exit.tail) if exit.signal != signal.SIGKILL else ""
    reason, text = _how_it_ended(exit, facts, error)
    # Who lost its peer is not to blame: that one hangs or cannot be reached, and has said nothing.
    lost_peer = exit.signal == signal.SIGABRT and _LOST_PEER.search(error) and reason is EndReason.CRASHED_BY_SIGNAL
    return Verdict(reason, text, None if lost_peer else exit.rank, exit.step)


def _how_it_ended(exit: RankExit, facts: Facts, error: str) -> tuple[EndReason, Text]:
    values = {"rank": exit.rank, "error": clause(error)}
    if re.search(r"\bMemoryError\b|ResourceExhausted|[Oo]ut of memory", error):
        return EndReason.OUT_OF_MEMORY, Text("Rank %(rank)d: %(error)s.", **values)
    if re.search(r"No space left on device|Disk quota exceeded", error):
        return EndReason.DISK_FULL, Text("Rank %(rank)d: %(error)s.", **values)
    if exit.signal == signal.SIGABRT and _LOST_PEER.search(error):
        return EndReason.CRASHED_BY_SIGNAL, Text(
            "Rank %(rank)d got no answer from another rank and aborted: %(error)s.", **values
        )
    if exit.signal is not None:
        values["signal"] = _signal(exit.signal)
        if exit.signal == signal.SIGKILL and facts.oom_kills:
            text = Text(
                "Rank %(rank)d was killed by %(signal)s, perhaps by the kernel's out-of-memory killer, which was active "
                "on this host meanwhile.",
                **values,
            )
        elif exit.signal == signal.SIGABRT and error:
            text = Text("Rank %(rank)d was killed by %(signal)s; the last line of its log: %(error)s.", **values)
        else:
            text = Text("Rank %(rank)d was killed by %(signal)s.", **values)
        return EndReason.CRASHED_BY_SIGNAL, text
    values["code"] = str(exit.exit_code)
    if facts.disk_full:
        return EndReason.DISK_FULL, Text(
            "Rank %(rank)d ended with exit code %(code)s when the host's disk was full.", **values
        )
    if error:
        return EndReason.TRAINER_ERROR, Text("Rank %(rank)d ended with exit code %(code)s: %(error)s.", **values)
    return EndReason.TRAINER_ERROR, Text("Rank %(rank)d ended with exit code %(code)s.", **values)


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
