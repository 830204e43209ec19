"""A trivial trainer of real ranks: `python -m tests.workers.paddle_ranks RUN_FOLDER`."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from pathlib import Path

import paddle
import paddle.distributed as dist

from workers.contract import records
from workers.run_folder import RunFolder, atomic_write_json

folder = RunFolder(Path(sys.argv[1]))
dist.init_parallel_env()
rank = dist.get_rank()
at = datetime.now(timezone.utc).isoformat()
with folder.events(rank).open("ab") as events:
    events.write(records.dumps({"kind": "ready", "at": at, "rank": rank, "pid": os.getpid()}) + b"\n")
total = paddle.to_tensor([float(rank + 1)])
dist.all_reduce(total)
print("sum over ranks", float(total), "devices", paddle.get_device(), flush=True)
atomic_write_json(folder.outcome(rank), {"end_reason": "completed", "detail": "", "rank": rank, "step": None, "at": at})
