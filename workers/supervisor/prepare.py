"""Copies to the host's own disk whatever the ranks read, so that no shared mount can block a rank."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

from workers.contract.datasets import IMAGES
from workers.contract.messages import AttemptSpec
from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.run_folder import RunFolder
from workers.supervisor import copying


class Preparation:
    """Runs in a thread; `done` says when. Then `failure` is None or (reason, detail)."""

    def __init__(self, folder: RunFolder, spec: AttemptSpec, storage_root: Path) -> None:
        self._folder = folder
        self._spec = spec
        self._storage_root = storage_root
        self._stop = False
        self._finished = threading.Event()
        self.failure: tuple[EndReason, str] | None = None
        threading.Thread(target=self._run, name="preparation", daemon=True).start()

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    def stop(self) -> None:
        self._stop = True

    def _run(self) -> None:
        spec, folder = self._spec, self._folder
        steps: list[tuple[EndReason, Text, Callable[[], object]]] = []
        if spec.dataset is not None:
            key = spec.dataset.key
            names = {f"{split}.jsonl" for split in spec.dataset.splits}
            steps.append((EndReason.BAD_DATA, Text("dataset"), lambda: self._copy_dataset(key, names)))
        if spec.model_key is not None:
            model = spec.model_key
            steps.append((EndReason.MODEL_UNAVAILABLE, Text("model"), lambda: self._copy(model, folder.model)))
        if spec.start_from is not None:
            start = spec.start_from.key
            steps.append(
                (EndReason.MODEL_UNAVAILABLE, Text("checkpoint"), lambda: self._copy(start, folder.start, verify=True))
            )
        for reason, what, copy in steps:
            try:
                copy()
            except copying.Stopped:
                break
            except copying.CopyError as error:
                self.failure = (
                    reason,
                    Text("The %(what)s to start from cannot be used: %(error)s.", what=what, error=str(error)),
                )
                break
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                self.failure = (
                    EndReason.DISK_FULL if full else reason,
                    Text(
                        "The %(what)s could not be copied to the host: %(error)s.",
                        what=what,
                        error=error.strerror or str(error),
                    ),
                )
                break
            except Exception as error:  # noqa: BLE001 - else the attempt would wait for ever
                self.failure = (
                    EndReason.LAUNCH_FAILED,
                    Text("Copying the %(what)s failed: %(error)s", what=what, error=f"{type(error).__name__}: {error}"),
                )
                break
        self._finished.set()

    def _copy_dataset(self, key: str, names: set[str]) -> None:
        pictures = {IMAGES} if (self._storage_root / key / IMAGES).exists() else set()
        self._copy(key, self._folder.dataset, only=names | pictures)

    def _copy(self, key: str, target: Path, *, verify: bool = False, only: set[str] | None = None) -> None:
        source = (self._storage_root / key).resolve()
        if not source.is_relative_to(self._storage_root.resolve()):
            raise copying.CopyError(f"{key} lies outside of the storage")
        expected = copying.read_manifest(source)["files"] if verify else None
        copying.copy_folder(source, target, expected, lambda: self._stop, only=only)
