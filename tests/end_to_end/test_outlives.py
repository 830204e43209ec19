"""Whatever is killed beside a running job, the job ends well and every byte of it is stored, once."""

from __future__ import annotations

import pytest
from django.test import override_settings

from jobs import services, trials
from jobs.models import JobEvent, Trial
from tests.end_to_end.stack import Stack, kill, newest, until, why
from workers.contract.messages import Request
from workers.contract.states import EndReason, Status
from workers.run_folder import read_json

STEPS = [{"do": "log", "text": "begin"}, {"do": "steps", "n": 60, "ms": 20}]
LONG = [{"do": "log", "text": "begin"}, {"do": "steps", "n": 5000, "ms": 20}]


def test_a_submitted_job_runs_on_two_ranks_and_succeeds(stack: Stack) -> None:
    job = stack.submit(
        [*STEPS, {"do": "nan", "n": 2}, {"do": "checkpoint"}, {"do": "evaluate", "metrics": {"accuracy": 0.5}}]
    )
    attempt = stack.wait_for_end(job)
    assert attempt.end_reason == EndReason.COMPLETED, why(attempt)
    assert (attempt.attempted, attempt.applied, attempt.skipped, attempt.non_finite) == (62, 60, 2, 2)
    assert attempt.checkpoints.get().good
    assert attempt.evaluations.get().metrics == {"accuracy": 0.5}
    stack.assert_all_stored_once(attempt, 2)


@pytest.mark.slow  # one by one, to see which; all of them one after the other is below
@pytest.mark.parametrize("part", ["web", "controller", "worker", "redis"])
def test_a_job_outlives_a_kill_of(part: str, stack: Stack) -> None:
    job = stack.submit(
        [{"do": "log", "text": "x" * 1000}, {"do": "steps", "n": 250, "ms": 20}, {"do": "log", "text": "end"}]
    )
    stack.wait_for_steps(job, 20)
    stack.kill(part)
    stack.start(part)
    attempt = stack.wait_for_end(job)
    assert attempt.end_reason == EndReason.COMPLETED, why(attempt)
    assert attempt.attempted == 250
    stack.assert_all_stored_once(attempt, 2)


def test_a_job_outlives_kills_of_everything_one_after_the_other(stack: Stack) -> None:
    job = stack.submit(LONG)
    stack.wait_for_steps(job, 20)
    for part in ("web", "controller", "worker", "redis"):
        stack.kill(part)
        stack.start(part)
        stack.wait_for_steps(job, newest(job).attempted + 20)
    services.ask_to_leave(job, Request.FINISH, actor=None, actor_name="test")
    attempt = stack.wait_for_end(job)
    assert (attempt.number, attempt.end_reason) == (1, EndReason.FINISHED_EARLY), why(attempt)
    stack.assert_all_stored_once(attempt, 2)


def test_a_job_outlives_everything_being_away_for_a_while(stack: Stack) -> None:
    job = stack.submit([{"do": "steps", "n": 200, "ms": 20}])
    stack.wait_for_steps(job, 20)
    for part in ("worker", "web", "controller", "redis"):
        stack.kill(part)
    folder = stack.run_folder(newest(job))
    until(lambda: folder.outcome(0).exists() and folder.outcome(1).exists(), "the ranks to finish on their own")
    stack.start()
    attempt = stack.wait_for_end(job)
    assert attempt.end_reason == EndReason.COMPLETED, why(attempt)
    stack.assert_all_stored_once(attempt, 2)


# --- what belongs to the attempt itself dies: the true cause is told, and nothing is left -----


def test_a_killed_rank_is_named_and_the_others_end(stack: Stack) -> None:
    job = stack.submit(LONG)
    attempt = stack.wait_for_steps(job, 20)
    pids = until(
        lambda: {rank: state["pid"] for rank, state in newest(job).rank_states.items() if state.get("pid")}, "ranks"
    )
    kill(pids["1"])
    attempt = stack.wait_for_end(job)
    assert attempt.end_reason == EndReason.CRASHED_BY_SIGNAL, why(attempt)
    assert attempt.end_rank == 1
    assert "SIGKILL" in attempt.end_detail
    stack.assert_all_stored_once(attempt, 2)


