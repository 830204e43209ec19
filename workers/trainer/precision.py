"""AMP level O1: the forward's number format, and Paddle's loss scaler with a floor and a ceiling.

On CPU Paddle's auto_cast does nothing and its scaler refuses to be enabled. There the outputs of the
layers that O1 would compute in half precision are rounded to it (and so are the gradients that come
back through them), and the scaler is enabled all the same: overflow, skip, back-off and growth are
then real, though the arithmetic inside a layer is float32. Records say `emulated`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import paddle
import paddle.amp.grad_scaler as grad_scaler
from paddle.amp.auto_cast import amp_global_state

from workers.contract.training import LossScalingSettings, Precision

_DTYPES = {Precision.FP16: "float16", Precision.BF16: "bfloat16"}
# Layers whose operators are on O1's white list.
_HALF = (paddle.nn.Linear, paddle.nn.Conv1D, paddle.nn.Conv2D, paddle.nn.LSTM, paddle.nn.GRU)


class Caster:
    """The number format of forward passes. `emulated` is true for half precision on CPU."""

    def __init__(self, mode: Precision, model: Any) -> None:
        self.dtype = _DTYPES.get(mode)
        self.emulated = self.dtype is not None and paddle.get_device() == "cpu"
        self._hooks = self._round_outputs(model, self.dtype) if self.emulated and self.dtype else []

    def forward(self) -> AbstractContextManager[None]:
        if self.dtype is None or self.emulated:
            return self._as_if_cast()
        cast: AbstractContextManager[None] = paddle.amp.auto_cast(enable=True, dtype=self.dtype, level="O1")
        return cast

    @contextmanager
    def _as_if_cast(self) -> Iterator[None]:
        # The scaler disables itself for good unless the newest auto_cast was to float16. Paddle
        # never resets this global, so float32 must not inherit it either.
        amp_global_state().amp_dtype = self.dtype or "float32"
        yield

    def remove(self) -> None:
        """Before an export: a traced model must not contain the rounding."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @staticmethod
    def _round_outputs(model: Any, dtype: str) -> list[Any]:
        def rounded(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                return type(value)(rounded(item) for item in value)
            return value.astype(dtype).astype("float32")  # backward rounds the gradient in the same way

        layers = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, _HALF)]
        return [layer.register_forward_post_hook(lambda _layer, _in, out: rounded(out)) for layer in layers]


class LossScaler(paddle.amp.GradScaler):  # type: ignore[misc]
    """Paddle's dynamic loss scaler, kept between a floor and a ceiling. Disabled unless fp16.

    `skip` in the place of `step` is how all ranks leave out the same step. The base class halves its
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

    @property
    def found_inf(self) -> bool:
        """Whether the newest unscale_ met a non-finite gradient on this rank."""
        return self._enable and bool(self._found_inf)

    def skip(self) -> None:
        self._cache_found_inf = True  # what `step` notes after a step it left out

    def update(self) -> None:
        super().update()
        if self.value is not None:
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
