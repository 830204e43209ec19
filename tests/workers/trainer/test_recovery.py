"""What happens after a bad step and at a spike: skipped, stopped, or rewound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.workers.recipes.examples import write_texts
from tests.workers.trainer.test_loop import InProcess, in_process, same  # noqa: F401
from workers.contract.states import EndReason
from workers.trainer import loop
from workers.trainer.agreement import Agreed, agree

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

REWINDS = {"on_bad_step": "rewind", "skip_limit": 3}
SPIKES = {"window": 8, "active_after": 4, "sigmas": 50.0}


def spoil(work: InProcess, *steps: int, factor: float = np.nan) -> None:
    """The rows of these attempted steps count for `factor` times as much in their loss and gradient."""
    losses = work.run.task.losses

    def spoilt(model: Any, batch: Any) -> Any:
        outputs, values = losses(model, batch)
        bad = model.training and work.run.progress.step + 1 in steps
        return outputs, values * factor if bad else values

    work.run.task.losses = spoilt  # type: ignore[method-assign]


def test_a_bad_step_may_end_the_attempt_at_once(in_process: Any) -> None:  # noqa: F811
    work = in_process(limits={"on_bad_step": "stop"}, training={"max_steps": 9})
    spoil(work, 5)
    end = work.fails()
    assert (end.reason, end.step) == (EndReason.NON_FINITE, 5)
    assert "The step was skipped. The weights are those of the step before." in end.detail


@pytest.mark.parametrize("mode", ["float32", "fp16"])
def test_a_rewind_takes_everything_back_and_goes_on_behind_the_bad_batch(in_process: Any, mode: str) -> None:  # noqa: F811
    work = in_process(
        limits=REWINDS,
        training={"max_steps": 8},
        checkpoints={"every_steps": 3, "keep": 9},
        precision={"mode": mode},
        optimizer={"learning_rate": 1e-3, "ema_memory": 0.9},
        clipping={"mode": "autoclip", "adaptive_warmup": 2},
    )
    spoil(work, 6)
    assert work.train() is EndReason.COMPLETED
    records = work.attempt.steps()
    assert [record["seg"] for record in records] == [0] * 6 + [1] * 5
    assert [record["step"] for record in records] == list(range(1, 12))
    assert [record["applied"] for record in records] == [1, 2, 3, 4, 5, 5, 4, 5, 6, 7, 8]
    assert records[5]["skipped"] == "non_finite_loss"
    assert [record["batch_id"] for record in records] == [f"0:{i}" for i in range(11)], "no batch comes twice"
    assert records[6]["lr"] == records[3]["lr"]
    (event,) = work.attempt.events("rewind")
    assert {name: event[name] for name in ("step", "to_step", "to_applied", "segment", "why")} == {
        "step": 6,
        "to_step": 3,
        "to_applied": 3,
        "segment": 1,
        "why": "non_finite_loss",
    }
    (note,) = work.attempt.events("note")
    assert note["step"] == 6 and note["text"] == "At step 6 the loss of rank 0 was nan. The step was skipped."
    # Right after it a checkpoint was written that is the old one but for the counters.
    old, new = (work.attempt.folder.checkpoint(step) for step in (3, 6))
    for name in ("model", "optimizer", "average"):
        assert same(load_file(old / f"{name}.safetensors"), load_file(new / f"{name}.safetensors")), name
    before, after = (json.loads((folder / "state.json").read_text()) for folder in (old, new))
    for name in ("scaler", "clipper", "spikes"):
        assert before[name] == after[name] and (before[name] is None) == (name == "scaler" and mode == "float32")


def test_a_rewind_before_the_first_checkpoint_goes_back_to_the_very_beginning(in_process: Any) -> None:  # noqa: F811
    work = in_process(limits=REWINDS, training={"max_steps": 3})
    first = work.weights()
    spoil(work, 2)
    work.until(applied=2)
    records = work.attempt.steps()
    assert [record["applied"] for record in records] == [1, 1, 1, 2]
    assert same(load_file(work.attempt.folder.checkpoint(2) / "model.safetensors"), first)


def test_rewinds_are_bounded_and_then_bad_steps_are_skipped_until_their_limit(in_process: Any) -> None:  # noqa: F811
    work = in_process(limits={**REWINDS, "most_rewinds": 2}, training={"max_steps": 9})
    work.poison()
    end = work.fails()
    records = work.attempt.steps()
    assert [record["seg"] for record in records] == [0, 1, 2, 2, 2]
    assert (end.reason, end.step) == (EndReason.NON_FINITE, 3)
    assert len(work.attempt.events("rewind")) == 2
    assert sum("That was the last rewind" in note["text"] for note in work.attempt.events("note")) == 1


def test_a_rewind_gives_all_ranks_the_averaged_weights_too_and_forgets_what_was_seen_since(
    in_process: Any,  # noqa: F811
) -> None:
    work = in_process(
        limits=REWINDS,
        training={"max_steps": 8},
        checkpoints={"every_steps": 3},
        optimizer={"ema_memory": 0.9},
        spikes=SPIKES,
        clipping={"mode": "autoclip", "adaptive_warmup": 2},
    )
    given: list[Any] = []
    work.run.ranks.take_from_first = given.extend
    spoil(work, 6)
    seen: list[tuple[int, int]] = []
    record = work.run.steps.record

    def recorded(line: Any) -> None:
        seen.append((work.run.spikes.windows["loss"].seen, len(work.run.clipper.history.latest)))  # type: ignore[union-attr]
        record(line)

    work.run.steps.record = recorded  # type: ignore[method-assign]
    work.train()
    assert {id(tensor) for tensor in work.run.average.averages} <= {id(tensor) for tensor in given}
    # The bad step adds nothing, and the next one goes on from the three of the checkpoint.
    assert seen == [(count, count) for count in (1, 2, 3, 4, 5, 5, 4, 5, 6, 7, 8)]


def test_after_a_rewind_steps_in_a_row_are_counted_anew(in_process: Any) -> None:  # noqa: F811
    work = in_process(limits={**REWINDS, "skip_limit": 4, "loss_limit": 0.01}, training={"max_steps": 3})
    spoil(work, 3)
    assert work.train() is EndReason.COMPLETED
    assert [bool(r["skipped"]) for r in work.attempt.steps()] == [False, False, True, False, False, False]


@pytest.mark.parametrize("policy", ["rewind", "stop"])
def test_an_overflow_under_loss_scaling_is_no_reason_to_rewind_or_stop(in_process: Any, policy: str) -> None:  # noqa: F811
    work = in_process(
        limits={"on_bad_step": policy, "skip_limit": 20},
        precision={"mode": "fp16"},
        loss_scaling={"init_scale": 2.0**24},
        training={"max_steps": 3},
    )
    assert work.train() is EndReason.COMPLETED
    assert any(record["skipped"] == "found_inf" for record in work.attempt.steps())
    assert work.attempt.events("rewind") == []


@pytest.mark.parametrize(("action", "applied"), [("record", 12), ("skip", 12), ("rewind", 12), ("ignore", 12)])
def test_a_spike_is_recorded_skipped_or_rewound(in_process: Any, action: str, applied: int) -> None:  # noqa: F811
    work = in_process(
        spikes={**SPIKES, "action": action}, training={"max_steps": applied}, checkpoints={"every_steps": 5}
    )
    spoil(work, 8, factor=1000.0)
    assert work.train() is EndReason.COMPLETED
    records, events = work.attempt.steps(), work.attempt.events("spike")
    found = [record["step"] for record in records if (record["extras"] or {}).get("spike")]
    assert found == [event["step"] for event in events] == ([] if action == "ignore" else [8])
    assert records[7]["skipped"] == ("spike" if action in ("skip", "rewind") else None)
    assert records[-1]["seg"] == (action == "rewind")
    assert records[-1]["applied"] == 12
    assert len(records) == {"record": 12, "ignore": 12, "skip": 13, "rewind": 15}[action]
    if events:
        assert events[0]["what"] == "loss" and events[0]["sigmas"] > 50 and events[0]["value"] == records[7]["loss_all"]


def test_without_rewinds_left_a_spike_is_only_recorded(in_process: Any) -> None:  # noqa: F811
    work = in_process(
        spikes={**SPIKES, "action": "rewind"}, limits={"most_rewinds": 0, "skip_limit": 3}, training={"max_steps": 9}
    )
    spoil(work, 8, factor=1000.0)
    assert work.train() is EndReason.COMPLETED
    assert [event["step"] for event in work.attempt.events("spike")] == [8]
    assert [record["skipped"] for record in work.attempt.steps()] == [None] * 9


def test_a_spike_is_one_of_the_loss_of_all_ranks_so_that_all_find_it(
    in_process: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def others(*arguments: Any) -> Agreed:
        agreed = agree(*arguments)
        return agreed._replace(loss_sum=agreed.loss_sum * (1000 if arguments[2] == 8 else 1))

    monkeypatch.setattr(loop, "agree", others)
    work = in_process(spikes={**SPIKES, "action": "skip"}, training={"max_steps": 9})
    work.train()
    assert [record["step"] for record in work.attempt.steps() if record["skipped"]] == [8]


def test_a_skipped_spike_does_not_lower_the_loss_scale(in_process: Any) -> None:  # noqa: F811
    work = in_process(
        spikes={**SPIKES, "action": "skip"},
        training={"max_steps": 10},
        precision={"mode": "fp16"},
        loss_scaling={"init_scale": 256.0},
    )
    spoil(work, 8, factor=20.0)
    work.train()
    assert work.attempt.steps()[7]["skipped"] == "spike"
    assert {record["loss_scale"] for record in work.attempt.steps()} == {256.0}


def test_all_ranks_rewind_alike_though_only_the_first_reads_the_checkpoint(tmp_path: Path, train: Any) -> None:
    """One NaN among 64 rows: the step that meets it is bad on one rank, and both go back."""
    write_texts(tmp_path / "poisoned", weight={40: "nan"})
    attempt = train(
        "both",
        world=2,
        data=tmp_path / "poisoned",
        columns={"weight_column": "weight"},
        limits=REWINDS,
        training={"batch_size": 4, "max_steps": 14},
        checkpoints={"every_steps": 100},
        monitoring={"compare_ranks_every": 1},
        clipping={"mode": "autoclip", "adaptive_warmup": 2},
    )
    assert attempt.outcome(0)["end_reason"] == attempt.outcome(1)["end_reason"] == "completed", attempt.log(1)
    ours, theirs = attempt.steps(0), attempt.steps(1)
    names = ("seg", "applied", "grad_norm", "lr", "clip_norm", "clipped")
    assert [[r[name] for name in names] for r in ours if not r["skipped"]] == [
        [r[name] for name in names] for r in theirs if not r["skipped"]
    ]
    assert len(attempt.events("rewind")) == ours[-1]["seg"] >= 1
    assert attempt.events("rewind")[0]["step"] >= 3 and attempt.events("rewind")[0]["to_step"] == 0
    assert {record["clip_norm"] for record in ours[-3:]} != {1.0}, "the limit is what was learnt since"


def test_a_run_that_dies_after_a_rewind_resumes_behind_the_bad_batch(in_process: Any, train: Any) -> None:  # noqa: F811
    work = in_process(limits=REWINDS, training={"max_steps": 50}, checkpoints={"every_steps": 100})
    spoil(work, 3)
    work.until(applied=1)
    work._limit(max_steps=3)
    work.train()
    state = work.attempt.folder.checkpoint(3)
    resumed = train("resumed", start_from=state, limits=REWINDS, training={"max_steps": 2})
    assert [(r["step"], r["seg"], r["batch_id"]) for r in resumed.steps()][:1] == [(4, 1, "0:3")]


def test_an_input_beyond_its_limit_is_a_bad_step_whose_row_is_named(in_process: Any) -> None:  # noqa: F811
    work = in_process(limits={"input_limit": 10.0, "skip_limit": 1})
    first = work.run.sampler.take(work.run.progress.at)
    work.run.task.weights[first[1]] = 11.0
    end = work.fails()
    assert (end.reason, end.step) == (EndReason.NON_FINITE, 1)
    (note,) = work.attempt.events("note")
    assert note["text"] == (f"Not finite, or beyond ±10, in the training rows of rank 0: weight of row {first[1] + 1}.")
    assert "the input of rank 0 held a number that is not finite or lies beyond ±10." in end.detail


def test_a_step_left_out_with_finite_gradients_does_not_lower_the_loss_scale(in_process: Any) -> None:  # noqa: F811
    work = in_process(
        limits={"input_limit": 10.0, "skip_limit": 5},
        precision={"mode": "fp16"},
        loss_scaling={"init_scale": 256.0},
        training={"max_steps": 2, "batch_size": 4},
    )
    work.run.task.weights[work.run.sampler.take(work.run.progress.at)[1]] = 11.0
    assert work.train() is EndReason.COMPLETED
    records = work.attempt.steps()
    assert [record["skipped"] for record in records] == ["non_finite_input", None, None]
    assert {record["loss_scale"] for record in records} == {256.0} and not records[0]["found_inf"]
