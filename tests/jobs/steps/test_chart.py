from __future__ import annotations

import math
from typing import Any

import orjson
import pytest

from jobs.models import Attempt, Cursor, StepBlock, StepTail
from jobs.steps import chart, packed, read, store
from jobs.steps.runs import Run, extended
from tests.jobs.records import line

pytestmark = pytest.mark.django_db


def _store(attempt: Attempt, stored: list[bytes], *, rank: int = 0, batch: int = 700, sealing: bool = True) -> None:
    cursor, _ = Cursor.objects.get_or_create(attempt=attempt, rank=rank, kind="steps")
    for at in range(0, len(stored), batch):
        body = b"".join(stored[at : at + batch])
        parsed = packed.parse(body)
        store.append(attempt.pk, rank, cursor.lines, parsed)
        runs = extended([Run(**run) for run in cursor.state.get("runs", [])], parsed.matrix, cursor.lines)
        cursor.state = {"runs": [run.to_json() for run in runs], "newest": parsed.record(len(parsed) - 1)}
        cursor.lines += len(parsed)
    cursor.save()
    if sealing:
        for tail in store.overlong():
            store.seal(tail)


def test_an_attempt_without_records_has_an_empty_chart(attempt: Attempt) -> None:
    result = chart.series(attempt, 0)
    assert result["step"] == [] and result["newest"] is None
    assert result["available"] == {"first": None, "last": None, "records": 0}
    assert set(result["fields"]) == set(packed.CHARTED)


def test_few_records_are_points_of_their_own_with_exact_values(attempt: Attempt) -> None:
    _store(attempt, [line(1, loss=0.25), line(2, loss=math.nan), line(3, loss=math.inf), line(4, loss_all=None)])
    result = chart.series(attempt, 0, fields=["loss", "loss_all"])
    assert result["bucket"] == 1 and result["step"] == result["first_step"] == [1, 2, 3, 4]
    assert result["fields"]["loss"]["mean"][:3] == [0.25, "nan", "inf"]
    assert result["fields"]["loss"]["non_finite"] == [[2, 1, 0, 0], [3, 0, 1, 0]]
    assert result["fields"]["loss_all"]["mean"][3] is None and result["fields"]["loss_all"]["non_finite"] == []
    assert "min" not in result["fields"]["loss"]
    assert result["newest"]["step"] == 4
    assert set(result["fields"]) == {"loss", "loss_all"}
    orjson.dumps(result)


def test_a_spike_a_nan_a_skip_and_the_newest_step_survive_any_zoom(attempt: Attempt) -> None:
    stored = [line(step, loss=0.5, clipped=False) for step in range(1, 20_001)]
    stored[7776] = line(7777, loss=123.0, clipped=True)
    stored[8887] = line(8888, loss=math.nan)
    stored[9998] = line(9999, grad_norm=-math.inf, skipped="found_inf", found_inf=True, clipped=False)
    stored[19_999] = line(20_000, loss=0.125, clipped=False)
    _store(attempt, stored)
    assert StepBlock.objects.count() == 4 and StepTail.objects.count() == 1
    for points in (10, 100, 300, 1000, 5000):
        result = chart.series(attempt, 0, points=points)
        loss, steps = result["fields"]["loss"], result["step"]
        assert len(steps) <= points + 1 and steps == sorted(set(steps))
        assert max(v for v in loss["max"] if not isinstance(v, str)) == 123.0
        (nan,) = loss["non_finite"]
        assert nan[1:] == [1, 0, 0] and nan[0] >= 8888 > nan[0] - result["bucket"]
        (skip,) = result["marks"]["skipped"]
        assert skip[0] >= 9999 > skip[0] - result["bucket"] and skip[1] == 1
        assert [count for _, count in result["marks"]["clipped"]] == [1]
        assert [count for _, count in result["marks"]["found_inf"]] == [1]
        assert result["fields"]["grad_norm"]["non_finite"][0][3] == 1
        assert steps[-1] == 20_000 and loss["min"][-1] == 0.125
        assert result["newest"]["step"] == 20_000


def test_zooming_in_ends_at_single_records(attempt: Attempt) -> None:
    stored = [line(step) for step in range(1, 9001)]
    _store(attempt, stored)
    result = chart.series(attempt, 0, first=4090, last=4110, fields=["loss"])
    assert result["step"] == list(range(4090, 4111))
    assert result["fields"]["loss"]["mean"] == [orjson.loads(text)["loss"] for text in stored[4089:4110]]
    result = chart.series(attempt, 0, first=100, last=8999, points=100)
    assert result["first_step"][0] == 100 and result["step"][-1] == 8999
    assert chart.series(attempt, 0, first=9500)["step"] == []
    assert chart.series(attempt, 0, last=0)["step"] == []


