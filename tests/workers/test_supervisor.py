"""A supervisor with scripted ranks, a real Redis-protocol server and a small controller."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.conftest import RedisServer
from tests.workers.conftest import Attempt, Controller, Host, eventually
from workers.config import Config
from workers.contract.messages import TELEMETRY_STREAM, CheckpointRef, DatasetRef, Request
from workers.contract.states import EndReason
from workers.datasets.written import content_hash
from workers.run_folder import RunFolder, read_json
from workers.supervisor import processes
from workers.supervisor.claim import Devices, is_locked
from workers.supervisor.prepare import Preparation

RUN = [{"do": "steps", "n": 100_000, "ms": 5}]


def meets_its_time_limit(host: Host, script: list[dict[str, Any]], **spec: Any) -> Attempt:
    """Once its ranks run, however long they took to start: until then it is asked to have none."""
    asked = host.spec(script, **spec)
    Attempt(host, asked).limit(0)
    attempt = host.send(asked).running()
    attempt.limit(None)
    return attempt


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


# --- claims ---


def test_a_message_that_comes_twice_starts_nothing_twice(host: Host) -> None:
    spec = host.spec([{"do": "steps", "n": 5}, {"do": "sleep", "s": 0.5}])
    host.send(spec)
    attempt = host.send(spec)
    attempt.end()
    host.send(spec)  # and late
    eventually(lambda: not list(attempt.folder.path.glob("incoming-*")), what="the late message is dealt with")
    eventually(lambda: not is_locked(attempt.folder.lock), what="who came late leaves")
    assert len(attempt.said("claimed")) == len(attempt.said("started")) == len(attempt.said("complete")) == 1


def test_a_busy_device_refuses_the_placement_and_a_later_one_is_taken(host: Host, controller: Controller) -> None:
    first = host.start(RUN, devices=[1]).running()
    spec = host.spec([{"do": "steps", "n": 3}], devices=[0, 1], placement=7)
    second = host.send(spec)
    refused = second.until("refused")
    assert "cpu-1" in refused["detail"]
    eventually(lambda: not is_locked(second.folder.lock), what="the refusing supervisor leaves")

    first.ask(Request.CANCEL)
    first.end()
    host.send(spec)  # an old message of the refused placement
    eventually(lambda: not is_locked(second.folder.lock) and not list(second.folder.path.glob("incoming-*")))
    assert not second.said("claimed")

    again = spec.model_copy(update={"placement": 8, "report_offset": len(controller.stream(spec.attempt, "-1/report"))})
    assert host.send(again).end()["end_reason"] == "completed"
    assert [line["kind"] for line in second.controller.report(second.uid)][:2] == ["refused", "claimed"]


def test_a_report_goes_on_after_an_earlier_refusal_by_another_host(host: Host, controller: Controller) -> None:
    spec = host.spec([{"do": "steps", "n": 3}], placement=2)
    elsewhere = b'{"kind":"refused","node":0,"host":"other","detail":"busy"}\n'
    controller.stored[spec.attempt, "-1/report"] += elsewhere
    attempt = host.send(spec.model_copy(update={"report_offset": len(elsewhere)}))
    assert attempt.end()["end_reason"] == "completed"
    assert controller.stream(spec.attempt, "-1/report") == elsewhere + attempt.folder.report.read_bytes()


def test_devices_are_free_again_once_the_attempt_has_ended(host: Host) -> None:
    attempt = host.start([{"do": "steps", "n": 3}], devices=[0, 1])
    attempt.end()
    devices = Devices(host.config.scratch_root, attempt.spec)
    assert devices.take() is None
    devices.release()


# --- why it ended ---


@pytest.mark.parametrize(
    ("script", "reason", "words"),
    [
        ([{"do": "outcome", "reason": "non_finite", "detail": "Loss was NaN."}], "non_finite", "Loss was NaN."),
        ([{"do": "raise", "error": "ValueError", "text": "no"}], "trainer_error", "exit code 1: ValueError: no"),
        ([{"do": "raise", "error": "MemoryError", "text": "big"}], "out_of_memory", "MemoryError: big"),
        (
            [{"do": "raise", "error": "OSError", "text": "[Errno 28] No space left on device"}],
            "disk_full",
            "No space left on device. On host testhost there were still",
        ),
        ([{"do": "exit", "code": 3}], "trainer_error", "exit code 3"),
        ([{"do": "kill", "signal": 11}], "crashed_by_signal", "SIGSEGV"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_end_reason_names_the_cause(host: Host, script: list[dict[str, object]], reason: str, words: str) -> None:
    attempt = host.start([{"do": "steps", "n": 5}, *script])
    ended = attempt.end()
    assert ended["end_reason"] == reason
    assert words in ended["detail"]
    assert (ended["rank"], ended["step"]) == (0, 5)
    attempt.assert_everything_stored()


def test_the_first_rank_to_fail_is_named_and_the_others_are_stopped(host: Host) -> None:
    script = [{"do": "steps", "n": 5}, {"do": "exit", "code": 3, "rank": 1}, {"do": "sleep", "s": 60}]
    attempt = host.start(script, devices=[0, 1])
    ended = attempt.end()
    assert (ended["end_reason"], ended["rank"]) == ("trainer_error", 1)
    assert [line["rank"] for line in attempt.said("rank_exit") if line["first"]] == [1]


def test_survivors_that_abort_are_not_taken_for_the_cause(host: Host) -> None:
    # Rank 0 aborts, as gloo does when a peer is lost, before the loss of rank 1 is noticed.
    script = [
        {"do": "steps", "n": 3},
        {"do": "kill", "signal": int(signal.SIGABRT), "rank": 0},
        {"do": "sleep", "s": 0.3, "rank": 1},
        {"do": "exit", "code": 7, "rank": 1},
    ]
    ended = host.start(script, devices=[0, 1]).end()
    assert (ended["end_reason"], ended["rank"]) == ("trainer_error", 1)


def test_an_unknown_recipe_is_a_failed_launch(host: Host) -> None:
    ended = host.start(RUN, recipe="no-such-recipe").end()
    assert ended["end_reason"] == "launch_failed"
    assert "no-such-recipe" in ended["detail"]


def test_a_trainer_that_fails_before_it_is_ready_is_named(host: Host) -> None:
    ended = host.start([{"do": "nonsense"}], settings={}).end()
    assert ended["end_reason"] == "trainer_error"
    assert "KeyError" in ended["detail"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_named_though_nothing_can_be_written(
    host: Host, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH_ROOT", str(small_disk))
    host.config = Config.from_environment()
    attempt = host.start([{"do": "steps", "n": 1_000_000}])
    ended = attempt.end()
    assert (ended["end_reason"], ended["rank"]) == ("disk_full", 0)
    found = re.fullmatch(
        r"Rank 0 .*\. On host testhost there were (.*) MB free in (.*)\. Make room there, then retry\.", ended["detail"]
    )
    assert found is not None and found[2] == str(small_disk), ended["detail"]
    assert float(found[1]) < 0.3
    assert [part["template"][:7] for part in ended["said"]] == ["Rank %(", "On host"]
    assert attempt.one("rank_exit")["exit_code"] == 1


def test_the_time_limit_ends_an_attempt_with_a_checkpoint(host: Host) -> None:
    attempt = meets_its_time_limit(host, RUN, time_limit_s=1.5)
    ended = attempt.end()
    assert ended["end_reason"] == "time_limit"
    assert attempt.one("rank_exit")["first"] is False
    saved = attempt.one("checkpoint_published")
    assert ended["detail"] == f"The limit was 1.5 s. The newest good checkpoint is of step {saved['step']}."


def test_ranks_that_do_not_leave_at_the_time_limit_are_killed(host: Host) -> None:
    script = [{"do": "steps", "n": 3}, {"do": "hang", "s": 600}]
    ended = meets_its_time_limit(host, script, time_limit_s=1.5, grace_s=0.5).end()
    assert ended["end_reason"] == "time_limit"
    assert "did not leave in time" in ended["detail"] and "no good checkpoint" in ended["detail"]


def test_a_time_limit_can_be_extended_and_shortened_while_it_runs(host: Host, redis_server: RedisServer) -> None:
    spec = host.spec(RUN, time_limit_s=2.0)
    Attempt(host, spec).limit(0)
    attempt = host.send(spec)
    time.sleep(2.5)
    assert not attempt.said("ended")
    # Known to the supervisor, not to Redis.
    attempt.controller.requests.clear()
    with redis_server.client() as client:
        client.flushall()
    time.sleep(0.5)
    assert not attempt.said("ended")
    attempt.limit(2.5)
    assert attempt.end()["end_reason"] == "time_limit"


# --- requests ---


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request.CANCEL, "cancelled"),
        (Request.PAUSE, "paused"),
        (Request.FINISH, "finished_early"),
        (Request.DRAIN, "drained"),
        (Request.SUPERSEDE, "superseded"),
    ],
)
def test_running_ranks_leave_on_request(host: Host, request_: Request, reason: str) -> None:
    attempt = host.start(RUN, devices=[0, 1]).running()
    attempt.ask(request_)
    ended = attempt.end()
    assert ended["end_reason"] == reason
    assert all(line["exit_code"] == 0 for line in attempt.said("rank_exit"))
    assert bool(attempt.said("checkpoint_published")) is (request_ is not Request.CANCEL)


def test_cancel_before_ranks_are_ready_kills_them_at_once(host: Host) -> None:
    # The grace is longer than this waits.
    attempt = host.start([{"do": "start", "s": 600}, *RUN], devices=[0, 1], grace_s=600.0)
    attempt.process(1)
    attempt.ask(Request.CANCEL)
    ended = attempt.end()
    assert ended["end_reason"] == "cancelled"
    assert not attempt.said("running")


def test_cancel_before_the_launch_starts_nothing(host: Host, controller: Controller) -> None:
    # The copy of a named pipe never ends: so does one from a stalled mount.
    folder = host.config.storage_root / "datasets" / "stalled"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "train.jsonl")
    dataset = DatasetRef(id=1, name="d", key="datasets/stalled", content_hash="0", splits={"train": 1})
    attempt = host.start(RUN, dataset=dataset)
    attempt.until("claimed")
    eventually(lambda: read_json(attempt.folder.state)["stage"] == "preparing")
    attempt.ask(Request.CANCEL)
    assert attempt.end()["end_reason"] == "cancelled"
    assert not attempt.said("started")


def test_a_request_that_is_there_before_the_attempt_counts_as_well(host: Host) -> None:
    spec = host.spec([{"do": "start", "s": 60}])
    Attempt(host, spec).ask(Request.CANCEL)
    time.sleep(0.4)
    assert host.send(spec).end()["end_reason"] == "cancelled"


def test_deaf_ranks_are_killed_after_the_grace_period_and_it_still_is_cancelled(host: Host) -> None:
    script = [{"do": "steps", "n": 5}, {"do": "hang", "s": 60}]
    attempt = host.start(script, devices=[0, 1], grace_s=0.5).running()
    attempt.ask(Request.CANCEL)
    ended = attempt.end()
    assert ended["end_reason"] == "cancelled"
    assert "were killed" in ended["detail"]


def test_a_stalled_storage_blocks_neither_records_nor_a_cancel(host: Host) -> None:
    attempt = host.start([{"do": "checkpoint", "stall": True}, *RUN], grace_s=1.0).running(20)
    attempt.ask(Request.CANCEL)
    ended = attempt.end()
    assert ended["end_reason"] == "cancelled"
    assert "too long" in attempt.one("publication_failed")["detail"]
    attempt.assert_everything_stored()


def test_checkpoint_now_is_asked_of_the_ranks_and_published(host: Host) -> None:
    attempt = host.start(RUN).running()
    attempt.ask(checkpoint=1)
    published = attempt.until("checkpoint_published")
    attempt.ask(Request.CANCEL, checkpoint=1)
    attempt.end()
    assert (host.config.storage_root / published["key"] / "weights.bin").exists()


# --- kills ---


def test_kill_of_a_rank(host: Host) -> None:
    attempt = host.start(RUN, devices=[0, 1]).running()
    os.kill(attempt.process(1)["trainer"], signal.SIGKILL)
    ended = attempt.end()
    assert (ended["end_reason"], ended["rank"]) == ("crashed_by_signal", 1)
    assert "Rank 1 was killed by SIGKILL" in ended["detail"]
    attempt.assert_everything_stored()


def test_kill_of_a_shim_is_noticed_though_nobody_wrote_its_exit_down(host: Host) -> None:
    attempt = host.start(RUN, devices=[0, 1]).running()
    os.kill(attempt.process(0)["shim"], signal.SIGKILL)
    ended = attempt.end()
    assert (ended["end_reason"], ended["rank"]) == ("crashed_by_signal", 0)
    (exit,) = [line for line in attempt.said("rank_exit") if line["rank"] == 0]
    assert (exit["signal"], exit["first"]) == (9, True)
    attempt.assert_everything_stored()


def test_kill_of_the_launcher(host: Host) -> None:
    attempt = host.start(RUN, devices=[0, 1]).running()
    os.kill(attempt.one("started")["launcher_pid"], signal.SIGKILL)
    ended = attempt.end()
    assert ended["end_reason"] == "crashed_by_signal"
    assert "launcher was killed by SIGKILL" in ended["detail"]
    attempt.assert_everything_stored()


def test_kill_of_the_supervisor_leaves_nothing_and_recovery_says_so(host: Host) -> None:
    attempt = host.start([{"do": "child"}, *RUN], devices=[0, 1]).running()
    ranks = [attempt.process(rank) for rank in (0, 1)]
    os.kill(attempt.supervisor_pid, signal.SIGKILL)
    for rank in ranks:
        eventually(lambda pids=rank: not processes.alive(pids["shim"]) and not processes.alive(pids["trainer"]))
    attempt.recover()
    ended = attempt.end()
    assert ended["end_reason"] == "supervisor_lost"
    attempt.assert_everything_stored()


def test_recovery_gives_the_ranks_own_outcome_if_they_had_finished(host: Host, controller: Controller) -> None:
    script = [{"do": "steps", "n": 10}, {"do": "checkpoint"}]
    controller.paused = True
    attempt = host.start(script, devices=[0, 1])
    eventually(lambda: attempt.folder.outcome(0).exists() and attempt.folder.outcome(1).exists())
    os.kill(attempt.supervisor_pid, signal.SIGKILL)
    eventually(lambda: not is_locked(attempt.folder.lock))
    controller.paused = False
    attempt.recover()
    assert attempt.end()["end_reason"] == "completed"
    assert len(attempt.said("checkpoint_published")) == 1
    attempt.assert_everything_stored()


def test_recovery_of_a_complete_attempt_only_sends_the_rest(host: Host, controller: Controller) -> None:
    controller.paused = True
    attempt = host.start([{"do": "steps", "n": 10}])
    eventually(lambda: (read_json(attempt.folder.state) or {}).get("stage") == "relaying", what="all but the relay")
    before = attempt.folder.report.read_bytes()
    os.kill(attempt.supervisor_pid, signal.SIGKILL)
    eventually(lambda: not is_locked(attempt.folder.lock))
    controller.paused = False
    attempt.recover()
    assert attempt.end()["end_reason"] == "completed"
    assert attempt.folder.report.read_bytes() == before
    attempt.assert_everything_stored()


def test_a_process_that_left_its_session_does_not_survive(host: Host) -> None:
    attempt = host.start([{"do": "child"}, {"do": "steps", "n": 5}], devices=[0, 1])
    attempt.end()  # asserts that nothing is left


# --- Redis ---


def test_redis_killed_and_wiped_in_mid_run_loses_nothing(host: Host, controller: Controller) -> None:
    attempt = host.start([{"do": "steps", "n": 1200, "ms": 3}, {"do": "log", "text": "end"}], devices=[0, 1])
    attempt.running(100)
    controller.server.kill()
    time.sleep(0.5)
    controller.server.start()
    ended = attempt.end(30)
    assert ended["end_reason"] == "completed"
    attempt.assert_everything_stored()


def test_entries_lost_between_relay_and_controller_are_sent_again(host: Host, controller: Controller) -> None:
    controller.paused = True
    attempt = host.start(RUN)
    with controller.server.client() as client:
        eventually(lambda: client.xlen(TELEMETRY_STREAM) > 10)
        client.delete(TELEMETRY_STREAM)
    controller.paused = False
    eventually(lambda: controller.refused > 0, what="what comes after the gap is refused")
    eventually(lambda: len(attempt.steps()) > 100, what="what was lost comes again")
    attempt.ask(Request.CANCEL)
    attempt.end()
    attempt.assert_everything_stored()


def _sent(client: redis.Redis) -> dict[str, bytes]:
    """What waits for the controller, by stream."""
    sent: dict[str, bytes] = defaultdict(bytes)
    for _, fields in client.xrange(TELEMETRY_STREAM):  # type: ignore[union-attr]
        sent[f"{fields[b'rank'].decode()}/{fields[b'kind'].decode()}"] += fields[b"body"]
    return dict(sent)


def test_a_slow_controller_does_not_make_the_relay_send_again(host: Host, controller: Controller) -> None:
    controller.paused = True
    attempt = host.start([{"do": "steps", "n": 20}])
    with controller.server.client() as client:
        eventually(lambda: (read_json(attempt.folder.state) or {}).get("stage") == "relaying")
        eventually(lambda: _sent(client) == {name: body for name, body in attempt.files().items() if body})
        entries = client.xlen(TELEMETRY_STREAM)
        time.sleep(3.0)
        assert client.xlen(TELEMETRY_STREAM) == entries
    controller.paused = False
    attempt.end()


def test_losing_redis_for_the_lease_stops_the_ranks_and_the_rest_is_sent_later(
    host: Host, controller: Controller
) -> None:
    attempt = host.start(RUN, lease_s=13.0).running()
    controller.server.kill()
    eventually(lambda: attempt.folder.report.read_text().count('"ended"'), what="the lease runs out")
    assert not processes.alive(attempt.process(0)["trainer"])
    controller.server.start()
    ended = attempt.end()
    assert ended["end_reason"] == "host_lost"
    attempt.assert_everything_stored()


# --- what the relay does to the ends of files ---


def test_a_torn_tail_is_reported_and_not_sent(host: Host) -> None:
    script = [
        {"do": "steps", "n": 5},
        {"do": "write", "stream": "steps", "text": '{"v":1,"se'},
        {"do": "kill", "signal": 9},
    ]
    attempt = host.start(script)
    attempt.end()
    assert [(line["rank"], line["stream"], line["bytes"]) for line in attempt.said("torn_tail")] == [(0, "steps", 10)]
    assert len(attempt.steps()) == 5


def test_a_log_without_a_last_newline_gets_one(host: Host) -> None:
    attempt = host.start([{"do": "steps", "n": 3}, {"do": "write", "stream": "log", "text": "dying words 再见"}])
    attempt.end()
    assert attempt.controller.stream(attempt.uid, "0/log") == "dying words 再见\n".encode()
    assert not attempt.said("torn_tail")


def test_a_log_beyond_the_cap_is_cut_with_a_visible_mark(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_CAP_BYTES", "1000")
    attempt = host.start([{"do": "steps", "n": 3}, *[{"do": "log", "text": "吃" * 30}] * 20])
    attempt.end()
    stored = attempt.controller.stream(attempt.uid, "0/log")
    assert stored.decode().splitlines()[-1].startswith("[The log is cut here")
    assert 1000 <= len(stored) < 1200
    assert attempt.one("complete")["bytes"]["0/log"] == len(stored)


# --- what ranks get ---


def test_ranks_get_an_allow_listed_environment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret@db/x")
    monkeypatch.setenv("SECRET_KEY", "secret")
    monkeypatch.setenv("https_proxy", "http://secret@proxy")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    attempt = host.start(RUN).running()
    pid = attempt.process(0)["trainer"]
    env = dict(entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry)
    attempt.ask(Request.CANCEL)
    attempt.end()
    assert not {"REDIS_URL", "DATABASE_URL", "SECRET_KEY", "https_proxy", "STORAGE_ROOT", "DATA_DIR"} & env.keys()
    assert "secret" not in "".join(env.values())
    assert host.config.redis_url not in env.values()
    assert env["NCCL_DEBUG"] == "INFO"
    assert env["HUB_ALLOWED"] == env["ALLOW_PICKLE_MODELS"] == "false"
    assert env["MODEL_ROOTS"] == str(host.config.data_dir / "models")


def test_the_run_folder_is_private(host: Host) -> None:
    attempt = host.start([{"do": "steps", "n": 1}])
    attempt.end()
    assert attempt.folder.path.stat().st_mode & 0o077 == 0


def test_data_and_weights_are_copied_to_the_run_folder_first(host: Host) -> None:
    storage = host.config.storage_root
    (storage / "datasets/d").mkdir(parents=True)
    (storage / "datasets/d/train.jsonl").write_text('{"text": "a"}\n')
    (storage / "datasets/d/images.bin").write_bytes(b"pictures")
    (storage / "artifacts/x/model").mkdir(parents=True)
    (storage / "artifacts/x/model/weights").write_text("w")
    first = host.start([{"do": "steps", "n": 7}, {"do": "checkpoint"}])
    first.end()
    published = first.one("checkpoint_published")

    second = host.start(
        [{"do": "steps", "n": 3}, *RUN],
        dataset=DatasetRef(id=1, name="d", key="datasets/d", content_hash="0", splits={"train": 1}),
        model_key="artifacts/x/model",
        start_from=CheckpointRef(key=published["key"], step=7, applied=7),
    ).running()
    assert (second.folder.dataset / "train.jsonl").read_text() == '{"text": "a"}\n'
    assert (second.folder.dataset / "images.bin").read_bytes() == b"pictures"
    assert (second.folder.model / "weights").read_text() == "w"
    assert second.steps()[0]["step"] == 8
    second.ask(Request.CANCEL)
    second.end()
    assert not second.folder.dataset.exists()


def test_a_dataset_that_is_not_what_was_checked_is_not_trained_on(host: Host) -> None:
    bodies = {"train": b'{"text": "a"}\n{"text": "b"}\n', "dev": b'{"text": "d"}\n'}
    content = content_hash({split: hashlib.sha256(body).hexdigest() for split, body in bodies.items()})
    folder = host.config.storage_root / "datasets/reviews"
    folder.mkdir(parents=True)
    for split, body in bodies.items():
        (folder / f"{split}.jsonl").write_bytes(body)
    dataset = DatasetRef(
        id=1, name="reviews", key="datasets/reviews", content_hash=content, splits={"train": 2, "dev": 1}
    )
    spec = host.spec(RUN, dataset=dataset)

    def prepared() -> tuple[EndReason, str] | None:
        preparation = Preparation(
            RunFolder.of(host.config.scratch_root, spec.attempt, 0), spec, host.config.storage_root
        )
        eventually(lambda: preparation.done)
        return preparation.failure

    assert prepared() is None
    (folder / "train.jsonl").write_bytes(bodies["train"].replace(b"b", b"c"))
    reason, detail = prepared() or ("", "")
    assert reason == EndReason.BAD_DATA and "“reviews” have as many rows as were checked, and other contents" in detail
    (folder / "train.jsonl").write_bytes(bodies["train"][:14])
    attempt = host.start(RUN, dataset=dataset)
    ended = attempt.end()
    assert ended["end_reason"] == "bad_data"
    assert "train.jsonl of the dataset “reviews” has 1 rows, and 2 were checked: it was cut off" in ended["detail"]
    assert "upload the dataset again as a new version" in ended["detail"]
    assert not attempt.said("started")


@pytest.mark.parametrize(
    ("damage", "words"), [("change", "checksum"), ("remove", "is missing"), ("all", "has no manifest")]
)
def test_a_damaged_start_is_not_used(host: Host, damage: str, words: str) -> None:
    first = host.start([{"do": "steps", "n": 7}, {"do": "checkpoint"}])
    first.end()
    key = first.one("checkpoint_published")["key"]
    weights = host.config.storage_root / key / "weights.bin"
    if damage == "change":
        weights.write_bytes(b"x" + weights.read_bytes()[1:])
    elif damage == "remove":
        weights.unlink()
    else:
        shutil.rmtree(weights.parent)
    ended = host.start(RUN, start_from=CheckpointRef(key=key, step=7, applied=7)).end()
    assert ended["end_reason"] == "model_unavailable"
    assert words in ended["detail"]


def test_a_key_cannot_lead_out_of_the_storage(host: Host) -> None:
    ended = host.start(RUN, model_key="../scratch").end()
    assert (ended["end_reason"], "outside" in ended["detail"]) == ("model_unavailable", True)


# --- publication ---


def test_checkpoints_are_published_verified_before_the_end(host: Host) -> None:
    script = [
        {"do": "steps", "n": 5},
        {"do": "checkpoint"},
        {"do": "steps", "n": 5},
        {"do": "checkpoint", "corrupt": True},
        {"do": "steps", "n": 5},
        {"do": "checkpoint"},
    ]
    attempt = host.start(script)
    attempt.end()
    published = attempt.said("checkpoint_published")
    assert [line["step"] for line in published] == [5, 15]
    for line in published:
        folder = host.config.storage_root / line["key"]
        for name, file in line["files"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == file["sha256"]
        assert json.loads((folder / "manifest.json").read_text())["step"] == line["step"]
    failed = attempt.one("publication_failed")
    assert "checksum" in failed["detail"]
    assert sorted(path.name for path in (host.config.storage_root / "checkpoints" / attempt.uid).iterdir()) == [
        "step-000000005",
        "step-000000015",
    ]
    kinds = [line["kind"] for line in attempt.controller.report(attempt.uid)]
    assert kinds.index("ended") > max(index for index, kind in enumerate(kinds) if kind == "checkpoint_published")
    # Only the newest good one stays on the host.
    assert not attempt.folder.checkpoint(5).exists()
    assert attempt.folder.checkpoint(15).exists()


def test_a_folder_and_one_file_to_download_are_made_of_an_artefact(host: Host, tmp_path: Path) -> None:
    attempt = host.start([{"do": "steps", "n": 5}, {"do": "artifact", "name": "model", "text": "weights"}])
    attempt.end()
    published = attempt.one("artifact_published")
    folder = host.config.storage_root / published["key"]
    assert (folder / "model.bin").read_text() == "weights"
    tar = folder.with_name("model.tar")
    assert tar.stat().st_size == published["bytes"]
    assert hashlib.sha256(tar.read_bytes()).hexdigest() == published["sha256"]
    subprocess.run(["tar", "-xf", str(tar), "-C", str(tmp_path)], check=True)
    assert (tmp_path / "model/model.bin").read_text() == "weights"


def test_two_nodes_of_one_attempt_share_nothing(host: Host) -> None:
    script = [{"do": "steps", "n": 20, "ms": 2}]
    first = host.start(script, nodes=2, node=0, devices=[0], master="127.0.0.1:6000")
    second = host.send(first.spec.model_copy(update={"node": 1, "devices": [1]}))
    assert first.end()["end_reason"] == "completed"
    assert second.end()["end_reason"] == "completed"
    assert len(first.controller.lines(first.uid, "1/steps")) == 20
    second.assert_everything_stored()
