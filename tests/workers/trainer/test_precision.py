"""Number formats and loss scaling, on CPU."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import paddle
import pytest

from workers.contract.training import LossScalingSettings, Precision
from workers.trainer.precision import Caster, LossScaler

# Paddle converts its scale to a number in a way that NumPy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


def scaling(**changes: Any) -> LossScalingSettings:
    return LossScalingSettings.model_validate({"init_scale": 1024.0, "growth_interval": 3, **changes})


class Step:
    """One parameter, one optimizer, and gradients of our choice."""

    def __init__(self, scaler: LossScaler) -> None:
        self.scaler = scaler
        self.layer = paddle.nn.Linear(1, 1)
        self.optimizer = paddle.optimizer.AdamW(0.1, parameters=self.layer.parameters())
        self.caster = Caster(Precision.FP16, self.layer)

    def __call__(self, *, overflow: bool) -> None:
        with self.caster.forward():
            loss = (self.layer.weight * (float("inf") if overflow else 1.0)).sum() + self.layer.bias.sum()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        assert self.scaler.found_inf is overflow
        if overflow:
            self.scaler.skip()
        else:
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.clear_grad()


def reference(settings: LossScalingSettings, overflows: list[bool]) -> list[float]:
    """The rules of dynamic loss scaling, in plain words."""
    scale, good, scales = settings.init_scale, 0, []
    for overflow in overflows:
        if overflow:
            scale, good = scale * settings.backoff_factor, 0
        else:
            good += 1
            if good == settings.growth_interval:
                scale, good = scale * settings.growth_factor, 0
        scale = min(max(scale, settings.floor), settings.ceiling)
        scales.append(scale)
    return scales


@pytest.mark.parametrize("seed", range(4))
def test_the_scale_follows_the_rules_with_floor_and_ceiling(seed: int) -> None:
    settings = scaling(floor=256.0, ceiling=4096.0, growth_factor=2.0, backoff_factor=0.5)
    draw = random.Random(seed)
    overflows = [draw.random() < (0.8 if i < 20 else 0.1) for i in range(50)]
    scaler = LossScaler(settings, enable=True)
    step, scales = Step(scaler), []
    for overflow in overflows:
        step(overflow=overflow)
        scales.append(scaler.value)
        assert scaler._scale.item() == scaler.value
    assert scales == reference(settings, overflows)
    assert {256.0, 4096.0} <= set(scales)


def test_at_the_floor_infinities_are_still_seen() -> None:
    """Paddle's own scaler halves down to zero, and then lets them through."""
    scaler = LossScaler(scaling(init_scale=2.0, floor=1.0), enable=True)
    step = Step(scaler)
    for _ in range(200):
        step(overflow=True)  # asserts found_inf
    assert scaler.value == 1.0


def test_scale_and_counters_survive_a_checkpoint() -> None:
    scaler = LossScaler(scaling(), enable=True)
    step = Step(scaler)
    for overflow in (True, False, False):
        step(overflow=overflow)
    fresh = LossScaler(scaling(), enable=True)
    fresh.restore(scaler.state() or {}, keep_scale=True)
    assert fresh.state() == scaler.state() == {"scale": 512.0, "incr_count": 2, "decr_count": 0}
    Step(fresh)(overflow=False)
    assert fresh.value == 1024.0  # the third good step in a row, two of them before the checkpoint


def test_a_scale_from_a_checkpoint_is_kept_within_todays_limits() -> None:
    fresh = LossScaler(scaling(ceiling=2048.0), enable=True)
    fresh.restore({"scale": 65536.0, "incr_count": 0, "decr_count": 0}, keep_scale=True)
    assert fresh.value == fresh._scale.item() == 2048.0


def test_an_interval_made_shorter_since_the_checkpoint_is_still_hit() -> None:
    fresh = LossScaler(scaling(growth_interval=3), enable=True)
    fresh.restore({"scale": 1024.0, "incr_count": 900, "decr_count": 0}, keep_scale=True)
    Step(fresh)(overflow=False)
    assert fresh.value == 2048.0


@pytest.mark.parametrize("mode", [Precision.FLOAT32, Precision.BF16])
def test_without_fp16_there_is_no_scale(mode: Precision) -> None:
    scaler = LossScaler(scaling(), enable=False)
    loss = paddle.ones([1])
    assert scaler.value is None
    assert scaler.state() is None
    assert scaler.scale(loss) is loss
    assert scaler.found_inf is False


def outputs(mode: Precision, values: list[float]) -> tuple[Any, Any, Caster]:
    layer = paddle.nn.Linear(1, 1)
    layer.weight.set_value(np.ones((1, 1), np.float32))
    layer.bias.set_value(np.zeros(1, np.float32))
    model = paddle.nn.Sequential(layer)
    caster = Caster(mode, model)
    x = paddle.to_tensor([[value] for value in values], stop_gradient=False)
    with caster.forward():
        return model(x), x, caster


def test_fp16_rounds_and_overflows_as_float16_does() -> None:
    values = [1.0001, 3.14159265, 70_000.0, 1e-8]
    y, _, caster = outputs(Precision.FP16, values)
    with np.errstate(over="ignore"):
        expected = np.array(values, np.float32).astype(np.float16).astype(np.float32)
    assert np.array_equal(y.numpy().ravel(), expected)
    assert np.isinf(y.numpy()[2])
    assert caster.emulated


def test_bf16_rounds_to_eight_bits_and_does_not_overflow_where_fp16_does() -> None:
    y, _, caster = outputs(Precision.BF16, [1.0001, 70_000.0])
    assert y.numpy().ravel().tolist() == [1.0, 70144.0]
    assert caster.emulated


def test_float32_is_left_alone() -> None:
    y, _, caster = outputs(Precision.FLOAT32, [1.0001])
    assert y.numpy()[0, 0] == np.float32(1.0001)
    assert not caster.emulated


def test_gradients_that_are_scaled_too_far_overflow_on_their_way_back() -> None:
    y, x, _ = outputs(Precision.FP16, [1.0])
    (y.sum() * 2.0**17).backward()
    assert np.isinf(x.grad.numpy()).all()


def test_an_export_is_free_of_rounding() -> None:
    layer = paddle.nn.Sequential(paddle.nn.Linear(1, 1))
    caster = Caster(Precision.FP16, layer)
    x = paddle.to_tensor([[1e6]])
    layer[0].weight.set_value(np.ones((1, 1), np.float32))
    assert np.isinf(layer(x).numpy()).all()
    caster.remove()
    assert np.isfinite(layer(x).numpy()).all()
