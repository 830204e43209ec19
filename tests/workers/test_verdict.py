from __future__ import annotations

import signal
from typing import Any

import pytest

from workers.contract.messages import Request
from workers.contract.states import EndReason
from workers.supervisor.verdict import Facts, RankExit, first_to_fail, guilty, judge, last_error


def exit_of(rank: int, code: int, clock: float = 0.0, *, consequence: bool = False, tail: str = "") -> RankExit:
    """`code` below 0 is minus a signal."""
    ended = (code, None) if code >= 0 else (None, -code)
    return RankExit(rank, 100 + rank, *ended, clock, consequence, tail)


def outcome(reason: str, rank: int = 0, clock: float = 5.0) -> dict[str, Any]:
    return {"end_reason": reason, "detail": "said so", "rank": rank, "step": 9, "clock": clock}


def verdict(*exits: RankExit, world: int = 2, **facts: Any) -> EndReason:
    return judge(
        Facts(world=list(range(world)), exits={exit.rank: exit for exit in exits}, any_ready=True, **facts)
    ).reason


def test_the_earliest_to_fail_on_purpose_is_heard_first() -> None:
    outcomes = {0: outcome("trainer_error", 0, 2.0), 1: outcome("non_finite", 1, 1.0)}
    found = judge(Facts(world=[0, 1], exits={0: exit_of(0, 1, 3.0)}, outcomes=outcomes, request=Request.CANCEL))
    assert (found.reason, found.rank, found.step, found.detail) == (EndReason.NON_FINITE, 1, 9, "said so")


def test_a_survivor_that_could_still_say_that_it_lost_its_peer_is_not_the_cause() -> None:
    facts = Facts(
        world=[0, 1],
        exits={0: exit_of(0, 1, 2.0), 1: exit_of(1, -9, 1.0)},
        outcomes={0: outcome("trainer_error", 0, 1.5)},
        any_ready=True,
    )
    found = judge(facts)
    assert (found.reason, found.rank) == (EndReason.CRASHED_BY_SIGNAL, 1)


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        ("RuntimeError: [gloo/transport/tcp/pair.cc:584] TIMEOUT self_rank = 1 pair_rank = 0", "crashed_by_signal"),
        ("ValueError: of its own", "trainer_error"),
    ],
)
def test_a_survivor_may_even_be_faster_than_the_news_of_the_death(detail: str, reason: str) -> None:
    outcomes = {1: outcome("trainer_error", 1, 1.0) | {"detail": detail}}
    assert verdict(exit_of(0, -9, 1.01), exit_of(1, 1, 2.0), outcomes=outcomes) == reason


def test_a_rank_that_aborts_for_want_of_an_answer_is_not_blamed() -> None:
    abort = exit_of(0, -6, tail="terminate called\n  what():  [gloo/transport/tcp/unbound_buffer.cc:80] TIMEOUT\n")
    found = judge(Facts(world=[0, 1], exits={0: abort}, any_ready=True))
    assert (found.reason, found.rank) == (EndReason.CRASHED_BY_SIGNAL, None)
    assert found.detail.startswith("Rank 0 got no answer from another rank")


def test_an_error_of_one_rank_explains_the_abort_of_the_other_that_came_later() -> None:
    outcomes = {0: outcome("trainer_error", 0, 1.0)}
    assert verdict(exit_of(0, 1, 1.5), exit_of(1, -6, 2.0), outcomes=outcomes) is EndReason.TRAINER_ERROR


def test_success_of_one_rank_does_not_hide_the_crash_of_another() -> None:
    assert verdict(exit_of(0, 0), exit_of(1, -9), outcomes={0: outcome("completed")}) is EndReason.CRASHED_BY_SIGNAL


def test_a_crash_after_the_outcome_was_written_changes_nothing() -> None:
    outcomes = {0: outcome("completed"), 1: outcome("completed", 1)}
    assert verdict(exit_of(0, 0), exit_of(1, -6), outcomes=outcomes) is EndReason.COMPLETED


