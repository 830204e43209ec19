"""Verdicts on made-up curves: each is what a person would say of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from jobs import fit
from jobs.fit import Point, Verdict, Word, judge


def curve(dev: list[float], train: list[float | None] | None = None, **losses: list[float]) -> list[Point]:
    of_train = train or [None] * len(dev)
    none: list[Any] = [None] * len(dev)
    return [
        Point(100 * number, *values)
        for number, values in enumerate(
            zip(dev, losses.get("dev_loss", none), of_train, losses.get("train_loss", none), strict=True), 1
        )
    ]


def word(points: list[Point], **facts: Any) -> Word:
    return judge(points, **{"chance": 0.5, **facts}).word


def test_training_accuracy_soars_while_dev_falls() -> None:
    verdict = judge(curve([0.70, 0.78, 0.80, 0.78, 0.77], [0.72, 0.82, 0.90, 0.97, 0.995]), chance=0.5, over=True)
    assert verdict.word is Word.OVERFITTING and verdict.since == 400
    assert verdict.best is not None and verdict.best.step == 300 and verdict.gap == pytest.approx(0.10)


def test_one_worse_evaluation_is_an_accident() -> None:
    assert word(curve([0.70, 0.78, 0.80, 0.77], [0.72, 0.8, 0.84, 0.86])) is Word.FINE


def test_dev_loss_that_rises_while_accuracy_holds_is_overconfidence() -> None:
    points = curve(
        [0.70, 0.80, 0.81, 0.81, 0.81],
        [0.72, 0.84, 0.87, 0.88, 0.90],
        dev_loss=[0.6, 0.45, 0.50, 0.60, 0.70],
        train_loss=[0.6, 0.40, 0.3, 0.2, 0.1],
    )
    verdict = judge(points, chance=0.5)
    assert (verdict.word, verdict.since) == (Word.OVERCONFIDENT, 300)


def test_dev_loss_that_rises_while_accuracy_falls_a_little_is_overfitting() -> None:
    points = curve(
        [0.70, 0.80, 0.805, 0.80, 0.799],
        [0.72, 0.84, 0.9, 0.95, 0.99],
        dev_loss=[0.6, 0.45, 0.50, 0.60, 0.70],
        train_loss=[0.6, 0.40, 0.3, 0.2, 0.1],
    )
    assert word(points) is Word.OVERFITTING


def test_far_better_on_training_rows_and_at_rest_on_dev_is_learnt_by_heart() -> None:
    assert word(curve([0.76, 0.760, 0.761, 0.76], [0.9, 0.95, 0.99, 1.0])) is Word.BY_HEART
    assert word(curve([0.76], [0.99]), over=True) is Word.BY_HEART


def test_a_gap_while_dev_still_improves_is_no_reason_to_stop() -> None:
    assert word(curve([0.70, 0.74, 0.78], [0.8, 0.9, 0.95])) is Word.IMPROVING


def test_a_poor_result_on_the_training_rows_too_is_underfitting() -> None:
    assert word(curve([0.52, 0.56, 0.60], [0.52, 0.57, 0.61])) is Word.UNDERFITTING_RISING
    assert word(curve([0.6, 0.6, 0.6, 0.601], [0.61, 0.61, 0.61, 0.61])) is Word.UNDERFITTING
    assert word(curve([0.6, 0.6, 0.6], [0.61, 0.61, 0.61]), chance=0.1) is Word.FINE


def test_close_and_at_rest_is_fine() -> None:
    assert word(curve([0.8, 0.9, 0.92, 0.92, 0.921], [0.8, 0.91, 0.94, 0.94, 0.945]), over=True) is Word.FINE


def test_a_few_evaluations_tell_no_trend_until_no_more_will_come() -> None:
    assert word([]) is Word.TOO_EARLY and word([], over=True) is Word.TOO_FEW
    assert word(curve([0.8, 0.7], [0.8, 0.99])) is Word.TOO_EARLY
    assert word(curve([0.8, 0.82], [0.83, 0.85]), over=True) is Word.TOO_FEW


def test_a_baseline_that_is_not_beaten_is_named_whatever_the_verdict() -> None:
    baselines = {"majority": 0.52, "simple": 0.86}
    points = curve([0.84, 0.84, 0.85, 0.851, 0.851], [0.85, 0.86, 0.87, 0.87, 0.87])
    verdict = judge(points, baselines=baselines, chance=0.52, over=True)
    assert verdict.word is Word.NOT_BEATEN and verdict.unbeaten == ("simple", 0.86)
    rising = judge(curve([0.70, 0.74, 0.78], [0.8, 0.9, 0.95]), baselines=baselines, chance=0.52)
    assert rising.word is Word.IMPROVING and rising.unbeaten == ("simple", 0.86)
    assert judge(curve([0.9], [0.91]), baselines=baselines, over=True).unbeaten is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_evaluation_that_is_not_finite_comes_before_all_else(value: float) -> None:
    points = [*curve([0.7, 0.8]), Point(300, 0.81, value), Point(400, 0.5, value, 0.5, value)]
    verdict = judge(points)
    assert (verdict.word, verdict.since) == (Word.NOT_FINITE, 300)
    assert verdict.best is not None and verdict.best.step == 200
    assert judge([Point(1, math.nan)]).word is Word.NOT_FINITE
    assert judge([*points, Point(500, 0.9)]).word is not Word.NOT_FINITE


def test_records_without_a_sample_of_training_rows_are_judged_by_dev_alone() -> None:
    assert word(curve([0.70, 0.80, 0.78, 0.77])) is Word.DEV_FALLS
    assert word(curve([0.80, 0.85, 0.85, 0.85])) is Word.FINE


def _errors(dev: list[float], train: list[float], **facts: Any) -> Verdict:
    return judge(curve(dev, train), lower_is_better=True, **facts)  # type: ignore[arg-type]


def test_errors_are_judged_in_proportion_and_less_is_better() -> None:
    over = _errors([20.0, 15.0, 12.0, 13.0, 14.0], [19.0, 13.0, 9.0, 5.0, 2.0])
    assert (over.word, over.since) == (Word.OVERFITTING, 400)
    assert over.best is not None and over.best.step == 300 and over.gap == pytest.approx(0.25)
    assert _errors([20.0, 15.0, 12.0], [19.0, 14.0, 11.5]).word is Word.IMPROVING
    assert _errors([12.0, 12.0, 12.0], [11.0, 11.0, 11.0]).word is Word.FINE
    assert _errors([12.0, 12.0, 12.0], [4.0, 4.0, 4.0]).word is Word.BY_HEART
    simple = {"median": 12.5}
    assert _errors([12.0, 12.0, 12.0], [11.9, 11.9, 11.9], baselines=simple).word is Word.UNDERFITTING
    assert _errors([13.0, 13.0, 13.0], [11.0, 11.0, 11.0], baselines=simple).word is Word.NOT_BEATEN
    assert _errors([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]).word is Word.FINE


def test_the_guide_states_the_limits_that_count() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guide" / "results.md").read_text(encoding="utf-8")
    for stated in (
        f"for {fit.PATIENCE} evaluations or more",
        f"{100 * fit.FALL_POINTS:g} point ({100 * fit.FALL_SHARE:g} %) worse",
        f"{100 * fit.LOSS_RISE:g} % above its lowest",
        f"more than {100 * fit.GAP_POINTS:g} points ({100 * fit.GAP_SHARE:g} %) better",
        f"by {100 * fit.TINY_POINTS:g} points ({100 * fit.TINY_SHARE:g} %)",
        f"above {fit.POOR_ERROR:g} × the best simple baseline",
        f"fewer than {fit.LEAST_EVALUATIONS} evaluations",
    ):
        assert stated in text, stated
