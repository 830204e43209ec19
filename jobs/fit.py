"""Does a model learn, and does it hold for rows that it was not trained on? A verdict from the evaluations.

Every evaluation measures the dev split and a fixed sample of the training rows alike. What counts as much or little
stands here once; the page shows the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workers.contract.choices import Choice

# Fewer evaluations tell no trend.
LEAST_EVALUATIONS = 3
# So many evaluations in a row without a better one are no accident.
PATIENCE = 2
# Metrics between 0 and 1 are compared as they are (0.01 is one percentage point), all others in proportion.
FALL_POINTS, FALL_SHARE = 0.01, 0.03  # below its best: dev has become worse
TINY_POINTS, TINY_SHARE = 0.002, 0.01  # less than this is no change
GAP_POINTS, GAP_SHARE = 0.10, 0.25  # training rows so much better than dev: learnt by heart
LOSS_RISE = 0.10  # of dev, above its lowest
# A share of the way from always giving the commonest answer to a perfect one; below, the training rows are not learnt.
POOR_SHARE = 0.5
# Where less is better: an error on training rows above this share of the best simple baseline's.
POOR_ERROR = 0.9


class Word(Choice):
    TOO_EARLY = "too_early"
    NOT_FINITE = "not_finite"
    OVERFITTING = "overfitting"
    BY_HEART = "by_heart"
    OVERCONFIDENT = "overconfident"
    DEV_FALLS = "dev_falls"
    UNDERFITTING_RISING = "underfitting_rising"
    UNDERFITTING = "underfitting"
    IMPROVING = "improving"
    NOT_BEATEN = "not_beaten"
    TOO_FEW = "too_few"
    FINE = "fine"


@dataclass(frozen=True)
class Point:
    """One evaluation: loss and main metric on dev and on the sample of training rows; None where not measured."""

    step: int
    dev: float | None
    dev_loss: float | None = None
    train: float | None = None
    train_loss: float | None = None

    @property
    def finite(self) -> bool:
        values = (self.dev, self.dev_loss, self.train, self.train_loss)
        return all(math.isfinite(value) for value in values if value is not None)


@dataclass(frozen=True)
class Scale:
    """How values of the main metric compare."""

    lower_is_better: bool = False
    fraction: bool = True  # between 0 and 1, and more is better; or an error that is a share

    @classmethod
    def of(cls, points: Sequence[Point], lower_is_better: bool, rate: bool = False) -> Scale:
        values = [value for point in points for value in (point.dev, point.train) if value is not None]
        inside = all(0 <= value <= 1 for value in values if math.isfinite(value))
        return cls(lower_is_better, rate or (inside and not lower_is_better))

    def gain(self, new: float, old: float) -> float:
        """How much better `new` is: in points, or as a share of `old`."""
        difference = old - new if self.lower_is_better else new - old
        if self.fraction:
            return difference
        return difference / abs(old) if old else math.copysign(math.inf, difference) if difference else 0.0

    def limit(self, points: float, share: float) -> float:
        return points if self.fraction else share


@dataclass(frozen=True)
class Verdict:
    word: Word
    scale: Scale = field(default_factory=Scale)
    since: int | None = None  # step of the first evaluation of which it is true
    best: Point | None = None
    newest: Point | None = None
    gap: float | None = None  # how much better the training rows are than dev, at the best evaluation
    unbeaten: tuple[str, float] | None = None  # a simple baseline that the best does not beat


def judge(
    points: Sequence[Point],
    *,
    lower_is_better: bool = False,
    rate: bool = False,
    over: bool = False,
    baselines: Mapping[str, float] | None = None,
    chance: float | None = None,
) -> Verdict:
    """`points` by step; `rate`: an error that is a share, such as that of wrong characters, and not one in units of something;
    `over`: no more will come; `chance`: what always giving the commonest answer gets."""
    if not points:
        return Verdict(Word.TOO_FEW if over else Word.TOO_EARLY)
    scale = Scale.of(points, lower_is_better, rate)
    known = [point for point in points if point.dev is not None and point.finite]
    best = _best(known, lower_is_better)
    # A loss that is NaN does not take away what the main metric reached.
    reached = _best([point for point in points if point.dev is not None and math.isfinite(point.dev)], lower_is_better)
    unbeaten = _unbeaten(reached, baselines or {}, lower_is_better)

    def verdict(word: Word, since: int | None = None) -> Verdict:
        return Verdict(word, scale, since, best, points[-1], _gap(best, scale), unbeaten)

    if not points[-1].finite:
        bad = len(points) - 1
        while bad and not points[bad - 1].finite:
            bad -= 1
        return verdict(Word.NOT_FINITE, points[bad].step)
    if best is None:
        return verdict(Word.TOO_FEW if over else Word.TOO_EARLY)
    if len(known) < LEAST_EVALUATIONS and not over:
        return verdict(Word.TOO_EARLY)
    found = _worse(known, best, scale) or _not_learnt(known, best, scale, baselines or {}, chance)
    if found:
        return verdict(*found)
    if len(known) >= LEAST_EVALUATIONS and _moves(known, scale):
        return verdict(Word.IMPROVING)
    if unbeaten is not None:
        return verdict(Word.NOT_BEATEN)
    return verdict(Word.FINE if len(known) >= LEAST_EVALUATIONS else Word.TOO_FEW)


def _best(points: Sequence[Point], lower_is_better: bool) -> Point | None:
    """The first among equals."""
    best = points[0] if points else None
    for point in points:
        if best is not None and _better(point.dev, best.dev, lower_is_better):
            best = point
    return best


def _worse(known: list[Point], best: Point, scale: Scale) -> tuple[Word, int | None] | None:
    """Dev gets worse while the training rows get better, or is far behind them for good."""
    newest, after = known[-1], len(known) - 1 - known.index(best)
    fallen = 0.0 if newest.dev is None or best.dev is None else -scale.gain(newest.dev, best.dev)
    if after >= PATIENCE and fallen > scale.limit(FALL_POINTS, FALL_SHARE):
        since = known[known.index(best) + 1].step
        if newest.train is None or best.train is None:
            return Word.DEV_FALLS, since
        if not _better(best.train, newest.train, scale.lower_is_better):
            return Word.OVERFITTING, since
    losses = [point.dev_loss for point in known]
    if all(loss is not None for loss in losses):
        lowest = min(range(len(known)), key=lambda i: known[i].dev_loss or 0.0)
        low, new = known[lowest], newest
        if (
            len(known) - 1 - lowest >= PATIENCE
            and (new.dev_loss or 0.0) > (1 + LOSS_RISE) * (low.dev_loss or 0.0)
            and new.train_loss is not None
            and low.train_loss is not None
            and new.train_loss < low.train_loss
        ):
            word = Word.OVERFITTING if fallen > scale.limit(TINY_POINTS, TINY_SHARE) else Word.OVERCONFIDENT
            return word, known[lowest + 1].step
    gap = _gap(best, scale)
    if gap is not None and gap > scale.limit(GAP_POINTS, GAP_SHARE) and not _moves(known, scale):
        return Word.BY_HEART, None
    return None


def _not_learnt(
    known: list[Point], best: Point, scale: Scale, baselines: Mapping[str, float], chance: float | None
) -> tuple[Word, int | None] | None:
    """The training rows themselves are not learnt."""
    train = best.train if best.train is not None else best.dev
    assert train is not None
    if scale.fraction and not scale.lower_is_better:
        poor = chance is not None and train < chance + POOR_SHARE * (1 - chance)
    else:
        poor = scale.lower_is_better and bool(baselines) and train > POOR_ERROR * min(baselines.values())
    if not poor:
        return None
    return (Word.UNDERFITTING_RISING if _moves(known, scale) else Word.UNDERFITTING), None


def _moves(known: list[Point], scale: Scale) -> bool:
    """Whether the newest evaluation is the best so far, by more than nothing, over the last few."""
    if len(known) < LEAST_EVALUATIONS:
        return False
    newest, before = known[-1], known[-1 - PATIENCE]
    if newest.dev is None or before.dev is None:
        return False
    better = all(point.dev is None or not _better(point.dev, newest.dev, scale.lower_is_better) for point in known[:-1])
    return better and scale.gain(newest.dev, before.dev) > scale.limit(TINY_POINTS, TINY_SHARE)


def _gap(best: Point | None, scale: Scale) -> float | None:
    if best is None or best.dev is None or best.train is None:
        return None
    return scale.gain(best.train, best.dev) if math.isfinite(best.train) else None


def _unbeaten(best: Point | None, baselines: Mapping[str, float], lower: bool) -> tuple[str, float] | None:
    strongest: tuple[str, float] | None = None
    for name, value in baselines.items():
        if strongest is None or _better(value, strongest[1], lower):
            strongest = name, value
    if strongest is None or best is None or best.dev is None or _better(best.dev, strongest[1], lower):
        return None
    return strongest


def _better(one: float | None, other: float | None, lower: bool) -> bool:
    if one is None or other is None:
        return False
    return one < other if lower else one > other
