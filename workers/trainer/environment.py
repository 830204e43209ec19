"""What only a process with Paddle in it knows of its environment."""

from __future__ import annotations

import os
from typing import Any

import paddle

LONGEST = 200


def of_trainer() -> dict[str, Any]:
    """For rank 0's “environment”: what Paddle was built with, and the flags that were set for it."""
    return {
        "paddle": paddle.version.full_version,
        "paddle_commit": paddle.version.commit,
        "cuda": _built_with(paddle.version.cuda()),
        "cudnn": _built_with(paddle.version.cudnn()),
        "nccl": _built_with(paddle.version.nccl()),
        # What is set from outside decides the numbers, too.
        "flags": {
            name: value[:LONGEST]
            for name, value in sorted(os.environ.items())
            if name.startswith(("FLAGS_", "NCCL_", "OMP_NUM", "MKL_NUM", "CUDA_VISIBLE", "PYTHONHASHSEED"))
            and "/" not in value
        },
    }


def _built_with(version: Any) -> str | None:
    """Paddle says "False" and 0 for what it was built without."""
    return None if str(version) in ("False", "0", "None", "") else str(version)
