"""The step record: one per attempted optimizer step and rank, one JSON line in the spool.

NaN and infinities stay what they are: in JSON they are the strings "nan", "inf" and "-inf"
(JSON has no such numbers, and orjson would write null). Encoding is canonical (field order,
shortest float repr), so a line can be rebuilt byte for byte from the stored columns.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

VERSION = 1

# Name -> kind, in the order of the line. A trailing "?" means: may be null.
FIELDS: dict[str, str] = {
    "v": "int",
    "seg": "int",  # a rewind starts a new segment
    "step": "int",  # attempted optimizer steps so far, this one included: 1, 2, 3 …
    "applied": "int",  # applied steps so far, this one included if it was applied
    "epoch": "int",  # from 0
    "t": "float",  # seconds since the attempt's training began
    "loss": "float",  # of this rank's own samples, mean over valid labels
    "loss_all": "float?",  # the same over all ranks
    "lr": "float",  # the rate this step used, or would have used had it not been skipped
    "grad_norm": "float",  # global L2 before clipping, unscaled, float32 or better, over all ranks
    "clip_norm": "float?",  # the threshold in force; null: no clipping
    "clipped": "bool",
    "loss_scale": "float?",  # the scale this step used; null: loss scaling not used
    "found_inf": "bool",  # a gradient was not finite after unscaling, on any rank
    "skipped": "str?",  # null, or why the step was not applied: a SkipReason
    "batch_id": "str",  # "epoch:index of the global batch"
    "samples": "int",
    "tokens": "int?",  # without padding; null: the recipe has no tokens
    "step_ms": "float",
    "data_ms": "float",
    "mem_mb": "float",
    "emulated": "bool",  # the precision was emulated on CPU
    "extras": "object?",  # flat: name -> number, bool, string or null
}

FLOAT_FIELDS = tuple(name for name, kind in FIELDS.items() if kind.startswith("float"))
SKIP_FOUND_INF = "found_inf"  # finite loss, overflowed gradients, with loss scaling
SKIP_LOSS = "non_finite_loss"
SKIP_GRAD = "non_finite_grad"  # finite loss, non-finite gradients, without loss scaling
SKIP_INPUT = "non_finite_input"
SKIP_SPIKE = "spike"  # all finite, but far above the latest steps
SKIP_REASONS = (SKIP_FOUND_INF, SKIP_LOSS, SKIP_GRAD, SKIP_INPUT, SKIP_SPIKE)

# Names of extras: what is recorded every so many steps only.
GROUP_NORM = "norm:"  # and the part of the model: L2 norm of its gradient, as grad_norm is
ZERO_GRADIENTS = "zero_gradients"  # share of gradient elements that are zero
LOCAL_NORM = "local_norm"  # L2 norm of this rank's own gradient, unscaled, before it was averaged over ranks
# What this rank's samples count for in the loss, where rows count differently: valid labels, or weights of rows.
COUNTED = "counted"
SPIKE = "spike"  # "loss" or "grad_norm": which was far above those of the latest steps

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json_number(value: float) -> float | str:
    """`value`, or its string if it is NaN or infinite."""
    if math.isfinite(value):
        return value
    return "nan" if value != value else ("inf" if value > 0 else "-inf")


def from_json_number(value: Any) -> Any:
    """The inverse of `to_json_number`; anything else is returned as it is."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def jsonable(value: Any) -> Any:
    """`value` with every non-finite float, at any depth, replaced by its string."""
    if isinstance(value, float):
        return to_json_number(value)
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value


def dumps(value: Any) -> bytes:
    """The one JSON encoder: `value` as UTF-8 JSON with NaN and infinities kept as strings."""
    return orjson.dumps(jsonable(value))


def encode(record: dict[str, Any]) -> bytes:
    """`record` (every name of FIELDS, in that order) as one line with its newline."""
    line = dict(record)
    for name in FLOAT_FIELDS:
        value = line[name]
        # x - x is 0.0 for every finite x and NaN for the rest: the cheapest finite test here.
        if value is not None and value - value != 0.0:
            line[name] = to_json_number(value)
    if line["extras"] is not None:
        line["extras"] = jsonable(line["extras"])
    return orjson.dumps(line) + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The record of one line, with NaN and infinities as floats. Raises ValueError on a torn line."""
    record: dict[str, Any] = orjson.loads(line)
    for name in FLOAT_FIELDS:
        value = record.get(name)
        if isinstance(value, str):
            record[name] = _NON_FINITE[value]
    extras = record.get("extras")
    if extras:
        record["extras"] = {key: from_json_number(value) for key, value in extras.items()}
    return record