def test_ranks_that_all_exit_with_zero_have_completed() -> None:
    assert verdict(exit_of(0, 0), exit_of(1, 0)) is EndReason.COMPLETED
    assert verdict(exit_of(0, 0), exit_of(1, 0), request=Request.FINISH) is EndReason.FINISHED_EARLY


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request.CANCEL, EndReason.CANCELLED),
        (Request.PAUSE, EndReason.PAUSED),
        (Request.DRAIN, EndReason.DRAINED),
        (Request.SUPERSEDE, EndReason.SUPERSEDED),
        # To finish needs an evaluation and an export: a crash meanwhile is a crash.
        (Request.FINISH, EndReason.CRASHED_BY_SIGNAL),
    ],
)
def test_a_request_explains_ranks_that_died(request_: Request, reason: EndReason) -> None:
    assert verdict(exit_of(0, -9), exit_of(1, -9), request=request_) is reason


def test_what_the_supervisor_imposed_comes_before_the_request() -> None:
    imposed = (EndReason.TIME_LIMIT, "over")
    assert verdict(imposed=imposed, request=Request.CANCEL) is EndReason.TIME_LIMIT


def test_first_to_fail_is_by_time_but_aborts_come_last() -> None:
    exits = {0: exit_of(0, -6, 1.0), 1: exit_of(1, 1, 2.0), 2: exit_of(2, 1, 3.0), 3: exit_of(3, -9, 0.0)}
    assert first_to_fail(exits) == exits[3]
    del exits[3]
    assert first_to_fail(exits) == exits[1]
    assert first_to_fail({0: exits[0]}) == exits[0]
    assert first_to_fail({0: exit_of(0, -9, consequence=True), 1: exit_of(1, 0)}) is None


def test_of_ranks_that_agreed_to_end_the_one_that_they_named_is_first_and_else_none() -> None:
    exits = {0: exit_of(0, 1, 1.0), 1: exit_of(1, 1, 2.0)}
    assert guilty(exits, {rank: outcome("non_finite", 1) for rank in (0, 1)}) == exits[1]
    assert guilty(exits, {rank: outcome("ranks_differ") | {"rank": None} for rank in (0, 1)}) is None
    assert guilty(exits, {rank: outcome("non_finite", 5) for rank in (0, 1)}) is None, "of another node"
    assert guilty(exits, {0: outcome("disk_full")}) == exits[0]
    assert guilty(exits, {1: outcome("trainer_error", 1)}) == exits[0], "which died and said nothing"
    assert guilty(exits, {rank: outcome("trainer_error", rank) for rank in (0, 1)}) == exits[0]


def test_the_kernel_may_have_killed_for_want_of_memory() -> None:
    facts = Facts(world=[0], exits={0: exit_of(0, -9)}, any_ready=True, oom_kills=1)
    assert "out-of-memory killer" in judge(facts).detail
    assert "out-of-memory" not in judge(Facts(world=[0], exits={0: exit_of(0, -9)}, any_ready=True)).detail


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("MemoryError", EndReason.OUT_OF_MEMORY),
        ("ResourceExhaustedError: Out of memory error on GPU 0.", EndReason.OUT_OF_MEMORY),
        ("OSError: [Errno 28] No space left on device: 'x'", EndReason.DISK_FULL),
        ("ValueError: nope", EndReason.TRAINER_ERROR),
    ],
)
def test_the_last_exception_tells_the_reason(line: str, reason: EndReason) -> None:
    tail = f'Traceback (most recent call last):\n  File "x.py", line 1\n{line}\n'
    assert verdict(exit_of(0, 1, tail=tail), world=1) is reason


def test_a_dead_launcher_and_a_failed_one_are_told_apart() -> None:
    killed = Facts(world=[0], launcher_exit=-int(signal.SIGKILL), exits={0: exit_of(0, -9, consequence=True)})
    assert judge(killed).reason is EndReason.CRASHED_BY_SIGNAL
    failed = judge(Facts(world=[0], launcher_exit=1, launcher_tail="ModuleNotFoundError: No module named 'paddle'\n"))
    assert failed.reason is EndReason.LAUNCH_FAILED
    assert "No module named 'paddle'" in failed.detail


def test_last_error_prefers_an_exception_and_is_never_long() -> None:
    assert last_error("a.b.FooError: bad\nfinal words\n") == "a.b.FooError: bad"
    assert last_error("one\ntwo\n\n") == "two"
    assert last_error("") == ""
    assert len(last_error("x" * 1000)) == 500
