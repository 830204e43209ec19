"""A supervisor with scripted ranks, a real Redis-protocol server and a small controller."""

from __future__ import annotations

from tests.workers.conftest import Host


def test_an_attempt_runs_to_its_end_and_every_byte_is_stored(host: Host) -> None:
    attempt = host.start([{"do": "log", "text": "hello 你好"}, {"do": "steps", "n": 50, "ms": 2}], devices=[0, 1])

    ended = attempt.end()

    assert (ended["end_reason"], ended["processes_left"]) == ("completed", 0)
    attempt.assert_everything_stored()
    for rank in (0, 1):
        assert [record["step"] for record in attempt.steps(rank)] == list(range(1, 51))
    assert [line["kind"] for line in attempt.controller.report(attempt.uid)] == [
        "claimed",
        "started",
        "running",
        "rank_exit",
        "rank_exit",
        "ended",
        "complete",
    ]
    claimed = attempt.one("claimed")
    assert (claimed["host"], claimed["devices"]) == ("testhost", [0, 1])
    assert {"python", "evenkeel", "paddlepaddle"} <= claimed["versions"].keys()
    stored = {name: len(content) for name, content in attempt.files().items() if not name.endswith("report")}
    assert attempt.one("complete")["bytes"] == stored
