"""Going on from a checkpoint, in a fresh process."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.workers.recipes.examples import write_texts
from tests.workers.trainer.conftest import Attempt, Start

LONG = {
    "training": {"batch_size": 3, "max_steps": 40},
    "precision": {"mode": "fp16"},
    "loss_scaling": {"init_scale": 2.0**20, "growth_interval": 7},
    "checkpoints": {"every_steps": 12, "evaluate_every_steps": 10},
    "clipping": {"mode": "zclip", "adaptive_warmup": 5},
    "optimizer": {"learning_rate": 1e-3, "ema_memory": 0.9, "layer_decay": 0.9},
}


def digest(attempt: Attempt) -> dict[str, str]:
    folder = attempt.checkpoints()[-1]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}


FACTS = (
    "step",
    "applied",
    "epoch",
    "loss",
    "loss_all",
    "lr",
    "grad_norm",
    "clip_norm",
    "loss_scale",
    "skipped",
    "batch_id",
)


def facts(attempt: Attempt, rank: int = 0) -> list[tuple[Any, ...]]:
    return [
        tuple("nan" if isinstance(v, float) and math.isnan(v) else v for v in (record[name] for name in FACTS))
        for record in attempt.steps(rank)
    ]


@pytest.mark.slow  # every recipe does, see recipes/test_killed_and_resumed.py; this one with two more settings
def test_after_sigkill_the_run_ends_bit_for_bit_as_the_undisturbed_one(begin: Start, train: Any) -> None:
    undisturbed = train("undisturbed", world=2, **LONG)
    killed = begin("killed", world=2, **LONG).until_step(20).kill()
    assert killed.exit_codes == [-9, -9]
    checkpoint = killed.checkpoints()[-1]
    resumed = train("resumed", world=2, start_from=checkpoint, **LONG)
    step = json.loads((checkpoint / "state.json").read_text())["step"]
    assert step < 40
    for rank in (0, 1):
        assert facts(resumed, rank) == facts(undisturbed, rank)[step:]
    assert digest(resumed) == digest(undisturbed)
    assert any(record["skipped"] for record in undisturbed.steps())


def test_the_averaged_weights_are_what_is_evaluated_kept_as_best_and_exported(train: Any) -> None:
    attempt = train("averaged", export=True, optimizer={"ema_memory": 0.5, "learning_rate": 1e-2})
    average, own, best = attempt.final("average"), attempt.final(), attempt.final("best")
    assert average.keys() <= own.keys()
    assert all(best[name].tobytes() == value.tobytes() for name, value in average.items())
    assert any(not np.array_equal(own[name], value) for name, value in average.items())
    exported = load_file(attempt.folder.artifacts / "model" / "model.safetensors")
    assert np.array_equal(exported["classifier.weight"], average["classifier.weight"])


def test_another_optimizer_begins_with_fresh_moments_and_averaging_with_the_weights(train: Any) -> None:
    first = train("first", training={"max_steps": 4})
    changed = {"kind": "sgd", "ema_memory": 0.999, "learning_rate": 1e-12}
    second = train("second", start_from=first.checkpoints()[-1], training={"max_steps": 5}, optimizer=changed)
    assert second.outcome()["end_reason"] == "completed"
    assert {name.partition("/")[0] for name in second.final("optimizer")} == {"velocity"}
    for name, value in second.final("average").items():
        assert np.allclose(value, first.final()[name], atol=1e-6)


def test_a_checkpoint_is_complete_and_its_manifest_true(train: Any) -> None:
    attempt = train("plain")
    (folder,) = attempt.checkpoints()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["good"] and manifest["step"] == manifest["applied"] == 8
    assert set(manifest["files"]) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    for name, file in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert file == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (event,) = attempt.events("checkpoint")
    assert (event["path"], event["good"]) == ("checkpoints/step-000000008", True)


def test_a_damaged_checkpoint_is_refused(train: Any) -> None:
    folder = train("plain").checkpoints()[-1]
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    outcome = train("again", start_from=folder).outcome()
    assert outcome["end_reason"] == "trainer_error"
    assert "model.safetensors is not what was written" in outcome["detail"]


def test_only_the_newest_checkpoints_stay(train: Any) -> None:
    attempt = train("keeping", training={"max_steps": 10}, checkpoints={"every_steps": 2, "keep": 3})
    assert [path.name[-3:] for path in attempt.checkpoints()] == ["006", "008", "010"]
    assert len(attempt.events("checkpoint")) == 5


def test_a_run_that_became_non_finite_can_be_retried_from_its_last_good_checkpoint(train: Any) -> None:
    absurd = {"learning_rate": 1e12}
    first = train("good", training={"max_steps": 6}, checkpoints={"every_steps": 3})
    checkpoint = first.checkpoints()[-1]
    wrong = {"training": {"max_steps": 30}, "schedule": {"warmup_steps": 0}, "limits": {"skip_limit": 2}}
    failed = train("failed", start_from=checkpoint, optimizer=absurd, clipping={"max_norm": None}, **wrong)
    assert failed.outcome()["end_reason"] == "non_finite"
    assert failed.steps()[0]["step"] == 7

    retried = train("retried", start_from=checkpoint, optimizer={"learning_rate": 1e-4}, **wrong)
    assert retried.outcome()["end_reason"] == "completed"
    assert retried.steps()[0]["step"] == 7
    assert max(record["lr"] for record in retried.steps()) <= 1e-4
    (note,) = retried.events("note")
    assert "optimizer.learning_rate" in note["text"]


def test_todays_settings_win_over_what_the_checkpoint_had(train: Any) -> None:
    first = train("first", training={"max_steps": 6}, precision={"mode": "fp16"})
    checkpoint = first.checkpoints()[-1]
    changed = {
        "training": {"max_steps": 9},
        "precision": {"mode": "fp16"},
        "clipping": {"max_norm": 1e-4},
        "optimizer": {"beta1": 0.5},
    }
    same_scale = train("same-scale", start_from=checkpoint, **changed)
    assert same_scale.steps()[0]["loss_scale"] == first.steps()[-1]["loss_scale"]
    new_scale = train("new-scale", start_from=checkpoint, loss_scaling={"init_scale": 8.0}, **changed)
    records = new_scale.steps()
    assert {record["loss_scale"] for record in records} == {8.0}
    assert all(record["clipped"] and record["clip_norm"] == 1e-4 for record in records)
    powers = {name: float(array[0]) for name, array in new_scale.final("optimizer").items() if "beta1_pow" in name}
    assert set(powers.values()) == {0.5**10}


def test_a_plan_is_kept_though_steps_were_skipped_so_that_the_rate_goes_on_where_it_was(train: Any) -> None:
    options = {
        "training": {"batch_size": 4, "epochs": 2, "max_steps": None},
        "precision": {"mode": "fp16"},
        "loss_scaling": {"init_scale": 2.0**22},
        "checkpoints": {"every_steps": 6, "keep": 9},
    }
    first = train("first", **options)
    assert any(record["skipped"] for record in first.steps())
    second = train("second", start_from=first.checkpoints()[0], **options)
    assert first.events("plan")[0]["total_steps"] == second.events("plan")[0]["total_steps"] == 32
    rest = first.steps()[-len(second.steps()) :]
    assert [(r["step"], r["lr"]) for r in rest] == [(r["step"], r["lr"]) for r in second.steps()]


def test_another_batch_size_and_number_of_ranks_go_on_at_the_same_row(train: Any) -> None:
    first = train("first", training={"batch_size": 4, "max_steps": 5})
    checkpoint = first.checkpoints()[-1]
    sizes = {"batch_size": 6, "max_steps": None, "epochs": 1}
    second = train("second", start_from=checkpoint, world=2, training=sizes)
    records = second.steps()
    # 64 rows, 20 of them taken: three batches of 12 are left, and 8 rows.
    assert [[record["samples"] for record in second.steps(rank)] for rank in (0, 1)] == [[6, 6, 6, 4]] * 2
    assert {record["epoch"] for record in records} == {0}
    (note,) = second.events("note")
    assert "after 20 of 64 rows. Batches of 12 rows from there on" in note["text"]
    (plan,) = second.events("plan")
    assert plan["total_steps"] == 9


def test_another_model_size_is_a_clear_error(train: Any) -> None:
    checkpoint = train("first").checkpoints()[-1]
    outcome = train("second", start_from=checkpoint, model={"hidden_size": 32, "layers": 1, "heads": 2}).outcome()
    assert outcome["end_reason"] == "bad_settings"
    assert "it has [32] for" in outcome["detail"] or "the model has [" in outcome["detail"]


def test_another_vocabulary_is_a_clear_error(train: Any) -> None:
    checkpoint = train("first").checkpoints()[-1]
    model = {"hidden_size": 16, "layers": 1, "heads": 2, "vocabulary_size": 50}
    outcome = train("second", start_from=checkpoint, model=model).outcome()
    assert outcome["end_reason"] == "bad_settings"
    assert "its vocabulary differs" in outcome["detail"]


def test_the_best_weights_of_before_are_kept_over_a_resume(train: Any) -> None:
    options = {"checkpoints": {"evaluate_every_steps": 2}}
    first = train("first", training={"max_steps": 30}, **options)
    best = max(line["metrics"]["accuracy"] for line in first.events("evaluation"))
    # With a rate of nearly nothing the accuracy can only stay what it is.
    second = train(
        "second",
        start_from=first.checkpoints()[-1],
        training={"max_steps": 34},
        optimizer={"learning_rate": 1e-30},
        **options,
    )
    assert second.state()["best"] == best
    assert not any(line["best"] for line in second.events("evaluation"))
    assert digest(second)["best.safetensors"] == digest(first)["best.safetensors"]


def test_a_paused_run_goes_on_bit_for_bit(begin: Start, train: Any) -> None:
    options = {"training": {"batch_size": 2, "max_steps": 150}}
    undisturbed = train("undisturbed", **options)
    paused = begin("paused", tampered="pause", **options).wait()
    assert paused.outcome()["end_reason"] == "paused"
    resumed = train("resumed", start_from=paused.checkpoints()[-1], **options)
    assert facts(paused) + facts(resumed) == facts(undisturbed)
    assert digest(resumed)["model.safetensors"] == digest(undisturbed)["model.safetensors"]


def test_an_evaluation_that_a_pause_breaks_off_is_made_when_the_run_goes_on(begin: Start, train: Any) -> None:
    options = {"training": {"batch_size": 2, "max_steps": 60}, "checkpoints": {"evaluate_every_steps": 1}}
    undisturbed = train("undisturbed", **options)
    paused = begin("paused", tampered="pause", **options).wait()
    last = paused.steps()[-1]["step"]
    assert paused.outcome()["end_reason"] == "paused"
    assert paused.state()["step"] == last and paused.state()["evaluation_due"]
    resumed = train("resumed", start_from=paused.checkpoints()[-1], **options)
    assert evaluations(resumed)[0][0] == last
    assert evaluations(paused) + evaluations(resumed) == evaluations(undisturbed)
    assert digest(resumed) == digest(undisturbed)


def evaluations(attempt: Attempt) -> list[tuple[int, bool, Any]]:
    return [(line["step"], line["best"], line["metrics"]) for line in attempt.events("evaluation")]


def test_a_poisoned_run_can_be_retried_without_its_weights(tmp_path: Path, train: Any) -> None:
    write_texts(tmp_path / "poisoned", weight=dict.fromkeys(range(1, 65), "nan"))
    outcome = train(
        "poisoned", data=tmp_path / "poisoned", columns={"weight_column": "weight"}, limits={"skip_limit": 3}
    ).outcome()
    assert (outcome["end_reason"], outcome["step"]) == ("non_finite", 1)
    assert train("retried", data=tmp_path / "poisoned").outcome()["end_reason"] == "completed"
