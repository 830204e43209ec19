from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.stack import DatabaseOf, Stack, until
from tests.scripted.recipe import RECIPE
from workers.recipes import registry


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.RECIPES, "scripted", RECIPE)


@pytest.fixture(scope="module")
def stack_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    try:
        stack.prepare()
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def stack(stack_of_module: Stack, django_db_blocker: Any, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """All parts run; the models of this process are the stack's."""
    stack = stack_of_module
    with django_db_blocker.unblock(), DatabaseOf(stack.data_dir):
        stack.start()
        from jobs.models import Host

        until(lambda: Host.objects.filter(online=True).exists(), "the host")
        yield stack
        if has_failed(request):
            stack.print_logs()


def has_failed(request: pytest.FixtureRequest) -> bool:
    report = getattr(request.node, "report", None)
    return report is None or bool(report.failed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    if report.when == "call":
        item.report = report  # type: ignore[attr-defined]
    return report
