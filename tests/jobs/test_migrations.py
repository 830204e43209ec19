"""A database of an earlier version is brought to this one with all its rows."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_jobs_that_have_ended_and_their_datasets_are_still_there_after_an_upgrade() -> None:
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes()
    try:
        old = _at([("jobs", "0002_job_life_and_results")])
        user = old.get_model("auth", "User").objects.create(username="olga")
        dataset = old.get_model("jobs", "Dataset").objects.create(
            name="reviews", owner=user, key="k", content_hash="h", columns=[], labels=[], splits={}
        )
        for number, reason in enumerate(("trainer_error", "non_finite", "host_lost")):
            ended: dict[str, Any] = {"status": "failed", "end_reason": reason, "ended_at": timezone.now()}
            job = old.get_model("jobs", "Job").objects.create(
                name=f"old {number}", owner=user, recipe="text_classification", dataset=dataset, **ended
            )
            old.get_model("jobs", "Attempt").objects.create(job=job, number=1, uid=f"{number}", settings={}, **ended)
    finally:
        new = _at(newest)
    jobs = new.get_model("jobs", "Job").objects.order_by("name")
    assert [job.end_reason for job in jobs] == ["trainer_error", "non_finite", "host_lost"]
    assert new.get_model("jobs", "Attempt").objects.filter(status="failed").count() == 3
    assert new.get_model("jobs", "Dataset").objects.get().kind == "texts"


def _at(targets: list[tuple[str, str]]) -> Any:
    executor = MigrationExecutor(connection)
    executor.migrate(targets)
    return (
        MigrationExecutor(connection)
        .loader.project_state([*targets, ("auth", "0012_alter_user_first_name_max_length")])
        .apps
    )
