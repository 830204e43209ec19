"""What supervisors and trainers say, line by line, as rows. Each line is applied once, with its cursor."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime
from types import NoneType
from typing import Any

from django.utils import timezone

from jobs import services
from jobs.models import Artifact, Attempt, Checkpoint, Evaluation, JobEvent, Placement, WorstRows
from workers.contract.messages import Request
from workers.contract.records import from_json_number, jsonable
from workers.contract.states import ENDED, EndReason, Status
from workers.contract.texts import Text, clause

logger = logging.getLogger(__name__)

Line = dict[str, Any]
_NAME = re.compile(r"[a-z_]{1,30}")

# Per attempt and kind: a trainer that says the same thing all the time must not fill the table.
MOST_EVENTS = 2000


def apply(attempt: Attempt, rank: int, line: Line, seen: dict[str, int]) -> set[str]:
    """One line; raises if it is not what the contract says. `seen` counts kinds and is kept with the cursor.

    Returns what changed, for the page.
    """
    kind = line["kind"]
    handler = _HANDLERS.get(kind)
    if handler is None:
        raise ValueError(f"unknown kind {str(kind)[:40]!r}")
    seen[kind] = seen.get(kind, 0) + 1
    return handler(attempt, rank, line, seen[kind])


# --- the supervisor's report ---------------------------------------------------------------


def _claimed(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    placement = _placement(attempt, line)
    placement.claimed_at = timezone.now()
    placement.save(update_fields=["claimed_at"])
    said = {name: line[name] for name in ("host", "devices") if name in line} | _tables(line, "versions", "code")
    said |= {"machine": _machine(line["machine"])} if isinstance(line.get("machine"), dict) else {}
    nodes = attempt.environment.get("nodes") or {}
    _environment_is(attempt, {"nodes": nodes | {str(placement.node): jsonable(said)}})
    return _event(attempt, rank, line, f"{line['host']} has taken the attempt.")


def _refused(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    """Nothing was started there. With one node, the attempt may go elsewhere; with several, others may have begun."""
    placement = _placement(attempt, line)
    detail = Text("%(host)s refused: %(why)s", host=str(line["host"]), why=_said(line, "detail"))
    release(placement)
    changed = _event(attempt, rank, line, detail)
    if attempt.status == Status.STARTING and attempt.nodes == 1:
        services.transition(attempt, Status.QUEUED, detail=detail, actor_name=_who(rank))
    elif attempt.status not in ENDED:
        services.transition(
            attempt,
            Status.FAILED,
            reason=EndReason.LAUNCH_FAILED,
            detail=Text(
                "Node %(node)d on %(host)s refused: %(why)s",
                node=placement.node,
                host=str(line["host"]),
                why=_said(line, "detail"),
            ),
            actor_name=_who(rank),
        )
    return changed | {"status"}


def _started(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    return _event(attempt, rank, line, "The launcher of the ranks was started.")


def _running(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    placement = _placement(attempt, line)
    placement.running_at = timezone.now()
    placement.save(update_fields=["running_at"])
    if attempt.status in (Status.STARTING, Status.UNRESPONSIVE) and all_running(attempt):
        services.transition(attempt, Status.RUNNING, actor_name=_who(rank))
    return {"status", "events"}


def _rank_exit(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    known = {name: line.get(name) for name in ("pid", "exit_code", "signal", "first")}
    _rank_state(attempt, line["rank"], known | {"ended_at": line["at"]})
    ended = f"signal {line['signal']}" if line.get("signal") else f"exit code {line.get('exit_code')}"
    first = ", the first to fail" if line.get("first") else ""
    return _event(attempt, line["rank"], line, f"Rank {line['rank']} ended with {ended}{first}.", by=rank) | {"ranks"}


def _checkpoint_published(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    Checkpoint.objects.update_or_create(
        attempt=attempt,
        step=line["step"],
        defaults={
            "applied": line["applied"],
            "key": _key(attempt, "checkpoints", line["key"]),
            "bytes": _size(line["bytes"]),
            "files": _files(line["files"]),
            "good": bool(line["good"]),
            "removed_at": None,
        },
    )
    return _event(attempt, rank, line, "", step=line["step"]) | {"artifacts"}


def _artifact_published(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    Artifact.objects.update_or_create(
        attempt=attempt,
        name=line["name"],
        defaults={
            "key": _key(attempt, "artifacts", line["key"]),
            "bytes": _size(line["bytes"]),
            "sha256": line["sha256"],
            "files": _files(line["files"]),
        },
    )
    return _event(attempt, rank, line, f"“{line['name']}” is ready for download.") | {"artifacts"}


def _publication_failed(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    return _event(attempt, rank, line, _unpublished(line))


def _unpublished(line: Line) -> Text:
    why = clause(_said(line, "detail"))
    if line["what"] == "checkpoint":
        return Text("A checkpoint could not be published: %(why)s.", why=why)
    return Text("A result could not be published: %(why)s.", why=why)


def _torn_tail(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    text = Text(
        "The last line of rank %(rank)d's %(stream)s was never finished (%(bytes)d bytes).",
        rank=line["rank"],
        stream=str(line["stream"]),
        bytes=line["bytes"],
    )
    return _event(attempt, line["rank"], line, text, by=rank)


def _ended(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    """No process is left on the node. The attempt ends when all its nodes have ended."""
    placement = _placement(attempt, line)
    placement.verdict = {name: line.get(name) for name in ("detail", "said", "rank", "step")}
    placement.verdict["end_reason"] = _reason(line).value
    placement.ended_at = timezone.now()
    placement.save(update_fields=["verdict", "ended_at"])
    release(placement)
    conclude(attempt)
    return {"status", "events"}


def _complete(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    placement = _placement(attempt, line)
    placement.complete_bytes = {str(name): int(size) for name, size in line["bytes"].items()}
    placement.complete_said = True
    placement.save(update_fields=["complete_bytes", "complete_said"])
    return {"status"}


# --- the trainer's events ------------------------------------------------------------------


def _ready(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    _rank_state(attempt, line["rank"], {"pid": line.get("pid")})
    return {"ranks"}


def _stage(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    text = " ".join(filter(None, (str(line["name"]), str(line.get("detail") or ""))))
    if rank == 0:
        Attempt.objects.filter(pk=attempt.pk).update(stage=text[:200])
    return {"status"} | (_event(attempt, rank, line, text) if rank == 0 and count <= MOST_EVENTS else set())


# Pages count on it that these are whole numbers.
_COUNTS = (
    "total_steps",
    "steps_per_epoch",
    "epochs",
    "max_steps",
    "global_batch",
    "world_size",
    "train_rows",
    "dev_rows",
)


def _plan(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    plan = {name: value for name, value in line.items() if name not in ("kind", "at")}
    for name in _COUNTS:
        if type(plan.get(name)) not in (int, NoneType):
            raise ValueError(f"{name} {str(plan[name])[:40]!r} is no whole number")
    if not isinstance(plan.get("baselines"), dict | None):
        raise ValueError("baselines are no table")
    Attempt.objects.filter(pk=attempt.pk).update(plan=jsonable(plan))
    return {"status"}


def _environment(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    if rank == 0:
        said = {k: v for k, v in line.items() if k not in ("kind", "at", "flags")} | _tables(line, "flags")
        _environment_is(attempt, {"trainer": jsonable(said)})
    return {"status"}


# What is only shown must not keep a host from its work, and must have the shape that pages count on.
def _tables(line: Line, *names: str) -> dict[str, Any]:
    return {name: line[name] for name in names if isinstance(line.get(name), dict)}


def _machine(said: dict[str, Any]) -> dict[str, Any]:
    devices = said["devices"] if isinstance(said.get("devices"), list) else []
    return _sized(said) | {"devices": [_sized(device) for device in devices if isinstance(device, dict)]}


def _sized(said: dict[str, Any]) -> dict[str, Any]:
    size = said.get("memory_bytes")
    return said | {"memory_bytes": size if type(size) is int else None}


def _environment_is(attempt: Attempt, known: dict[str, Any]) -> None:
    attempt.environment = attempt.environment | known
    Attempt.objects.filter(pk=attempt.pk).update(environment=attempt.environment)


def _evaluation(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    Evaluation.objects.update_or_create(
        attempt=attempt,
        step=line["step"],
        defaults={
            "applied": line["applied"],
            "epoch": line["epoch"],
            "metrics": jsonable(_metrics(line["metrics"])),
            "seconds": float(line["seconds"]),
            "best": bool(line.get("best")),
            "at": _at(line),
        },
    )
    # Tables, such as the confusion of hundreds of labels, are kept once.
    numbers = {name: value for name, value in line["metrics"].items() if not isinstance(value, list)}
    return _event(attempt, rank, line | {"metrics": numbers}, "", step=line["step"]) | {"evaluations"}


def _metrics(metrics: Any) -> dict[str, Any]:
    """Numbers and texts by name, and tables; pages count on it that tables have rows."""
    for name, value in metrics.items():
        if name == "accuracy" and not isinstance(from_json_number(value), int | float):
            raise ValueError(f"accuracy {str(value)[:40]!r} is no number")
        if name == "confusion" and not (
            isinstance(value, list)
            and all(isinstance(row, list) and len(row) == len(value) for row in value)
            and all(type(count) is int and count >= 0 for row in value for count in row)
        ):
            raise ValueError("confusion is no square table of counts")
        if name == "train" and not isinstance(value, dict | None):
            raise ValueError("what was measured on training rows is no table")
    return dict(metrics)


# What a faulty or foreign trainer says must not fill pages either.
_MOST_WORST, _MOST_COLUMNS, _MOST_CHARACTERS = 200, 20, 1000


def _worst(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    rows = [_row(row) for row in line["rows"][:_MOST_WORST]]
    WorstRows.objects.update_or_create(
        attempt=attempt,
        defaults={"step": int(line["step"]), "dev_rows": int(line["of"]), "rows": rows, "at": _at(line)},
    )
    # The event must not hold the texts: whoever sees the job sees its events.
    return {"evaluations"}


def _row(row: Any) -> dict[str, Any]:
    loss = from_json_number(row["loss"])
    if type(row["row"]) is not int or isinstance(loss, bool) or not isinstance(loss, int | float):
        raise ValueError(f"{str(row)[:80]!r} is no row")
    return {
        str(name)[:100]: value[:_MOST_CHARACTERS] if isinstance(value, str) else value
        for name, value in list(row.items())[:_MOST_COLUMNS]
        if value is None or isinstance(value, str | int | float) or _is_text_with_spans(value) or _is_place(value)
    }


def _is_place(value: Any) -> bool:
    """[offset, bytes] of a picture."""
    return (
        isinstance(value, list) and len(value) == 2 and all(type(part) is int and 0 <= part < 2**60 for part in value)
    )


def _is_text_with_spans(value: Any) -> bool:
    """[part, name of its span or ""] each, see Task.shown."""
    if not isinstance(value, list) or not all(isinstance(part, list) and len(part) == 2 for part in value):
        return False
    texts = [text for part in value for text in part]
    return all(isinstance(text, str) for text in texts) and sum(map(len, texts)) <= 10 * _MOST_CHARACTERS


def _checkpoint(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    how = "" if line.get("good", True) else " It is not good to start from: something in it is not finite."
    return _event(attempt, rank, line, f"Checkpoint saved on the host.{how}", step=line["step"])


def _artifact(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    return _event(attempt, rank, line, f"“{line['name']}” was saved on the host.")


def _scale(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    return _event(attempt, rank, line, "", step=line["step"]) if count <= MOST_EVENTS else set()


def _spike(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    return _event(attempt, rank, line, "", step=line["step"]) if count <= MOST_EVENTS else set()


def _rewind(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    return _event(attempt, rank, line, "", step=line["step"])


def _note(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    return _event(attempt, rank, line, _said(line, "text")) if count <= MOST_EVENTS else set()


def _measured(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    return _event(attempt, rank, line, "Measured at the end of the dry run.")


def _outcome(attempt: Attempt, rank: int, line: Line, count: int) -> set[str]:
    return _event(attempt, rank, line, _said(line, "detail"), reason=_reason(line).value)


_HANDLERS: dict[str, Callable[[Attempt, int, Line, int], set[str]]] = {
    "claimed": _claimed,
    "refused": _refused,
    "started": _started,
    "running": _running,
    "rank_exit": _rank_exit,
    "checkpoint_published": _checkpoint_published,
    "artifact_published": _artifact_published,
    "publication_failed": _publication_failed,
    "torn_tail": _torn_tail,
    "ended": _ended,
    "complete": _complete,
    "ready": _ready,
    "stage": _stage,
    "plan": _plan,
    "environment": _environment,
    "evaluation": _evaluation,
    "worst": _worst,
    "checkpoint": _checkpoint,
    "artifact": _artifact,
    "scale": _scale,
    "spike": _spike,
    "rewind": _rewind,
    "note": _note,
    "measured": _measured,
    "outcome": _outcome,
}


def conclude(attempt: Attempt) -> None:
    """Ends the attempt if all its nodes have ended."""
    placements = [p for p in attempt.placements.order_by("ended_at") if p.verdict]
    if attempt.status in ENDED or len(placements) < attempt.nodes:
        return
    # A failure brings the other nodes down with it: the first failure is the cause.
    failed = [p for p in placements if EndReason(p.verdict["end_reason"]).status is Status.FAILED]
    verdict = (failed or placements)[0].verdict
    reason = EndReason(verdict["end_reason"])
    # The ranks may have agreed to pause before they could hear that it was to be cancelled; a drained attempt would even
    # go on by itself.
    attempt.refresh_from_db(fields=["leave"])
    if reason.status is Status.PAUSED and attempt.leave == Request.CANCEL:
        reason = EndReason.CANCELLED
    services.transition(
        attempt,
        reason.status,
        reason=reason,
        detail=_said(verdict, "detail"),
        step=verdict.get("step"),
        rank=verdict.get("rank"),
        actor_name="supervisor",
    )


# --- shared --------------------------------------------------------------------------------


def release(placement: Placement) -> None:
    """The devices are free for others."""
    placement.holds.all().delete()
    if placement.released_at is None:
        placement.released_at = timezone.now()
    placement.quarantined = False
    placement.save(update_fields=["released_at", "quarantined"])


def all_running(attempt: Attempt) -> bool:
    return attempt.placements.filter(running_at__isnull=False, released_at__isnull=True).count() == attempt.nodes


def _placement(attempt: Attempt, line: Line) -> Placement:
    """The node's newest: a line of an older one cannot come, since a report is one stream in order."""
    return attempt.placements.filter(node=line["node"]).latest("pk")


