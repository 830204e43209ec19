"""The ranks of an attempt, and how they come to agree."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

import numpy as np
import paddle
import paddle.distributed as distributed

from workers.contract.states import EndReason
from workers.contract.texts import Text
from workers.trainer.task import Floats, TrainingFailed

T = TypeVar("T")
# Gloo gives up on a silent peer after a fixed 30 s.
HEARTBEAT_S = 2.0
# What the slowest rank may take to read its data and build its model.
MEETING_S = 1800.0
_GIVEN_UP = "evenkeel/given up"


class PeerFailed(Exception):
    """Another rank failed at something it did alone; its own outcome says why."""


def _store() -> Any:
    return paddle.base.core.create_or_get_global_tcp_store()


class Ranks:
    """This process among its peers. Every method is a collective: all ranks call it, in the same order."""

    def __init__(self, device_kind: str) -> None:
        self.rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
        self.world = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
        self.device = "cpu"
        if device_kind == "gpu":
            self.device = "gpu:" + os.environ.get("FLAGS_selected_gpus", "0").split(",")[0]  # noqa: SIM112  (Paddle's name)
        paddle.set_device(self.device)
        if self.world > 1:
            distributed.init_parallel_env()

    def meet(self, where: str) -> None:
        """Wait until all ranks have come here: to read data or a model, one may need much longer than Gloo waits. PeerFailed
        when another gives up; when one dies, the supervisor ends those of its host, and the others wait for no longer
        than MEETING_S. Over the store by which ranks found each other."""
        if self.world == 1:
            return
        store, until = _store(), time.monotonic() + MEETING_S
        store.add(f"evenkeel/{where}", 1)
        while store.add(f"evenkeel/{where}", 0) < self.world:
            if store.add(_GIVEN_UP, 0):
                raise PeerFailed("another rank failed before all were ready")
            if time.monotonic() > until:
                text = Text("Not all ranks were ready within %(minutes)d minutes.", minutes=MEETING_S // 60)
                raise TrainingFailed(EndReason.LAUNCH_FAILED, text)
            time.sleep(0.05)

    def give_up(self) -> None:
        """Who meets, or is going to, need not wait for this rank."""
        if self.world > 1:
            with suppress(RuntimeError):  # the store is gone, with the rank that has it
                _store().add(_GIVEN_UP, 1)

    def parallel(self, model: Any) -> Any:
        """The model as trained: gradients are averaged over ranks in the last backward of a step."""
        return paddle.DataParallel(model) if self.world > 1 else model

    def without_sync(self, model: Any, without: bool) -> AbstractContextManager[None]:
        """Around all but the last forward and backward of a step."""
        return model.no_sync() if without and self.world > 1 else nullcontext()

    def average(self, parameters: list[Any]) -> None:
        """Average the gradients over ranks, after a backward without sync."""
        from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

        fused_allreduce_gradients(parameters, None)

    def sum(self, values: Floats) -> Floats:
        """Element-wise sum over ranks, float64. A NaN stays in its element and reaches every rank;
        MAX would drop it [measured]."""
        if self.world == 1:
            return values
        tensor = paddle.to_tensor(values)
        distributed.all_reduce(tensor)
        result: Floats = tensor.numpy()
        return result

    def gather(self, values: list[float]) -> list[list[float]]:
        """What each rank has, by rank, in float64; all give as many. Fewer messages than a sum takes, and nothing is added
        to a NaN."""
        if self.world == 1:
            return [values]
        found = paddle.empty([self.world * len(values)], "float64")
        distributed.stream.all_gather(found, paddle.to_tensor(np.array(values, np.float64)))
        each: list[list[float]] = found.numpy().reshape(self.world, len(values)).tolist()
        return each

    def from_first(self, value: T | None) -> T:
        """Rank 0's `value`, on all."""
        values: list[Any] = [value]
        if self.world > 1:
            distributed.broadcast_object_list(values, src=0)
        found: T = values[0]
        return found

    def take_from_first(self, tensors: list[Any]) -> None:
        """Make each tensor what it is on rank 0."""
        if self.world == 1:
            return
        with paddle.no_grad():
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def alone(self, work: Callable[[], T]) -> T | None:
        """Rank 0 does `work` (no Paddle in it: it runs in a thread) while all keep in touch, for as
        long as it takes. Its result on rank 0, None elsewhere; PeerFailed elsewhere if it raised."""
        if self.world == 1:
            return work()
        if self.rank == 0:
            with ThreadPoolExecutor(1) as pool:
                future = pool.submit(work)
                while True:
                    wait([future], HEARTBEAT_S)
                    state = 0.0 if not future.done() else (2.0 if future.exception() else 1.0)
                    self.sum(np.array([state]))
                    if state:
                        return future.result()
        while True:
            state = float(self.sum(np.array([0.0]))[0])
            if state:
                break
        if state == 2.0:
            raise PeerFailed("rank 0 failed at something it did alone")
        return None
