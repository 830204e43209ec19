"""What a worker does with a request to check: claims the try, waits for the slot, starts the process, and speaks for it
should it die. The task itself returns at once."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time

from workers.config import BASE_DIR, Config
from workers.contract.datasets import RESULT, CheckSpec, check_key
from workers.datasets.order import Order, answer, refusal, write_progress

logger = logging.getLogger(__name__)

WAITING_S = 5.0
# What a check has no use for.
_NOT_FOR_CHECKS = ("REDIS_URL", "DATABASE_URL", "SECRET_KEY")


class Checks:
    """One check at a time on this host; the others wait their turn and say so."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._slot = threading.Lock()

    def start(self, spec: CheckSpec) -> None:
        """A thread of its own: a stalled storage must not hold up the start of attempts."""
        threading.Thread(target=self._guarded, args=(spec,), name=f"check {spec.uid}", daemon=True).start()

    def _guarded(self, spec: CheckSpec) -> None:
        try:
            self.run(spec)
        except Exception:
            logger.exception("the check %s could not be made", spec.uid)

    def run(self, spec: CheckSpec) -> None:
        folder = self._config.storage_root / check_key(spec.uid)
        if not folder.is_dir() or (folder / RESULT).exists():
            return  # nobody waits for it any more
        try:
            # A message that comes twice starts nothing twice.
            (folder / f"claim-{spec.number}").open("x").close()
        except FileExistsError:
            return
        scratch = self._config.scratch_root / "checks" / f"{spec.uid}-{spec.number}"
        order = Order(
            spec=spec,
            host=self._config.host_name,
            storage_root=self._config.storage_root,
            scratch=scratch,
            dataset_roots=list(self._config.dataset_roots),
            memory_bytes=self._config.check_memory_bytes,
            time_limit_s=self._config.check_time_limit_s,
        )
        waited = int(time.time() * 1000)
        while not self._slot.acquire(timeout=WAITING_S):
            waited += 1
            write_progress("waiting for another check", order, waited)
        try:
            logger.info("check %s, try %d: started", spec.uid, spec.number)
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True, mode=0o700)
            self._run(order)
        finally:
            self._slot.release()
            shutil.rmtree(scratch, ignore_errors=True)

    def _run(self, order: Order) -> None:
        path = order.scratch / "order.json"
        path.write_text(order.model_dump_json(), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_CHECKS}
        command = [sys.executable, "-m", "workers.datasets.run", str(path)]
        started = time.monotonic()
        with (order.scratch / "output.log").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=BASE_DIR, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                code = process.wait(order.time_limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = None
        seconds = time.monotonic() - started
        if code == 0:
            return
        if code is None:
            found = refusal(
                "The check took longer than %(limit)s s, the limit of %(host)s.",
                limit=int(order.time_limit_s),
                host=order.host,
            )
        else:
            said = (order.scratch / "output.log").read_text(errors="replace").strip().splitlines()[-1:]
            logger.error("check %s ended with code %d: %s", order.spec.uid, code, "".join(said))
            found = refusal(
                "The check ended with code %(code)d on %(host)s: %(said)s",
                code=code,
                host=order.host,
                said="".join(said)[:300] or "—",
            )
        shutil.rmtree(order.storage_root / f"datasets/.new-{order.spec.uid}-{order.spec.number}", ignore_errors=True)
        answer(order, seconds, findings=[found])
