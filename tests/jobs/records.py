"""Realistic step records, made up from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from workers.contract.records import encode


def record(step: int, **changes: Any) -> dict[str, Any]:
    rng = random.Random(step)
    return {
        "v": 1,
        "seg": 0,
        "step": step,
        "applied": step,
        "epoch": step // 500,
        "t": round(step * 0.0845 + rng.random() * 0.01, 6),
        "loss": _float32(abs(rng.gauss(0.5, 0.1))),
        "loss_all": _float32(abs(rng.gauss(0.5, 0.07))),
        "lr": 5e-5 * (1 - step / 1_000_000),
        "grad_norm": _float32(abs(rng.gauss(1, 0.4))),
        "clip_norm": 1.0,
        "clipped": rng.random() < 0.3,
        "loss_scale": 65536.0,
        "found_inf": False,
        "skipped": None,
        "batch_id": f"{step // 500}:{step % 500}",
        "samples": 32,
        "tokens": rng.randint(900, 2048),
        "step_ms": round(80 + rng.random() * 5, 3),
        "data_ms": round(rng.random(), 3),
        "mem_mb": round(812 + rng.randint(0, 3) * 0.1, 1),
        "emulated": True,
        "extras": None,
    } | changes


def line(step: int, **changes: Any) -> bytes:
    return encode(record(step, **changes))


def lines(count: int, first: int = 1) -> Iterator[bytes]:
    return (line(step) for step in range(first, first + count))


def _float32(value: float) -> float:
    return float(np.float32(value))
