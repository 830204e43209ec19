"""Number formats and loss scaling, on CPU."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import settings as property_settings
from hypothesis import strategies as st
from paddle.amp.auto_cast import amp_global_state
from pydantic import ValidationError

from workers.contract.training import LossScalingSettings, Precision, PrecisionSettings
from workers.trainer.precision import Caster, LossScaler, _cpu_allowed, resolved

# Paddle converts its scale to a number in a way that NumPy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


def scaling(**changes: Any) -> LossScalingSettings:
    return LossScalingSettings.model_validate({"init_scale": 1024.0, "growth_interval": 3, **changes})


def caster(model: Any, mode: Precision = Precision.FP16, **settings: Any) -> Caster:
    return Caster(PrecisionSettings(mode=mode, **settings), model)


class Step:
    """One parameter, one optimizer, and gradients of our choice."""

    def __init__(self, scaler: LossScaler) -> None:
        self.scaler = scaler
        self.layer = paddle.nn.Linear(1, 1)
        self.optimizer = paddle.optimizer.AdamW(0.1, parameters=self.layer.parameters())
        self.caster = caster(self.layer)

    def __call__(self, *, overflow: bool) -> None:
        with self.caster.forward():
            loss = (self.layer.weight * (float("inf") if overflow else 1.0)).sum() + self.layer.bias.sum()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        assert [bool(found) for found in self.scaler.flag()] == [overflow]
        if overflow:
            self.scaler.skip(overflow=True)
        else:
            self.scaler.apply(self.optimizer)
        self.scaler.update()
        self.optimizer.clear_grad()


def reference(settings: LossScalingSettings, overflows: list[bool]) -> list[float]:
    """The rules of dynamic loss scaling, in plain words."""
    scale, good, bad, scales = settings.init_scale, 0, 0, []
    for overflow in overflows:
        if overflow:
            good, bad = 0, bad + 1
            if bad == settings.hysteresis:
                scale, bad = scale * settings.backoff_factor, 0
        else:
            good, bad = good + 1, 0
            if good == settings.growth_interval:
                scale, good = scale * settings.growth_factor, 0
        scale = min(max(scale, settings.floor), settings.ceiling)
        scales.append(scale)
    return scales


def run_through(scaler: LossScaler, overflows: list[bool]) -> list[float | None]:
    step, scales = Step(scaler), []
    for overflow in overflows:
        step(overflow=overflow)
        scales.append(scaler.value)
        assert scaler._scale.item() == scaler.value
    return scales


HISTORIES = st.lists(st.booleans(), min_size=1, max_size=40)
SETTINGS = st.builds(
    scaling,
    growth_interval=st.integers(1, 5),
    hysteresis=st.integers(1, 4),
    growth_factor=st.sampled_from([2.0, 4.0, 1.5]),
    backoff_factor=st.sampled_from([0.5, 0.25, 0.75]),
    floor=st.sampled_from([1.0, 256.0, 1024.0]),
    ceiling=st.sampled_from([1024.0, 4096.0, 2.0**24]),
)
thorough = property_settings(max_examples=40, deadline=None)


@thorough
@given(SETTINGS, HISTORIES)
def test_the_scale_follows_the_rules_through_any_history(settings: LossScalingSettings, overflows: list[bool]) -> None:
    scales = run_through(LossScaler(settings, enable=True), overflows)
    assert scales == pytest.approx(reference(settings, overflows), rel=1e-6)


@thorough
@given(SETTINGS, HISTORIES, HISTORIES)
def test_scale_and_counters_survive_a_checkpoint_at_any_step(
    settings: LossScalingSettings, before: list[bool], after: list[bool]
) -> None:
    whole, fresh = LossScaler(settings, enable=True), LossScaler(settings, enable=True)
    run_through(whole, before)
    fresh.restore(json.loads(json.dumps(whole.state())), keep_scale=True)
    assert fresh.state() == whole.state()
    assert run_through(fresh, after) == run_through(whole, after)


@property_settings(max_examples=25, deadline=None)
@given(HISTORIES, st.integers(1, 3))
def test_without_floor_and_ceiling_in_reach_it_is_paddles_own_scaler(overflows: list[bool], hysteresis: int) -> None:
    settings = scaling(init_scale=2.0**15, floor=2.0**-60, ceiling=2.0**60, hysteresis=hysteresis)
    with _cpu_allowed():
        theirs = paddle.amp.GradScaler(
            init_loss_scaling=2.0**15, incr_every_n_steps=3, decr_every_n_nan_or_inf=hysteresis
        )
    scales = []
    layer = paddle.nn.Linear(1, 1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    for overflow in overflows:
        with caster(paddle.nn.ReLU()).forward():
            loss = (layer.weight * (float("inf") if overflow else 1.0)).sum() + layer.bias.sum()
        theirs.scale(loss).backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.clear_grad()
        scales.append(theirs._scale.item())
    assert run_through(LossScaler(settings, enable=True), overflows) == scales


def test_at_the_floor_infinities_are_still_seen() -> None:
    """Paddle's own scaler halves down to zero, and then lets them through."""
    scaler = LossScaler(scaling(init_scale=2.0, floor=1.0), enable=True)
    step = Step(scaler)
    for _ in range(200):
        step(overflow=True)  # asserts found_inf
    assert scaler.value == 1.0


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
    assert scaler.flag() == []


