"""The one test with Paddle's own launcher: its flags, its environment, its rank numbers."""

from __future__ import annotations

import pytest

from tests.workers.conftest import Host


def test_paddle_starts_two_ranks_that_find_each_other(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_RECIPES", "tests.workers.paddle_recipe")
    monkeypatch.setenv("REDIS_PASSWORD", "secret")
    attempt = host.start([], recipe="paddle_ranks", devices=[0, 1])
    ended = attempt.end(60)
    assert (ended["end_reason"], ended["detail"]) == ("completed", "")
    assert attempt.said("running")
    for rank in (0, 1):
        assert b"sum over ranks 3.0 devices cpu" in attempt.controller.stream(attempt.uid, f"{rank}/log")
    # The launcher writes its whole environment down; there is nothing of ours in it.
    written = b"".join(path.read_bytes() for path in attempt.folder.launcher_folder.iterdir())
    assert b"PADDLE_TRAINER_ID" in written
    assert b"REDIS" not in written
