"""Statuses of jobs and attempts, the legal changes between them, and why an attempt ended."""

from __future__ import annotations

from dataclasses import dataclass

from workers.contract.choices import Choice


class Status(Choice):
    """Status of an attempt; a job's follows its newest attempt."""

    CHECKING = "checking"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    UNRESPONSIVE = "unresponsive"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PAUSED = "paused"


# Ends of an *attempt*: what continues a paused or failed job is always a new attempt.
ENDED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.PAUSED})
# A host holds devices for attempts in these.
ON_HOST = frozenset({Status.STARTING, Status.RUNNING, Status.UNRESPONSIVE})
ACTIVE = frozenset(Status) - ENDED

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.CHECKING: frozenset({Status.QUEUED, Status.FAILED, Status.CANCELLED}),
    Status.QUEUED: frozenset({Status.STARTING, Status.CANCELLED, Status.PAUSED, Status.FAILED}),
    # Back to queued: a host refused the placement before anything was started there.
    Status.STARTING: frozenset(
        {Status.QUEUED, Status.RUNNING, Status.UNRESPONSIVE, Status.FAILED, Status.CANCELLED, Status.PAUSED}
    ),
    Status.RUNNING: frozenset(ENDED | {Status.UNRESPONSIVE}),
    # It was heard of again (back to what it was), or its end arrived late.
    Status.UNRESPONSIVE: frozenset(ENDED | {Status.STARTING, Status.RUNNING}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
    Status.PAUSED: frozenset(),
}


def may_change(old: Status, new: Status) -> bool:
    return new in TRANSITIONS[old]


@dataclass(frozen=True)
class _End:
    status: Status
    sentence: str
    retry_may_help: bool


class EndReason(Choice):
    """Why an attempt ended: its final status, one sentence for people, and whether a retry may help."""

    COMPLETED = "completed"
    FINISHED_EARLY = "finished_early"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    SUPERSEDED = "superseded"
    NON_FINITE = "non_finite"
    LOSS_SCALE_COLLAPSED = "loss_scale_collapsed"
    DIVERGED = "diverged"
    RANKS_DIFFER = "ranks_differ"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    BAD_DATA = "bad_data"
    BAD_SETTINGS = "bad_settings"
    MODEL_UNAVAILABLE = "model_unavailable"
    TRAINER_ERROR = "trainer_error"
    CRASHED_BY_SIGNAL = "crashed_by_signal"
    LAUNCH_FAILED = "launch_failed"
    SUPERVISOR_LOST = "supervisor_lost"
    HOST_LOST = "host_lost"
    TIME_LIMIT = "time_limit"

    @property
    def status(self) -> Status:
        return _ENDS[self].status

    @property
    def sentence(self) -> str:
        """English; the web side translates it."""
        return _ENDS[self].sentence

    @property
    def retry_may_help(self) -> bool:
        return _ENDS[self].retry_may_help


_ENDS: dict[EndReason, _End] = {
    EndReason.COMPLETED: _End(Status.SUCCEEDED, "Training is complete.", False),
    EndReason.FINISHED_EARLY: _End(
        Status.SUCCEEDED, "Finished early on request; the model was evaluated and exported.", False
    ),
    EndReason.CANCELLED: _End(Status.CANCELLED, "Cancelled on request.", False),
    EndReason.PAUSED: _End(Status.PAUSED, "Paused on request.", False),
    EndReason.PREEMPTED: _End(Status.PAUSED, "Stopped to make room for a job of higher priority.", False),
    EndReason.DRAINED: _End(Status.PAUSED, "Its host was being shut down; the job goes on by itself.", False),
    EndReason.SUPERSEDED: _End(Status.CANCELLED, "A newer attempt of the same job took its place.", False),
    EndReason.NON_FINITE: _End(Status.FAILED, "Loss, gradients or input were NaN or infinite.", True),
    EndReason.LOSS_SCALE_COLLAPSED: _End(
        Status.FAILED, "Gradients overflowed in step after step although the loss scale was lowered to its floor.", True
    ),
    EndReason.DIVERGED: _End(Status.FAILED, "Loss or gradient norm stayed above its limit.", True),
    EndReason.RANKS_DIFFER: _End(
        Status.FAILED,
        "The ranks no longer did the same: weights, gradients or data of one differed from those of the others.",
        True,
    ),
    EndReason.OUT_OF_MEMORY: _End(Status.FAILED, "A rank ran out of memory.", True),
    EndReason.DISK_FULL: _End(Status.FAILED, "The host's disk is full.", True),
    EndReason.BAD_DATA: _End(Status.FAILED, "The dataset cannot be used with these settings.", False),
    EndReason.BAD_SETTINGS: _End(Status.FAILED, "The settings do not fit together.", True),
    EndReason.MODEL_UNAVAILABLE: _End(Status.FAILED, "The model to start from could not be loaded.", True),
    EndReason.TRAINER_ERROR: _End(Status.FAILED, "The trainer stopped with an error.", True),
    EndReason.CRASHED_BY_SIGNAL: _End(Status.FAILED, "A process of the attempt was killed by a signal.", True),
    EndReason.LAUNCH_FAILED: _End(Status.FAILED, "The ranks could not be started.", True),
    EndReason.SUPERVISOR_LOST: _End(
        Status.FAILED, "The process that looks after the ranks died; the ranks were stopped.", True
    ),
    EndReason.HOST_LOST: _End(Status.FAILED, "Contact with the host was lost for longer than its lease.", True),
    EndReason.TIME_LIMIT: _End(Status.FAILED, "The time limit was reached.", True),
}