def _rank_state(attempt: Attempt, rank: int, known: dict[str, Any]) -> None:
    states = attempt.rank_states
    states[str(int(rank))] = states.get(str(int(rank)), {}) | known
    Attempt.objects.filter(pk=attempt.pk).update(rank_states=states)


def _event(
    attempt: Attempt,
    rank: int,
    line: Line,
    message: str,
    *,
    step: int | None = None,
    reason: str = "",
    by: int | None = None,
) -> set[str]:
    said = {"said": message.said} if isinstance(message, Text) else {}
    JobEvent.objects.create(
        job_id=attempt.job_id,
        attempt=attempt,
        at=_at(line),
        kind=str(line["kind"])[:30],
        reason=reason,
        actor_name=_who(rank if by is None else by),
        step=line.get("step") if step is None else step,
        rank=rank if rank >= 0 else None,
        message=message,
        data=jsonable({name: value for name, value in line.items() if name not in ("kind", "at", "files")} | said),
    )
    return {"events"}


def _said(line: Line, name: str) -> str:
    """What the host wrote there, with the parts of it if it sent any."""
    text = str(line.get(name) or "")
    return Text.of(text, line["said"]) if text and line.get("said") else text


def _reason(line: Line) -> EndReason:
    """A newer host's reason is a failure that this version has no name for: the attempt must end all the same."""
    reason = line["end_reason"]
    if reason not in set(EndReason) and _NAME.fullmatch(reason):
        logger.warning("End reason %s is not known here, and taken for a trainer error", reason)
        return EndReason.TRAINER_ERROR
    return EndReason(reason)


def _at(line: Line) -> datetime:
    at = datetime.fromisoformat(str(line["at"]).replace("Z", "+00:00"))
    return at if at.tzinfo else timezone.make_aware(at)


def _who(rank: int) -> str:
    return f"rank {rank}" if rank >= 0 else "supervisor"


def _key(attempt: Attempt, kind: str, key: Any) -> str:
    """A folder of this attempt's below STORAGE_ROOT: with the job it is removed, and what is anybody else's must stay."""
    text = str(key)
    parts = text.split("/")
    if parts[:2] != [kind, attempt.uid] or len(parts) < 3 or {"", ".", ".."} & set(parts) or "\0" in text:
        raise ValueError(f"key {text[:100]!r} is no folder of this attempt's {kind}")
    return text


def _size(size: Any) -> int:
    if type(size) is not int or size < 0:
        raise ValueError(f"{str(size)[:40]!r} is no size")
    return size


def _files(files: Any) -> dict[str, Any]:
    """What storage is counted from."""
    for file in files.values():
        _size(file["bytes"])
    return dict(files)
