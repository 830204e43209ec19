"""One chart call at 10³, 10⁵ and 10⁶ steps, all ten fields in 1000 points, and whether it keeps what is rare.

In the same run, as a simple baseline: all records of the attempt read back and every n-th one kept.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
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
        values, matrix = packed.parse(b"".join(body))
        store.append(attempt.pk, 0, at, b"".join(body), values, matrix)
        runs = extended(runs, matrix, at)
        at += len(body)
    state = {"runs": [run.to_json() for run in runs], "newest": values[-1]}
    Cursor.objects.create(attempt=attempt, rank=0, kind="steps", lines=steps, state=state)
    assert isinstance(runs[0], Run)
    return attempt


def ours(attempt: Any) -> bytes:
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
            f"load {os.getloadavg()[0]:.1f}; {CALLS} calls, JSON included\n"
        )
        print(f"{'steps':>10}{'median ms':>11}{'p95 ms':>9}{'kB':>7}{'points':>8}{'read all ms':>13}   kept")
        medians = {}
        everything = True
        for steps in SIZES:
            attempt = fill(steps if steps < 5000 else steps - steps % 4096 + OPEN)
            total = steps if steps < 5000 else steps - steps % 4096 + OPEN
            answer = ours(attempt)
            taken = timed(lambda attempt=attempt: ours(attempt), CALLS)  # type: ignore[misc]
            baseline = timed(lambda attempt=attempt: every_nth(attempt), 1)[0]  # type: ignore[misc]
            medians[steps] = statistics.median(taken)
            p95 = statistics.quantiles(taken, n=20)[-1]
            what = kept(answer, total)
            everything = everything and "LOST" not in what
            points = answer.count(b",", answer.index(b'"step":['), answer.index(b"]", answer.index(b'"step":['))) + 1
            print(
                f"{total:>10,}{medians[steps]:>11.1f}{p95:>9.1f}{len(answer) / 1e3:>7.0f}{points:>8}"
                f"{baseline:>13,.0f}   {what}"
            )
        ratio = medians[SIZES[-1]] / medians[SIZES[0]]
        met = medians[SIZES[-1]] <= GOAL_MS and ratio <= GOAL_RATIO and everything
        print(f"\n10⁶ : 10³ = {ratio:.2f}. Goals (≤ {GOAL_MS:.0f} ms, ≤ {GOAL_RATIO} ×, nothing lost): ", end="")
        print("met." if met else "MISSED.")
        print("Bounded by: making and encoding 1000 points of ten fields (three numbers each once they are buckets);")
        print("the reads are a handful of rows at any length.")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
