"""What devices used: taken line by line, kept compactly, read in buckets of which none hides a peak."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import device_samples
from jobs.models import Attempt, DeviceSamples
from workers.contract.messages import SAMPLE_S

BEGAN = 1_700_000_000.0


def line(at: float, /, *, cpu: Any = 0.5, node: int = 0, **more: Any) -> bytes:
    said = {
        "kind": "sample",
        "at": datetime.fromtimestamp(BEGAN + at, timezone.utc).isoformat(timespec="milliseconds"),
        "node": node,
        "host": {"cpu": cpu, "load1": 1.5, "memory_available": 2**34, "disk_free": 10**11},
        "ranks": {"0": {"cpu": 0.9, "memory": 500_000_000, "peak": 600_000_000}},
    }
    return json.dumps(said | more).encode() + b"\n"


def take(attempt: Attempt, *lines: bytes, node: int = 0) -> None:
    device_samples.append(attempt, node, b"".join(lines))


def node_of(attempt: Attempt, **options: Any) -> dict[str, Any]:
    (node,) = device_samples.chart(attempt, **options)["nodes"]
    return node  # type: ignore[no-any-return]


def test_few_samples_are_shown_as_they_are(attempt: Attempt) -> None:
    take(attempt, line(0, cpu=0.25), line(10, cpu=0.75))
    take(attempt, line(20, cpu=None))
    node = node_of(attempt)
    assert node["t"] == [BEGAN, BEGAN + 10, BEGAN + 20]
    assert node["fields"]["cpu"] == {"mean": [0.25, 0.75, None]}
    assert node["fields"]["rank0.memory"]["mean"] == [5e8] * 3
    assert DeviceSamples.objects.count() == 1


def test_a_time_without_samples_is_a_gap(attempt: Attempt) -> None:
    take(attempt, line(0), line(10), line(100), line(110))
    assert node_of(attempt)["fields"]["cpu"]["mean"] == [0.5, 0.5, None, 0.5, 0.5]


def test_many_samples_are_buckets_in_which_no_peak_is_lost(attempt: Attempt) -> None:
    hours = 3
    samples = [line(i * SAMPLE_S + (i % 3) * 0.2, cpu=0.9 if i == 777 else 0.1) for i in range(hours * 360)]
    samples[500:600] = []
    take(attempt, *samples)
    node = node_of(attempt, points=100)
    assert len(node["t"]) <= 110 and node["bucket_s"] == pytest.approx(hours * 36, rel=0.01)
    cpu = node["fields"]["cpu"]
    assert max(value for value in cpu["max"] if value is not None) == pytest.approx(0.9)
    assert {value for value in cpu["min"] if value is not None} == {0.1}
    assert None in cpu["mean"]
    at = cpu["max"].index(max(value for value in cpu["max"] if value is not None))
    assert node["t"][at] == pytest.approx(BEGAN + 777 * SAMPLE_S, abs=node["bucket_s"])
    assert DeviceSamples.objects.count() == 3


def test_slightly_more_samples_than_points_leave_no_false_gaps(attempt: Attempt) -> None:
    take(attempt, *(line(i * SAMPLE_S + (i % 5) * 0.9) for i in range(330)))
    assert None not in node_of(attempt, points=300)["fields"]["cpu"]["mean"]


def test_only_what_is_newer_comes_when_asked_so(attempt: Attempt) -> None:
    take(attempt, *(line(i * SAMPLE_S) for i in range(10)))
    assert node_of(attempt, after=BEGAN + 75)["t"] == [BEGAN + 80, BEGAN + 90]
    assert device_samples.chart(attempt, after=BEGAN + 90)["nodes"] == []


def test_another_set_of_devices_begins_a_row_of_its_own(attempt: Attempt) -> None:
    gpu = {"0": {"utilisation": 0.8, "memory": 2**33, "memory_total": 2**34, "temperature": 60, "power": 250.5}}
    take(attempt, line(0, ranks={}), line(10), line(20, gpus=gpu))
    node = node_of(attempt)
    assert node["fields"]["rank0.cpu"]["mean"] == [None, 0.9, 0.9]
    assert node["fields"]["gpu0.power"]["mean"] == [None, None, 250.5]
    assert DeviceSamples.objects.count() == 3


def test_the_most_memory_of_ranks_and_gpus_is_kept(attempt: Attempt) -> None:
    take(attempt, line(0, gpus={"3": {"memory": 7}}), line(10, gpus={"3": {"memory": 5}}), node=1)
    attempt.refresh_from_db()
    assert attempt.peak_memory == {"rank0": 600_000_000, "1/gpu3": 7}
    assert device_samples.peak_of(attempt) == {"rank": 600_000_000, "gpu": 7}


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense\n",
        b"[]\n",
        b'{"kind":"other"}\n',
        line(5, ranks={"x": {}}),
        line(5, ranks=[]),
        line(5, at="yesterday"),
        line(5, ranks={str(i): {} for i in range(1000)}),
        line(0.5),
        line(-50),
        line(5, at="9999-12-31T23:59:59+00:00"),
        line(5, at="0001-01-01T00:00:00+23:00"),
    ],
)
def test_what_makes_no_sense_or_comes_too_fast_is_left_out(attempt: Attempt, body: bytes) -> None:
    take(attempt, line(0), body, line(10, cpu="inf"), line(20, cpu=1e300))
    node = node_of(attempt)
    assert node["t"] == [BEGAN, BEGAN + 10, BEGAN + 20] and node["fields"]["cpu"]["mean"] == [0.5, None, None]


def test_a_long_run_costs_few_queries(attempt: Attempt) -> None:
    take(attempt, *(line(i * SAMPLE_S) for i in range(2000)))
    with CaptureQueriesContext(
        connection,
    ) as queries:
        node_of(attempt)
    assert len(queries) <= 3
