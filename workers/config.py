"""What a GPU host is told by its environment. Runs with none at all; the defaults are the web side's.

A wrong value is one clear sentence (ValueError) at start.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from workers import embedded_redis

BASE_DIR = Path(__file__).resolve().parent.parent
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
DEVICES = re.compile(r"auto|cpu(:[1-9]\d*)?|gpu(:\d+(,\d+)*)?")


@dataclass(frozen=True)
class Config:
    data_dir: Path
    storage_root: Path
    scratch_root: Path
    redis_url: str
    host_name: str
    # Empty: the address under which the host reaches Redis.
    host_address: str
    # "auto", "cpu", "cpu:2", "gpu" or "gpu:0,1".
    devices: str
    model_roots: tuple[Path, ...]
    hub_allowed: bool
    allow_pickle_models: bool
    log_cap_bytes: int
    # Run folders whose every byte is stored elsewhere are kept this long.
    retention_s: float
    # How long an ended attempt waits for its checkpoints to reach the shared storage.
    publish_bound_s: float
    # Folders from which datasets may be read, beside uploads.
    dataset_roots: tuple[Path, ...] = ()
    # Limits of the check of a dataset.
    check_memory_bytes: int = 4 * 2**30
    check_time_limit_s: float = 7200.0
    # Of an exported model that somebody tries: most memory, and how long it stays in memory unasked.
    try_memory_bytes: int = 4 * 2**30
    try_idle_s: float = 600.0

    @classmethod
    def from_environment(cls) -> Config:
        data_dir = _path("DATA_DIR", BASE_DIR / "data")
        roots = os.environ.get("MODEL_ROOTS") or str(data_dir / "models")
        return cls(
            data_dir=data_dir,
            storage_root=_path("STORAGE_ROOT", data_dir / "storage"),
            scratch_root=_path("SCRATCH_ROOT", data_dir / "scratch"),
            redis_url=os.environ.get("REDIS_URL") or f"unix://{embedded_redis.socket_path(data_dir)}",
            host_name=_name("HOST_NAME", socket.gethostname()),
            host_address=os.environ.get("HOST_ADDRESS", ""),
            devices=_devices("DEVICES", "auto"),
            model_roots=_paths(roots),
            hub_allowed=_boolean("HUB_ALLOWED", False),
            allow_pickle_models=_boolean("ALLOW_PICKLE_MODELS", False),
            log_cap_bytes=int(_number("LOG_CAP_BYTES", 64 * 2**20)),
            retention_s=_number("RUN_FOLDER_RETENTION_S", 86_400.0),
            publish_bound_s=_number("PUBLISH_BOUND_S", 600.0),
            dataset_roots=_paths(os.environ.get("DATASET_ROOTS", "")),
            check_memory_bytes=int(_number("CHECK_MEMORY_BYTES", 4 * 2**30)),
            check_time_limit_s=_number("CHECK_TIME_LIMIT_S", 7200.0),
            try_memory_bytes=int(_number("TRY_MEMORY_BYTES", 4 * 2**30)),
            try_idle_s=_number("TRY_IDLE_S", 600.0),
        )


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(root.strip()).expanduser().absolute() for root in text.split(",") if root.strip())


def _path(name: str, default: Path) -> Path:
    return Path(os.environ.get(name) or default).expanduser().absolute()


def _name(name: str, default: str) -> str:
    value = os.environ.get(name) or default
    if not HOST_NAME.fullmatch(value):
        raise ValueError(f"{name} must be letters, digits, dots and dashes, at most 100, not “{value}”.")
    return value


def _devices(name: str, default: str) -> str:
    value = os.environ.get(name) or default
    if not DEVICES.fullmatch(value):
        raise ValueError(f"{name} must be auto, cpu, cpu:2, gpu or gpu:0,1, not “{value}”.")
    return value


def _boolean(name: str, default: bool) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in {"", "1", "true", "yes", "on", "0", "false", "no", "off"}:
        return value in {"1", "true", "yes", "on"} if value else default
    raise ValueError(f"{name} must be true or false, not “{value}”.")


def _number(name: str, default: float) -> float:
    value = os.environ.get(name, "").strip()
    try:
        return float(value) if value else default
    except ValueError:
        raise ValueError(f"{name} must be a number, not “{value}”.") from None
