"""Each mode of clipping against NumPy in float64, written from its definition."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import paddle
import pytest

from tests.workers.trainer.test_gradients import norms, parameters
from workers.contract.training import ClippingSettings
from workers.trainer import gradients
from workers.trainer.clipping import Clipper

ARRAYS = [np.arange(6.0).reshape(2, 3) - 2, np.array([7.0]), np.zeros((3, 2)), np.array([1e-3, -1e-3])]


def clip(arrays: list[Any], spared: tuple[int, ...] = (), **settings: Any) -> tuple[bool, list[Any]]:
    """Whether anything was clipped, and the gradients afterwards."""
    made = parameters(*arrays)
    for number in spared:
        made[number].need_clip = False
    grads = gradients.of(made)
    clipped = Clipper(ClippingSettings(**settings), made).clip(grads, norms(grads))
    return clipped, [parameter.grad.numpy() for parameter in made]


def by_global_norm(arrays: list[Any], limit: float, spared: tuple[int, ...] = ()) -> list[Any]:
    norm = np.sqrt(sum((array**2).sum() for i, array in enumerate(arrays) if i not in spared))
    factor = min(1.0, limit / norm) if norm else 1.0
    return [array if i in spared else array * factor for i, array in enumerate(arrays)]


def same(got: list[Any], expected: list[Any]) -> bool:
    return all(np.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("limit", [0.5, 3.0, 100.0])
@pytest.mark.parametrize("spared", [(), (1,), (0, 1, 2, 3)])
def test_global_norm(limit: float, spared: tuple[int, ...]) -> None:
    clipped, got = clip(ARRAYS, spared, max_norm=limit)
    expected = by_global_norm(ARRAYS, limit, spared)
    assert same(got, expected)
    assert clipped == (not same(expected, ARRAYS))


def test_the_limit_is_met_exactly_however_small_it_is() -> None:
    """Nothing is added to the norm that is divided by: an epsilon of 1e-6 would be a tenth of this one."""
    arrays = [np.array([6e-6, 0.0]), np.array([8e-6])]
    _, got = clip(arrays, max_norm=1e-6)
    assert same(got, by_global_norm(arrays, 1e-6))


@pytest.mark.parametrize("spared", [(), (1,)])
def test_global_norm_equals_paddles_own(spared: tuple[int, ...]) -> None:
    made = parameters(*ARRAYS)
    for number in spared:
        made[number].need_clip = False
    theirs = paddle.nn.ClipGradByGlobalNorm(1.5)([(parameter, parameter.grad) for parameter in made])
    _, got = clip(ARRAYS, spared, max_norm=1.5)
    assert same(got, [grad.numpy() for _, grad in theirs])


@pytest.mark.parametrize("limit", [0.5, 5.0, 100.0])
def test_per_tensor_norm(limit: float) -> None:
    clipped, got = clip(ARRAYS, (2,), mode="per_tensor", max_norm=limit)
    expected = [array * min(1.0, limit / (np.sqrt((array**2).sum()) or 1.0)) for array in ARRAYS]
    assert same(got, expected)
    assert clipped == (limit < 100)


@pytest.mark.parametrize("limit", [0.5, 3.0, 100.0])
def test_value(limit: float) -> None:
    clipped, got = clip(ARRAYS, (1,), mode="value", max_value=limit)
    expected = [array if i == 1 else np.clip(array, -limit, limit) for i, array in enumerate(ARRAYS)]
    assert same(got, expected)
    assert clipped == (limit < 3), "the 7 is spared, the largest of the others is 3"


@pytest.mark.parametrize("settings", [{"mode": "none"}, {"max_norm": None}, {"mode": "per_tensor", "max_norm": None}])
def test_none(settings: dict[str, Any]) -> None:
    assert Clipper(ClippingSettings(**settings), []).limit is None
    clipped, got = clip(ARRAYS, **settings)
    assert not clipped and same(got, ARRAYS)


@pytest.mark.parametrize("arrays", [[np.array([1e30, -2e30]), np.array([3.0])], [np.full((40, 50), 3e38)]])
def test_gradients_whose_norm_overflows_float32_are_clipped_to_length(arrays: list[Any]) -> None:
    clipped, got = clip(arrays, max_norm=1.0)
    arrays = [np.asarray(array, np.float32).astype(np.float64) for array in arrays]
    assert clipped and same(got, by_global_norm(arrays, 1.0))


def test_without_any_gradient_nothing_happens() -> None:
    made = [paddle.create_parameter([2], "float32")]
    for mode in ("global_norm", "per_tensor", "value", "zclip"):
        clipper = Clipper(ClippingSettings(mode=mode), made)
        assert clipper.clip(gradients.Gradients([], []), np.zeros(0)) is False


# --- modes that learn ----------------------------------------------------------------------


def history(seed: int, count: int = 120) -> list[float]:
    draw = np.random.default_rng(seed)
    found = draw.lognormal(0.0, 0.3, count)
    found[::17] *= 20.0
    return found.tolist()


class Stream:
    """One gradient of a given norm after the other."""

    def __init__(self, **settings: Any) -> None:
        self.clipper = Clipper(ClippingSettings(**settings), [])

    def __call__(self, norm: float) -> tuple[float | None, float]:
        """The limit that was in force, and the norm afterwards."""
        grads = gradients.of(parameters([norm]))
        limit = self.clipper.limit
        clipped = self.clipper.clip(grads, norms(grads))
        after = grads.tensors[0].item()
        assert clipped == (after < float(np.float32(norm)))
        return limit, after


def zclip(values: list[float], alpha: float, z_limit: float, warmup: int, most: float) -> list[float]:
    """Norms after clipping, from the paper: the mean and variance are fed with what was left."""
    after, mean, variance = [], 0.0, 0.0
    for i, norm in enumerate(values):
        if i < warmup:
            after.append(min(norm, most))
            mean, variance = np.mean(after), np.var(after)
            continue
        z = (norm - mean) / (np.sqrt(variance) + 1e-6)
        left = norm if z <= z_limit else mean + z_limit**2 / z * np.sqrt(variance)
        left = min(left, most)
        mean = alpha * mean + (1 - alpha) * left
        variance = alpha * variance + (1 - alpha) * (left - mean) ** 2
        after.append(left)
    return after


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("most", [None, 1.5])
def test_zclip(seed: int, most: float | None) -> None:
    values, stream = history(seed), Stream(mode="zclip", max_norm=most)
    after = [stream(norm)[1] for norm in values]
    assert after == pytest.approx(zclip(values, 0.97, 2.5, 25, most or np.inf), rel=1e-5)


def test_zclips_limit_is_not_raised_by_a_spike() -> None:
    stream = Stream(mode="zclip", max_norm=None)
    for norm in history(3, 16) * 3:
        stream(min(norm, 2.0))
    before, after = stream(1.0)[0], stream(1e6)[1]
    assert before is not None and after < before
    assert stream(1.0)[0] == pytest.approx(before, rel=0.1)


def test_autoclip_is_the_percentile_of_the_latest_norms() -> None:
    values, stream = history(5), Stream(mode="autoclip", max_norm=None, percentile=80, history=50, adaptive_warmup=10)
    for i, norm in enumerate(values):
        limit, after = stream(norm)
        latest = np.asarray(values[max(0, i - 50) : i], np.float32)
        expected = np.percentile(latest, 80) if i >= 10 else None
        assert limit == (None if expected is None else pytest.approx(expected, rel=1e-5))
        assert after == pytest.approx(norm if expected is None else min(norm, expected), rel=1e-5)


def test_the_most_that_is_allowed_holds_in_adaptive_modes_from_the_first_step() -> None:
    for mode in ("zclip", "autoclip"):
        stream = Stream(mode=mode, max_norm=0.5)
        for norm in history(1, 40):
            limit, after = stream(norm)
            assert limit is not None and limit <= 0.5 and after <= 0.5 + 1e-6


@pytest.mark.parametrize("mode", ["zclip", "autoclip"])
@pytest.mark.parametrize("after", [7, 60])
def test_what_was_learnt_survives_a_checkpoint_exactly(mode: str, after: int) -> None:
    whole, values = Stream(mode=mode, max_norm=None, history=30), history(9)
    for norm in values[:after]:
        whole(norm)
    resumed = Stream(mode=mode, max_norm=None, history=30)
    resumed.clipper.restore(json.loads(json.dumps(whole.clipper.state())))
    assert [resumed(norm) for norm in values[after:]] == [whole(norm) for norm in values[after:]]


@pytest.mark.parametrize("mode", ["zclip", "autoclip"])
def test_a_limit_is_in_force_after_as_many_steps_as_were_set_and_not_before(mode: str) -> None:
    stream = Stream(mode=mode, max_norm=None, adaptive_warmup=7)
    assert [stream(norm)[0] is None for norm in history(2, 20)] == [True] * 7 + [False] * 13


def test_what_was_learnt_in_another_mode_is_not_taken_over() -> None:
    learnt = Stream(mode="zclip")
    learnt(1.0)
    other = Stream(mode="autoclip")
    for state in (learnt.clipper.state(), None):
        other.clipper.restore(state)
        assert other.clipper.state() == {"mode": "autoclip", "latest": []}
