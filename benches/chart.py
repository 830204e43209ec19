"""One chart call at 10³, 10⁵ and 10⁶ steps, and whether it keeps what is rare.

The call is what the job page does: a GET on a kept-alive connection to uvicorn, with login, the check of
access, and the fields that the page draws, 1000 points of each. Beside it the time of the series alone, all
ten fields. In the same run, as a simple baseline: all records of the attempt read back, every n-th one kept.
"""

from __future__ import annotations

import http.client
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benches import environment as bench

SIZES = (1_000, 100_000, 1_000_000)
# What a run of any length ends with: an open tail.
OPEN = 700
CALLS = 40
GOAL_MS, GOAL_RATIO = 20.0, 1.5


def fill(steps: int) -> Any:
    """An attempt with a NaN, an infinity, a spike of one step, a skip, and a newest point that is told apart."""
    from jobs.models import Cursor
    from jobs.steps import packed, store
    from jobs.steps.runs import Run, extended
    from workers.contract import records

    attempt: Any = bench.new_attempt()
    lines = bench.realistic_lines(min(steps, 100_000))
    rare = {
        steps // 3: {"loss": 777.0},
        steps // 2: {"loss": float("nan")},
        steps // 2 + 7: {"grad_norm": float("inf"), "skipped": "found_inf", "found_inf": True},
        steps: {"loss": 0.03125},
    }
    at, runs = 0, []
    while at < steps:
        body = []
        for step in range(at + 1, min(steps, at + 16_384) + 1):
            line = lines[(step - 1) % len(lines)]
            if step > len(lines) or step in rare:
                record = records.decode(line)
                plain = {"skipped": None, "found_inf": False}
                line = records.encode(record | plain | {"step": step, "applied": step} | rare.get(step, {}))
            body.append(line)
        batch = packed.parse(b"".join(body))
        store.append(attempt.pk, 0, at, batch)
        runs = extended(runs, batch.matrix, at)
        at += len(body)
    state = {"runs": [run.to_json() for run in runs], "newest": batch.record(len(batch) - 1)}
    Cursor.objects.create(attempt=attempt, rank=0, kind="steps", lines=steps, state=state)
    assert isinstance(runs[0], Run)
    return attempt


# What templates/jobs/detail.html asks for.
PAGE_FIELDS = "loss_all,loss,lr,grad_norm,clip_norm,loss_scale"


@contextmanager
def site() -> Iterator[Callable[[Any], bytes]]:
    """A web process of its own; the call gives the answer of an attempt's chart to its owner."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "webapp.asgi:application", "--port", str(port), "--log-level", "error"]
    web = subprocess.Popen([*command, "--no-access-log", "--timeout-keep-alive", "120"])
    try:
        client = Client()
        client.force_login(User.objects.get(username="bench"))
        headers = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"}
        connection = http.client.HTTPConnection("127.0.0.1", port)

        def call(attempt: Any) -> bytes:
            path = f"/jobs/{attempt.job_id}/chart/?attempt=1&rank=0&fields={PAGE_FIELDS}"
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
            if response.status != 200:
                raise RuntimeError(f"The chart call was answered with {response.status}.")
            return body

        deadline = time.monotonic() + 20
        while True:
            try:
                connection.request("GET", "/healthz")
                connection.getresponse().read()
                break
            except OSError:
                connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield call
    finally:
        web.terminate()
        web.wait()


def series(attempt: Any) -> bytes:
    import orjson

    from jobs.steps import chart

    return orjson.dumps(chart.series(attempt, 0))


def every_nth(attempt: Any) -> bytes:
    from jobs.steps import read
    from workers.contract import records

    found = read.records(attempt, 0)
    return records.dumps(found[:: max(1, len(found) // 1000)])


def timed(call: Callable[[], bytes], calls: int) -> list[float]:
    taken = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        taken.append((time.perf_counter() - started) * 1e3)
    return taken


def kept(answer: bytes, steps: int) -> str:
    """Which of the five rare things a chart shows."""
    import orjson

    chart = orjson.loads(answer)
    loss, norm = chart["fields"]["loss"], chart["fields"]["grad_norm"]
    shown = {
        "spike": any(value == 777.0 for value in loss.get("max", loss["mean"])),
        "NaN": any(row[1] for row in loss["non_finite"]),
        "Inf": any(row[2] for row in norm["non_finite"]),
        "skip": bool(chart["marks"]["skipped"]),
        "newest": chart["step"][-1] == steps and loss.get("min", loss["mean"])[-1] == 0.03125,
    }
    return ", ".join(name if there else f"{name} LOST" for name, there in shown.items())


def main() -> int:
    with bench.installed():
        print(
            f"{bench.database_name()}, Python {platform.python_version()}, {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.1f}; medians of {CALLS} calls in ms\n"
        )
        print(
            f"{'steps':>10}{'call':>8}{'p95':>7}{'kB':>6}{'points':>8}{'series, 10 fields':>19}{'read all':>10}   kept"
        )
        attempts = {size: fill(size if size < 5000 else size - size % 4096 + OPEN) for size in SIZES}
        medians = {}
        everything = True
        with site() as call:
            for size, attempt in attempts.items():
                total = size if size < 5000 else size - size % 4096 + OPEN
                answer = series(attempt)
                size_kb = len(call(attempt)) / 1e3
                taken = timed(lambda attempt=attempt: call(attempt), CALLS)  # type: ignore[misc]
                alone = statistics.median(timed(lambda attempt=attempt: series(attempt), CALLS))  # type: ignore[misc]
                baseline = timed(lambda attempt=attempt: every_nth(attempt), 1)[0]  # type: ignore[misc]
                medians[size] = statistics.median(taken)
                p95 = statistics.quantiles(taken, n=20)[-1]
                what = kept(answer, total)
                everything = everything and "LOST" not in what
                points = (
                    answer.count(b",", answer.index(b'"step":['), answer.index(b"]", answer.index(b'"step":['))) + 1
                )
                print(
                    f"{total:>10,}{medians[size]:>8.1f}{p95:>7.1f}{size_kb:>6.0f}{points:>8}"
                    f"{alone:>19.1f}{baseline:>10,.0f}   {what}"
                )
        ratio = medians[SIZES[-1]] / medians[SIZES[0]]
        met = medians[SIZES[-1]] <= GOAL_MS and ratio <= GOAL_RATIO and everything
        print(f"\n10⁶ : 10³ = {ratio:.2f}. Goals (≤ {GOAL_MS:.0f} ms, ≤ {GOAL_RATIO} ×, nothing lost): ", end="")
        print("met." if met else "MISSED.")
        print("Bounded by: the web framework's way to the view and back; then making and encoding the points")
        print("(three numbers each once they are buckets). The reads are a handful of rows at any length.")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
