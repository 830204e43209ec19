"""Starts a supervisor and lets go of it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

from workers.config import BASE_DIR, Config
from workers.contract.messages import AttemptSpec
from workers.run_folder import RunFolder


def start_attempt(spec: AttemptSpec, config: Config) -> None:
    """A supervisor for `spec`; if one has already acted on this placement, the new one leaves quietly."""
    folder = RunFolder.of(config.scratch_root, spec.attempt, spec.node)
    folder.make()
    incoming = folder.path / f"incoming-{uuid.uuid4().hex}.json"
    incoming.write_text(spec.model_dump_json())
    _detach(folder, str(incoming))


def start_recovery(folder: RunFolder) -> None:
    _detach(folder, "--recover")


def _detach(folder: RunFolder, argument: str) -> None:
    path = os.pathsep.join(filter(None, [str(BASE_DIR), os.environ.get("PYTHONPATH")]))
    with folder.supervisor_log.open("ab") as log:
        # It forks itself and the first process ends within milliseconds: no zombie, no child of ours.
        subprocess.run(
            [sys.executable, "-m", "workers.supervisor", str(folder.path), argument],
            cwd=folder.path,
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
            timeout=60,
        )
