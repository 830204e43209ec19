"""The no-op trainer: `python -m tests.scripted.trainer RUN_FOLDER` follows `settings["script"]`.

A script is a list of commands; one with `"rank": r` is for that rank only:

    {"do": "start", "s": 1.0}            first only: seconds before this rank is ready, deaf to requests
    {"do": "steps", "n": 100, "ms": 2}   so many step records, one every so many milliseconds (0: at full speed)
    {"do": "nan", "n": 3}                steps with a NaN loss, skipped
    {"do": "sleep", "s": 2.0}            listening to requests, as between steps
    {"do": "wait", "path": "…"}          until the file is there, listening to requests
    {"do": "hang", "s": 60}              not listening
    {"do": "log", "text": "…"}           a line on stdout
    {"do": "write", "stream": "steps", "text": "…"}   bytes as they are, with no newline: a torn tail
    {"do": "evaluate", "metrics": {"accuracy": 0.8}}
    {"do": "checkpoint"}                 rank 0: an announced checkpoint; "corrupt": true damages a file of it,
                                         "stall": true makes reading it hang, as a stalled mount would
    {"do": "artifact", "name": "model"}  rank 0: an announced artefact
    {"do": "child"}                      a process that survives its parent and its session
    {"do": "outcome", "reason": "non_finite", "detail": "…"}   ends on purpose
    {"do": "raise", "error": "ValueError", "text": "…"}
    {"do": "exit", "code": 3}
    {"do": "kill", "signal": 9}          kills itself

At the script's end it is `completed`. It starts at the step of `start/manifest.json`, if there is one.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from workers.contract import records
from workers.contract.states import EndReason, Status
from workers.run_folder import RunFolder, atomic_write_json, read_json

LEAVE = {
    "cancel": EndReason.CANCELLED,
    "pause": EndReason.PAUSED,
    "finish": EndReason.FINISHED_EARLY,
    "drain": EndReason.DRAINED,
    "supersede": EndReason.SUPERSEDED,
    "time_limit": EndReason.TIME_LIMIT,
}


class Trainer:
    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.rank = int(os.environ["PADDLE_TRAINER_ID"])
        spec = json.loads(folder.spec.read_text())
        self.last_step = spec.get("dry_run_steps")
        self.script = [command for command in spec["settings"]["script"] if command.get("rank", self.rank) == self.rank]
        self.world_size = int(os.environ["PADDLE_TRAINERS_NUM"])
        self.steps = os.open(folder.steps(self.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.events = os.open(folder.events(self.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        start = read_json(folder.start / "manifest.json") or {"step": 0, "applied": 0}
        self.step, self.applied = start["step"], start["applied"]
        if self.last_step is not None:
            self.last_step += self.step
        self.checkpoints_asked = 0
        self.began = time.monotonic()

    def run(self) -> NoReturn:
        if self.script and self.script[0]["do"] == "start":
            time.sleep(self.script.pop(0)["s"])
        self.say("ready", rank=self.rank, pid=os.getpid())
        if self.rank == 0:
            total = self.step + sum(command.get("n", 1) for command in self.script if command["do"] in ("steps", "nan"))
            self.say(
                "plan",
                total_steps=total,
                steps_per_epoch=max(total, 1),
                epochs=1,
                world_size=self.world_size,
                train_rows=0,
                dev_rows=0,
                parameters=0,
                precision="float32",
                emulated=False,
                device="cpu",
            )
        for command in self.script:
            arguments = {name: value for name, value in command.items() if name not in ("do", "rank")}
            getattr(self, f"do_{command['do']}")(**arguments)
            self.listen()
        self.end(EndReason.COMPLETED, "")

    # --- commands ---

    def do_steps(self, n: int, ms: float = 0) -> None:
        for _ in range(n):
            self.record(loss=1.0 / (1 + self.step), grad_norm=0.5, skipped=None)
            if ms:
                time.sleep(ms / 1000)
            self.listen()

    def do_nan(self, n: int = 1) -> None:
        for _ in range(n):
            self.record(loss=math.nan, grad_norm=math.nan, skipped=records.SKIP_LOSS)

    def do_sleep(self, s: float) -> None:
        deadline = time.monotonic() + s
        while time.monotonic() < deadline:
            self.listen()
            time.sleep(0.02)

    def do_wait(self, path: str) -> None:
        while not Path(path).exists():
            self.listen()
            time.sleep(0.02)

    def do_hang(self, s: float = 3600) -> None:
        time.sleep(s)

    def do_log(self, text: str) -> None:
        print(text, flush=True)

    def do_write(self, stream: str, text: str) -> None:
        os.write({"steps": self.steps, "events": self.events, "log": 1}[stream], text.encode())

    def do_evaluate(self, metrics: dict[str, float], best: bool = False) -> None:
        if self.rank == 0:
            self.say(
                "evaluation",
                step=self.step,
                applied=self.applied,
                epoch=0,
                metrics=metrics,
                seconds=0.01,
                best=best,
            )

    def do_checkpoint(self, corrupt: bool = False, good: bool = True, bytes: int = 1000, stall: bool = False) -> None:
        if self.rank != 0:
            return
        target = self.folder.checkpoint(self.step)
        if target.exists():
            return
        temporary = target.with_name(f".{target.name}")
        temporary.mkdir()
        content = (b"%d " % self.step) * (bytes // 8 + 1)
        (temporary / "weights.bin").write_bytes(content)
        files = {"weights.bin": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
        manifest = {"files": files, "step": self.step, "applied": self.applied, "good": good}
        atomic_write_json(temporary / "manifest.json", manifest)
        temporary.rename(target)
        if corrupt:
            (target / "weights.bin").write_bytes(content[:-1] + b"!")
        if stall:
            (target / "weights.bin").unlink()
            os.mkfifo(target / "weights.bin")
        path = str(target.relative_to(self.folder.path))
        self.say(
            "checkpoint",
            step=self.step,
            applied=self.applied,
            path=path,
            bytes=len(content),
            good=good,
            seconds=0.01,
        )

    def do_artifact(self, name: str, text: str = "weights") -> None:
        if self.rank != 0:
            return
        folder = self.folder.artifacts / name
        folder.mkdir()
        (folder / "model.bin").write_text(text)
        self.say("artifact", name=name, path=str(folder.relative_to(self.folder.path)), bytes=len(text))

    def do_child(self) -> None:
        sleep = shutil.which("sleep") or "sleep"
        subprocess.Popen([sleep, "600"], start_new_session=True, stdin=subprocess.DEVNULL)

    def do_outcome(self, reason: str, detail: str = "", rank: int | None = None) -> NoReturn:
        self.end(EndReason(reason), detail)

    def do_raise(self, error: str = "RuntimeError", text: str = "as the script says") -> NoReturn:
        raise getattr(builtins, error)(text)

    def do_exit(self, code: int) -> NoReturn:
        os._exit(code)

    def do_kill(self, signal: int = 9) -> None:
        os.kill(os.getpid(), signal)
        time.sleep(60)

    # --- what every trainer does ---

    def record(self, *, loss: float, grad_norm: float, skipped: str | None) -> None:
        self.step += 1
        self.applied += skipped is None
        values: dict[str, Any] = {
            "v": records.VERSION,
            "seg": 0,
            "step": self.step,
            "applied": self.applied,
            "epoch": 0,
            "t": time.monotonic() - self.began,
            "loss": loss,
            "loss_all": loss,
            "lr": 1e-3,
            "grad_norm": grad_norm,
            "clip_norm": 1.0,
            "clipped": False,
            "loss_scale": None,
            "found_inf": skipped is not None,
            "skipped": skipped,
            "batch_id": f"0:{self.step}",
            "samples": 1,
            "tokens": 1,
            "step_ms": 1.0,
            "data_ms": 0.1,
            "mem_mb": 1.0,
            "emulated": False,
            "extras": None,
        }
        os.write(self.steps, records.encode(values))
        if self.step == self.last_step:
            self.say("measured", rank=self.rank, peak_mb=2.0, evaluation_s=0.5)
            self.end(EndReason.COMPLETED, "")

    def say(self, kind: str, **fields: Any) -> None:
        line = {"kind": kind, "at": datetime.now(timezone.utc).isoformat(), **fields}
        os.write(self.events, records.dumps(line) + b"\n")

    def listen(self) -> None:
        control = read_json(self.folder.control)
        if control is None:
            return
        if control["checkpoint"] > self.checkpoints_asked:
            self.checkpoints_asked = control["checkpoint"]
            self.do_checkpoint()
        if control["leave"] is not None:
            if control["leave"] != "cancel":
                self.do_checkpoint()
            self.end(LEAVE[control["leave"]], f"asked for at step {self.step}")

    def end(self, reason: EndReason, detail: str) -> NoReturn:
        outcome = {"end_reason": reason.value, "detail": detail, "rank": self.rank, "step": self.step}
        outcome["at"] = datetime.now(timezone.utc).isoformat()
        atomic_write_json(self.folder.outcome(self.rank), outcome)
        self.say("outcome", **{name: value for name, value in outcome.items() if name != "at"})
        sys.exit(1 if reason.status is Status.FAILED and reason is not EndReason.TIME_LIMIT else 0)


if __name__ == "__main__":
    Trainer(RunFolder(Path(sys.argv[1]))).run()
