"""What one would need to do an attempt again, and what differs from the attempt before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from jobs.models import Attempt, Evaluation, Job

FORMAT = 1

_VERSIONS = {
    "python": "Python",
    "paddlepaddle": "PaddlePaddle",
    "paddlepaddle-gpu": "PaddlePaddle (GPU)",
    "paddlenlp": "PaddleNLP",
    "numpy": "NumPy",
    "safetensors": "safetensors",
    "evenkeel": "Evenkeel",
}


@dataclass(frozen=True)
class Row:
    name: str
    value: str
    old: str | None = None  # of the attempt before, where it is another

    @property
    def changed(self) -> bool:
        return self.old is not None


def part(job: Job, attempt: Attempt) -> dict[str, Any]:
    """For the job page: rows in groups, each with what it was in the attempt before."""
    before = job.attempts.filter(number__lt=attempt.number).order_by("-number").first()
    old = {(group, name): value for group, name, value in _rows(job, before)} if before else {}
    groups: dict[str, list[Row]] = {}
    for group, name, value in _rows(job, attempt):
        was = old.get((group, name), "—") if before and before.environment else value
        groups.setdefault(group, []).append(Row(name, value, was if was != value else None))
    return {
        "environment_groups": list(groups.items()),
        "environment_known": bool(attempt.environment),
        "environment_before": before,
        "environment_changes": sum(row.changed for rows in groups.values() for row in rows),
    }


def record(job: Job, attempt: Attempt) -> dict[str, Any]:
    """One JSON for another day: what was run, on what, with what, and how it came out."""
    best = Evaluation.objects.filter(attempt=attempt, best=True).order_by("step").last()
    dataset, start, environment = job.dataset, attempt.start_from, environment_of(attempt)
    return {
        "format": FORMAT,
        "job": {"number": job.pk, "name": job.name, "recipe": job.recipe, "dry_run": job.dry_run},
        "attempt": {
            "number": attempt.number,
            "cause": attempt.cause,
            "status": attempt.status,
            "end_reason": attempt.end_reason or None,
            "end_detail": attempt.end_detail or None,
            "created_at": _iso(attempt.created_at),
            "started_at": _iso(attempt.started_at),
            "ended_at": _iso(attempt.ended_at),
            "attempted_steps": attempt.attempted,
            "applied_steps": attempt.applied,
            "skipped_steps": attempt.skipped,
            "time_limit_s": attempt.time_limit_s,
        },
        "settings": attempt.settings,
        "settings_changed": attempt.settings_changed,
        "seed": _seed(attempt),
        "world_size": attempt.nodes * attempt.devices_per_node,
        "dataset": None
        if dataset is None
        else {
            "number": dataset.pk,
            "name": dataset.name,
            "version": dataset.version,
            "content_hash": dataset.content_hash,
            "splits": dataset.splits,
            "labels": dataset.labels,
        },
        "start_from": None
        if start is None
        else {"attempt": start.attempt.number, "step": start.step, "applied": start.applied, "files": start.files},
        "model_from_job": (attempt.settings.get("model") or {}).get("job") if attempt.model_key else None,
        "plan": attempt.plan,
        "environment": environment,
        "best_evaluation": None
        if best is None
        else {"step": best.step, "applied": best.applied, "epoch": best.epoch, "metrics": best.metrics},
    }


def environment_of(attempt: Attempt) -> dict[str, Any]:
    """Older attempts have their versions in one flat table, of the first node."""
    known = attempt.environment
    if not known or "nodes" in known or "trainer" in known:
        return dict(known)
    versions = {name: value for name, value in known.items() if name not in ("host", "devices")}
    return {"nodes": {"0": {"host": known.get("host"), "devices": known.get("devices"), "versions": versions}}}


def _rows(job: Job, attempt: Attempt) -> Iterator[tuple[str, str, str]]:
    """(group, name, value), all for people."""
    environment = environment_of(attempt)
    nodes, trainer = environment.get("nodes") or {}, environment.get("trainer") or {}
    dataset = job.dataset
    run = _("Run")
    if dataset is not None:
        yield run, _("Dataset"), f"#{dataset.pk} {dataset.name} v{dataset.version}"
        yield run, _("Content hash of the dataset"), dataset.content_hash
    yield run, _("Recipe"), job.recipe
    yield run, _("Seed"), _text(_seed(attempt))
    yield run, _("Ranks"), str(attempt.nodes * attempt.devices_per_node)
    for name, value in sorted((trainer.get("flags") or {}).items()):
        yield run, name, str(value)
    software = _("Software")
    for name, title in (("paddle", "Paddle"), ("cuda", "CUDA"), ("cudnn", "cuDNN"), ("nccl", "NCCL")):
        if trainer.get(name):
            yield software, title, str(trainer[name])
    for number in sorted(nodes, key=int):
        node = nodes[number]
        where = "" if len(nodes) == 1 else _(" of node %(node)s") % {"node": number}
        for name, version in (node.get("versions") or {}).items():
            title = _("Driver") if name == "driver" else _VERSIONS.get(name, name)
            yield software, title + where, str(version)
        code = node.get("code") or {}
        if code.get("revision"):
            modified = _(" (modified)") if code.get("modified") else ""
            yield software, _("Revision of Evenkeel") + where, f"{code['revision']}{modified}"
        machine, hardware = node.get("machine") or {}, _("Machine") + where
        if node.get("host"):
            yield hardware, _("Host"), str(node["host"])
        for name, title in (("os", _("System")), ("kernel", _("Kernel")), ("cpu", _("Processor"))):
            if machine.get(name):
                yield hardware, title, str(machine[name])
        if machine.get("memory_bytes"):
            yield hardware, _("Memory"), _gib(machine["memory_bytes"])
        for device in machine.get("devices") or []:
            capability = device.get("compute_capability")
            text = f"{device.get('name')}, {_gib(device.get('memory_bytes') or 0)}"
            title = f"{str(device.get('kind')).upper()} {device.get('index')}"
            yield hardware, title, text + (f", {capability}" if capability else "")


def _seed(attempt: Attempt) -> Any:
    return (attempt.settings.get("training") or {}).get("seed")


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _text(value: Any) -> str:
    return "—" if value is None else str(value)


def _iso(moment: Any) -> str | None:
    return moment.isoformat() if moment else None
