"""A trainer in which rank 1 is wronged at its third step, as the file `tamper` of the run folder says:
`weights` changes one weight by its last bit, `gradient` makes its gradient overflow in fp16 from then on.
`cancel`: somebody cancels the attempt while rank 0 exports, `cancel_late`: while it writes a checkpoint.
`pause`: somebody pauses it at its fifth step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workers.contract.messages import Control, Request
from workers.trainer import __main__ as trainer
from workers.trainer import checkpoint
from workers.trainer import start as starting

STEP = 3


def main(path: str) -> int:
    how = (Path(path) / "tamper").read_text()
    original = starting.start

    def start(*arguments: Any) -> Any:
        run = original(*arguments)
        if how == "cancel":
            _cancel_at_export(run)
        elif how == "cancel_late":
            _cancel_at_checkpoint(run)
        elif how == "pause":
            _pause_at_a_step(run)
        elif run.ranks.rank == 1:
            _tamper(run, how)
        return run

    starting.start = start
    return trainer.main(path)


def _cancel_at_export(run: Any) -> None:
    def export(model: Any, folder: Path) -> list[str]:
        (folder / "model").mkdir()
        run.control.path.write_text(Control(leave=Request.CANCEL).model_dump_json())
        return ["model"]

    run.task.export = export


def _cancel_at_checkpoint(run: Any) -> None:
    write = checkpoint.write

    def written(*arguments: Any, **options: Any) -> Any:
        run.control.path.write_text(Control(leave=Request.CANCEL).model_dump_json())
        return write(*arguments, **options)

    checkpoint.write = written


def _pause_at_a_step(run: Any) -> None:
    losses = run.task.losses

    def paused(model: Any, batch: Any) -> Any:
        if run.progress.step + 1 == 5:
            run.control.path.write_text(Control(leave=Request.PAUSE).model_dump_json())
        return losses(model, batch)

    run.task.losses = paused


def _tamper(run: Any, how: str) -> None:
    losses = run.task.losses

    def wronged(model: Any, batch: Any) -> Any:
        outputs, values = losses(model, batch)
        if run.progress.step + 1 < STEP:
            return outputs, values
        if how == "weights" and run.progress.step + 1 == STEP:
            weight = run.model.parameters()[-1]
            weight.set_value(np.nextafter(weight.numpy(), np.float32(1)))
        return outputs, values * 1e8 if how == "gradient" else values

    run.task.losses = wronged
