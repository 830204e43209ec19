"""One rank of an attempt: `python -m workers.trainer RUN_FOLDER`, started by Paddle's launcher through workers/rank.py."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
from datetime import datetime, timezone

from pydantic import ValidationError

from workers.contract.messages import AttemptSpec
from workers.contract.states import EndReason, Status
from workers.contract.texts import Text, clause, spoken
from workers.recipes.registry import recipe
from workers.run_folder import RunFolder, atomic_write_json
from workers.trainer.spool import Events
from workers.trainer.task import Context, TrainingFailed


def main(path: str) -> int:
    """Exit status 0 for every end that is not a failure."""
    folder = RunFolder(path)
    rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    events = Events(folder.events(rank))
    try:
        end = _train(folder, rank, events)
    except TrainingFailed as failed:
        end = failed
    except Exception as error:  # noqa: BLE001  (each has its reason and its sentence)
        traceback.print_exc()
        if type(error).__name__ == "PeerFailed":
            time.sleep(10)  # rank 0 is the one to be named: it exits first, and the launcher then stops this one
            return 1
        end = explain(error, rank)
    outcome = {"end_reason": str(end.reason), "detail": end.detail, "rank": end.rank, "step": end.step}
    print(f"ends: {end.reason}. {end.detail}", flush=True)
    try:
        events.say("outcome", **outcome, **end.more)
        atomic_write_json(folder.outcome(rank), {**spoken(outcome), "at": datetime.now(timezone.utc).isoformat()})
    except OSError:  # the disk is full, and that is the reason; the exit status says the rest
        traceback.print_exc()
        return 1
    # Who leaves because it was asked to has not failed.
    return 1 if end.reason.status is Status.FAILED and end.reason is not EndReason.TIME_LIMIT else 0


def _train(folder: RunFolder, rank: int, events: Events) -> TrainingFailed:
    def stage(name: str, detail: str = "") -> None:
        if rank == 0:
            events.say("stage", name=name, detail=detail or None)
            print(f"{name} {detail}".rstrip(), flush=True)

    spec = AttemptSpec.model_validate_json(folder.spec.read_bytes())
    try:
        settings = recipe(spec.recipe).settings.model_validate(spec.settings)
    except ValidationError as error:
        problem = Text("The settings cannot be read: %(error)s.", error=clause(str(error)))
        raise TrainingFailed(EndReason.BAD_SETTINGS, problem) from error
    stage("importing Paddle")
    from workers.trainer.environment import of_trainer
    from workers.trainer.finish import finish
    from workers.trainer.loop import train
    from workers.trainer.ranks import Ranks
    from workers.trainer.start import start

    ranks = Ranks(spec.device_kind)
    try:
        run = start(Context(folder, spec, settings, rank, stage), ranks, events)
    except BaseException:
        ranks.give_up()
        raise
    events.say("ready", rank=rank, pid=os.getpid())
    if rank == 0:
        events.say("plan", **run.plan)
        events.say("environment", **of_trainer())
    stage("training")
    reason = train(run)
    ended_well = reason in (EndReason.COMPLETED, EndReason.FINISHED_EARLY)
    if ended_well and rank == 0 and spec.dry_run_steps is None:
        # The others are done: nothing after this needs them, and it may take longer than Gloo waits.
        reason = finish(run, reason)
    return TrainingFailed(reason, run.stopped_early if reason is EndReason.COMPLETED else "")


def explain(error: BaseException, rank: int) -> TrainingFailed:
    """An error nobody foresaw, as an end reason with a sentence."""
    text = str(error).strip()
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    words = clause(f"{type(error).__name__}: {line}".strip(": "))
    detail = Text("Rank %(rank)d: %(error)s.", rank=rank, error=words)
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in text:
        return TrainingFailed(EndReason.DISK_FULL, detail, rank=rank)
    if isinstance(error, MemoryError) or "ResourceExhausted" in text or "Out of memory" in text:
        return TrainingFailed(EndReason.OUT_OF_MEMORY, detail, rank=rank)
    if "/gloo/" in text:
        # The rank that is to blame cannot say so: it is dead, hangs, or cannot be reached.
        return TrainingFailed(
            EndReason.TRAINER_ERROR,
            Text("Rank %(rank)d lost contact with another rank: %(error)s.", rank=rank, error=words),
        )
    return TrainingFailed(EndReason.TRAINER_ERROR, detail, rank=rank)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
