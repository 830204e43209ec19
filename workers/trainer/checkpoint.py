"""Checkpoints: everything a fresh process needs to go on bit for bit, in files that cannot run code.

    step-000000123/
      model.safetensors      weights and buffers, by their name in the model
      optimizer.safetensors  moments and beta powers, as "<accumulator>/<weight's name>"
      average.safetensors    the running average of the weights, if there is one
      best.safetensors       the best weights so far, once there was an evaluation
      state.json             counters, position in the data, scaler, plan, settings, versions
      manifest.json          {"files": {name: {"bytes", "sha256"}}, "step", "applied", "good"}

Only good ones are written: all weights, buffers and moments finite. A folder has its final name
once it is complete. There is no random state in it: every step is seeded anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import paddle
from safetensors.numpy import load_file, save_file

from workers.contract import records
from workers.contract.states import EndReason
from workers.contract.texts import Text, clause
from workers.run_folder import RunFolder
from workers.trainer.task import TrainingFailed

Arrays = dict[str, npt.NDArray[Any]]
FORMAT = 1


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds, in this process's memory and apart from the running model."""

    weights: Arrays
    moments: Arrays
    average: Arrays | None
    best: Arrays | None
    state: dict[str, Any]

    def not_finite(self) -> str | None:
        """Name of the first array with a NaN or an infinity, or None: the snapshot is good."""
        parts = (("weight", self.weights), ("moment", self.moments), ("averaged weight", self.average or {}))
        for kind, arrays in parts:
            for name, array in arrays.items():
                if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                    return f"{kind} {name}"
        return None


def weights_of(model: Any, optimizer: Any = None) -> Arrays:
    """Copies of all weights and buffers, in float32 where the model has half precision: the optimizer's own, if it is given."""
    masters = {} if optimizer is None else optimizer._master_weights
    return {name: _array(masters.get(tensor.name, tensor)) for name, tensor in model.state_dict().items()}


def _array(tensor: Any) -> npt.NDArray[Any]:
    half = tensor.dtype in (paddle.float16, paddle.bfloat16)
    return np.array((tensor.astype("float32") if half else tensor).numpy())


def set_weights(model: Any, weights: Arrays, optimizer: Any = None) -> None:
    """Put `weights` into the model, and into the optimizer's own copy. A difference in names or shapes is a clear error."""
    check_fit(model, weights)
    masters = {} if optimizer is None else optimizer._master_weights
    for name, tensor in model.state_dict().items():
        tensor.set_value(paddle.to_tensor(weights[name]).astype(tensor.dtype))
        if tensor.name in masters:
            masters[tensor.name].set_value(weights[name])


def check_fit(model: Any, weights: Arrays) -> None:
    """TrainingFailed, if their names or shapes are not those of the model."""
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        there = list(weights[name].shape) if name in weights else "nothing"
        here = list(own[name].shape) if name in own else "nothing"
        if there != here:
            raise TrainingFailed(
                EndReason.BAD_SETTINGS,
                Text(
                    "The checkpoint does not fit these settings: it has %(there)s for “%(name)s”, the model has %(here)s. "
                    "Start from scratch, or give the model's sizes and vocabulary back their old values.",
                    there=str(there),
                    name=name,
                    here=str(here),
                ),
            )


def moments_of(model: Any, optimizer: Any) -> Arrays:
    """Copies of the optimizer's accumulators. Keyed by the weight's name in the model: Paddle's own
    parameter names come from a counter of the process."""
    names = {_key(optimizer, parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{accumulator}/{names[parameter]}": np.array(tensor.numpy())
        for accumulator, tensors in optimizer._accumulators.items()
        for parameter, tensor in tensors.items()
    }


def set_moments(model: Any, optimizer: Any, moments: Arrays) -> None:
    if not moments:
        return
    parameters = dict(model.named_parameters())
    # Of parameters that never had a gradient there are none.
    had = {key.partition("/")[2] for key in moments}
    make_moments(optimizer, [parameter for name, parameter in parameters.items() if name in had])
    for key, array in moments.items():
        accumulator, _, name = key.partition("/")
        optimizer._accumulators[accumulator][_key(optimizer, parameters[name])].set_value(array)


def make_moments(optimizer: Any, parameters: list[Any]) -> None:
    """Before the first step there are none."""
    optimizer._create_accumulators(paddle.base.framework.default_main_program().global_block(), parameters)


def tensors_of(model: Any, optimizer: Any) -> list[Any]:
    """All that `set_weights` and `set_moments` write into, in the same order on every rank."""
    parameters = dict(model.named_parameters())
    accumulators = optimizer._accumulators
    return [
        *model.state_dict().values(),
        *(tensor for _, tensor in sorted(optimizer._master_weights.items())),
        *(
            accumulators[name][_key(optimizer, parameter)]
            for name in sorted(accumulators)
            for parameter in parameters.values()
            if _key(optimizer, parameter) in accumulators[name]
        ),
    ]


def _key(optimizer: Any, parameter: Any) -> str:
    """By which the optimizer knows the accumulators of `parameter`."""
    name: str = optimizer._master_weights.get(parameter.name, parameter).name
    return name


@dataclass(frozen=True)
class Written:
    path: str  # relative to the run folder
    bytes: int
    seconds: float


def write(folder: RunFolder, snapshot: Snapshot, keep: int) -> Written:
    """Write `snapshot` under its final name, fsynced, then remove all but the `keep` newest.

    No Paddle in here: it runs in a thread while the ranks keep in touch."""
    started = time.monotonic()
    step, applied = snapshot.state["step"], snapshot.state["applied"]
    final = folder.checkpoint(step)
    temporary = final.with_name(f".{final.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(snapshot.weights, temporary / "model.safetensors")
    save_file(snapshot.moments, temporary / "optimizer.safetensors")
    if snapshot.average is not None:
        save_file(snapshot.average, temporary / "average.safetensors")
    if snapshot.best is not None:
        save_file(snapshot.best, temporary / "best.safetensors")
    (temporary / "state.json").write_bytes(records.dumps(snapshot.state))
    files = {path.name: _synced(path) for path in sorted(temporary.iterdir())}
    manifest = {"files": files, "step": step, "applied": applied, "good": True}
    (temporary / "manifest.json").write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    _synced(temporary / "manifest.json")
    if final.exists():  # asked for twice at one step
        shutil.rmtree(final)
    temporary.rename(final)
    _sync_folder(folder.checkpoints)
    for old in sorted(folder.checkpoints.glob("step-*"))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    size = sum(int(file["bytes"]) for file in files.values())
    return Written(str(final.relative_to(folder.path)), size, time.monotonic() - started)


def read(path: Path) -> Snapshot:
    """A checkpoint from disk; every file is compared with the manifest."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        for name, expected in manifest["files"].items():
            content = (path / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != expected["sha256"]:
                raise ValueError(f"{name} is not what was written")
        state = json.loads((path / "state.json").read_text())
        if state["format"] != FORMAT:
            raise ValueError(f"format {state['format']}, this trainer reads {FORMAT}")
        average, best = path / "average.safetensors", path / "best.safetensors"
        return Snapshot(
            load_file(path / "model.safetensors"),
            load_file(path / "optimizer.safetensors"),
            load_file(average) if average.exists() else None,
            load_file(best) if best.exists() else None,
            state,
        )
    except (OSError, ValueError, KeyError) as error:
        raise TrainingFailed(
            EndReason.TRAINER_ERROR,
            Text("The checkpoint to start from cannot be read: %(error)s.", error=clause(str(error))),
        ) from error


def _synced(path: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
