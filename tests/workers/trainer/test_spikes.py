"""What counts as a spike, against NumPy."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from workers.contract.training import SpikeSettings
from workers.trainer.spikes import Spikes


def detector(**changes: Any) -> Spikes:
    return Spikes(SpikeSettings(**{"window": 16, "active_after": 8, **changes}))


def noise(seed: int, count: int = 200) -> list[float]:
    return np.random.default_rng(seed).normal(1.0, 0.1, count).tolist()


def test_it_is_six_deviations_above_the_mean_of_the_latest_steps_without_spikes() -> None:
    spikes, kept = detector(), []
    values = noise(1)
    for step in (40, 41, 90, 150):
        values[step] *= 3
    for step, value in enumerate(values):
        spike = spikes.check(value, 1.0 + 0.01 * (step % 3))
        window = np.array(kept[-16:])
        expected = step >= 8 and value > window.mean() + 6 * window.std()
        assert (spike is not None) == expected == (step in (40, 41, 90, 150))
        if spike:
            assert (spike.what, spike.value) == ("loss", value)
            assert spike.sigmas == pytest.approx((value - window.mean()) / window.std())
        else:
            kept.append(value)


def test_a_norm_can_be_one_while_the_loss_is_not() -> None:
    spikes = detector()
    for value in noise(2, 30):
        assert spikes.check(value, value) is None
    spike = spikes.check(1.0, 5.0)
    assert spike is not None and spike.what == "grad_norm"


def test_falling_is_no_spike_and_neither_is_anything_before_it_is_active() -> None:
    spikes = detector(active_after=12)
    assert [spikes.check(1.0 + 0.01 * i if i != 11 else 50.0, 1.0) for i in range(12)] == [None] * 12
    assert detector().check(math.inf, 1.0) is None
    spikes = detector()
    for value in noise(3, 20):
        spikes.check(value, value)
    assert spikes.check(0.0, 0.0) is None


@pytest.mark.parametrize("seen", [7, 8])
def test_it_is_active_after_as_many_steps_as_were_set(seen: int) -> None:
    spikes = detector()
    for value in noise(8, seen):
        spikes.check(value, value)
    assert (spikes.check(50.0, 1.0) is not None) == (seen == 8)


def test_spikes_with_good_steps_between_them_are_no_new_level() -> None:
    spikes = detector()
    for value in noise(9, 30):
        spikes.check(value, value)
    found = [spikes.check(value * (10 if i % 2 else 1), value) for i, value in enumerate(noise(10, 60))]
    assert [spike is not None for spike in found] == [False, True] * 30


def test_a_new_level_becomes_what_is_normal() -> None:
    spikes = detector()
    for value in noise(4, 30):
        spikes.check(value, value)
    found = [spikes.check(10 * value, value) for value in noise(5, 40)]
    assert sum(spike is not None for spike in found) == 8
    assert found[9:] == [None] * 31


def test_what_was_seen_survives_a_checkpoint_exactly() -> None:
    for after in (5, 11, 73):
        whole, values = detector(), [value * (4 if i % 31 == 30 else 1) for i, value in enumerate(noise(6))]
        for value in values[:after]:
            whole.check(value, value)
        resumed = detector()
        resumed.restore(json.loads(json.dumps(whole.state())))
        assert [resumed.check(v, v) for v in values[after:]] == [whole.check(v, v) for v in values[after:]]


def test_a_window_of_another_size_takes_over_the_latest() -> None:
    before, after = detector(window=16), detector(window=8)
    for value in range(20):
        before.check(float(value), 1.0)
    after.restore(before.state())
    assert sorted(after.windows["loss"].values) == [float(value) for value in range(12, 20)]


def test_ignored_means_not_even_looked_for() -> None:
    spikes = detector(action="ignore")
    for value in noise(7, 30):
        spikes.check(value, value)
    assert spikes.check(100.0, 100.0) is None
