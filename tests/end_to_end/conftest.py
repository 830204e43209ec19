from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.stack import DatabaseOf, Stack, until


@pytest.fixture(scope="module")
def stack_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    try:
        stack.prepare()
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def stack(stack_of_module: Stack, django_db_blocker: Any) -> Iterator[Stack]:
    """All parts run; the models of this process are the stack's."""
    stack = stack_of_module
    with django_db_blocker.unblock(), DatabaseOf(stack.data_dir):
        stack.start()
        from jobs.models import Host

        until(lambda: Host.objects.filter(online=True).exists(), "the host")
        yield stack


@pytest.fixture(autouse=True)
def logs_of_a_failure(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """What the parts wrote last, beside a failed test."""
    yield
    report = getattr(request.node, "report", None)
    if report is None or not report.failed or "stack" not in request.fixturenames:
        return
    stack: Stack = request.getfixturevalue("stack_of_module")
    for log in sorted([*stack.data_dir.glob("logs/*.log"), *stack.scratch_root.glob("attempts/*/*/supervisor.log")]):
        print(
            f"--- {log.relative_to(stack.data_dir)}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    if report.when == "call":
        item.report = report  # type: ignore[attr-defined]
    return report
