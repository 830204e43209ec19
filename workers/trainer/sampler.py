"""Which rows go into which step: a pure function of seed, epoch, position and batch size.

Every rank computes the whole global batch, so each knows what all of them will count for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from workers.trainer.task import Rows

# Rows of like length are put together within windows of the shuffled order, in chunks that are then
# shuffled again: padding shrinks, and every epoch still has its own order.
WINDOW = 2048
CHUNK = 64


@dataclass(frozen=True)
class Position:
    """`offset`: rows of this epoch that earlier steps have taken. Independent of the batch size."""

    epoch: int = 0
    offset: int = 0


class Sampler:
    def __init__(self, rows: int, batch_size: int, accumulation: int, world: int, seed: int, lengths: Rows | None):
        self.rows, self.batch_size, self.world, self.seed, self.lengths = rows, batch_size, world, seed, lengths
        self.global_batch = batch_size * accumulation * world
        self.steps_per_epoch = -(-rows // self.global_batch)
        self._order: tuple[int, Rows] | None = None

    def order(self, epoch: int) -> Rows:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, _order(self.rows, self.seed, epoch, self.lengths)
        return self._order[1]

    def take(self, at: Position) -> Rows:
        """Rows of the global batch at `at`; the last one of an epoch is shorter."""
        return self.order(at.epoch)[at.offset : at.offset + self.global_batch]

    def index(self, at: Position) -> int:
        """Number of that batch within its epoch."""
        return -(-at.offset // self.global_batch)

    def after(self, at: Position) -> Position:
        offset = at.offset + self.global_batch
        return Position(at.epoch + 1, 0) if offset >= self.rows else Position(at.epoch, offset)

    def steps_left(self, at: Position, epochs: int) -> int:
        """Steps from `at` to the end of the last epoch."""
        if at.epoch >= epochs:
            return 0
        in_this = -(-(self.rows - at.offset) // self.global_batch)
        return in_this + (epochs - at.epoch - 1) * self.steps_per_epoch

    def share(self, taken: Rows, rank: int) -> list[Rows]:
        """A rank's micro-batches of a global batch. Sizes differ by one row at most between ranks;
        in a last batch of fewer rows than ranks, some ranks get none."""
        least, more = divmod(len(taken), self.world)
        start = rank * least + min(rank, more)
        mine = taken[start : start + least + (rank < more)]
        return [mine[i : i + self.batch_size] for i in range(0, len(mine), self.batch_size)]


def _order(rows: int, seed: int, epoch: int, lengths: Rows | None) -> Rows:
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = generator.permutation(rows).astype(np.int64)
    if lengths is None:
        return order
    chunks: list[Rows] = []
    for start in range(0, rows, WINDOW):
        window = order[start : start + WINDOW]
        window = window[np.argsort(lengths[window], kind="stable")]
        parts = [window[i : i + CHUNK] for i in range(0, len(window), CHUNK)]
        chunks += [parts[i] for i in generator.permutation(len(parts))]
    return np.concatenate(chunks)


def reseed(seed: int, step: int, rank: int) -> None:
    """Start all random numbers of one step anew, so that a step can be replayed from three integers."""
    import paddle

    state = _mix(_mix(_mix(seed) ^ step) ^ rank)
    paddle.seed(state >> 1)  # takes a signed 64-bit number
    np.random.seed(state & 0xFFFFFFFF)
    random.seed(state)


def _mix(x: int) -> int:
    """splitmix64: neighbouring inputs give unrelated outputs."""
    x = (x + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)
