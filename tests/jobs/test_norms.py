"""How gradient norms are spread, of which steps, and where in the model they come from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jobs import norms
from jobs.models import Attempt, Job
from tests.jobs.records import line, record
from tests.jobs.steps.test_chart import _store
from tests.jobs.views.conftest import MINE, People, people  # noqa: F401

pytestmark = pytest.mark.django_db


def test_percentiles_are_those_of_the_finite_norms_after_the_warm_up(attempt: Attempt) -> None:
    attempt.plan = {"total_steps": 1000}  # a tenth of it is warm-up
    stored = [line(step, grad_norm=9.0 if step <= 100 else step / 100) for step in range(1, 301)]
    stored[150] = line(151, grad_norm=math.nan, clipped=True)
    _store(attempt, stored)
    found = norms.spread(attempt)
    assert found is not None
    expected = np.array([step / 100 for step in range(101, 301) if step != 151])
    assert found.percentiles == [
        (p, pytest.approx(value))
        for p, value in zip((10, 50, 90, 99), np.percentile(expected, (10, 50, 90, 99)), strict=True)
    ]
    assert (found.first, found.last, found.after_warmup) == (101, 300, True)
    assert (found.norms.finite, found.norms.non_finite) == (199, 1)
    assert [clip.max_norm for clip in found.clips if clip.suggested] == [2.9]
    clipped = [record(step)["clipped"] or step == 151 for step in range(101, 301)]
    assert found.clipped == pytest.approx(np.mean(clipped))


def test_while_there_is_only_warm_up_it_says_so(attempt: Attempt) -> None:
    attempt.plan = {"total_steps": 1000}
    _store(attempt, [line(step) for step in range(1, 41)])
    found = norms.spread(attempt)
    assert found is not None and not found.after_warmup and found.first == 1


def test_few_steps_say_nothing(attempt: Attempt) -> None:
    assert norms.spread(attempt) is None and norms.groups(attempt) is None
    _store(attempt, [line(step) for step in range(1, 15)])
    assert norms.spread(attempt) is None


def test_of_a_long_run_the_newest_steps_are_looked_at(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "NEWEST", 5000)
    _store(attempt, [line(step, grad_norm=float(step)) for step in range(1, 20_001)])
    found = norms.spread(attempt)
    assert found is not None and found.last == 20_000
    assert 5000 <= found.norms.finite < 15_000 and found.norms.max == 20_000


def test_groups_are_those_of_the_newest_record_that_has_them(attempt: Attempt) -> None:
    extras = {"norm:embeddings": 3.0, "norm:layers.0": 4.0, "zero_gradients": 0.25}
    stored = [line(step, extras=extras if step in (10, 20) else None) for step in range(1, 31)]
    for before_sealing in (True, False):
        _store(attempt, stored if before_sealing else [line(step) for step in range(31, 4200)])
        found = norms.groups(attempt)
        assert found is not None and (found.step, found.zeros) == (20, 0.25)
        assert [(group.name, group.norm) for group in found.groups] == [("embeddings", 3.0), ("layers.0", 4.0)]
        assert [group.share for group in found.groups] == [pytest.approx(9 / 25), pytest.approx(16 / 25)]


def test_a_group_that_is_not_finite_shows_as_what_it_is(people: People, job: Job, attempt: Attempt) -> None:  # noqa: F811
    extras = {"norm:embeddings": 3.0, "norm:layers.0": math.nan}
    _store(attempt, [*(line(step) for step in range(1, 60)), line(60, grad_norm=math.nan, extras=extras)])
    Attempt.objects.filter(pk=attempt.pk).update(attempted=60)
    url = f"/jobs/{job.pk}/?part=norms"
    assert people.ask(url) == MINE
    page = people.owner.get(url).text
    assert "By part of the model, at step 60" in page and "layers.0" in page and "NaN" in page
    assert "90th percentile" in page and "Steps clipped" in page


def extras_of(step: int, groups: int = 3) -> dict[str, float]:
    return {f"norm:layers.{i}": step * (i + 1) / 100 for i in range(groups)} | {"zero_gradients": 0.25}


def test_the_norms_of_groups_over_time_are_those_that_were_recorded_sealed_or_not(attempt: Attempt) -> None:
    nan = {"norm:layers.0": math.nan, "norm:layers.1": math.inf, "norm:layers.2": 1.5}
    stored = [
        line(step, extras=extras_of(step) if step % 50 == 0 else nan if step == 4101 else None)
        for step in range(1, 4301)
    ]
    for part in (stored[:3000], stored[3000:]):
        _store(attempt, part)
    answer = norms.over_time(attempt, 0)
    assert (answer["bucket"], answer["every"]) == (1, 1)
    assert answer["step"] == sorted([*range(50, 4301, 50), 4101])
    assert [group["name"] for group in answer["groups"]] == ["layers.0", "layers.1", "layers.2"]
    at = answer["step"].index(4101)
    assert [group["norm"][at] for group in answer["groups"]] == [None, None, 1.5]
    assert [group["non_finite"] for group in answer["groups"]] == [[[4101, 1, 0]], [[4101, 0, 1]], []]
    assert answer["groups"][1]["norm"][0] == 1.0 and answer["zeros"][0] == 0.25 and answer["zeros"][at] is None
    zoomed = norms.over_time(attempt, 0, first=200, last=320)
    assert zoomed["step"] == [200, 250, 300]
    assert norms.over_time(attempt, 1)["step"] == []


def test_of_many_records_a_point_has_the_greatest_and_every_nan(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "POINTS", 10)
    stored = [
        line(step, extras={"norm:a": math.nan if step == 37 else float(step), "zero_gradients": 0.5})
        for step in range(1, 101)
    ]
    _store(attempt, stored)
    answer = norms.over_time(attempt, 0)
    assert answer["bucket"] == 10 and answer["step"] == list(range(10, 101, 10))
    (group,) = answer["groups"]
    assert group["norm"] == list(range(10, 101, 10)) and group["non_finite"] == [[40, 1, 0]]
    assert answer["zeros"] == [0.5] * 10


def test_of_a_run_of_many_blocks_only_some_are_read_and_it_says_so(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "MOST_BLOCKS", 2)
    _store(
        attempt, [line(step, extras={"norm:a": 1.0} if step % 1000 == 0 else None) for step in range(1, 4096 * 4 + 1)]
    )
    answer = norms.over_time(attempt, 0)
    assert answer["every"] == 2 and answer["step"][-1] == 16_000 and 4000 < len(answer["step"]) * 1000 < 16_000


def test_the_chart_of_groups_is_for_who_may_see_the_job(people: People, job: Job, attempt: Attempt) -> None:  # noqa: F811
    url = f"/jobs/{job.pk}/norms/"
    assert people.ask(url) == MINE
    assert people.owner.get(url).json()["groups"] == []
    _store(attempt, [line(step, extras=extras_of(step) if step % 10 == 0 else None) for step in range(1, 60)])
    assert people.owner.get(f"{url}?first=15&last=x").json()["step"] == [20, 30, 40, 50]
    assert 'data-norms="' in people.owner.get(f"/jobs/{job.pk}/").text
