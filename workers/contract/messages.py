"""What crosses Redis and the run folder: names of keys, and the shapes of specs, beats and reports.

The database is the truth; everything here may be lost with Redis at any moment and is sent again.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from workers.contract.choices import Choice

# --- Redis ---------------------------------------------------------------------------------

TELEMETRY_STREAM = "evenkeel:telemetry"
"""Entries have the fields attempt, rank, kind, offset (of the body's first byte), body (whole lines)
and host. The controller deletes an entry once its transaction is committed."""


def ack_key(attempt: str) -> str:
    """Hash: "<rank>/<kind>" -> bytes stored so far. Written by the controller after every commit."""
    return f"evenkeel:ack:{attempt}"


def request_key(attempt: str) -> str:
    """JSON of a `Control`, mirrored from the database by the controller, again and again."""
    return f"evenkeel:request:{attempt}"


def beat_key(attempt: str, node: int) -> str:
    """JSON of an `AttemptBeat`, written by the supervisor every BEAT_S."""
    return f"evenkeel:beat:{attempt}:{node}"


def host_key(name: str) -> str:
    """JSON of a `HostBeat`, written by the host's Celery worker every BEAT_S."""
    return f"evenkeel:host:{name}"


HOST_KEY_PATTERN = "evenkeel:host:*"

CONTROLLER_KEY = "evenkeel:controller"
"""Set by the controller in its loop, with an expiry of UNRESPONSIVE_S: /readyz asks whether it is there."""


def live_channel(job: int) -> str:
    """Pub/sub: JSON of an `Announcement` after each commit that changed the job."""
    return f"evenkeel:live:{job}"


def host_queue(name: str) -> str:
    """Celery queue of one host."""
    return f"host.{name}"


START_TASK = "workers.start_attempt"

BEAT_S = 5.0
SAMPLE_S = 10.0
UNRESPONSIVE_S = 15.0
DEFAULT_LEASE_S = 60.0
# A supervisor kills its ranks this long before its lease would run out.
LEASE_MARGIN_S = 10.0
DEFAULT_GRACE_S = 30.0


class Kind(Choice):
    """Byte streams of an attempt. Each (rank, kind) is one append-only file on the host.

    Names have up to ten letters; a controller that does not know one acknowledges it and keeps nothing of it."""

    STEPS = "steps"  # step records, per rank
    EVENTS = "events"  # what a rank's trainer says: stages, evaluations, checkpoints; per rank
    LOG = "log"  # stdout and stderr, per rank
    REPORT = "report"  # what the supervisor says; rank is `supervisor_rank(node)`
    DEVICES = "devices"  # what the node's devices and ranks use, every SAMPLE_S; rank is `supervisor_rank(node)`


def supervisor_rank(node: int) -> int:
    """Rank number under which a node's supervisor sends its report and the launcher's log: -1, -2 …"""
    return -1 - node


# --- specs and requests --------------------------------------------------------------------


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DatasetRef(_Frozen):
    """A registered dataset version. `key` is a folder below STORAGE_ROOT with one JSON Lines file
    per split, `train.jsonl` and `dev.jsonl`, each line an object of columns; of pictures also `images.bin`."""

    id: int
    name: str
    key: str
    content_hash: str
    splits: dict[str, int] = Field(description="rows per split")
    labels: list[str] = []


class CheckpointRef(_Frozen):
    """A published, complete checkpoint: a folder below STORAGE_ROOT."""

    key: str
    step: int = Field(description="attempted steps at the checkpoint")
    applied: int


class AttemptSpec(_Frozen):
    """All that a host needs to run its part of an attempt. Holds no secret."""

    attempt: str = Field(description="uid of the attempt: the fence. Lower-case hex")
    job: int
    number: int = Field(description="1 for the first attempt of the job")
    name: str
    recipe: str
    settings: dict[str, Any] = Field(description="validated; a dump of the recipe's settings model")
    dataset: DatasetRef | None = None
    model_key: str | None = Field(None, description="folder below STORAGE_ROOT, for weights of another job")
    start_from: CheckpointRef | None = None
    node: int = 0
    nodes: int = 1
    placement: int = Field(
        0, description="number of the placement; a host acts once on each, so an old message can start nothing"
    )
    report_offset: int = Field(
        0, description="bytes of this node's report that are stored already: an earlier placement was refused"
    )
    master: str | None = Field(None, description="host:port where the launchers of several nodes meet")
    device_kind: Literal["cpu", "gpu"] = "cpu"
    devices: list[int] = Field(description="device numbers on this host; one rank each")
    lease_s: float = DEFAULT_LEASE_S
    grace_s: float = DEFAULT_GRACE_S
    time_limit_s: float | None = Field(None, description="as the settings have it; counted from the claim")
    dry_run_steps: int | None = Field(
        None, description="so many attempted steps of the real thing, then measurements; nothing is kept"
    )

    @property
    def world_size(self) -> int:
        return self.nodes * len(self.devices)


class Request(Choice):
    """What people may ask of a live attempt. A fact beside its status."""

    CANCEL = "cancel"
    PAUSE = "pause"
    FINISH = "finish"
    DRAIN = "drain"
    SUPERSEDE = "supersede"
    TIME_LIMIT = "time_limit"  # the supervisor's own, never in the database


class Control(_Frozen):
    """Content of the request key and of `control.json`. Trainers agree on it in the per-step reduction.

    `checkpoint` counts up: each new number asks for one checkpoint now. `time_limit_s` stands instead of the spec's:
    None is that one, 0 is no limit.
    """

    leave: Request | None = None
    checkpoint: int = 0
    time_limit_s: float | None = None


# --- beats ---------------------------------------------------------------------------------

# What a column of the database can hold: one host that speaks nonsense must not keep the others from being heard.
_Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Beat(_Frozen):
    # JSON in the database knows no NaN.
    model_config = ConfigDict(allow_inf_nan=False)


class Device(_Beat):
    index: int = Field(ge=0, lt=2**15)
    kind: Literal["cpu", "gpu"]
    name: str
    memory_bytes: _Count
    compute_capability: str | None = None


class DeviceUsage(_Beat):
    """Of one GPU; what its driver does not say is None."""

    index: int
    utilisation: float | None = Field(None, description="fraction")
    memory_used_bytes: _Count | None = None
    memory_total_bytes: _Count | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class HostUsage(_Beat):
    """Of the whole host, now. What cannot be had is None."""

    cpu: float | None = Field(None, description="fraction of all cores since the beat before")
    memory_available_bytes: _Count | None = None
    gpus: list[DeviceUsage] = []


class HostBeat(_Beat):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    address: str = Field(max_length=100)
    boot: str = Field(max_length=64, description="changes with every start of the worker")
    seq: _Count
    devices: list[Device]
    versions: dict[str, str]
    disk_total_bytes: _Count
    disk_free_bytes: _Count
    memory_total_bytes: _Count
    load1: float
    usage: HostUsage = HostUsage()
    attempts: list[str] = Field(description="uids with a live supervisor on this host")


class AttemptBeat(_Frozen):
    attempt: str
    node: int
    host: str
    seq: int
    stage: str


# --- reports: lines of report.jsonl and events-rank<r>.jsonl --------------------------------
# Every line is an object with "kind" and "at" (ISO 8601, UTC); the rest is per kind:
#
# report (supervisor)
#   claimed              node, host, pid, devices, versions{}, machine{}, code{}   (workers/environment.py)
#   refused              node, host, detail          (nothing was started; the placement is free again)
#   started              node, launcher_pid
#   running              node                        (every rank of the node is ready)
#   rank_exit            rank, pid, exit_code|null, signal|null, first (bool: the first to fail)
#   checkpoint_published step, applied, key, bytes, files, good
#   artifact_published   name, key, bytes, sha256, files   (bytes and sha256 of <key>.tar)
#   publication_failed   what, path, detail          (a checkpoint or artifact that was announced by the trainer)
#   torn_tail            rank, stream, bytes         (a last line without its end; not shipped)
#   ended                node, end_reason, detail, rank|null, step|null, processes_left (always 0)
#   complete             node, bytes{"<rank>/<kind>": n}   (the last line: everything before is in the files;
#                                                     all streams of the node but this report itself)
#
# devices (supervisor; every value a number, and one that could not be had is left out)
#   sample               node, host{cpu, load1, memory_available, disk_free}, ranks{"<rank>": {cpu, memory, peak}},
#                        gpus{"<index>": {utilisation, memory, memory_total, temperature, power}}
#                        cpu of the host and utilisation as fractions, cpu of a rank in cores, sizes in bytes, W, °C
#
# events (trainer, rank 0 unless said otherwise)
#   ready                rank, pid                   (every rank)
#   stage                name, detail|null           (starting up: what is being done, in words)
#   plan                 total_steps, steps_per_epoch, epochs, max_steps|null, global_batch, world_size, train_rows, dev_rows,
#                        parameters, precision, emulated, device, best_by (the main metric), lower_is_better (bool),
#                        baselines{name: value of best_by on dev}
#   environment          paddle, cuda|null, cudnn|null, nccl|null, flags{}   (workers/trainer/environment.py)
#   evaluation           step, applied, epoch, metrics{}, seconds, best (bool)
#                        (metrics{train{}}: the same numbers over a fixed sample of the training rows)
#   worst                step, of (dev rows), rows[{row (from 1), loss, what the recipe shows}]   (worst first)
#   checkpoint           step, applied, path (relative to the run folder), bytes, good, seconds
#   artifact             name, path, bytes
#   scale                step, old, new, ranks[] (whose own gradient overflowed, where that is measured)
#   spike                step, what (loss or grad_norm), value, mean, deviation, sigmas, skipped (bool)
#   rewind               step, to_step, to_applied, segment, why (a SkipReason)
#   note                 level, text, step|null
#   measured             rank, peak_mb; of rank 0 also evaluation_s (of a whole one), checkpoint_s|null, checkpoint_bytes|null
#                        (every rank, at the end of a dry run)
#   outcome              end_reason, detail, rank|null, step|null   (any rank that ends on purpose; for ranks_differ
#                        also what, values[] of all ranks, ranks[] that differ from most)


Change = Literal["artifacts", "devices", "evaluations", "events", "log", "ranks", "status", "steps"]


class Announcement(_Frozen):
    """Says what changed; the page reads it from the database."""

    job: int
    attempt: str
    changed: list[Change]
