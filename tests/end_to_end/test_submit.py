from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from jobs import services
from jobs.models import Artifact, Job
from tests.end_to_end.stack import ROOT, Stack, until
from workers.contract.messages import Request


def written(folder: Path, *script: dict[str, object]) -> str:
    file = folder / "job.yaml"
    settings = {"script": list(script), "devices": {"devices_per_node": 2}}
    file.write_text(yaml.safe_dump({"name": "scripted", "recipe": "scripted", "settings": settings}))
    return str(file)


def test_waiting_tells_progress_and_ends_with_a_summary(stack: Stack, tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {"do": "steps", "n": 20, "ms": 5},
        {"do": "nan", "n": 2},
        {"do": "evaluate", "metrics": {"accuracy": 0.75}},
    )
    result = stack.manage("submit", file, "--owner", "owner", "--wait", "--json")
    summary = json.loads(result.stdout)
    assert summary == {
        "job": summary["job"],
        "status": "succeeded",
        "end_reason": "completed",
        "end_detail": None,
        "attempts": 1,
        "steps_attempted": 22,
        "steps_applied": 20,
        "steps_skipped": 2,
        "metrics": {"accuracy": 0.75},
    }
    assert "running" in result.stderr and "evaluation: accuracy 0.75" in result.stderr


def test_a_failed_job_is_a_failed_command(stack: Stack, tmp_path: Path) -> None:
    file = written(tmp_path, {"do": "outcome", "reason": "non_finite", "detail": "Loss was NaN at step 1."})
    result = stack.manage("submit", file, "--owner", "owner", "--wait", "--json", check=False)
    summary = json.loads(result.stdout)
    assert result.returncode == 1
    assert (summary["status"], summary["end_reason"]) == ("failed", "non_finite")
    assert summary["end_detail"] == "Loss was NaN at step 1."


def test_a_dry_run_makes_thirty_steps_and_tells_what_they_say_of_the_whole(stack: Stack, tmp_path: Path) -> None:
    file = written(tmp_path, {"do": "steps", "n": 500}, {"do": "artifact", "name": "model"})
    result = stack.manage("submit", file, "--owner", "owner", "--dry-run", "--json")
    summary = json.loads(result.stdout)
    assert (summary["status"], summary["steps_attempted"]) == ("succeeded", 30)
    told = summary["dry_run"]
    assert (told["planned"], told["made"], told["skipped"], told["suggested_clip"]) == (30, 30, 0, 0.5)
    assert told["whole"]["steps"] == 500 and told["whole"]["seconds"] == 1.0  # and an evaluation of 0.5 s
    assert [(rank["rank"], rank["peak_mb"], rank["exact"]) for rank in told["memory"]] == [
        (0, 2.0, True),
        (1, 2.0, True),
    ]
    job = Job.objects.get(pk=summary["job"])
    assert job.dry_run and not Artifact.objects.filter(attempt__job=job).exists()


def test_who_stops_waiting_does_not_stop_the_job(stack: Stack, tmp_path: Path) -> None:
    file = written(tmp_path, {"do": "sleep", "s": 60})
    command = [sys.executable, "manage.py", "submit", file, "--owner", "owner", "--wait"]
    with subprocess.Popen(command, cwd=ROOT, env=stack.env, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert "is queued" in waiting.stderr.readline()
        job = Job.objects.latest("pk")
        until(lambda: Job.objects.get(pk=job.pk).status == "running", "the job to run")
        waiting.send_signal(signal.SIGINT)
        assert f"job {job.pk} goes on" in waiting.stderr.read()
    assert waiting.returncode == 130
    assert Job.objects.get(pk=job.pk).status == "running"
    services.ask_to_leave(job, Request.CANCEL, actor=None, actor_name="test")
    stack.wait_for_end(job)
