from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from tests.workers.trainer.conftest import Attempt, Zygote
from tests.workers.trainer.test_ranks import tampered

PLAN = {"training": {"max_steps": 200, "epochs": 50}, "checkpoints": {"every_steps": 2, "evaluate_every_steps": 2}}


def test_a_dry_run_makes_its_steps_by_the_plan_of_the_whole_and_keeps_nothing(train: Callable[..., Attempt]) -> None:
    dry = train("dry", world=2, dry_run_steps=6, **PLAN)

    assert dry.exit_codes == [0, 0]
    assert dry.outcome()["end_reason"] == "completed"
    assert [step["step"] for step in dry.steps(0)] == [step["step"] for step in dry.steps(1)] == [1, 2, 3, 4, 5, 6]
    # A warm-up of 20 of 200 steps: the rates are those of the real thing.
    assert all(math.isclose(s["lr"], 1e-3 * s["step"] / 21) for s in dry.steps())
    assert dry.events("plan")[0]["total_steps"] == 200
    assert dry.checkpoints() == [] and list(dry.folder.artifacts.iterdir()) == []
    assert [dry.events(kind) for kind in ("evaluation", "checkpoint", "artifact")] == [[], [], []]

    (first,), (second,) = dry.events("measured", 0), dry.events("measured", 1)
    assert first["evaluation_s"] > 0
    assert first["checkpoint_bytes"] > 50_000 and first["checkpoint_s"] > 0
    assert first["peak_mb"] > 50 and second["peak_mb"] > 50
    assert second.keys() == {"kind", "at", "rank", "peak_mb"}


def test_a_plan_shorter_than_the_dry_run_is_run_to_its_end(train: Callable[..., Attempt]) -> None:
    dry = train("short", dry_run_steps=30, training={"max_steps": 3})
    assert [step["step"] for step in dry.steps()] == [1, 2, 3]
    assert len(dry.events("measured")) == 1


def test_a_cancellation_while_the_checkpoint_is_written_counts_on_all_ranks(
    tmp_path: Path, zygote: Zygote, dataset: Path
) -> None:
    dry = tampered(tmp_path, zygote, dataset, "cancel_late", dry_run_steps=2)
    assert [dry.outcome(rank)["end_reason"] for rank in (0, 1)] == ["cancelled"] * 2 and dry.exit_codes == [0, 0]
    assert dry.events("measured", 0) == dry.events("measured", 1) == [], "the result is not offered as a whole one"
    assert dry.checkpoints() == []


def test_a_dry_run_that_breaks_ends_with_the_reason(train: Callable[..., Attempt]) -> None:
    dry = train(
        "broken",
        dry_run_steps=30,
        optimizer={"learning_rate": 1e30},
        limits={"skip_limit": 2},
        **{"training": {"max_steps": 40}},
    )
    assert dry.outcome()["end_reason"] == "non_finite" and dry.exit_codes == [1]
    assert dry.events("measured") == []
