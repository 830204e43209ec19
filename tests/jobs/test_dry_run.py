"""What a dry run tells, in exact numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jobs import dry_run
from jobs.console import dry_run_lines
from tests.jobs.records import record

PLAN = {"total_steps": 1000, "steps_per_epoch": 300, "dev_rows": 1000}
SETTINGS = {
    "clipping": {"max_norm": 1.0},
    "schedule": {"warmup_steps": None, "warmup_fraction": 0.1},
    "checkpoints": {"every_steps": 200, "keep": 2, "evaluate_every_steps": None},
}


def steps(norms: list[float], **changes: Any) -> list[dict[str, Any]]:
    same = {"loss_scale": None, "step_ms": 100.0, "data_ms": 1.0, "mem_mb": 800.0} | changes
    return [record(number, grad_norm=norm, **same) for number, norm in enumerate(norms, 1)]


def result(records: list[dict[str, Any]], **changes: Any) -> dry_run.Result:
    given: dict[str, Any] = {
        "steps": {0: records},
        "settings": SETTINGS,
        "plan": PLAN,
        "measured": {},
        "memory_bytes": {},
    }
    return dry_run.result(**given | changes)


# 0.1, 0.2 … 3.0
NORMS = [round(i / 10, 1) for i in range(1, 31)]


def test_norms_are_told_by_median_ninetieth_percentile_and_greatest() -> None:
    norms = result(steps(NORMS)).norms
    assert (norms.finite, norms.non_finite, norms.max) == (30, 0, 3.0)
    assert norms.median == pytest.approx(1.55) and norms.p90 == pytest.approx(2.71)
    assert sum(count for _, _, count in norms.bars) == 30
    assert norms.bars[0][0] == pytest.approx(0.1) and norms.bars[-1][1] == pytest.approx(3.0)
    bars = dry_run.picture(norms)
    assert [bar["says_low"] for bar in bars] == [True] * (len(bars) - 1) + [False], "no limit beside another one"


def test_the_suggested_clip_is_the_ninetieth_percentile_rounded_up_and_each_candidate_has_its_share() -> None:
    found = result(steps(NORMS))
    assert found.suggested == 2.8
    assert [(clip.max_norm, round(clip.share, 4)) for clip in found.clips] == [
        (0.5, 0.8333),
        (1.0, 0.6667),
        (2.0, 0.3333),
        (2.8, 0.0667),
        (5.0, 0.0),
    ]
    assert [clip.max_norm for clip in found.clips if clip.current] == [1.0]
    assert any("would shorten 67 % of the steps" in text for text in found.advice())


@pytest.mark.parametrize(("mode", "current"), [("global_norm", [1.0]), ("none", []), ("value", []), ("zclip", [])])
def test_only_a_fixed_threshold_for_the_whole_gradient_is_compared(mode: str, current: list[float]) -> None:
    settings = SETTINGS | {"clipping": {"mode": mode, "max_norm": 1.0, "max_value": 3.0}}
    found = result(steps(NORMS), settings=settings)
    assert [clip.max_norm for clip in found.clips if clip.current] == current and found.suggested == 2.8
    assert dry_run.with_clip(settings, 2.8)["clipping"] == {"mode": "global_norm", "max_norm": 2.8, "max_value": 3.0}


@pytest.mark.parametrize(("value", "up"), [(0.0123, 0.013), (0.13, 0.13), (1.0, 1.0), (9.91, 10.0), (1234.5, 1300.0)])
def test_rounding_up_keeps_two_digits(value: float, up: float) -> None:
    assert dry_run._rounded_up(value) == up


def test_norms_that_are_not_finite_are_counted_and_suggest_nothing() -> None:
    found = result(steps([1.0, math.nan, 3.0, math.inf]))
    assert (found.norms.finite, found.norms.non_finite, found.norms.median) == (2, 2, 2.0)
    assert found.suggested is None, "of two norms"
    assert result(steps([*NORMS[:10], math.nan])).suggested == 0.91
    broken = result(steps([math.nan] * 4, skipped="non_finite_loss"))
    assert broken.suggested is None and broken.clips == [] and broken.norms.median is None
    assert broken.skip_share == 1.0 and broken.skip_reasons == {"non_finite_loss": 4}
    assert any("Not one gradient was finite" in text for text in broken.advice())


def test_gradients_that_are_all_zero_suggest_no_clip() -> None:
    found = result(steps([0.0] * 30))
    assert found.suggested is None and found.norms.bars == []
    assert any("Every gradient was 0" in text for text in found.advice())


def test_thirty_steps_within_the_warm_up_are_known_as_such() -> None:
    assert result(steps(NORMS)).within_warmup  # a tenth of 1000
    assert not result(steps(NORMS), plan=PLAN | {"total_steps": 200}).within_warmup
    fixed = SETTINGS | {"schedule": {"warmup_steps": 29, "warmup_fraction": 0.1}}
    assert not result(steps(NORMS), settings=fixed).within_warmup


def test_where_the_loss_scale_settles() -> None:
    records = steps([1.0] * 30)
    for i, one in enumerate(records):
        one["loss_scale"] = 2.0 ** (16 - min(i, 4))
        one["found_inf"], one["skipped"] = i < 4, "found_inf" if i < 4 else None
    found = result(records)
    assert found.loss_scale == dry_run.LossScale(65536.0, 4096.0, 4, settled=True)
    assert found.skipped == 4 and found.skip_share == pytest.approx(4 / 30)
    early = result(records[:12])
    assert early.loss_scale is not None and not early.loss_scale.settled
    assert any("had not settled" in text for text in early.advice())
    assert result(steps(NORMS)).loss_scale is None


def test_time_per_step_leaves_out_the_slow_first_ones() -> None:
    records = steps(NORMS)
    for one in records[:5]:
        one["step_ms"] = 5000.0
    records[10]["step_ms"] = 180.0
    records[11]["data_ms"] = 76.0
    found = result(records)
    assert (found.step_ms, found.timed_steps) == (100.0, 25)
    assert found.data_share == pytest.approx((24 + 76) / 2580)
    assert result(records[:1]).step_ms == 5000.0


def test_the_whole_is_steps_evaluations_and_checkpoints() -> None:
    measured = {
        0: {
            "rank": 0,
            "peak_mb": 900.0,
            "evaluation_s": 4.0,
            "checkpoint_s": 1.5,
            "checkpoint_bytes": 7,
        }
    }
    whole = result(steps(NORMS), measured=measured).whole
    # 1000 steps of 100 ms; 4 epochs, the last of them cut short, each with an evaluation of 4 s; 5 checkpoints.
    assert whole == dry_run.Whole(1000, 100.0, 4, 4.0, 5, 1.5, 7)
    assert whole.seconds == pytest.approx(100 + 16 + 7.5)
    unmeasured = result(steps(NORMS)).whole
    assert unmeasured is not None and unmeasured.evaluation_s is None and unmeasured.seconds == 100.0


def test_a_continuation_is_reckoned_from_where_it_starts() -> None:
    found = result(steps(NORMS), applied_before=990)
    assert found.planned == 10 and found.whole is not None and found.whole.steps == 10


def test_memory_is_the_measured_peak_against_the_device() -> None:
    found = result(
        [],
        steps={0: steps(NORMS), 1: steps(NORMS, mem_mb=950.0)},
        measured={0: {"peak_mb": 1000.0}},
        memory_bytes={0: 2**30, 1: 2**30},
    )
    first, second = found.memory
    assert (first.peak_mb, first.of_mb, first.exact) == (1000.0, 1024.0, True)
    assert (second.peak_mb, second.exact, second.nearly_full) == (950.0, False, True)
    assert any("Memory is nearly full" in text for text in found.advice())


def test_it_can_be_written_as_json() -> None:
    found = result(steps(NORMS)).as_dict()
    assert found["suggested_clip"] == 2.8 and found["whole"]["seconds"] == 100.0 and found["made"] == 30


def test_a_terminal_is_told_in_lines() -> None:
    measured = {0: {"peak_mb": 900.0, "evaluation_s": 2.0, "checkpoint_s": 1.5, "checkpoint_bytes": 7}}
    found = result(steps(NORMS), measured=measured, memory_bytes={0: 4 * 2**30})
    assert dry_run_lines(found)[:-1] == [
        "steps           30 of 30, 0 skipped",
        "gradient norm   median 1.55, 90th percentile 2.71, greatest 3, 0 not finite",
        "suggested clip  2.8",
        "                at 0.5: 83 % of the steps clipped",
        "                at 1: 67 % of the steps clipped (as set)",
        "                at 2: 33 % of the steps clipped",
        "                at 2.8: 7 % of the steps clipped",
        "                at 5: 0 % of the steps clipped",
        "memory, rank 0  900 MiB of 4096 MiB (22 %)",
        "time per step   100 ms, 1 % for data",
        "the whole       about 2 min (1000 steps, 4 evaluations, 5 checkpoints)",
        "note            all steps lie within the warm-up of 100: norms may still change",
    ]
