"""A request as a host carries it out, and how it answers: files in the check's folder, while that is there.
The controller removes the folder once nobody waits for the check any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from workers.contract.datasets import PROGRESS, RESULT, CheckResult, CheckSpec, Finding, Progress, check_key
from workers.run_folder import atomic_write_json


class Order(BaseModel):
    """A request, and what the host says about itself."""

    spec: CheckSpec
    host: str
    storage_root: Path
    scratch: Path
    dataset_roots: list[Path]
    memory_bytes: int
    time_limit_s: float


def write_progress(stage: str, order: Order, seq: int, **more: Any) -> None:
    """`more` has the other fields of Progress."""
    folder = order.storage_root / check_key(order.spec.uid)
    said = Progress(number=order.spec.number, seq=seq, host=order.host, stage=stage, **more)
    if folder.is_dir():
        atomic_write_json(folder / PROGRESS, said.model_dump(mode="json"))


def answer(order: Order, seconds: float, **outcome: Any) -> None:
    """`outcome` has the other fields of CheckResult."""
    folder = order.storage_root / check_key(order.spec.uid)
    said = CheckResult(number=order.spec.number, host=order.host, seconds=round(seconds, 3), **outcome)
    if folder.is_dir():
        atomic_write_json(folder / RESULT, said.model_dump(mode="json"))


def refusal(template: str, **values: str | int) -> Finding:
    return Finding(level="error", template=template, values=values)
