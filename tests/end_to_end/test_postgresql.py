"""The database of production under the processes of one machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests import with_postgresql
from tests.end_to_end.stack import Stack
from tests.end_to_end.test_up import Up


@pytest.mark.slow
def test_a_job_runs_to_its_end_on_postgresql(tmp_path: Path) -> None:
    script = [
        {"do": "steps", "n": 100, "ms": 5},
        {"do": "nan", "n": 2},
        {"do": "evaluate", "metrics": {"accuracy": 0.75}},
        {"do": "checkpoint"},
        {"do": "artifact", "name": "model"},
    ]
    job = {"name": "scripted", "recipe": "scripted", "settings": {"script": script, "devices": {"devices_per_node": 2}}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    with with_postgresql.server() as url:
        stack = Stack(tmp_path, DATABASE_URL=url)
        try:
            up = Up(stack)
            up.wait_for("Evenkeel is at")
            create = "from django.contrib.auth.models import User; User.objects.create_user('owner')"
            stack.manage("shell", "-v0", "-c", create)
            result = stack.manage("submit", str(tmp_path / "job.yaml"), "--owner", "owner", "--wait", "--json")
            said = up.stop()
        finally:
            stack.stop()
    summary = json.loads(result.stdout)
    assert (summary["status"], summary["end_reason"], summary["attempts"]) == ("succeeded", "completed", 1)
    assert (summary["steps_attempted"], summary["steps_applied"], summary["steps_skipped"]) == (102, 100, 2)
    assert summary["metrics"] == {"accuracy": 0.75}
    assert "“model” is ready for download" in result.stderr
    assert "no process is left" in said
    assert not list(stack.data_dir.glob("*.sqlite3"))
