"""One check as a process of its own, with limits: what it needs too much of ends it, and nothing else.

    python -m workers.datasets.run ORDER

ORDER is a JSON file with an `Order`. Progress and result are files in the check's folder below STORAGE_ROOT.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from workers.config import BASE_DIR
from workers.contract.datasets import SPLITS, dataset_key
from workers.datasets import places
from workers.datasets.checking import Outcome, Source, check
from workers.datasets.findings import Stage
from workers.datasets.order import Order, answer, refusal, write_progress
from workers.datasets.parsing import Unreadable

BEAT_S = 1.0
# After so long the pace of a stage says something about its end.
SHORT_S = 2.0
# Attempts on this host come first: for the processor, and by that for the disk.
NICE = 15
_EXTRA_S = 300
_PR_SET_PDEATHSIG = 1
# Of each kind of dataset the recipe that knows what a simple model reaches, and what the first batch looks like.
_RECIPES = {
    "texts": "workers.recipes.text_classification",
    "numbers": "workers.recipes.text_regression",
    "sequences": "workers.recipes.sequences",
    "tokens": "workers.recipes.token_classification",
    "images": "workers.recipes.image_classification",
    "lines": "workers.recipes.text_lines",
}


class _Beats:
    """Says every second how far it is, from a thread: a long step must not look like a death."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._at = ("", 0, 0)
        self._began = 0.0
        self.stage("starting the check", 0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        if name != self._at[0] or done < self._at[1]:
            self._began = time.monotonic()
        self._at = (name, done, total)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        seq = int(time.time() * 1000)
        while not self._stop.wait(BEAT_S):
            seq += 1
            try:
                name, done, total = self._at
                write_progress(name, self._order, seq, done=done, total=total, left_s=self._left_s(done, total))
            except OSError:
                continue

    def _left_s(self, done: int, total: int) -> float | None:
        passed = time.monotonic() - self._began
        return round((total - done) * passed / done, 1) if done and passed > SHORT_S else None


def run(order: Order) -> Outcome:
    spec = order.spec
    beats = _Beats(order)
    target = order.storage_root / f"datasets/.new-{spec.uid}-{spec.number}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        outcome = _checked(order, target, beats)
        if outcome.fit:
            add_what_the_recipe_says(spec.reading.kind, target, outcome, beats.stage)
            final = order.storage_root / dataset_key(spec.uid)
            try:
                target.rename(final)
            except OSError:
                # Another try was faster, with the same bytes.
                if not final.is_dir():
                    raise
        return outcome
    finally:
        shutil.rmtree(target, ignore_errors=True)
        beats.close()


def _checked(order: Order, target: Path, beats: _Beats) -> Outcome:
    try:
        if order.spec.paddlenlp:
            beats.stage("loading from PaddleNLP", 0, 0)
            sources = _from_paddlenlp(order)
        else:
            sources = [
                Source(Path(file.name), file.name, file.split, places.open_key(file.key, order.storage_root))
                if file.key
                else places.source_below(Path(file.path), file.name, file.split, order.dataset_roots)
                for file in order.spec.files
            ]
        return check(sources, order.spec.reading, order.scratch, target, beats.stage)
    except Unreadable as fault:
        return Outcome([refusal(fault.template, **fault.values)])


def _from_paddlenlp(order: Order) -> list[Source]:
    """In a process of its own: PaddleNLP brings Paddle along. Raises Unreadable with what to do."""
    command = [sys.executable, "-m", "workers.datasets.from_paddlenlp", order.spec.paddlenlp, str(order.scratch)]
    result = subprocess.run(command, cwd=BASE_DIR, capture_output=True, text=True, timeout=order.time_limit_s)
    if result.returncode != 0:
        said = (result.stderr.strip().splitlines() or ["?"])[-1][:300]
        raise Unreadable(
            "PaddleNLP could not load “%(name)s” on %(host)s: %(said)s. If the host has no connection to the Internet, "
            "download the dataset elsewhere and upload it as a file.",
            name=order.spec.paddlenlp,
            host=order.host,
            said=said.rstrip("."),
        )
    return [
        Source(order.scratch / f"{split}.jsonl", f"{order.spec.paddlenlp} {split}", split)
        for split in SPLITS
        if (order.scratch / f"{split}.jsonl").is_file()
    ]


def add_what_the_recipe_says(kind: str, folder: Path, outcome: Outcome, stage: Stage) -> None:
    """Baselines and the first batch, where the trainer's packages are; a dataset is as good without."""
    recipe = _RECIPES[kind]
    stage("measuring a simple baseline", 0, 0)
    outcome.statistics["baselines"] |= _said_by(f"{recipe}.baseline", folder)
    stage("looking at what the model sees", 0, 0)
    outcome.statistics["first_batch"] = _said_by(f"{recipe}.first_batch", folder)


def _said_by(module: str, folder: Path) -> dict[str, Any]:
    """The JSON object that the module prints; {} if it cannot, for want of packages or of time."""
    command = [sys.executable, "-m", module, str(folder)]
    try:
        result = subprocess.run(command, cwd=BASE_DIR, capture_output=True, text=True, timeout=_EXTRA_S)
        said = json.loads(result.stdout.strip().splitlines()[-1]) if result.returncode == 0 else {}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
    return said if isinstance(said, dict) else {}


def _limit(order: Order) -> None:
    # One core, whatever the libraries would take.
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    # The worker's thread ends with us; should the worker die, so do we, and the check is asked for again.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (order.memory_bytes, order.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICE)


def main() -> None:
    order = Order.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _limit(order)
    started = time.monotonic()
    try:
        outcome = run(order)
    except MemoryError:
        limit = f"{order.memory_bytes / 2**30:.1f} GiB"
        outcome = Outcome(
            [
                refusal(
                    "The check needed more than %(limit)s of memory, the limit of %(host)s.",
                    limit=limit,
                    host=order.host,
                )
            ]
        )
    answer(order, time.monotonic() - started, **vars(outcome))


if __name__ == "__main__":
    main()
