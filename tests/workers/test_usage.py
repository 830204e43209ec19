from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.workers.conftest import eventually
from workers import usage
from workers.contract.messages import DeviceUsage

# A parent that does nothing, and a child that takes 60 MB and all of a core.
BUSY = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'held = b\"x\" * 60_000_000\\nwhile True: pass'])"


def test_what_a_tree_of_processes_uses_is_that_of_all_of_it() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) as process:
        trees = usage.Trees()
        try:
            deadline = time.monotonic() + 60
            while (first := trees.look([process.pid])[process.pid]).memory < 60e6 and time.monotonic() < deadline:
                time.sleep(0.05)
            # Where others are busy as well, its turn comes later.
            second = None
            while (second is None or (second.cpu or 0) < 0.1) and time.monotonic() < deadline:
                time.sleep(0.3)
                second = trees.look([process.pid])[process.pid]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert second is not None and first.memory > 60e6 and second.peak >= second.memory
    assert second.cpu is not None and 0.1 < second.cpu < 2
    assert trees.look([process.pid]) == {}


def test_the_host_has_memory_and_its_processors_work() -> None:
    cpu = usage.Cpu()
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass
    used = cpu.fraction()
    assert used is not None and 0 < used <= 1
    assert (usage.memory_available_bytes() or 0) > 0


def test_without_a_driver_there_are_no_gpus() -> None:
    assert usage.Gpus().read() == []


def test_a_driver_that_hangs_is_waited_for_once_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "PATIENCE_S", 0.05)
    answers, asked = threading.Event(), []

    def ask() -> list[DeviceUsage]:
        asked.append(1)
        answers.wait(100)
        return [DeviceUsage(index=0, utilisation=0.5)]

    gpus = usage.Gpus(ask)
    began = time.monotonic()
    assert gpus.read() == gpus.read() == [] and len(asked) == 1
    assert time.monotonic() - began < 50
    answers.set()
    (gpu,) = eventually(gpus.read)
    assert gpu.utilisation == 0.5


def test_a_gpu_that_says_little_is_shown_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's binding with a driver in its place: one GPU without power and temperature, one that has fallen off."""
    import pynvml

    class Memory:
        used, total = 3 * 2**30, 16 * 2**30

    class Rates:
        gpu = 87

    def unsupported(*_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def handle(index: int) -> int:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetMemoryInfo": lambda _: Memory,
        "nvmlDeviceGetUtilizationRates": lambda _: Rates,
        "nvmlDeviceGetTemperature": unsupported,
        "nvmlDeviceGetPowerUsage": unsupported,
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    assert usage.Gpus().read() == [
        DeviceUsage(index=0, utilisation=0.87, memory_used_bytes=3 * 2**30, memory_total_bytes=16 * 2**30)
    ]
