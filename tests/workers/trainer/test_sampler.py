"""Which rows go into which step."""

from __future__ import annotations

import random

import numpy as np
import paddle
import pytest

from workers.trainer.sampler import Position, Sampler, reseed


def sampler(rows: int = 103, batch: int = 4, accumulation: int = 2, world: int = 2, seed: int = 1) -> Sampler:
    return Sampler(rows, batch, accumulation, world, seed, np.arange(rows) % 17)


def epoch_of(sampler: Sampler, epoch: int) -> list[np.ndarray]:
    at, taken = Position(epoch, 0), []
    while at.epoch == epoch:
        taken.append(sampler.take(at))
        at = sampler.after(at)
    return taken


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_an_epoch_takes_every_row_once_over_all_ranks(world: int) -> None:
    s = sampler(world=world)
    seen = [row for batch in epoch_of(s, 0) for rank in range(world) for part in s.share(batch, rank) for row in part]
    assert sorted(seen) == list(range(103))


def test_epochs_and_seeds_have_orders_of_their_own_and_repeat_exactly() -> None:
    assert not np.array_equal(sampler().order(0), sampler().order(1))
    assert not np.array_equal(sampler().order(0), sampler(seed=2).order(0))
    assert np.array_equal(sampler().order(5), sampler().order(5))


def test_the_order_of_rows_does_not_depend_on_the_batch_size() -> None:
    assert np.array_equal(np.concatenate(epoch_of(sampler(batch=4), 2)), np.concatenate(epoch_of(sampler(batch=9), 2)))


def test_micro_batches_are_never_larger_than_the_batch_size_and_ranks_differ_by_one_row_at_most() -> None:
    s = sampler()
    for batch in epoch_of(s, 0):
        shares = [s.share(batch, rank) for rank in range(2)]
        assert all(len(part) <= 4 for share in shares for part in share)
        sizes = [sum(map(len, share)) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def test_steps_left_counts_what_after_walks_through() -> None:
    s = sampler()
    at, steps = Position(0, 37), 0  # a position that another batch size left behind
    expected = s.steps_left(at, 3)
    while at.epoch < 3:
        assert len(s.take(at)) > 0
        at, steps = s.after(at), steps + 1
    assert steps == expected


def test_rows_of_like_length_come_together() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, 4096)
    grouped = Sampler(4096, 32, 1, 1, 1, lengths)
    mixed = Sampler(4096, 32, 1, 1, 1, None)

    def padded(s: Sampler) -> int:
        return sum(lengths[batch].max() * len(batch) for batch in epoch_of(s, 0))

    assert padded(grouped) < 0.65 * padded(mixed)
    # But not the short ones first: the chunks of a window are in an order of their own.
    chunks = lengths[grouped.order(0)[:2048]].reshape(-1, 64).mean(1)
    assert 0.3 < (np.diff(chunks) > 0).mean() < 0.7


def test_every_step_and_every_rank_has_random_numbers_of_its_own_that_come_again() -> None:
    drawn = {}
    for seed, step, rank in [(1, 7, 0), (1, 8, 0), (1, 7, 1), (2, 7, 0), (1, 0, 7)]:
        reseed(seed, step, rank)
        drawn[seed, step, rank] = (paddle.rand([2]).tolist(), np.random.rand(2).tolist(), random.random())
    for one in range(3):
        assert len({str(values[one]) for values in drawn.values()}) == len(drawn)
    reseed(1, 7, 1)
    assert drawn[1, 7, 1] == (paddle.rand([2]).tolist(), np.random.rand(2).tolist(), random.random())