def outputs(mode: Precision, values: list[float]) -> tuple[Any, Any, Caster]:
    layer = paddle.nn.Linear(1, 1)
    layer.weight.set_value(np.ones((1, 1), np.float32))
    layer.bias.set_value(np.zeros(1, np.float32))
    model = paddle.nn.Sequential(layer)
    rounding = caster(model, mode)
    x = paddle.to_tensor([[value] for value in values], stop_gradient=False)
    with rounding.forward():
        return model(x), x, rounding


def test_fp16_rounds_and_overflows_as_float16_does() -> None:
    values = [1.0001, 3.14159265, 70_000.0, 1e-8]
    y, _, rounding = outputs(Precision.FP16, values)
    with np.errstate(over="ignore"):
        expected = np.array(values, np.float32).astype(np.float16).astype(np.float32)
    assert np.array_equal(y.numpy().ravel(), expected)
    assert np.isinf(y.numpy()[2])
    assert rounding.emulated


def test_bf16_rounds_to_eight_bits_and_does_not_overflow_where_fp16_does() -> None:
    y, _, rounding = outputs(Precision.BF16, [1.0001, 70_000.0])
    assert y.numpy().ravel().tolist() == [1.0, 70144.0]
    assert rounding.emulated


def test_float32_is_left_alone() -> None:
    y, _, rounding = outputs(Precision.FLOAT32, [1.0001])
    assert y.numpy()[0, 0] == np.float32(1.0001)
    assert not rounding.emulated


def test_gradients_that_are_scaled_too_far_overflow_on_their_way_back() -> None:
    y, x, _ = outputs(Precision.FP16, [1.0])
    (y.sum() * 2.0**17).backward()
    assert np.isinf(x.grad.numpy()).all()


def test_an_export_is_free_of_rounding() -> None:
    layer = paddle.nn.Sequential(paddle.nn.Linear(1, 1))
    rounding = caster(layer)
    x = paddle.to_tensor([[1e6]])
    layer[0].weight.set_value(np.ones((1, 1), np.float32))
    assert np.isinf(layer(x).numpy()).all()
    rounding.remove()
    assert np.isfinite(layer(x).numpy()).all()


def test_auto_is_float32_on_cpu() -> None:
    rounding = caster(paddle.nn.Linear(1, 1), Precision.AUTO)
    assert rounding.mode is Precision.FLOAT32 and not rounding.emulated


