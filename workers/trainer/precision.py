"""AMP: the forward's number format, and Paddle's loss scaler with a floor and a ceiling.

On CPU Paddle's auto_cast and decorate do nothing and its scaler refuses to be enabled. There the outputs of the layers
that would compute in half precision are rounded to it (and so are the gradients that come back through them), level O2
rounds weights and gradients as its settings say, and the scaler is enabled all the same: overflow, skip, back-off and
growth are then real, though the arithmetic inside a layer is float32. Records say `emulated`. docs/precision.md has the
table of what runs where.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import paddle
import paddle.amp.grad_scaler as grad_scaler
from paddle.amp.auto_cast import amp_global_state

from workers.contract.training import AmpLevel, LossScalingSettings, Precision, PrecisionSettings

_DTYPES = {Precision.FP16: "float16", Precision.BF16: "bfloat16"}
# Layers whose rounding is emulated, by the names of their operators in AMP's lists. A list that names an operator without
# a layer of its own has no effect on CPU.
_OPERATORS: dict[Any, frozenset[str]] = {
    paddle.nn.Linear: frozenset({"linear", "linear_v2", "matmul", "matmul_v2"}),
    paddle.nn.Conv1D: frozenset({"conv1d", "conv2d"}),
    paddle.nn.Conv2D: frozenset({"conv2d"}),
    paddle.nn.LSTM: frozenset({"rnn", "lstm"}),
    paddle.nn.GRU: frozenset({"rnn", "gru"}),
    paddle.nn.Embedding: frozenset({"embedding", "lookup_table_v2"}),
    paddle.nn.LayerNorm: frozenset({"layer_norm"}),
    paddle.nn.layer.norm._BatchNormBase: frozenset({"batch_norm"}),
    paddle.nn.GroupNorm: frozenset({"group_norm"}),
    paddle.nn.Softmax: frozenset({"softmax"}),
    paddle.nn.ReLU: frozenset({"relu"}),
    paddle.nn.GELU: frozenset({"gelu"}),
    paddle.nn.Tanh: frozenset({"tanh"}),
    paddle.nn.Sigmoid: frozenset({"sigmoid"}),
    paddle.nn.Dropout: frozenset({"dropout"}),
}
_O1_LAYERS = (paddle.nn.Linear, paddle.nn.Conv1D, paddle.nn.Conv2D, paddle.nn.LSTM, paddle.nn.GRU)
# What level O2 keeps in float32: Paddle's own exclusions, and embeddings, which are on its black list.
_O2_FLOAT32 = (
    paddle.nn.LayerNorm,
    paddle.nn.layer.norm._BatchNormBase,
    paddle.nn.GroupNorm,
    paddle.nn.Softmax,
    paddle.nn.Embedding,
)


def resolved(mode: Precision) -> Precision:
    """What “auto” means on this device."""
    if mode is not Precision.AUTO:
        return mode
    if paddle.get_device() == "cpu":
        return Precision.FLOAT32
    capability = paddle.device.cuda.get_device_capability()
    return Precision.BF16 if capability >= (8, 0) else Precision.FP16 if capability >= (7, 0) else Precision.FLOAT32


class Caster:
    """The number format of forward passes. `emulated` is true for half precision on CPU."""

    def __init__(self, settings: PrecisionSettings, model: Any) -> None:
        self.mode, self.settings = resolved(settings.mode), settings
        self.dtype = _DTYPES.get(self.mode)
        self.emulated = self.dtype is not None and paddle.get_device() == "cpu"
        self.lists = {"white": _names(settings.white_list), "black": _names(settings.black_list)}
        self._hooks = self._round_outputs(model, self.dtype) if self.emulated and self.dtype else []
        self._weights: list[Any] = []
        if self.emulated and settings.level is AmpLevel.O2:
            kept = {parameter.name for layer in _layers(model, _O2_FLOAT32) for parameter in layer.parameters()}
            self._weights = [parameter for parameter in model.parameters() if parameter.name not in kept]
            if not settings.master_weights:
                self._round(self._weights)

    def decorated(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        """Level O2 on a GPU: weights in half precision, and in the optimizer those in float32. Not run on a GPU yet."""
        if self.dtype is None or self.emulated or self.settings.level is not AmpLevel.O2:
            return model, optimizer
        pair: tuple[Any, Any] = paddle.amp.decorate(
            models=model,
            optimizers=optimizer,
            level="O2",
            dtype=self.dtype,
            master_weight=self.settings.master_weights,
            master_grad=self.settings.master_grad,
        )
        return pair

    def forward(self) -> AbstractContextManager[None]:
        if self.dtype is None or self.emulated:
            # The scaler disables itself for good unless the newest auto_cast was to float16. Paddle
            # never resets this global, so float32 must not inherit it either.
            amp_global_state().amp_dtype = self.dtype or "float32"
            return nullcontext()
        cast: AbstractContextManager[None] = paddle.amp.auto_cast(
            enable=True,
            dtype=self.dtype,
            level=str(self.settings.level),
            custom_white_list=self.lists["white"] or None,
            custom_black_list=self.lists["black"] or None,
        )
        return cast

    def weights(self) -> AbstractContextManager[None]:
        """Around all forward and backward passes of a step: under an emulated O2 they see weights in half precision, and
        leave gradients in it, unless the settings keep those in float32."""
        return self._weights_in_half() if self._weights else nullcontext()

    @contextmanager
    def _weights_in_half(self) -> Iterator[None]:
        kept = []
        if self.settings.master_weights:
            kept = [weight.detach().clone() for weight in self._weights]
            self._round(self._weights)
        yield
        for weight, value in zip(self._weights, kept, strict=False):
            weight.set_value(value)
        if not self.settings.master_grad:
            for weight in self._weights:
                if weight.grad is not None:
                    weight.grad.set_value(weight.grad.astype(self.dtype).astype("float32"))

    def after_step(self) -> None:
        """Without master weights an emulated O2 has its weights in half precision, so that small steps are lost."""
        if self._weights and not self.settings.master_weights:
            self._round(self._weights)

    def _round(self, weights: list[Any]) -> None:
        for weight in weights:
            weight.set_value(weight.detach().astype(self.dtype).astype("float32"))

    def remove(self) -> None:
        """Before an export: a traced model must not contain the rounding."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _round_outputs(self, model: Any, dtype: str) -> list[Any]:
        def rounded(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                return type(value)(rounded(item) for item in value)
            return value.astype(dtype).astype("float32")  # backward rounds the gradient in the same way

        layers = [layer for layer in _layers(model, tuple(_OPERATORS)) if self._in_half(layer)]
        return [layer.register_forward_post_hook(lambda _layer, _in, out: rounded(out)) for layer in layers]

    def _in_half(self, layer: Any) -> bool:
        names = frozenset[str]().union(*(names for kind, names in _OPERATORS.items() if isinstance(layer, kind)))
        if names & self.lists["black"]:
            return False
        if names & self.lists["white"]:
            return True
        if self.settings.level is AmpLevel.O2:
            return not isinstance(layer, _O2_FLOAT32)
        return isinstance(layer, _O1_LAYERS)


def _names(listed: str | None) -> set[str]:
    return {name.strip() for name in (listed or "").split(",") if name.strip()}


def _layers(model: Any, kinds: tuple[Any, ...]) -> list[Any]:
    return [layer for layer in model.sublayers(include_self=True) if isinstance(layer, kinds)]


class LossScaler(paddle.amp.GradScaler):  # type: ignore[misc]
    """Paddle's dynamic loss scaler, kept between a floor and a ceiling. Disabled unless fp16.

    `apply` or `skip` in the place of `step` is how all ranks take, or leave out, the same step. The loop hands the scale to the
    backward pass itself, in the place of `scale`. The base class halves its
    scale down to 0.0, then no longer sees infinities and writes NaN into the weights [measured].
    """

    def __init__(self, settings: LossScalingSettings, enable: bool) -> None:
        with _cpu_allowed():
            super().__init__(
                enable=enable,
                init_loss_scaling=settings.init_scale,
                incr_ratio=settings.growth_factor,
                decr_ratio=settings.backoff_factor,
                incr_every_n_steps=settings.growth_interval,
                decr_every_n_nan_or_inf=settings.hysteresis,
            )
        self.settings = settings
        # What the next step is scaled with; None: loss scaling is not used.
        self.value: float | None = settings.init_scale if enable else None

    def flag(self) -> list[Any]:
        """Whether the newest unscale_ met a non-finite gradient on this rank, as a float32 number [1] that is still on the
        device; nothing without loss scaling."""
        return [paddle.cast(self._found_inf, "float32")] if self._enable else []

    def apply(self, optimizer: Any) -> None:
        """Paddle's `step`, of gradients known to be finite: it does not read the flag from the device once more."""
        if self._enable:
            self._found_inf = False
        self.step(optimizer)

    def skip(self, *, overflow: bool) -> None:
        """A step that was left out though its gradients were finite does not lower the scale."""
        self._cache_found_inf = overflow  # what `step` notes after a step it left out

    def update(self) -> None:
        super().update()
        # Only then can it have changed; to read it is to wait for the device.
        if self.value is not None and (self._cache_found_inf or self._incr_count == 0):
            self._set(self._scale.item())

    def state(self) -> dict[str, Any] | None:
        if self.value is None:
            return None
        return {"scale": self.value, "incr_count": self._incr_count, "decr_count": self._decr_count}

    def restore(self, state: dict[str, Any], *, keep_scale: bool) -> None:
        """Scale and counters of a checkpoint; factors and intervals are those of today's settings.
        Not `keep_scale`: someone has chosen another initial scale since, which then stands."""
        if self.value is None:
            return
        if keep_scale:
            self._set(state["scale"], force=True)
            # What was made shorter since must still be hit: the base class tests for equality.
            self._incr_count = min(state["incr_count"], self.settings.growth_interval - 1)
            self._decr_count = min(state["decr_count"], self.settings.hysteresis - 1)

    def _set(self, scale: float, *, force: bool = False) -> None:
        kept = min(max(scale, self.settings.floor), self.settings.ceiling)
        if force or kept != scale:
            self._scale = paddle.full([1], kept, dtype="float32")
        self.value = kept


class _Place:
    def is_gpu_place(self) -> bool:
        return True


class _Tracer:
    _expected_place = _Place()


@contextmanager
def _cpu_allowed() -> Iterator[None]:
    """The base class's constructor asks only for the place and then disables itself on CPU; its
    kernels are there for float32, which is what gradients are under O1."""
    original = grad_scaler._dygraph_tracer
    grad_scaler._dygraph_tracer = _Tracer
    try:
        yield
    finally:
        grad_scaler._dygraph_tracer = original