def test_buckets_equal_brute_force_at_every_width(attempt: Attempt) -> None:
    stored = [line(step) for step in range(1, 10_001)]
    _store(attempt, stored)
    values = [orjson.loads(text)["grad_norm"] for text in stored]
    for points in (3, 30, 200, 900):
        result = chart.series(attempt, 0, points=points, fields=["grad_norm"])
        field = result["fields"]["grad_norm"]
        for index, (first, last) in enumerate(zip(result["first_step"], result["step"], strict=True)):
            part = values[first - 1 : last]
            assert math.isclose(field["min"][index], min(part), rel_tol=1e-6)
            assert math.isclose(field["max"][index], max(part), rel_tol=1e-6)
            assert math.isclose(field["mean"][index], sum(part) / len(part), rel_tol=1e-6)
        assert sum(result["step"][i] - result["first_step"][i] + 1 for i in range(len(result["step"]))) == 10_000


def test_an_attempt_that_goes_on_from_a_checkpoint_starts_at_its_step(attempt: Attempt) -> None:
    _store(attempt, [line(step) for step in range(100_001, 106_001)])
    result = chart.series(attempt, 0, first=104_000, last=104_003, fields=["loss"])
    assert result["step"] == [104_000, 104_001, 104_002, 104_003]
    assert result["available"] == {"first": 100_001, "last": 106_000, "records": 6000}


def test_a_rewind_replaces_what_came_after_and_keeps_it_apart(attempt: Attempt) -> None:
    stored = [line(step, loss=1.0) for step in range(1, 6001)]
    stored[5499] = line(5500, loss=math.nan)
    stored += [line(step, seg=1, loss=2.0) for step in range(5001, 7001)]
    _store(attempt, stored)
    result = chart.series(attempt, 0, points=10_000, fields=["loss"])
    assert result["step"] == list(range(1, 7001)) and result["bucket"] == 1
    assert result["fields"]["loss"]["mean"] == [1.0] * 5000 + [2.0] * 2000
    (old,) = result["rewound"]
    assert (old["step"][0], old["step"][-1], old["seg"]) == (5001, 6000, 0)
    assert old["fields"]["loss"]["non_finite"] == [[5500, 1, 0, 0]]
    wide = chart.series(attempt, 0, points=50, fields=["loss"])
    assert wide["fields"]["loss"]["non_finite"] == [] and wide["fields"]["loss"]["max"][-1] == 2.0
    assert wide["rewound"][0]["fields"]["loss"]["non_finite"][0][1] == 1


def test_missing_steps_do_not_confuse_the_zoom(attempt: Attempt) -> None:
    _store(attempt, [line(step) for step in range(10, 60_001, 10)])
    result = chart.series(attempt, 0, first=45_005, last=45_050)
    assert result["step"] == [45_010, 45_020, 45_030, 45_040, 45_050]


def test_lines_that_are_no_records_do_not_stop_the_chart(attempt: Attempt) -> None:
    stored = [line(step) for step in range(1, 5001)]
    stored[10] = b"broken\n"
    stored[4500] = b"{}\n"
    _store(attempt, stored)
    assert list(read.lines(attempt, 0)) == stored
    assert len(read.records(attempt, 0)) == 4998
    result = chart.series(attempt, 0, points=10_000)
    assert 11 not in result["step"] and len(result["step"]) == 4998


def test_records_after_a_step(attempt: Attempt) -> None:
    stored = [line(step, loss=math.nan if step == 4200 else 0.5) for step in range(1, 5001)]
    _store(attempt, stored)
    assert [record["step"] for record in read.records(attempt, 0, 4990, 4)] == [4991, 4992, 4993, 4994]
    (record,) = read.records(attempt, 0, 4199, 1)
    assert math.isnan(record["loss"])


def test_many_small_batches_become_one_row(attempt: Attempt) -> None:
    stored = [line(step) for step in range(1, 101)]
    _store(attempt, stored, batch=1)
    assert StepTail.objects.count() == 1
    assert list(read.lines(attempt, 0)) == stored


def test_sealing_between_the_reads_of_a_chart_hides_and_doubles_nothing(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    _store(attempt, [line(step) for step in range(1, 9001)], sealing=False)
    original = chart.from_bytes

    def sealing(body: bytes) -> Any:
        for tail in store.overlong():
            store.seal(tail)
        return original(body)

    monkeypatch.setattr(chart, "from_bytes", sealing)
    assert chart.series(attempt, 0, points=10_000)["step"] == list(range(1, 9001))
    assert StepBlock.objects.count() == 2


def test_a_rewind_within_a_batch_can_be_stored_and_the_steps_after_it_are_one_history(attempt: Attempt) -> None:
    stored = [line(step, seg=int(step > 7), applied=step if step <= 7 else step - 4) for step in range(1, 13)]
    _store(attempt, stored)
    runs = Cursor.objects.get(attempt=attempt).state["runs"]
    assert [(run["seg"], run["first_step"], run["last_step"], run["dense"]) for run in runs] == [
        (0, 1, 7, True),
        (1, 8, 12, True),
    ]
    result = chart.series(attempt, 0)
    assert result["step"] == list(range(1, 13)) and result["rewound"] == []
