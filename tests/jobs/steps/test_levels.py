from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.steps import levels, packed
from tests.jobs.records import line


class _Field:
    """The statistics of one field."""

    def __init__(self, buckets: levels.Buckets, field: str) -> None:
        self.buckets, self.row = buckets, buckets.fields.index(field)

    def __getattr__(self, name: str) -> np.ndarray:
        return getattr(self.buckets, name)[self.row]


values = st.one_of(st.floats(-1e6, 1e6, width=32), st.sampled_from([math.nan, math.inf, -math.inf, None]))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(values, st.booleans()), min_size=1, max_size=120), st.sampled_from([1, 3, 16, 64]))
def test_buckets_equal_brute_force(drawn: list[tuple[float | None, bool]], width: int) -> None:
    body = b"".join(line(step, loss_all=value, clipped=clipped) for step, (value, clipped) in enumerate(drawn, 1))
    buckets = levels.by_width(levels.of_records(packed.parse(body).matrix, 0), width)
    back = levels.decode(levels.encode(buckets))
    assert back.start.tolist() == list(range(0, len(drawn), width))
    for index, at in enumerate(range(0, len(drawn), width)):
        part = [value for value, _ in drawn[at : at + width]]
        finite = [value for value in part if value is not None and math.isfinite(value)]
        stats = _Field(back, "loss_all")
        assert stats.finite[index] == len(finite)
        assert stats.nan[index] == sum(value is not None and math.isnan(value) for value in part)
        assert stats.pos_inf[index] == part.count(math.inf)
        assert stats.neg_inf[index] == part.count(-math.inf)
        if finite:
            assert (stats.min[index], stats.max[index]) == (min(finite), max(finite))
            assert math.isclose(stats.mean[index], sum(finite) / len(finite), rel_tol=1e-5, abs_tol=1e-1)
        else:
            assert math.isnan(stats.min[index]) and math.isnan(stats.mean[index])
        assert back.clipped[index] == sum(clipped for _, clipped in drawn[at : at + width])
        assert back.first_step[index] == at + 1
        assert back.last_step[index] == min(at + width, len(drawn))


def test_the_mean_of_huge_values_does_not_overflow() -> None:
    body = b"".join(line(step, loss=1.6e308) for step in range(1, 17))
    buckets = levels.by_width(levels.of_records(packed.parse(body).matrix, 0), 16)
    back = _Field(levels.decode(levels.encode(buckets), ["lr", "loss"]), "loss")
    assert math.isclose(back.mean[0], 1.6e308) and back.max[0] == 1.6e308


def test_joined_levels_are_the_levels_of_the_whole() -> None:
    body = b"".join(line(step, loss=step * 0.5) for step in range(1, 129))
    matrix = packed.parse(body).matrix
    whole = levels.by_width(levels.of_records(matrix, 0), 16)
    halves = [levels.by_width(levels.of_records(matrix[at : at + 64], at), 16) for at in (0, 64)]
    joined = levels.joined(halves)
    for name in ("start", "first_step", "last_step", "clipped"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name))
    assert np.array_equal(joined.max, whole.max)
