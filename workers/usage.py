"""What this host's processors, memory and GPUs are used for right now. What cannot be had is None or left out, and
nothing here raises or waits for long: whoever asks has more important things to do."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.contract.messages import DeviceUsage

PATIENCE_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory_available_bytes() -> int | None:
    """What could be given to processes without swapping, as the kernel estimates it."""
    return _bytes_of("/proc/meminfo", "MemAvailable:")


class Cpu:
    """`fraction()` is the share of all cores' time that was used since the call before."""

    def __init__(self) -> None:
        self._before = _cpu_times()

    def fraction(self) -> float | None:
        before, self._before = self._before, _cpu_times()
        if before is None or self._before is None or self._before[1] <= before[1]:
            return None
        return (self._before[0] - before[0]) / (self._before[1] - before[1])


def _cpu_times() -> tuple[int, int] | None:
    """(used, all) in ticks since the start of the machine."""
    try:
        times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(times) - times[3] - times[4], sum(times)


# --- trees of processes --------------------------------------------------------------------


@dataclass(frozen=True)
class TreeUsage:
    """`cpu` in cores since the look before; `memory` resident, `peak` the most that was seen, in bytes."""

    cpu: float | None
    memory: int
    peak: int


class Trees:
    """Processes with all that descend from them, by the number of the first."""

    def __init__(self) -> None:
        self._ticks: dict[int, dict[tuple[int, int], int]] = {}
        self._at: dict[int, float] = {}
        self._peaks: dict[int, int] = {}

    def look(self, roots: list[int]) -> dict[int, TreeUsage]:
        """Of those roots that are alive."""
        stats = _stats()
        children: dict[int, list[int]] = {}
        for pid, (parent, _, _) in stats.items():
            children.setdefault(parent, []).append(pid)
        return {root: self._one(root, stats, children) for root in roots if root in stats}

    def _one(self, root: int, stats: dict[int, tuple[int, int, int]], children: dict[int, list[int]]) -> TreeUsage:
        tree, ticks, memory, peak = [root], {}, 0, 0
        for pid in tree:
            tree += children.get(pid, [])
            _, started, used = stats[pid]
            ticks[pid, started] = used
            memory += _resident_bytes(pid)
            # Between two looks a process may have had more than at either.
            peak = max(peak, _bytes_of(f"/proc/{pid}/status", "VmHWM:") or 0)
        now, before, before_at = time.monotonic(), self._ticks.get(root), self._at.get(root, 0.0)
        self._ticks[root], self._at[root] = ticks, now
        cpu = None
        if before is not None and now > before_at:
            used = sum(count - before.get(process, 0) for process, count in ticks.items())
            cpu = max(used, 0) / _TICKS / (now - before_at)
        self._peaks[root] = max(self._peaks.get(root, 0), memory, peak)
        return TreeUsage(cpu, memory, self._peaks[root])


def _stats() -> dict[int, tuple[int, int, int]]:
    """Process -> (parent, start time, ticks used) of all that run."""
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - a thousand Path objects per look are not free
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields and fields[0] not in (b"Z", b"X"):
            found[int(entry)] = int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12])
    return found


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _bytes_of(path: str, name: str) -> int | None:
    """From the line of that name in one of the kernel's files, which have KiB."""
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


# --- GPUs ----------------------------------------------------------------------------------


class Gpus:
    """NVIDIA's, asked through NVML. Unverified: no GPU was at hand when this was written.

    A driver that hangs is waited for in a thread of its own, once: until it answers, nothing is known of any GPU.
    """

    def __init__(self, ask: Any = None) -> None:
        self._ask = ask or _ask_nvml
        self._thread: threading.Thread | None = None
        self._found: list[DeviceUsage] = []

    def read(self) -> list[DeviceUsage]:
        if self._thread is None or not self._thread.is_alive():
            self._found = []
            self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
            self._thread.start()
        self._thread.join(PATIENCE_S)
        return [] if self._thread.is_alive() else self._found

    def _run(self) -> None:
        try:
            found = self._ask()
        except Exception:  # noqa: BLE001 - no driver, no library, a GPU that fell off the bus: a gap
            found = []
        self._found = found


def _ask_nvml() -> list[DeviceUsage]:
    import pynvml

    pynvml.nvmlInit()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError:
                continue
            memory = _said(lambda gpu=gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu))
            rates = _said(lambda gpu=gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu))
            power = _said(lambda gpu=gpu: pynvml.nvmlDeviceGetPowerUsage(gpu))
            found.append(
                DeviceUsage(
                    index=index,
                    utilisation=None if rates is None else rates.gpu / 100,
                    memory_used_bytes=None if memory is None else memory.used,
                    memory_total_bytes=None if memory is None else memory.total,
                    temperature_c=_said(
                        lambda gpu=gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)
                    ),
                    power_w=None if power is None else power / 1000,
                )
            )
        return found
    finally:
        pynvml.nvmlShutdown()


def _said(ask: Any) -> Any:
    """Not every GPU says everything."""
    import pynvml

    try:
        return ask()
    except pynvml.NVMLError:
        return None
