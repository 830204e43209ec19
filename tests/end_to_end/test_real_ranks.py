"""The same with Paddle: two data-parallel ranks train a tiny ERNIE while everything beside them is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from django.test import override_settings

from jobs import trials
from jobs.models import Job, Trial
from tests.end_to_end.stack import Stack, newest, until, why
from workers.contract.states import EndReason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TINY = {
    "data": {"max_length": 16},
    "model": {"hidden_size": 16, "layers": 1, "heads": 2, "vocabulary_size": 100},
    "training": {"epochs": 60, "batch_size": 8},
    "optimizer": {"learning_rate": 0.01},
    "precision": {"mode": "fp16"},
    "loss_scaling": {"init_scale": 2.0**30, "ceiling": 2.0**40, "growth_interval": 20},
    "checkpoints": {"every_steps": 100, "evaluate_every_steps": 400},
    "devices": {"devices_per_node": 2},
}


def register(stack: Stack, folder: Path) -> None:
    file = folder / "rows.jsonl"
    rows = [{"text": ("好书" if i % 2 else "坏书") + f"第{i}本", "label": str(i % 2)} for i in range(400)]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    stack.manage("register_dataset", str(file), "--name", "books", "--shared", "--no-baseline")


def test_a_dry_run_of_real_ranks_tells_where_the_scale_settles_and_keeps_nothing(stack: Stack, tmp_path: Path) -> None:
    register(stack, tmp_path)
    file = tmp_path / "dry.yaml"
    file.write_text(
        yaml.safe_dump({"name": "dry", "recipe": "text_classification", "dataset": "books", "settings": TINY})
    )
    words = ("--owner", "owner", "--dry-run", "--anyway", "--json")
    summary = json.loads(stack.manage("submit", str(file), *words, timeout_s=300).stdout)
    told = summary["dry_run"]
    assert (summary["status"], told["made"], told["planned"]) == ("succeeded", 30, 30)
    assert told["loss_scale"]["first"] == 2.0**30 and told["loss_scale"]["last"] < 2.0**30 and told["skipped"] > 0
    assert told["suggested_clip"] > 0 and told["step_ms"] > 0 and told["whole"]["evaluation_s"] > 0
    assert all(rank["exact"] and rank["peak_mb"] > 50 for rank in told["memory"]) and len(told["memory"]) == 2
    attempt = newest(Job.objects.get(pk=summary["job"]))
    assert not attempt.checkpoints.exists() and not attempt.artifacts.exists() and not attempt.evaluations.exists()
    stack.assert_all_stored_once(attempt, 2)


def test_a_real_job_outlives_kills_of_everything_beside_it(stack: Stack, tmp_path: Path) -> None:
    register(stack, tmp_path)
    job = stack.submit_file({"name": "real", "recipe": "text_classification", "dataset": "books", "settings": TINY})
    stack.wait_for_steps(job, 20, timeout_s=120)
    for part in ("web", "controller", "worker", "redis"):
        stack.kill(part)
        stack.start(part)
        stack.wait_for_steps(job, newest(job).attempted + 10)
    attempt = stack.wait_for_end(job, 300)
    assert (attempt.number, attempt.end_reason) == (1, EndReason.COMPLETED), why(attempt)
    assert attempt.skipped > 0, "the scale begins far too high"
    assert attempt.attempted == attempt.applied + attempt.skipped
    assert attempt.evaluations.latest("pk").metrics["accuracy"] > 0.9
    assert {artifact.name for artifact in attempt.artifacts.all()} == {"model", "inference"}
    stack.assert_all_stored_once(attempt, 2)

    with override_settings(STORAGE_ROOT=stack.data_dir / "storage"):
        trial = trials.ask(attempt.artifacts.get(name="inference"), "好书第7本\n坏书第8本", user=job.owner)
    until(lambda: Trial.objects.filter(pk=trial.pk).exclude(state="waiting").exists(), "the model's answer", 120)
    trial.refresh_from_db()
    assert [said["scores"][0]["label"] for said in trial.result["predictions"]] == ["1", "0"], trial.problem
