"""What a supervisor sends of its node's devices, and that nothing of it can harm the attempt."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workers.conftest import Controller, Host, eventually
from workers.config import Config
from workers.contract.messages import DeviceUsage
from workers.run_folder import RunFolder
from workers.supervisor import sampler


def test_samples_of_host_and_ranks_arrive_byte_for_byte(host: Host, controller: Controller) -> None:
    attempt = host.start([{"do": "sleep", "s": 1.6}, {"do": "steps", "n": 3}], devices=[0, 1])
    assert attempt.end()["end_reason"] == "completed"
    attempt.assert_everything_stored()
    (sample, *_) = controller.lines(attempt.uid, "-1/devices")
    assert (sample["kind"], sample["node"], set(sample["ranks"])) == ("sample", 0, {"0", "1"})
    assert all(rank["peak"] >= rank["memory"] > 10**6 for rank in sample["ranks"].values())
    assert sample["host"]["memory_available"] > 0 and sample["host"]["disk_free"] > 0
    assert attempt.one("complete")["bytes"]["-1/devices"] == attempt.folder.devices.stat().st_size


def test_a_sample_that_cannot_be_written_is_a_gap(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sampler, "FIRST_S", 0.01)
    monkeypatch.setattr(sampler, "SAMPLE_S", 0.02)
    host.config.scratch_root.mkdir(parents=True, exist_ok=True)
    spec = host.spec([])
    folder = RunFolder.of(host.config.scratch_root, spec.attempt, 0)
    sampling = sampler.Sampler(folder, spec, [0], host.config.scratch_root)
    sampling.start()
    eventually(lambda: "sampler: FileNotFoundError" in capsys.readouterr().err)
    folder.make()
    eventually(lambda: folder.devices.exists() and folder.devices.read_bytes().count(b"\n") >= 2)
    sampling.stop()
    size = folder.devices.stat().st_size
    time.sleep(0.06)
    assert folder.devices.stat().st_size == size


def test_what_a_dead_supervisor_sampled_is_sent_by_its_successor(host: Host, controller: Controller) -> None:
    attempt = host.start([{"do": "steps", "n": 1}, {"do": "sleep", "s": 60}])
    eventually(lambda: controller.lines(attempt.uid, "-1/devices"), what="a sample")
    controller.paused = True
    with attempt.folder.devices.open("ab") as file:
        file.write(b'{"kind":"sample","at":"2026-01-02T03:04:05+00:00","node":0,"host":{},"ranks":{}}\n')
    os.kill(attempt.supervisor_pid, 9)
    controller.paused = False
    attempt.recover()
    attempt.end()
    assert len(controller.lines(attempt.uid, "-1/devices")) >= 2
    attempt.assert_everything_stored()


class FakeGpus:
    def read(self) -> list[DeviceUsage]:
        return [DeviceUsage(index=i, utilisation=0.5, memory_used_bytes=2**30) for i in range(3)]


def test_of_the_gpus_only_those_of_the_attempt_are_sampled(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler.usage, "Gpus", FakeGpus)
    config: Config = host.config
    config.scratch_root.mkdir(parents=True, exist_ok=True)
    spec = host.spec([], device_kind="gpu", devices=[0, 2])
    folder = RunFolder.of(config.scratch_root, spec.attempt, 0)
    folder.make()
    line: dict[str, Any] = sampler.Sampler(folder, spec, [0, 1], config.scratch_root).sample()
    assert line["gpus"] == {i: {"utilisation": 0.5, "memory": 2**30} for i in ("0", "2")}
    assert line["ranks"] == {}
