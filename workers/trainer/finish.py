"""After training, on rank 0: what the best weights get most wrong, then they as a model folder and as an inference program."""

from __future__ import annotations

from pathlib import Path

from workers.contract.states import EndReason
from workers.trainer import worst
from workers.trainer.checkpoint import set_weights
from workers.trainer.evaluation import LEAVE_AT_ONCE
from workers.trainer.loop import REASONS, Run


def finish(run: Run, reason: EndReason) -> EndReason:
    """Export, and say so; a cancel that comes in between still counts."""
    asked = run.control.read().leave
    if asked in LEAVE_AT_ONCE and asked is not None:
        return REASONS[asked]
    if run.best_weights is not None:
        set_weights(run.model, run.best_weights)
    else:
        run.average.install()
    asked = worst.report(run)
    if asked is not None:
        return REASONS[asked]
    run.context.stage("exporting", "")
    run.caster.remove()
    run.model.eval()
    folder = run.context.folder
    folder.artifacts.mkdir(exist_ok=True)
    exported = run.task.export(run.model, folder.artifacts)
    asked = run.control.look().leave  # which may have taken minutes
    if asked in LEAVE_AT_ONCE and asked is not None:
        return REASONS[asked]
    for name in exported:
        path = folder.artifacts / name
        run.events.say("artifact", name=name, path=str(path.relative_to(folder.path)), bytes=_size(path))
    return reason


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
