"""What the node's devices and ranks use, over time: a line in devices.jsonl every SAMPLE_S.

In a thread of its own, which nobody waits for. A sample that cannot be taken or written is a gap in a chart, and no
business of the attempt.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from workers import usage
from workers.contract import records
from workers.contract.messages import SAMPLE_S, AttemptSpec
from workers.run_folder import RunFolder, read_json

# The first one soon: a short run shall have some, too.
FIRST_S = 1.0


class Sampler:
    def __init__(self, folder: RunFolder, spec: AttemptSpec, ranks: list[int], scratch_root: Path) -> None:
        self._folder = folder
        self._spec = spec
        self._ranks = ranks
        self._scratch_root = scratch_root
        self._cpu = usage.Cpu()
        self._trees = usage.Trees()
        self._gpus = usage.Gpus() if spec.device_kind == "gpu" else None
        self._writing = threading.Lock()
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="sampler", daemon=True).start()

    def stop(self) -> None:
        """Nothing is written any more once this has returned."""
        with self._writing:
            self._stop.set()

    def _run(self) -> None:
        wait_s, told = FIRST_S, False
        while not self._stop.wait(wait_s):
            wait_s = SAMPLE_S
            try:
                self._write(self.sample())
            except Exception as error:  # noqa: BLE001 - a full disk, a process that ended just now: a gap
                if not told:
                    print(f"sampler: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    told = True

    def sample(self) -> dict[str, Any]:
        """A line of the stream, see workers/contract/messages.py."""
        host = {
            "cpu": self._cpu.fraction(),
            "load1": os.getloadavg()[0],
            "memory_available": usage.memory_available_bytes(),
            "disk_free": shutil.disk_usage(self._scratch_root).free,
        }
        processes = {rank: read_json(self._folder.process(rank)) for rank in self._ranks}
        shims = {rank: process["shim"] for rank, process in processes.items() if process is not None}
        trees = self._trees.look(list(shims.values()))
        ranks = {str(rank): vars(trees[shim]) for rank, shim in shims.items() if shim in trees}
        line: dict[str, Any] = {
            "kind": "sample",
            "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "node": self._spec.node,
            "host": _known(host),
            "ranks": {rank: _known(tree) for rank, tree in ranks.items()},
        }
        if self._gpus is not None:
            line["gpus"] = {
                str(gpu.index): _known(
                    {
                        "utilisation": gpu.utilisation,
                        "memory": gpu.memory_used_bytes,
                        "memory_total": gpu.memory_total_bytes,
                        "temperature": gpu.temperature_c,
                        "power": gpu.power_w,
                    }
                )
                for gpu in self._gpus.read()
                if gpu.index in self._spec.devices
            }
        return line

    def _write(self, line: dict[str, Any]) -> None:
        content = records.dumps(line) + b"\n"
        with self._writing:
            if self._stop.is_set():
                return
            file = os.open(self._folder.devices, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(file).st_size
                if os.write(file, content) < len(content):
                    os.ftruncate(file, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(file)


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }
