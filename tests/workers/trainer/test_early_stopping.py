"""Training ends when evaluations no longer get better; all ranks leave at the same step, and the best weights are kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.trainer.test_loop import in_process  # noqa: F401 (a fixture)
from workers.contract.states import EndReason
from workers.trainer import loop
from workers.trainer.evaluation import Evaluated

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

EVERY_STEP = {"checkpoints": {"evaluate_every_steps": 1}, "training": {"max_steps": 12}}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the evaluations of a run say, one after another; the last is said again and again."""
    said: list[float] = []

    def evaluate(*_: Any, **__: Any) -> Evaluated:
        value = said.pop(0) if len(said) > 1 else said[0]
        return Evaluated({"accuracy": value}, 0.0, rows=0)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    return said


@pytest.mark.parametrize(
    ("early", "said", "ends_at"),
    [
        ({"patience": 2}, [0.5, 0.6, 0.6, 0.6], 4),
        ({"patience": 3}, [0.5, 0.4, 0.4, 0.6, 0.1], 7),
        ({"patience": 2, "min_delta": 0.05}, [0.5, 0.52, 0.54, 0.9], 3),
        ({"patience": 2, "min_delta": 0.05}, [0.5, 0.52, 0.56, 0.56], 5),
        ({"patience": 1}, [0.5, float("nan")], 2),
        ({"patience": None}, [0.5], 12),
    ],
)
def test_it_ends_after_so_many_evaluations_without_a_gain(
    in_process: Any,  # noqa: F811
    results: list[float],
    early: dict[str, Any],
    said: list[float],
    ends_at: int,
) -> None:
    results[:] = said
    work = in_process(early_stopping=early, **EVERY_STEP)
    assert work.train() is EndReason.COMPLETED
    assert len(work.attempt.steps()) == ends_at
    notes = [line["text"] for line in work.attempt.events("note")]
    assert any("Stopped early" in text for text in notes) == (ends_at < 12)
    assert [line["step"] for line in work.attempt.events("checkpoint")][-1] == ends_at


def test_of_an_error_less_is_better(in_process: Any, results: list[float]) -> None:  # noqa: F811
    results[:] = [float("nan"), 0.5, 0.4, 0.45, 0.44]
    work = in_process(early_stopping={"patience": 2}, **EVERY_STEP)
    work.run.task.lower_is_better = True
    assert work.train() is EndReason.COMPLETED
    assert [line["best"] for line in work.attempt.events("evaluation")] == [False, True, True, False, False]
    assert work.run.progress.best == 0.4
    assert "accuracy did not fall below 0.4000" in work.attempt.events("note")[-1]["text"]


def test_a_metric_that_never_was_a_number_is_no_gain(in_process: Any, results: list[float]) -> None:  # noqa: F811
    results[:] = [float("nan")] * 3
    work = in_process(early_stopping={"patience": 3}, **EVERY_STEP)
    assert work.train() is EndReason.COMPLETED
    assert work.run.stopped_early == "Stopped early: in 3 evaluations in a row accuracy was NaN."


def test_all_ranks_leave_at_the_same_step_and_the_model_is_exported(train: Any) -> None:
    run = train("two", world=2, export=True, early_stopping={"patience": 2, "min_delta": 1.0}, **EVERY_STEP)
    assert run.exit_codes == [0, 0]
    assert [len(run.steps(rank)) for rank in (0, 1)] == [3, 3]
    for rank in (0, 1):
        outcome = run.outcome(rank)
        assert outcome["end_reason"] == "completed" and outcome["detail"].startswith("Stopped early: in 2 evaluations")
    assert {line["name"] for line in run.events("artifact")} == {"model", "inference"}


def test_the_patience_that_is_used_up_is_part_of_a_checkpoint_and_begins_anew_after_an_early_stop(train: Any) -> None:
    early = {"patience": 3, "min_delta": 1.0}
    checkpoints = {"evaluate_every_steps": 1, "every_steps": 1}
    first = train("first", training={"max_steps": 3}, checkpoints=checkpoints, early_stopping=early)
    assert first.state()["waited"] == 2
    more = {"training": {"max_steps": 12}, "checkpoints": checkpoints, "early_stopping": early}
    second = train("second", start_from=first.checkpoints()[-1], **more)
    assert second.steps()[-1]["step"] == 4
    third = train("third", start_from=second.checkpoints()[-1], **more)
    assert third.steps()[-1]["step"] == 7
