"""Both optimizers against NumPy in float64, written from their definitions; and which weights they treat how."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from workers.contract.training import OptimizerSettings
from workers.trainer import optimizer
from workers.trainer.averaging import WeightAverage
from workers.trainer.loop import named_parameters


class Block(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.after = paddle.nn.Linear(3, 3), paddle.nn.LayerNorm(3)

    def forward(self, x: Any) -> Any:
        return self.after(self.linear(x))


class Model(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = paddle.nn.Embedding(5, 3)
        self.layers = paddle.nn.LayerList([Block(), Block()])
        self.head = paddle.nn.Linear(3, 1)


def arrays(model: Any) -> dict[str, Any]:
    return {name: parameter.numpy().astype(np.float64) for name, parameter in model.named_parameters()}


def train(settings: OptimizerSettings, steps: int = 4) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
    """The trained model, its first weights, and the gradients that it was given."""
    paddle.seed(1)
    model, draw = Model(), np.random.default_rng(0)
    opt = optimizer.build(model, settings)
    first, given = arrays(model), []
    for step in range(steps):
        given.append({name: draw.normal(size=value.shape).astype(np.float32) for name, value in first.items()})
        sum(
            (parameter * paddle.to_tensor(given[-1][name])).sum() for name, parameter in model.named_parameters()
        ).backward()  # type: ignore[attr-defined]
        opt.set_lr(settings.learning_rate / (step + 1))
        opt.step()
        opt.clear_grad()
    return model, first, given


def is_decayed(name: str, undecayed: str) -> bool:
    """As the default says: neither biases nor the weights of LayerNorm, which are not called norm here."""
    return not ("bias" in undecayed and "bias" in name) and not ("norm" in undecayed and "after" in name)


@pytest.mark.parametrize("undecayed", ["bias, norm", "bias", ""])
@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_adamw(undecayed: str, layer_decay: float) -> None:
    s = OptimizerSettings(
        learning_rate=0.01, weight_decay=0.1, undecayed=undecayed, layer_decay=layer_decay, epsilon=1e-2
    )
    model, expected, given = train(s)
    for name, w in expected.items():
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t, gradients in enumerate(given, 1):
            lr = s.learning_rate / t * layer_decay ** (3 - depth(name))
            g = gradients[name].astype(np.float64)
            m, v = s.beta1 * m + (1 - s.beta1) * g, s.beta2 * v + (1 - s.beta2) * g**2
            if is_decayed(name, undecayed):
                w = w * (1 - lr * s.weight_decay)
            w = w - lr * (m / (1 - s.beta1**t)) / (np.sqrt(v / (1 - s.beta2**t)) + s.epsilon)
        assert np.allclose(arrays(model)[name], w, atol=2e-6), name


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_sgd_with_momentum_and_coupled_decay(momentum: float, layer_decay: float) -> None:
    s = OptimizerSettings(kind="sgd", learning_rate=0.01, weight_decay=0.1, momentum=momentum, layer_decay=layer_decay)
    model, expected, given = train(s)
    for name, w in expected.items():
        velocity = np.zeros_like(w)
        for t, gradients in enumerate(given, 1):
            g = gradients[name].astype(np.float64) + (s.weight_decay * w if is_decayed(name, "bias, norm") else 0)
            velocity = momentum * velocity + g
            w = w - s.learning_rate / t * layer_decay ** (3 - depth(name)) * velocity
        assert np.allclose(arrays(model)[name], w, atol=2e-6), name


def test_weights_of_every_kind_of_normalisation_are_left_undecayed_whatever_they_are_called() -> None:
    kinds = [
        paddle.nn.LayerNorm(4),
        paddle.nn.BatchNorm1D(4),
        paddle.nn.BatchNorm2D(4),
        paddle.nn.GroupNorm(2, 4),
        paddle.nn.InstanceNorm1D(4),
    ]
    model = paddle.nn.Sequential(*kinds, paddle.nn.Linear(4, 4))
    for undecayed, expected in (("bias, norm", {"5.weight"}), ("", {name for name, _ in named_parameters(model)})):
        decayed = optimizer._decayed(model, named_parameters(model), undecayed)
        assert {name for name, parameter in named_parameters(model) if parameter.name in decayed} == expected


def depth(name: str) -> int:
    return {"embedding": 0, "layers.0": 1, "layers.1": 2}.get(".".join(name.split(".")[:2]).removesuffix(".weight"), 3)


def test_depth_counts_numbered_layers_and_what_is_around_them() -> None:
    names = ["e.word.weight", "e.norm.bias", "e.layers.0.a.weight", "e.layers.1.b.weight", "pooler.w.weight", "c.bias"]
    assert optimizer.depth_of(names) == [0, 0, 1, 2, 3, 3]
    assert optimizer.depth_of(["a.weight", "b.weight"]) == [1, 1], "no layers, one rate"


def test_the_average_follows_the_weights_in_float32() -> None:
    paddle.seed(3)
    layer = paddle.nn.Linear(2, 2)
    average = WeightAverage(named_parameters(layer), 0.9, {})
    expected = layer.weight.numpy().astype(np.float64)
    for step in range(1, 120):
        layer.weight.set_value(layer.weight.numpy() + np.float32(0.1))
        average.follow(step)
        memory = min(0.9, (1 + step) / (10 + step))
        expected = memory * expected + (1 - memory) * layer.weight.numpy()
    state = average.state()
    assert state is not None and np.allclose(state["weight"], expected, rtol=1e-5)

    own = layer.weight.numpy()
    with average.in_place():
        assert np.array_equal(layer.weight.numpy(), state["weight"])
    assert np.array_equal(layer.weight.numpy(), own)


def test_of_weights_in_half_precision_the_average_follows_the_optimizers_own() -> None:
    """In half precision a step this small changes nothing."""
    layer = paddle.nn.Linear(1, 1, bias_attr=False)
    layer.weight.set_value(np.ones((1, 1), np.float32))
    half = layer.weight.astype("float16").detach()
    half.name = "half"
    master = paddle.ones([1, 1])
    average = WeightAverage([("weight", half)], 0.5, {"half": master})
    for step in range(10, 30):
        master.add_(paddle.full([1, 1], 1e-5))
        average.follow(step)
    assert average.averages[0].dtype == paddle.float32
    assert 1.0001 < average.averages[0].item() < master.item() - 5e-6


def test_without_averaging_nothing_is_kept_and_nothing_swapped() -> None:
    layer = paddle.nn.Linear(2, 2)
    own = layer.weight.numpy()
    average = WeightAverage(named_parameters(layer), None, {})
    average.follow(1)
    with average.in_place():
        assert np.array_equal(layer.weight.numpy(), own)
    assert average.state() is None
