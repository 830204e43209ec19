"""Records per second from the stream into the database, sealed and readable, and what a sealed record takes on disk.

The way is the real one: a process that sends as a relay does (batches, a window of bytes that are not
acknowledged), the Redis-protocol server, and the controller's ingest with its sealing. In the same run,
as a simple baseline: one row per record through Django's bulk_create, the JSON line as it is.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

from benches import environment as bench
from jobs.management.commands.controller import few_collections

GOALS = {1: 20_000, 8: 50_000}
RECORDS = 120_000
BATCH_BYTES = 256 * 2**10
WINDOW_BYTES = 4 * 2**20


def batches(lines: list[bytes]) -> Iterator[bytes]:
    body: list[bytes] = []
    size = 0
    for line in lines:
        body.append(line)
        size += len(line)
        if size >= BATCH_BYTES:
            yield b"".join(body)
            body, size = [], 0
    if body:
        yield b"".join(body)


def feed(url: str, uid: str, files: dict[int, list[bytes]]) -> None:
    """In a process of its own: every rank's batches, as fast as the acknowledgements allow."""
    import redis

    from workers.contract.messages import TELEMETRY_STREAM, ack_key

    client = redis.Redis.from_url(url)
    sent = dict.fromkeys(files, 0)
    left = {rank: list(reversed(parts)) for rank, parts in files.items()}
    while any(left.values()):
        acked: Any = client.hgetall(ack_key(uid))
        busy = False
        for rank, parts in left.items():
            while parts and sent[rank] - int(acked.get(f"{rank}/steps".encode(), 0)) < WINDOW_BYTES:
                body = parts.pop()
                client.xadd(
                    TELEMETRY_STREAM,
                    {"attempt": uid, "rank": rank, "kind": "steps", "offset": sent[rank], "body": body, "host": "x"},
                )
                sent[rank] += len(body)
                busy = True
        if not busy:
            time.sleep(0.01)


def ours(writers: int) -> tuple[float, float]:
    """(records per second, bytes on disk per record)."""
    from django.conf import settings

    from jobs import bus
    from jobs.controller.ingest import Ingest
    from jobs.models import Cursor, StepBlock
    from jobs.steps import block, chart, read, store

    attempt: Any = bench.new_attempt()
    each = RECORDS // writers // block.BLOCK * block.BLOCK
    files = {rank: bench.realistic_lines(each, rank) for rank in range(writers)}
    before = bench.database_bytes()
    client = bus.client()
    ingest = Ingest(client)
    parts = {rank: list(batches(lines)) for rank, lines in files.items()}
    feeder = multiprocessing.get_context("spawn").Process(target=feed, args=(settings.REDIS_URL, attempt.uid, parts))
    feeder.start()
    while not (done := ingest.run()):
        time.sleep(0.001)
    started = time.perf_counter()
    total = each * writers
    # Counted from the first commit, without what it brought.
    first = sum(Cursor.objects.filter(attempt=attempt).values_list("lines", flat=True))
    while True:
        if done is not None and done.attempts:
            for tail in store.overlong(done.attempts):
                store.seal(tail)
        if sum(Cursor.objects.filter(attempt=attempt).values_list("lines", flat=True)) == total:
            break
        done = ingest.run()
        if done is None:
            time.sleep(max(ingest.wait_s(), 0.002))
    elapsed = time.perf_counter() - started
    feeder.join()
    assert StepBlock.objects.filter(attempt=attempt).count() == total // block.BLOCK
    for rank, lines in files.items():
        assert list(read.lines(attempt, rank)) == lines
    assert chart.series(attempt, 0)["step"][-1] == each
    return (total - first) / elapsed, (bench.database_bytes() - before) / total


def baseline() -> tuple[float, float]:
    from django.db import transaction

    from jobs.models import StepTail
    from workers.contract import records

    attempt: Any = bench.new_attempt()
    lines = bench.realistic_lines(20_000)
    before = bench.database_bytes()
    started = time.perf_counter()
    at = 0
    for body in batches(lines):
        rows = []
        for line in body.splitlines(keepends=True):
            step = records.decode(line)["step"]
            rows.append(StepTail(attempt=attempt, rank=0, start=at, count=1, last_step=step, body=line, packed=b""))
            at += 1
        with transaction.atomic():
            StepTail.objects.bulk_create(rows, batch_size=500)
    elapsed = time.perf_counter() - started
    return len(lines) / elapsed, (bench.database_bytes() - before) / len(lines)


def main() -> int:
    with bench.installed():
        few_collections()
        print(
            f"{bench.database_name()}, Python {platform.python_version()}, {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.1f}; {RECORDS} records, byte for byte compared afterwards\n"
        )
        base, base_bytes = baseline()
        print(f"{'':34}{'records/s':>12}{'goal':>10}{'× baseline':>12}{'bytes/record':>14}")
        print(f"{'a row per record (bulk_create)':34}{base:>12,.0f}{'':>10}{1:>12.1f}{base_bytes:>14.0f}")
        met = True
        for writers, goal in GOALS.items():
            rate, size = ours(writers)
            name = f"{writers} writer{'s' if writers > 1 else ''}, sealed"
            print(f"{name:34}{rate:>12,.0f}{goal:>10,}{rate / base:>12.1f}{size:>14.0f}")
            met = met and rate >= goal and size <= 100
        print(f"\nGoals, and at most 100 bytes per record on disk: {'met' if met else 'MISSED'}.")
        print("Bounded by: one core of the controller, which parses, packs and seals (the sender has the other one);")
        print("with one writer also by its window of 4 MiB per round, and rounds of a quarter of a second on SQLite.")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
