"""Two threads of the host's worker: one says that the host is there, one looks after dead supervisors.

Both know nothing that is not on disk, so a restarted worker goes on where the last one stopped, and
live supervisors are never touched.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from workers import host
from workers.config import Config
from workers.contract.messages import BEAT_S, host_key
from workers.run_folder import RunFolder
from workers.supervisor.claim import is_locked
from workers.supervisor.lifeline import connect
from workers.supervisor.start import start_recovery
from workers.supervisor.supervise import is_over

logger = logging.getLogger(__name__)

WATCH_S = 2.0
# A recovery that fails at once (a full disk) is tried again, but not all the time.
RECOVER_AGAIN_S = 10.0
_BEAT_KEPT_S = 60


def run_folders(config: Config) -> Iterator[RunFolder]:
    for path in sorted((config.scratch_root / "attempts").glob("*/node*")):
        yield RunFolder(path)


def live_attempts(config: Config) -> list[str]:
    """Uids whose supervisor is alive on this host."""
    return sorted({folder.path.parent.name for folder in run_folders(config) if is_locked(folder.lock)})


class HostThreads:
    """Started and stopped with the Celery worker."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._devices = host.devices(config)
        self._usage = host.Usage(self._devices)
        self._boot = uuid.uuid4().hex
        self._seq = 0
        self._redis = connect(config.redis_url)
        self._recovered_at: dict[Path, float] = {}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(self.beat, BEAT_S), name="heartbeat", daemon=True),
            threading.Thread(target=self._repeat, args=(self.watch, WATCH_S), name="watcher", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5.0)

    def _repeat(self, action: Callable[[], None], every_s: float) -> None:
        while not self._stop.is_set():
            try:
                action()
            except Exception as error:  # noqa: BLE001 - Redis, disk or network; the thread must live on
                logger.warning("%s failed: %s", threading.current_thread().name, error)
                self._stop.wait(min(1.0, every_s))
            else:
                self._stop.wait(every_s)

    def beat(self) -> None:
        self._seq += 1
        attempts, used = live_attempts(self._config), self._usage.now()
        beat = host.beat(self._config, self._devices, self._boot, self._seq, attempts, used)
        self._redis.set(host_key(beat.name), beat.model_dump_json(), ex=_BEAT_KEPT_S)

    def watch(self) -> None:
        """Start a recovery where a supervisor died, and delete what is stored elsewhere and old."""
        for folder in run_folders(self._config):
            if is_locked(folder.lock):
                continue
            if is_over(folder):
                self._tidy(folder)
            elif folder.newest_claim >= 0 and self._may_recover(folder):
                logger.warning("the supervisor of %s is dead; its attempt is brought to an end", folder.path)
                start_recovery(folder)

    def _may_recover(self, folder: RunFolder) -> bool:
        now = time.monotonic()
        if now - self._recovered_at.get(folder.path, -RECOVER_AGAIN_S) < RECOVER_AGAIN_S:
            return False
        self._recovered_at[folder.path] = now
        return True

    def _tidy(self, folder: RunFolder) -> None:
        if time.time() - folder.state.stat().st_mtime > self._config.retention_s:
            shutil.rmtree(folder.path, ignore_errors=True)
            self._recovered_at.pop(folder.path, None)
            if not any(folder.path.parent.iterdir()):
                folder.path.parent.rmdir()
