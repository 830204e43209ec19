"""The folder of one attempt on one host: what lies where. Standard library only.

The supervisor makes it, ranks write into it, and nothing outside the host reads it. Ranks are
numbered over all hosts. Everything under `spool` and `logs` is append-only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class RunFolder:
    """Paths of `SCRATCH_ROOT/attempts/<uid>/node<k>/`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    @classmethod
    def of(cls, scratch_root: Path, attempt: str, node: int) -> RunFolder:
        return cls(scratch_root / "attempts" / attempt / f"node{node}")

    def make(self) -> None:
        """Create it with its subfolders, readable by this user only."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.spool, self.logs, self.processes, self.exits, self.outcomes):
            folder.mkdir(exist_ok=True, mode=0o700)
        self.checkpoints.mkdir(exist_ok=True, mode=0o700)
        self.artifacts.mkdir(exist_ok=True, mode=0o700)

    # --- the supervisor's ---

    def claim(self, placement: int) -> Path:
        """Created exclusively by the one supervisor that may act on this placement."""
        return self.path / f"claim-{placement}"

    @property
    def newest_claim(self) -> int:
        """Number of the newest placement that was acted on here, or -1."""
        return max((int(path.name.removeprefix("claim-")) for path in self.path.glob("claim-*")), default=-1)

    @property
    def lock(self) -> Path:
        """Held (flock) by the supervisor for as long as it lives."""
        return self.path / "lock"

    @property
    def spec(self) -> Path:
        """An AttemptSpec."""
        return self.path / "spec.json"

    @property
    def state(self) -> Path:
        """{"pid", "started", "stage", "placement", "report_base"} of the supervisor."""
        return self.path / "state.json"

    @property
    def launch(self) -> Path:
        """{"trainer": [arguments of Python]}, for the shim."""
        return self.path / "launch.json"

    @property
    def control(self) -> Path:
        """A Control: what people ask of the ranks. Absent until they ask something."""
        return self.path / "control.json"

    @property
    def ballast(self) -> Path:
        """Takes up space that the supervisor needs if the disk gets full."""
        return self.path / "ballast"

    @property
    def supervisor_log(self) -> Path:
        """Stdout and stderr of the supervisor. Stays on the host."""
        return self.path / "supervisor.log"

    @property
    def launcher_folder(self) -> Path:
        """Where Paddle's launcher keeps its own files. Stays on the host."""
        return self.path / "launcher"

    # --- streams, relayed byte by byte ---

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def report(self) -> Path:
        return self.spool / "report.jsonl"

    @property
    def devices(self) -> Path:
        return self.spool / "devices.jsonl"

    def steps(self, rank: int) -> Path:
        return self.spool / f"steps-rank{rank}.jsonl"

    def events(self, rank: int) -> Path:
        return self.spool / f"events-rank{rank}.jsonl"

    def log(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.log"

    @property
    def launcher_log(self) -> Path:
        return self.logs / "launcher.log"

    # --- how ranks ended ---

    @property
    def processes(self) -> Path:
        return self.path / "processes"

    def process(self, rank: int) -> Path:
        """Written by the shim: {"rank", "shim", "trainer"}, the last two process numbers."""
        return self.processes / f"rank{rank}.json"

    @property
    def exits(self) -> Path:
        return self.path / "exits"

    def exit(self, rank: int) -> Path:
        """Written by the shim: {"rank", "pid", "exit_code", "signal", "at", "clock"}."""
        return self.exits / f"rank{rank}.json"

    @property
    def outcomes(self) -> Path:
        return self.path / "outcomes"

    def outcome(self, rank: int) -> Path:
        """Written by a rank that ends on purpose: {"end_reason", "detail", "rank", "step", "at"}."""
        return self.outcomes / f"rank{rank}.json"

    # --- what goes in and comes out ---

    @property
    def start(self) -> Path:
        """The checkpoint to start from, if there is one: copied and verified before the launch."""
        return self.path / "start"

    @property
    def model(self) -> Path:
        """Exported weights of another job to start from, if any."""
        return self.path / "model"

    @property
    def dataset(self) -> Path:
        """The dataset's files, copied before the launch."""
        return self.path / "dataset"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Named by attempted steps; complete once it has its final name."""
        return self.checkpoints / f"step-{step:09d}"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"


def atomic_write_json(path: Path, value: Any) -> None:
    """Readers see the old content or the new, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)
        file.write("\n")
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """The content, or None while the file is not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
