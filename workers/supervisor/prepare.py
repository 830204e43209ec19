"""Copies to the host's own disk whatever the ranks read, so that no shared mount can block a rank, and sees that it is what
was checked: a file that is cut off between two rows looks like a whole one."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

from workers.contract.datasets import IMAGES, SPLITS
from workers.contract.messages import AttemptSpec, DatasetRef
from workers.contract.states import EndReason
from workers.contract.texts import Text, clause
from workers.datasets import written
from workers.run_folder import RunFolder
from workers.supervisor import copying


class Changed(Exception):
    """The files of a dataset are not those that were checked; `text` says which and how."""

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self.text = text


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
            dataset = spec.dataset
            steps.append((EndReason.BAD_DATA, Text("dataset"), lambda: self._copy_dataset(dataset)))
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
            except Changed as changed:
                self.failure = (reason, changed.text)
                break
            except copying.CopyError as error:
                self.failure = (
                    reason,
                    Text("The %(what)s to start from cannot be used: %(error)s.", what=what, error=clause(str(error))),
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
                    Text(
                        "Copying the %(what)s failed: %(error)s.",
                        what=what,
                        error=clause(f"{type(error).__name__}: {error}"),
                    ),
                )
                break
        self._finished.set()

    def _copy_dataset(self, dataset: DatasetRef) -> None:
        names = {split: f"{split}.jsonl" for split in dataset.splits}
        pictures = {IMAGES} if (self._storage_root / dataset.key / IMAGES).exists() else set()
        copied = self._copy(dataset.key, self._folder.dataset, only={*names.values(), *pictures})
        for split, name in names.items():
            expected, found = dataset.splits[split], written.count_rows(self._folder.dataset / name)
            if found != expected:
                raise Changed(
                    Text(
                        "%(file)s of the dataset “%(dataset)s” has %(found)d rows, and %(expected)d were checked: it was cut off or "
                        "changed in the storage. Bring it back from a backup, or upload the dataset again as a new version.",
                        file=name,
                        dataset=dataset.name,
                        found=found,
                        expected=expected,
                    )
                )
        # Of pictures the hash is also of these, but not of the thumbnails that lie behind them.
        if not pictures and set(names) == set(SPLITS):
            digests = {split: copied[name]["sha256"] for split, name in names.items()}
            if written.content_hash(digests) != dataset.content_hash:
                raise Changed(
                    Text(
                        "The files of the dataset “%(dataset)s” have as many rows as were checked, and other contents: they were "
                        "changed in the storage. Bring them back from a backup, or upload the dataset again as a new version.",
                        dataset=dataset.name,
                    )
                )

    def _copy(self, key: str, target: Path, *, verify: bool = False, only: set[str] | None = None) -> copying.Files:
        source = (self._storage_root / key).resolve()
        if not source.is_relative_to(self._storage_root.resolve()):
            raise copying.CopyError(f"{key} lies outside of the storage")
        expected = copying.read_manifest(source)["files"] if verify else None
        return copying.copy_folder(source, target, expected, lambda: self._stop, only=only)
