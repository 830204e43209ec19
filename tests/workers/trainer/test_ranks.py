"""Several real ranks over Gloo."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.recipes.examples import write_texts
from tests.workers.trainer.conftest import Attempt, Ranks, Start, make_attempt
from workers.contract.messages import Control, Request

STEADY = {"dropout": 0.0}


def test_one_rank_with_a_large_batch_does_the_same_as_two_ranks_with_micro_batches(train: Any) -> None:
    # 64 rows in batches of 12: the last one of an epoch has 4 rows. The recipes' tests do it with two ranks alone.
    one = train("one", world=1, training={"batch_size": 12, "max_steps": 7}, regularisation=STEADY)
    two = train("two", world=2, training={"batch_size": 3, "accumulation": 2, "max_steps": 7}, regularisation=STEADY)
    assert two.exit_codes == [0, 0]
    for a, b in zip(one.steps(), two.steps(), strict=True):
        assert a["loss_all"] == pytest.approx(b["loss_all"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
        assert a["batch_id"] == b["batch_id"]
    for name, weights in one.final().items():
        assert np.allclose(weights, two.final()[name], atol=2e-5), name


def test_every_rank_and_every_step_drops_others(tmp_path: Path, train: Any) -> None:
    """All rows are the same, and the weights stand still: what differs is chance."""
    folder = tmp_path / "alike"
    write_texts(folder, train=16, dev=2)
    line = (folder / "train.jsonl").read_text().splitlines()[0]
    (folder / "train.jsonl").write_text(f"{line}\n" * 16)
    still = {"optimizer": {"learning_rate": 1e-30}, "regularisation": {"dropout": 0.5}, "training": {"max_steps": 3}}
    run = train("alike", world=2, data=folder, **still)
    losses = [record["loss"] for rank in (0, 1) for record in run.steps(rank)]
    assert len(set(losses)) == len(losses) == 6


def test_every_rank_records_every_step_and_they_agree_on_what_is_global(train: Any) -> None:
    attempt = train("both", world=2, precision={"mode": "fp16"}, loss_scaling={"init_scale": 2.0**22})
    ours, theirs = attempt.steps(0), attempt.steps(1)
    assert [record["step"] for record in ours] == list(range(1, len(ours) + 1))
    for a, b in zip(ours, theirs, strict=True):
        for name in ("step", "applied", "loss_all", "lr", "grad_norm", "loss_scale", "found_inf", "skipped", "clipped"):
            assert a[name] == b[name] or (math.isnan(a[name]) and math.isnan(b[name])), name
    assert any(record["skipped"] for record in ours)
    assert any(a["loss"] != b["loss"] for a, b in zip(ours, theirs, strict=True))
    assert ours[0]["samples"] == 4 and ours[0]["tokens"] > 8


def test_a_last_batch_of_fewer_rows_than_ranks_still_counts_right(tmp_path: Path, train: Any) -> None:
    write_texts(tmp_path / "odd", train=13, dev=3)
    options = {"training": {"max_steps": 9}, "regularisation": STEADY, "data": tmp_path / "odd"}
    three = train("three", world=3, **options | {"training": {"batch_size": 4, "max_steps": 4}})
    one = train("one", world=1, **options | {"training": {"batch_size": 12, "max_steps": 4}})
    assert [record["samples"] for record in three.steps(0)] == [4, 1, 4, 1]
    assert [record["samples"] for record in three.steps(2)] == [4, 0, 4, 0]
    for a, b in zip(three.steps(2), one.steps(), strict=True):
        assert a["loss_all"] == pytest.approx(b["loss_all"], rel=1e-5)
    for name, weights in one.final().items():
        assert np.allclose(weights, three.final()[name], atol=2e-5), name


@pytest.mark.parametrize("mode", ["float32", "fp16"])
def test_a_poisoned_row_is_skipped_by_all_and_named_with_its_rank_and_step(
    tmp_path: Path, train: Any, mode: str
) -> None:
    write_texts(tmp_path / "poisoned", weight={30: "nan"})
    attempt = train(
        "poisoned",
        world=2,
        data=tmp_path / "poisoned",
        columns={"weight_column": "weight"},
        training={"max_steps": 8},
        limits={"skip_limit": 1},
        precision={"mode": mode},
    )
    outcome = attempt.outcome()
    (bad,) = [record for record in attempt.steps(0) if record["skipped"]]
    guilty = outcome["rank"]
    assert outcome["end_reason"] == "non_finite" and outcome["step"] == bad["step"]
    assert f"At step {bad['step']} the input of rank {guilty} held a number that is not finite" in outcome["detail"]
    assert math.isnan(attempt.steps(guilty)[-1]["loss"])
    assert math.isfinite(attempt.steps(1 - guilty)[-1]["loss"])
    (note,) = attempt.events("note", guilty)
    assert note["text"] == f"Not finite in the training rows of rank {guilty}: weight of row 30."
    assert attempt.exit_codes == [1, 1]


def test_ranks_that_see_different_data_stop(tmp_path: Path, zygote: Any, dataset: Path) -> None:
    """As if another node had another copy of the dataset."""
    write_texts(tmp_path / "other", weight={1: 3.0, 2: 3.0, 3: 3.0, 4: 3.0})
    write_texts(tmp_path / "plain", weight={})
    attempt = make_attempt(tmp_path / "run", tmp_path / "plain", world=2, data={"weight_column": "weight"})
    other = make_attempt(
        tmp_path / "run-on-another-host", tmp_path / "other", world=2, data={"weight_column": "weight"}
    )
    Ranks(zygote, attempt, {}, folders=[attempt.folder.path, other.folder.path]).wait()
    assert "not all ranks were alike: weight of the batch was" in attempt.outcome(0)["detail"]
    assert attempt.outcome(0)["end_reason"] == "ranks_differ"


def test_training_goes_on_past_a_poisoned_row(tmp_path: Path, train: Any) -> None:
    write_texts(tmp_path / "poisoned", weight={30: math.inf})
    attempt = train(
        "poisoned",
        world=2,
        data=tmp_path / "poisoned",
        columns={"weight_column": "weight"},
        training={"max_steps": 10},
    )
    assert attempt.outcome()["end_reason"] == "completed"
    assert {record["skipped"] for record in attempt.steps()} == {None, "non_finite_input"}
    assert attempt.steps()[-1]["applied"] == 10


@pytest.mark.parametrize(
    ("mode", "lr", "limits", "reason"),
    [
        ("float32", 1e12, {}, "non_finite"),
        ("fp16", 1e3, {}, "non_finite"),
        ("float32", 100.0, {"loss_limit": 1.0}, "diverged"),
    ],
)
def test_an_absurd_learning_rate_ends_with_a_reason_of_its_own(
    train: Any, mode: str, lr: float, limits: dict[str, Any], reason: str
) -> None:
    attempt = train(
        "absurd",
        world=2,
        precision={"mode": mode},
        optimizer={"learning_rate": lr},
        schedule={"warmup_steps": 0, "decay": "constant"},
        training={"max_steps": 200},
        limits={"skip_limit": 5, **limits},
        checkpoints={"every_steps": 1000},
    )
    assert attempt.outcome()["end_reason"] == reason, attempt.outcome()
    assert attempt.outcome()["step"] == attempt.steps()[-5]["step"], "the first of the bad steps is named"
    assert attempt.exit_codes == [1, 1]


def leave(begin: Start, request: Request, **changes: Any) -> Attempt:
    ranks = begin("leaving", world=2, training={"max_steps": 100_000, "epochs": 1000}, **changes).until_step(5)
    ranks.attempt.ask(Control(leave=request))
    attempt = ranks.wait()
    assert len(attempt.steps(0)) == len(attempt.steps(1)), "both ranks leave at the same step"
    return attempt


def test_cancel_leaves_at_once(begin: Start) -> None:
    attempt = leave(begin, Request.CANCEL)
    assert attempt.outcome(0)["end_reason"] == attempt.outcome(1)["end_reason"] == "cancelled"
    assert attempt.exit_codes == [0, 0]
    assert attempt.events("artifact") == []


@pytest.mark.parametrize(
    ("request_", "reason"),
    [(Request.PAUSE, "paused"), (Request.DRAIN, "drained"), (Request.TIME_LIMIT, "time_limit")],
)
def test_pause_drain_and_the_time_limit_write_a_checkpoint_of_the_last_step_first(
    begin: Start, request_: Request, reason: str
) -> None:
    attempt = leave(begin, request_)
    assert attempt.outcome()["end_reason"] == reason
    assert attempt.exit_codes == [0, 0]
    assert attempt.state()["step"] == attempt.steps()[-1]["step"]
    assert attempt.events("checkpoint")[-1]["step"] == attempt.steps()[-1]["step"]


def test_finish_evaluates_and_exports(begin: Start) -> None:
    attempt = leave(begin, Request.FINISH, export=True)
    assert attempt.outcome()["end_reason"] == "finished_early"
    assert attempt.events("evaluation")[-1]["step"] == attempt.steps()[-1]["step"]
    assert [line["name"] for line in attempt.events("artifact")] == ["model", "inference"]
    assert len(attempt.events("worst")) == 1


def test_each_new_number_asks_for_one_checkpoint_now(begin: Start) -> None:
    options = {"training": {"max_steps": 100_000, "epochs": 1000}, "checkpoints": {"every_steps": 100_000, "keep": 9}}
    ranks = begin("asking", world=2, **options).until_step(3)
    for number in (1, 2):
        ranks.attempt.ask(Control(checkpoint=number))
        ranks.until_step(len(ranks.attempt.steps()) + 60)
        while len(ranks.attempt.events("checkpoint")) < number:
            ranks.until_step(len(ranks.attempt.steps()) + 1)
    ranks.attempt.ask(Control(leave=Request.CANCEL, checkpoint=2))
    attempt = ranks.wait()
    assert len(attempt.events("checkpoint")) == len(attempt.checkpoints()) == 2


def test_a_full_disk_ends_with_its_reason(tmp_path: Path, begin: Start, dataset: Path) -> None:
    attempt = make_attempt(tmp_path / "full", dataset)
    attempt.folder.steps(0).symlink_to("/dev/full")
    zygote = begin("other", training={"max_steps": 1}).zygote
    Ranks(zygote, attempt, {}).wait()
    assert attempt.outcome()["end_reason"] == "disk_full"
    assert attempt.exit_codes == [1]


def test_when_rank_0_fails_at_a_checkpoint_only_rank_0_says_why(begin: Start) -> None:
    ranks = begin("blocked", world=2, training={"max_steps": 100_000, "epochs": 1000}).until_step(2)
    folder = ranks.attempt.folder
    folder.checkpoints.rmdir()
    folder.checkpoints.write_text("in the way")
    ranks.attempt.ask(Control(checkpoint=1))
    assert ranks.zygote.ask({"wait": ranks.pids[0]}) == 1
    ranks.kill()
    assert ranks.attempt.outcome(0)["end_reason"] == "trainer_error"
    assert not folder.outcome(1).exists()


def tampered(tmp_path: Path, zygote: Any, dataset: Path, how: str, *, world: int = 2, **changes: Any) -> Attempt:
    attempt = make_attempt(tmp_path / how, dataset, world=world, **changes)
    (attempt.folder.path / "tamper").write_text(how)
    return Ranks(zygote, attempt, {}, module="tests.workers.trainer.tampered").wait()


def test_a_rank_whose_weights_differ_by_one_bit_is_found_and_named(tmp_path: Path, zygote: Any, dataset: Path) -> None:
    attempt = tampered(tmp_path, zygote, dataset, "weights", monitoring={"compare_ranks_every": 4})
    for rank in (0, 1):
        outcome = attempt.outcome(rank)
        assert (outcome["end_reason"], outcome["step"]) == ("ranks_differ", 4)
        assert "At step 4 not all ranks were alike: checksum of the weights was" in outcome["detail"]
        (event,) = attempt.events("outcome", rank)
        assert event["what"] == "fingerprint" and len(set(event["values"])) == 2
    assert len(attempt.steps()) == 3


def test_weights_are_compared_before_a_checkpoint_so_that_every_one_can_be_gone_on_from(
    tmp_path: Path, zygote: Any, dataset: Path
) -> None:
    options: dict[str, Any] = {
        "monitoring": {"compare_ranks_every": 1000},
        "checkpoints": {"every_steps": 2, "keep": 9},
    }
    attempt = tampered(tmp_path, zygote, dataset, "weights", **options)
    assert (attempt.outcome()["end_reason"], attempt.outcome()["step"]) == ("ranks_differ", 4)
    assert attempt.events("plan")[0]["checkpoints_compared"] is True
    assert [event["step"] for event in attempt.events("checkpoint")] == [2]


def test_each_ranks_own_norm_shows_which_one_overflowed(tmp_path: Path, zygote: Any, dataset: Path) -> None:
    options = {"precision": {"mode": "fp16"}, "limits": {"skip_limit": 2}, "monitoring": {"local_norms": True}}
    attempt = tampered(tmp_path, zygote, dataset, "gradient", **options)
    for rank in (0, 1):
        outcome = attempt.outcome(rank)
        assert (outcome["end_reason"], outcome["rank"], outcome["step"]) == ("loss_scale_collapsed", 1, 3)
        assert "the gradient of rank 1 was not finite" in outcome["detail"]
    assert attempt.events("scale")[-1]["ranks"] == [1]
    norms = [[record["extras"]["local_norm"] for record in attempt.steps(rank)] for rank in (0, 1)]
    assert np.isfinite(norms[0]).all()
    assert np.isfinite(norms[1][:2]).all() and not np.isfinite(norms[1][2:]).any()
    assert all(record["found_inf"] for record in attempt.steps(0)[2:]), "the averaged gradient overflows on both"


def test_a_cancellation_during_the_export_counts_and_nothing_is_offered(
    tmp_path: Path, zygote: Any, dataset: Path
) -> None:
    attempt = tampered(tmp_path, zygote, dataset, "cancel", world=1, training={"max_steps": 1})
    assert attempt.outcome()["end_reason"] == "cancelled" and attempt.exit_codes == [0]
    assert attempt.events("artifact") == []


def test_looking_at_each_ranks_norm_changes_nothing_else(train: Any) -> None:
    changes = {"training": {"accumulation": 2, "max_steps": 3}, "precision": {"mode": "fp16"}}
    plain = train("plain", world=2, **changes)
    apart = train("apart", world=2, monitoring={"local_norms": True}, **changes)
    for a, b, other in zip(plain.steps(), apart.steps(0), apart.steps(1), strict=True):
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)
        own = [record["extras"]["local_norm"] for record in (b, other)]
        # A mean is no longer than what it is the mean of, and these are of the unscaled gradient.
        assert a["grad_norm"] <= sum(own) / 2 * 1.01 and max(own) < 10 * a["grad_norm"]
        assert a["loss_all"] == pytest.approx(b["loss_all"], rel=1e-5)
    for name, weights in plain.final().items():
        assert np.allclose(weights, apart.final()[name], atol=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("at", ["alone", "start"])
def test_one_rank_may_work_alone_for_longer_than_gloo_waits(
    tmp_path: Path, zygote: Any, dataset: Path, at: str
) -> None:
    attempt = make_attempt(tmp_path / "patient", dataset, world=2)
    (attempt.folder.path / "patience").write_text(json.dumps({"at": at, "seconds": 40}))
    Ranks(zygote, attempt, {}, module="tests.workers.trainer.patient").wait()
    assert attempt.exit_codes == [0, 0], attempt.log(1)


@pytest.mark.slow
def test_a_rank_that_cannot_start_says_why_and_nobody_waits_for_it(tmp_path: Path, zygote: Any, dataset: Path) -> None:
    attempt = make_attempt(tmp_path / "run", dataset, world=2)
    other = make_attempt(tmp_path / "run-on-another-host", tmp_path / "nothing", world=2)
    Ranks(zygote, attempt, {}, folders=[attempt.folder.path, other.folder.path]).wait()
    assert attempt.exit_codes == [1, 1]
    assert other.outcome(1)["end_reason"] == "bad_data" and not attempt.folder.outcome(0).exists()
    assert "another rank failed before all were ready" in attempt.log(0)


@pytest.mark.slow
def test_under_paddles_launcher(tmp_path: Path, dataset: Path) -> None:
    attempt = make_attempt(tmp_path / "launched", dataset, world=2)
    (attempt.folder.path / "processes").mkdir(exist_ok=True)
    (attempt.folder.path / "launch.json").write_text(json.dumps({"trainer": ["-m", "workers.trainer"]}))
    launcher = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--host", "127.0.0.1"]
    log = ["--log_dir", str(attempt.folder.launcher_folder)]
    shim = Path("workers/rank.py").absolute()
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    subprocess.run([*launcher, *log, str(shim), str(attempt.folder.path)], env=environment, check=True, timeout=110)
    assert attempt.outcome(0)["end_reason"] == attempt.outcome(1)["end_reason"] == "completed"
    assert len(attempt.steps(0)) == len(attempt.steps(1)) == 8
