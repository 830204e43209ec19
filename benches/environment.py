"""An empty installation of its own for a bench: a data folder, a database, a Redis-protocol server. Import it first."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

_data = tempfile.TemporaryDirectory(prefix="evenkeel-bench-")
os.environ["DATA_DIR"] = _data.name
for _name in ("STORAGE_ROOT", "SCRATCH_ROOT", "REDIS_URL", "STATIC_ROOT"):
    os.environ.pop(_name, None)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
os.environ.setdefault("LOG_LEVEL", "WARNING")

import django  # noqa: E402

django.setup()

from django.conf import settings  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402


@contextmanager
def installed() -> Iterator[None]:
    """With migrated tables in SQLite, or in what DATABASE_URL names (it must be empty), and with Redis running."""
    from workers import embedded_redis

    server = subprocess.Popen(
        embedded_redis.command(settings.DATA_DIR), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        socket = embedded_redis.socket_path(settings.DATA_DIR)
        deadline = time.monotonic() + 10
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        call_command("migrate", verbosity=0)
        yield
    finally:
        connection.close()
        server.kill()
        server.wait()


def database_name() -> str:
    version = connection.Database.sqlite_version if connection.vendor == "sqlite" else connection.pg_version
    return f"{connection.display_name} {version}"


def database_bytes() -> int:
    """What the rows and their indexes take on disk; pages that wait to be used again are left out."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            size = []
            for name in ("page_count", "freelist_count", "page_size"):
                cursor.execute(f"PRAGMA {name}")
                size.append(int(cursor.fetchone()[0]))
            return (size[0] - size[1]) * size[2]
        cursor.execute("VACUUM FULL")
        cursor.execute("SELECT pg_database_size(current_database())")
        return int(cursor.fetchone()[0])


def new_attempt():  # type: ignore[no-untyped-def]
    """A job's first attempt; its dataset has no files."""
    from django.contrib.auth.models import User

    from jobs import services
    from jobs.models import Dataset

    owner, _ = User.objects.get_or_create(username="bench")
    dataset, _ = Dataset.objects.get_or_create(name="bench", owner=owner, key="none", content_hash="0" * 64)
    job = services.submit(
        owner=owner, name="bench", recipe="text_classification", dataset=dataset, settings={}, actor=owner
    )
    return job.newest


def realistic_lines(count: int, rank: int = 0) -> list[bytes]:
    """As the trainer writes them: float32 losses and norms, whole doubles for times, a linear schedule."""
    import random

    import numpy as np

    from workers.contract import records

    rng = random.Random(rank)
    loss, loss_all, norm = (
        np.abs(np.random.default_rng(rank).normal(0.5, 0.1, (3, count))).astype(np.float32).astype(float).tolist()
    )
    lines, t, applied = [], 0.0, 0
    for step in range(1, count + 1):
        skipped = rng.random() < 0.0005
        applied += not skipped
        step_ms = 80 + rng.random() * 5
        t += step_ms / 1e3
        lines.append(
            records.encode(
                {
                    "v": records.VERSION,
                    "seg": 0,
                    "step": step,
                    "applied": applied,
                    "epoch": step // 5000,
                    "t": t,
                    "loss": loss[step - 1],
                    "loss_all": loss_all[step - 1],
                    "lr": 5e-5 * (1 - applied / 1_000_000),
                    "grad_norm": float("inf") if skipped else norm[step - 1],
                    "clip_norm": 1.0,
                    "clipped": norm[step - 1] > 0.6,
                    "loss_scale": 65536.0,
                    "found_inf": skipped,
                    "skipped": "found_inf" if skipped else None,
                    "batch_id": f"{step // 5000}:{step % 5000}",
                    "samples": 32,
                    "tokens": rng.randint(900, 2048),
                    "step_ms": step_ms,
                    "data_ms": rng.random(),
                    "mem_mb": 812.0 + rng.randint(0, 8) / 256,
                    "emulated": True,
                    "extras": None,
                }
            )
        )
    return lines