def test_a_killed_launcher_ends_the_attempt(stack: Stack) -> None:
    job = stack.submit(LONG)
    attempt = stack.wait_for_steps(job, 20)
    launchers = [pid for pid, line in stack.run_processes().items() if "tests.scripted.launcher" in line]
    assert len(launchers) == 1
    kill(launchers[0])
    attempt = stack.wait_for_end(job)
    assert attempt.status == Status.FAILED, why(attempt)
    assert "launcher" in attempt.end_detail
    stack.assert_all_stored_once(attempt, 2)


def test_a_killed_supervisor_is_told_and_its_ranks_end(stack: Stack) -> None:
    job = stack.submit(LONG)
    attempt = stack.wait_for_steps(job, 20)
    state = read_json(stack.run_folder(attempt).state)
    assert state is not None
    kill(state["pid"])
    attempt = stack.wait_for_end(job)
    assert attempt.end_reason == EndReason.SUPERVISOR_LOST, why(attempt)
    stack.assert_all_stored_once(attempt, 2)


def test_a_cancel_while_ranks_do_not_listen_yet_is_a_cancel(stack: Stack) -> None:
    job = stack.submit([{"do": "start", "s": 30}, *LONG])
    until(lambda: newest(job).status == Status.STARTING, "the start")
    until(stack.run_processes, "its processes")
    services.ask_to_leave(job, Request.CANCEL, actor=None, actor_name="test")
    attempt = stack.wait_for_end(job)
    assert attempt.end_reason == EndReason.CANCELLED, why(attempt)
    assert JobEvent.objects.filter(attempt=attempt, kind="request", actor_name="test").exists()


def test_a_paused_job_goes_on_from_its_checkpoint(stack: Stack) -> None:
    goes_on = stack.data_dir / "goes on"
    job = stack.submit([{"do": "steps", "n": 40, "ms": 20}, {"do": "wait", "path": str(goes_on)}])
    stack.wait_for_steps(job, 20)
    services.ask_to_leave(job, Request.PAUSE, actor=None, actor_name="test")
    paused = stack.wait_for_end(job)
    assert paused.end_reason == EndReason.PAUSED, why(paused)
    goes_on.touch()
    services.resume(job, actor=None)
    resumed = stack.wait_for_end(job)
    assert (resumed.number, resumed.end_reason) == (2, EndReason.COMPLETED), why(resumed)
    assert resumed.start_from is not None and resumed.start_from.step == paused.attempted
    stack.assert_all_stored_once(resumed, 2)


def asked(stack: Stack, text: str) -> Trial:
    """A question for a model that was just exported."""
    job = stack.submit([{"do": "artifact", "name": "inference", "text": "good"}], ranks=1)
    artifact = stack.wait_for_end(job).artifacts.get()
    with override_settings(STORAGE_ROOT=stack.data_dir / "storage"):
        return trials.ask(artifact, text, user=job.owner)


def ended(trial: Trial, timeout_s: float = 120.0) -> Trial:
    def over() -> Trial | None:
        trial.refresh_from_db()
        return trial if trial.state != Trial.State.WAITING else None

    return until(over, "the answer", timeout_s)


def test_an_exported_model_is_asked_and_nothing_of_it_is_left_on_disk(stack: Stack) -> None:
    trial = ended(asked(stack, "a good text"))
    assert trial.state == Trial.State.ANSWERED, trial.problem
    assert trial.result["predictions"][0]["scores"][0] == {"label": "good", "probability": 0.9}
    until(lambda: not list(stack.data_dir.glob("storage/trials/*")), "the trial's folder is removed")
    logs = "".join(path.read_text(errors="replace") for path in stack.data_dir.glob("logs/*.log"))
    assert "a good text" not in logs


@pytest.mark.slow
def test_a_question_outlives_its_worker_and_redis(stack: Stack) -> None:
    trial = asked(stack, "sleep 4")
    until(lambda: list(stack.data_dir.glob(f"storage/trials/{trial.uid}/claim-1")), "the first try")
    stack.kill("worker")
    stack.kill("redis")
    stack.start("redis", "worker")
    trial = ended(trial)
    assert (trial.state, trial.number) == (Trial.State.ANSWERED, 2), trial.problem
