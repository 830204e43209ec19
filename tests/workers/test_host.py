from __future__ import annotations

from pathlib import Path

import pytest

from workers import host
from workers.config import Config

# The form of `nvidia-smi --query-gpu=index,name,memory.total,compute_cap,driver_version --format=csv,noheader,nounits`.
NVIDIA_SMI = """\
0, NVIDIA A100-SXM4-80GB, 81920, 8.0, 550.54.15
1, Tesla V100-SXM2-32GB, 32768, 7.0, 550.54.15
2, NVIDIA GH200, [N/A], [N/A], 550.54.15
"""


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Config:
    for name in ("REDIS_URL", "STORAGE_ROOT", "SCRATCH_ROOT", "HOST_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DEVICES", "cpu:3")
    return Config.from_environment()


def test_gpus_are_read_from_nvidia_smi() -> None:
    first, second, third = host.parse_nvidia_smi(NVIDIA_SMI)
    assert (first.index, first.kind, first.name) == (0, "gpu", "NVIDIA A100-SXM4-80GB")
    assert (first.memory_bytes, first.compute_capability) == (81920 * 2**20, "8.0")
    assert second.compute_capability == "7.0"
    assert (third.memory_bytes, third.compute_capability) == (0, None)


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA-SMI has failed because …\n"])
def test_no_gpu_is_no_device(text: str) -> None:
    assert host.parse_nvidia_smi(text) == []


def test_a_cpu_host_has_as_many_slots_as_it_is_told(config: Config) -> None:
    devices = host.devices(config)
    assert [(device.index, device.kind) for device in devices] == [(0, "cpu"), (1, "cpu"), (2, "cpu")]


def test_gpus_that_are_not_there_are_an_error(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "nvidia_smi", lambda: NVIDIA_SMI)
    monkeypatch.setenv("DEVICES", "gpu:1,2")
    assert [device.index for device in host.devices(Config.from_environment())] == [1, 2]
    monkeypatch.setenv("DEVICES", "gpu:5")
    with pytest.raises(ValueError, match="names the GPUs 5"):
        host.devices(Config.from_environment())


def test_the_beat_describes_the_host(config: Config) -> None:
    devices = host.devices(config)
    beat = host.beat(config, devices, "boot", 4, ["a"], host.Usage(devices).now())
    assert (beat.seq, beat.attempts, len(beat.devices)) == (4, ["a"], 3)
    assert beat.disk_total_bytes > beat.disk_free_bytes > 0
    assert beat.memory_total_bytes > (beat.usage.memory_available_bytes or 0) > 0
    assert beat.usage.gpus == []
    assert beat.versions["paddlepaddle"].startswith("3.")
    assert beat.address == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "value"),
    [("HOST_NAME", "a b"), ("DEVICES", "tpu"), ("HUB_ALLOWED", "maybe"), ("LOG_CAP_BYTES", "lots")],
)
def test_a_wrong_value_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} must be .*“{value}”"):
        Config.from_environment()
