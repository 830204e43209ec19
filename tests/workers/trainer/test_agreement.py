"""What ranks conclude from each other's words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from workers.contract import records
from workers.contract.messages import Request
from workers.contract.states import EndReason
from workers.trainer.agreement import BAD_GRADIENT, BAD_INPUT, BAD_LOSS, FINE, Agreed, Word, agree, facts_of
from workers.trainer.task import TrainingFailed

WORD = Word(
    leave=None, checkpoint=0, loss_sum=2.0, weight=4.0, code=0, loss=0.5,
    whole_weight=12.0, applied=5, fingerprint=9, found_inf=False, norm=0.25,
)  # fmt: skip


class Words:
    """The same exchange on every rank, one after the other: first all say theirs, then all hear everybody's."""

    def __init__(self, rank: int, world: int, heard: Any = None) -> None:
        self.rank, self.world, self.heard = rank, world, heard

    def gather(self, values: list[float]) -> list[list[float]]:
        if self.heard is None:
            self.heard = np.array(values, np.float64).tolist()
            raise StopIteration
        found: list[list[float]] = self.heard
        return found


def said(*words: Word) -> list[Agreed | TrainingFailed]:
    """What each rank makes of it."""
    own = []
    for rank, word in enumerate(words):
        own_words: Any = Words(rank, len(words))
        with pytest.raises(StopIteration):
            agree(own_words, word, 7)
        own.append(own_words.heard)
    found: list[Agreed | TrainingFailed] = []
    for rank, word in enumerate(words):
        heard: Any = Words(rank, len(words), own)
        try:
            found.append(agree(heard, word, 7))
        except TrainingFailed as failed:
            found.append(failed)
    return found


def test_ranks_that_are_alike_agree_on_sums_and_hear_of_each_other() -> None:
    one, *rest = said(
        WORD, WORD._replace(loss=math.nan, loss_sum=math.nan, code=1), WORD._replace(norm=0.25 * (1 + 1e-9))
    )
    assert isinstance(one, Agreed) and len(rest) == 2
    assert one.codes == [0, 1, 0] and one.norm == 0.25 and not one.found_inf
    assert math.isnan(one.loss_sum) and math.isnan(one.losses[1]) and one.losses[2] == 0.5


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"norm": 0.26}, "norm of the averaged gradient was 0.26 on rank 1 and 0.25 on the others"),
        ({"norm": 0.250001}, "norm of the averaged gradient was 0.250001 on rank 1 and 0.25 on the others"),
        ({"norm": math.inf, "found_inf": True}, "overflow of the averaged gradient (1: yes) was 1 on rank 1 and 0"),
        ({"found_inf": True}, "overflow of the averaged gradient (1: yes) was 1 on rank 1 and 0 on the others"),
        ({"applied": 6}, "number of applied steps was 6 on rank 1 and 5 on the others"),
        ({"fingerprint": 10}, "checksum of the weights was 10 on rank 1 and 9 on the others"),
        ({"fingerprint": 4_000_000_001}, "checksum of the weights was 4000000001 on rank 1 and 9 on the others"),
    ],
)
def test_one_rank_of_three_that_differs_is_named_by_all(changes: dict[str, Any], what: str) -> None:
    for failed in said(WORD, WORD._replace(**changes), WORD):
        assert isinstance(failed, TrainingFailed)
        assert (failed.reason, failed.rank, failed.step) == (EndReason.RANKS_DIFFER, 1, 7)
        assert what in failed.detail and "so that rank 1 computed" in failed.detail
        assert failed.more["ranks"] == [1]


def test_checksums_that_are_nearly_equal_differ_all_the_same() -> None:
    near = [WORD._replace(fingerprint=4_000_000_000 + n) for n in (0, 1, 0)]
    assert all(isinstance(failed, TrainingFailed) for failed in said(*near))


def test_of_two_that_differ_neither_is_accused_and_of_three_all_notice() -> None:
    for failed in said(*(word._replace(whole_weight=8.0) for word in (WORD, WORD._replace(norm=0.5)))):
        assert isinstance(failed, TrainingFailed) and failed.rank is None
        assert "one of them computed" in failed.detail
    # The second is the mean of all: it alone would see no difference to that.
    assert [type(one).__name__ for one in said(*(WORD._replace(norm=n) for n in (1.0, 2.0, 3.0)))] == [
        "RanksDiffer"
    ] * 3


def test_shares_that_do_not_add_up_to_the_batch_are_noticed() -> None:
    (failed, *_) = said(WORD, WORD._replace(weight=3.0), WORD)
    assert isinstance(failed, TrainingFailed)
    assert "count for 11 together, and the whole batch for 12" in failed.detail


@pytest.mark.parametrize(
    ("codes", "found_inf", "scale", "why"),
    [
        ([FINE, FINE], False, None, None),
        ([BAD_LOSS, BAD_INPUT], True, 8.0, records.SKIP_INPUT),
        ([FINE, BAD_INPUT], False, 8.0, records.SKIP_INPUT),
        ([BAD_LOSS, BAD_GRADIENT], True, 8.0, records.SKIP_LOSS),
        ([FINE, BAD_GRADIENT], True, 8.0, records.SKIP_FOUND_INF),
        ([FINE, BAD_GRADIENT], True, None, records.SKIP_GRAD),
        # Each of two scaled gradients fits, their sum does not.
        ([FINE, FINE], True, 8.0, records.SKIP_FOUND_INF),
    ],
)
def test_a_step_is_skipped_for_what_comes_first_on_any_rank(
    codes: list[float], found_inf: bool, scale: float | None, why: str | None
) -> None:
    agreed = Agreed(None, 0, found_inf, 2.0, 1.0, codes, [0.5, 0.5])
    assert facts_of(agreed, 7, 4.0, scale).skipped == why


@pytest.mark.parametrize("asked", [None, *Request])
def test_all_leave_for_what_the_first_rank_was_asked(asked: Request | None) -> None:
    for one in said(WORD._replace(leave=asked, checkpoint=2), WORD, WORD):
        assert isinstance(one, Agreed) and (one.leave, one.checkpoint) == (asked, 2)
