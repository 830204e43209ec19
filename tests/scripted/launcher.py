"""Paddle's launcher in small: the same flags and variables, the same treatment of ranks, no Paddle.

Like the real one it makes each rank a session leader, stops the others when one fails, and exits
with the code of whichever rank it looks at first.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc_per_node", type=int, default=1)
    parser.add_argument("--log_dir", default="log")
    for name in ("--devices", "--nnodes", "--master", "--host", "--job_id"):
        parser.add_argument(name)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    print(f"scripted launcher: {options.nproc_per_node} ranks", flush=True)
    folder = Path(options.log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    ranks: list[subprocess.Popen[bytes]] = []
    first = max(options.rank, 0) * options.nproc_per_node
    for local in range(options.nproc_per_node):
        env = os.environ | {
            "PADDLE_TRAINER_ID": str(first + local),
            "PADDLE_TRAINERS_NUM": str(int(options.nnodes or 1) * options.nproc_per_node),
            "PADDLE_RANK_IN_NODE": str(local),
            "PADDLE_DISTRI_BACKEND": "gloo",
        }
        with (folder / f"workerlog.{local}").open("ab") as log:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-u", options.script, *options.arguments],
                    env=env,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def stop(_signal: int, _frame: object) -> None:
        _stop(ranks, 30)
        sys.exit(15)

    signal.signal(signal.SIGTERM, stop)
    while True:
        codes = [rank.poll() for rank in ranks]
        if any(codes):
            _stop(ranks, 3)
            return next(code for code in (rank.returncode for rank in reversed(ranks)) if code) & 0xFF
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.05)


def _stop(ranks: list[subprocess.Popen[bytes]], timeout_s: float) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    deadline = time.monotonic() + timeout_s
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    sys.exit(main())