@pytest.mark.parametrize(
    ("capability", "mode"),
    [((6, 1), "float32"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")],
)
def test_auto_on_a_gpu_is_what_its_tensor_cores_take(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], mode: str
) -> None:
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(paddle.device.cuda, "get_device_capability", lambda: capability)
    assert resolved(Precision.AUTO) == mode
    assert resolved(Precision.FLOAT32) is Precision.FLOAT32


def test_no_forward_pass_leaves_its_number_format_to_the_next_job() -> None:
    for mode, left in ((Precision.FP16, "float16"), (Precision.BF16, "bfloat16"), (Precision.FLOAT32, "float32")):
        with caster(paddle.nn.ReLU(), mode).forward():
            assert amp_global_state().amp_dtype == left


class Layers(paddle.nn.Layer):
    """Four kinds of layers, and what came out of each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = paddle.nn.Embedding(4, 8), paddle.nn.Linear(8, 8)
        self.norm, self.gelu = paddle.nn.LayerNorm(8), paddle.nn.GELU()

    def forward(self, ids: Any) -> dict[str, Any]:
        out = {"embedding": self.embedding(ids)}
        out["linear"] = self.linear(out["embedding"])
        out["norm"] = self.norm(out["linear"])
        return out | {"gelu": self.gelu(out["norm"])}


@pytest.mark.parametrize(
    ("settings", "rounded"),
    [
        ({}, {"linear"}),
        ({"white_list": "layer_norm, gelu"}, {"linear", "norm", "gelu"}),
        ({"black_list": "matmul_v2"}, set()),
        ({"level": "O2"}, {"linear", "gelu"}),
        ({"level": "O2", "black_list": "gelu", "white_list": "embedding"}, {"embedding", "linear"}),
    ],
)
def test_level_and_lists_say_whose_outputs_are_in_half_precision(settings: dict[str, Any], rounded: set[str]) -> None:
    paddle.seed(5)
    model = Layers()
    caster(model, **settings)
    values = {name: value.numpy() for name, value in model(paddle.to_tensor([0, 1, 2])).items()}
    exact = {name for name, value in values.items() if np.array_equal(value, value.astype(np.float16))}
    assert exact == rounded


def test_an_operator_cannot_be_on_both_lists() -> None:
    with pytest.raises(ValidationError, match="softmax"):
        PrecisionSettings(white_list="gelu, softmax", black_list="softmax")


def one_weight(value: float, **settings: Any) -> tuple[Any, Caster]:
    layer = paddle.nn.Linear(1, 1, bias_attr=False)
    layer.weight.set_value(np.full((1, 1), value, np.float32))
    return layer, caster(layer, level="O2", **settings)


def test_o2_computes_with_weights_in_half_precision_and_keeps_them_in_float32() -> None:
    layer, rounding = one_weight(1.0001)
    with rounding.weights():
        assert layer.weight.item() == 1.0
    rounding.after_step()
    assert layer.weight.item() == pytest.approx(1.0001, abs=1e-7)


def test_o2_without_master_weights_loses_small_steps() -> None:
    layer, rounding = one_weight(1.0001, master_weights=False)
    assert layer.weight.item() == 1.0
    layer.weight.set_value(np.full((1, 1), 1.0004, np.float32))
    rounding.after_step()
    assert layer.weight.item() == 1.0


@pytest.mark.parametrize("master_grad", [True, False])
def test_o2_without_master_gradients_overflows_where_gradients_are_added_up(master_grad: bool) -> None:
    layer, rounding = one_weight(1.0, master_grad=master_grad)
    with rounding.weights():
        for _ in range(2):
            (layer.weight * 40_000.0).sum().backward()
    assert np.isfinite(layer.weight.grad.numpy()).all() == master_grad


def test_o1_leaves_weights_and_gradients_alone() -> None:
    layer = paddle.nn.Linear(1, 1, bias_attr=False)
    before = layer.weight.numpy()
    rounding = caster(layer, master_grad=False, master_weights=False)
    with rounding.weights():
        (layer.weight * 1e6).sum().backward()
    rounding.after_step()
    assert np.array_equal(layer.weight.numpy(), before) and layer.weight.grad.item() == 1e6
