"""What an attempt ran in, for those who want to do it again: versions, machine, devices, the code itself.

No secrets and no paths: only what decides the numbers. Imports no Paddle; what only Paddle knows the trainer says.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from workers import host
from workers.config import BASE_DIR, Config
from workers.contract.messages import AttemptSpec

_REVISION = re.compile(r"[0-9a-f]{7,64}")
_TIMEOUT_S = 5.0


def of_host(spec: AttemptSpec, config: Config) -> dict[str, Any]:
    """For the supervisor's “claimed”: versions of packages, and what the machine is."""
    gpu = spec.device_kind == "gpu"
    try:
        devices = [
            device.model_dump(mode="json")
            for device in host.devices(config)
            if device.kind == spec.device_kind and device.index in spec.devices
        ]
    except ValueError:
        devices = []
    return {
        "versions": host.versions(gpu=gpu),
        "machine": {
            "os": _system(),
            "kernel": platform.release(),
            "architecture": platform.machine(),
            "cpu": host.processor(),
            "cpus": os.cpu_count(),
            "memory_bytes": host.memory_bytes(),
            "devices": devices,
        },
        "code": code(BASE_DIR),
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


@functools.cache
def code(folder: Path) -> dict[str, Any]:
    """Which Evenkeel this is: {"revision", "modified"} of a checkout, or what the image was built from."""
    git = shutil.which("git")
    if git is not None and (folder / ".git").exists():
        # Only looks: not even the index is refreshed. A folder of another owner is asked about, too.
        command = [git, "-c", f"safe.directory={folder}", "-c", "core.fsmonitor=false", "-C", str(folder)]
        environment = {"PATH": os.environ.get("PATH", ""), "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_NOSYSTEM": "1"}
        try:
            revision = _said([*command, "rev-parse", "HEAD"], environment)
            changes = _said([*command, "status", "--porcelain", "--untracked-files=no"], environment)
        except (OSError, subprocess.SubprocessError):
            revision = ""
        if _REVISION.fullmatch(revision):
            return {"revision": revision, "modified": bool(changes)}
    built = os.environ.get("EVENKEEL_REVISION", "")
    return {"revision": built, "modified": False} if _REVISION.fullmatch(built) else {}


def _said(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=environment)
    return done.stdout.strip()
