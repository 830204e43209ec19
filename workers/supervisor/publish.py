"""Brings announced checkpoints and artefacts to STORAGE_ROOT, verified, and then says so.

In a thread of its own: when the shared mount stalls, this waits, and neither the ranks nor the
relay do.
"""

from __future__ import annotations

import queue
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from workers.contract.messages import AttemptSpec
from workers.contract.texts import Text
from workers.run_folder import RunFolder
from workers.supervisor import copying
from workers.supervisor.report import Report

_ATTEMPTS = 3


class Publisher:
    def __init__(self, folder: RunFolder, spec: AttemptSpec, storage_root: Path, report: Report) -> None:
        self._folder = folder
        self._spec = spec
        self._storage_root = storage_root
        self._report = report
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._pending: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._stop = False
        self._newest_good = -1
        # Only this thread may still be busy at the end, with a stalled mount: it must not keep the process.
        threading.Thread(target=self._run, name="publisher", daemon=True).start()

    def announce(self, event: dict[str, Any]) -> None:
        """Take a trainer's event of the kind checkpoint or artifact."""
        with self._changed:
            self._pending.append(event)
        self._queue.put(event)

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    def finish(self) -> None:
        """Nothing more is published; what is not done by now has failed."""
        with self._changed:
            for event in self._pending:
                self._failed(event, Text("the shared storage took too long"))
            self._stop = True

    def _run(self) -> None:
        while True:
            event = self._queue.get()
            try:
                if not self._stop:
                    self._publish(event)
            except copying.Stopped:
                pass
            except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one file and is reported
                self._failed(event, f"{type(error).__name__}: {error}")
            with self._changed:
                self._pending.remove(event)
                self._changed.notify_all()

    def _publish(self, event: dict[str, Any]) -> None:
        publish = self._publish_checkpoint if event["kind"] == "checkpoint" else self._publish_artifact
        for attempt in range(_ATTEMPTS):
            try:
                return publish(event)
            except copying.CopyError as error:
                return self._failed(event, str(error))
            except OSError as error:
                print(f"publishing {event.get('path')}: {error}", file=sys.stderr, flush=True)
                if attempt == _ATTEMPTS - 1:
                    return self._failed(event, f"{error.strerror or error}")
                time.sleep(1.0 + attempt)

    def _publish_checkpoint(self, event: dict[str, Any]) -> None:
        source = self._source(event)
        manifest = copying.read_manifest(source)
        if manifest.get("step") != event["step"]:
            raise copying.CopyError(f"the manifest of {source.name} is of step {manifest.get('step')}")
        key = f"checkpoints/{self._spec.attempt}/step-{event['step']:09d}"
        copying.copy_folder(source, self._storage_root / key, manifest["files"], self._stopped)
        self._say(
            "checkpoint_published",
            step=event["step"],
            applied=event["applied"],
            key=key,
            bytes=sum(file["bytes"] for file in manifest["files"].values()),
            files=manifest["files"],
            good=bool(event["good"]),
        )
        self._tidy(event)

    def _publish_artifact(self, event: dict[str, Any]) -> None:
        source = self._source(event)
        name = str(event["name"])
        if not name.replace("-", "").replace("_", "").isalnum():
            raise copying.CopyError(f"“{name}” cannot be the name of an artefact")
        key = f"artifacts/{self._spec.attempt}/{name}"
        target = self._storage_root / key
        files = copying.copy_folder(source, target, None, self._stopped)
        tar = copying.pack(target, target.with_name(f"{name}.tar"))
        self._say("artifact_published", name=name, key=key, bytes=tar["bytes"], sha256=tar["sha256"], files=files)

    def _source(self, event: dict[str, Any]) -> Path:
        source = (self._folder.path / str(event["path"])).resolve()
        if not source.is_relative_to(self._folder.path.resolve()):
            raise copying.CopyError("it lies outside of the run folder")
        return source

    def _stopped(self) -> bool:
        return self._stop

    def _say(self, kind: str, **fields: Any) -> None:
        # After the bound the report may be closed: what is said then would come after `ended`.
        with self._changed:
            if not self._stop:
                self._report.say(kind, **fields)

    def _failed(self, event: dict[str, Any], detail: str) -> None:
        self._say("publication_failed", what=event["kind"], path=str(event.get("path")), detail=detail)

    def _tidy(self, event: dict[str, Any]) -> None:
        """Scratch keeps the newest good checkpoint and what is newer, for rewinds; the rest is published."""
        if event["good"]:
            self._newest_good = max(self._newest_good, event["step"])
        for line in self._report.said("checkpoint_published"):
            if line["step"] < self._newest_good:
                shutil.rmtree(self._folder.checkpoint(line["step"]), ignore_errors=True)
