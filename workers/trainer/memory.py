"""Memory of this rank: resident on CPU, allocated on GPU."""

from __future__ import annotations

import os
import resource

import paddle


class Memory:
    def __init__(self, device: str) -> None:
        self.device = device
        self._statm = -1 if device != "cpu" else os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._page_mb = os.sysconf("SC_PAGE_SIZE") / 2**20

    def mb(self) -> float:
        """A few microseconds: read every step."""
        if self._statm < 0:
            return float(paddle.device.cuda.memory_allocated(self.device)) / 2**20
        return int(os.pread(self._statm, 64, 0).split()[1]) * self._page_mb

    def peak_mb(self) -> float:
        """The most since the process began; unlike `mb` it has seen what the backward pass holds on a GPU."""
        if self._statm < 0:
            return float(paddle.device.cuda.max_memory_allocated(self.device)) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
