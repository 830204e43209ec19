"""The loop in this process, one rank: what a step does, and what a skipped one does not do."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from tests.workers.trainer.conftest import Attempt, make_attempt, settings
from workers.contract.messages import AttemptSpec
from workers.contract.records import GROUP_NORM, ZERO_GRADIENTS
from workers.contract.states import EndReason
from workers.trainer import checkpoint, gradients
from workers.trainer.loop import Run, train
from workers.trainer.ranks import Ranks
from workers.trainer.sampler import Position
from workers.trainer.spool import Events
from workers.trainer.start import start
from workers.trainer.task import Context, TrainingFailed

# Paddle converts its scale to a number in a way that NumPy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


class InProcess:
    def __init__(self, attempt: Attempt, **changes: Any) -> None:
        self.attempt = attempt
        folder = attempt.folder
        spec = AttemptSpec.model_validate_json(folder.spec.read_bytes())
        context = Context(folder, spec, settings(**changes), 0, lambda name, detail: None)
        self.run: Run = start(context, Ranks("cpu"), Events(folder.events(0)))

    def train(self) -> EndReason:
        return train(self.run)

    def until(self, applied: int) -> None:
        """Train to a number of applied steps, and no further."""
        self._limit(max_steps=applied)
        assert self.train() is EndReason.COMPLETED
        self._limit(max_steps=10_000)

    def fails(self) -> TrainingFailed:
        with pytest.raises(TrainingFailed) as caught:
            self.train()
        return caught.value

    def weights(self) -> dict[str, Any]:
        return checkpoint.weights_of(self.run.model)

    def moments(self) -> dict[str, Any]:
        return checkpoint.moments_of(self.run.model, self.run.optimizer)

    def poison(self, value: float = math.nan) -> None:
        self.run.task.weights[:] = value

    def _limit(self, **changes: Any) -> None:
        old = self.run.context.settings
        training = old.training.model_copy(update=changes)
        object.__setattr__(self.run.context, "settings", old.model_copy(update={"training": training}))


@pytest.fixture
def in_process(tmp_path: Path, dataset: Path) -> Any:
    def build(**changes: Any) -> InProcess:
        changes.setdefault("limits", {"skip_limit": 3})
        return InProcess(make_attempt(tmp_path / "run", dataset, **changes), **changes)

    return build


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one)


PRECISIONS = ["float32", "fp16", "bf16"]


@pytest.mark.parametrize("mode", PRECISIONS)
def test_a_skipped_step_touches_neither_weights_nor_moments_nor_the_schedule(in_process: Any, mode: str) -> None:
    work = in_process(precision={"mode": mode})
    work.until(applied=3)
    weights, moments = work.weights(), work.moments()
    work.poison()
    end = work.fails()
    assert same(work.weights(), weights)
    assert same(work.moments(), moments)
    assert {name.partition("/")[0] for name in moments} >= {"moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"}
    bad = work.attempt.steps()[-3:]
    assert [record["skipped"] for record in bad] == ["non_finite_input"] * 3
    assert [record["applied"] for record in bad] == [3, 3, 3]
    assert len({record["lr"] for record in bad}) == 1
    assert all(math.isnan(record["loss"]) and math.isnan(record["grad_norm"]) for record in bad)
    assert (end.reason, end.step) == ("non_finite", bad[0]["step"])


@pytest.mark.parametrize("mode", PRECISIONS)
def test_the_first_step_may_be_skipped_and_the_next_goes_well(in_process: Any, mode: str) -> None:
    work = in_process(precision={"mode": mode}, training={"max_steps": 2, "batch_size": 4})
    first = work.run.sampler.take(work.run.progress.at)
    work.run.task.weights[first] = math.nan
    assert work.train() is EndReason.COMPLETED
    assert [record["skipped"] for record in work.attempt.steps()] == ["non_finite_input", None, None]
    assert all(np.isfinite(array).all() for array in work.weights().values())


@pytest.mark.parametrize("mode", PRECISIONS)
def test_only_fp16_has_a_loss_scale(in_process: Any, mode: str) -> None:
    work = in_process(precision={"mode": mode})
    work.train()
    scales = {record["loss_scale"] for record in work.attempt.steps()}
    assert (None in scales) == (mode != "fp16")
    assert {record["emulated"] for record in work.attempt.steps()} == {mode != "float32"}


def test_a_scale_that_is_too_high_is_lowered_by_skipped_steps_until_it_fits(in_process: Any) -> None:
    work = in_process(
        precision={"mode": "fp16"},
        loss_scaling={"init_scale": 2.0**24},
        limits={"skip_limit": 20},
        training={"max_steps": 4},
    )
    assert work.train() is EndReason.COMPLETED
    records = work.attempt.steps()
    skipped = [record for record in records if record["skipped"]]
    assert skipped and {record["skipped"] for record in skipped} == {"found_inf"}
    assert all(math.isfinite(record["loss"]) and record["found_inf"] for record in skipped)
    assert [record["loss_scale"] for record in records[: len(skipped) + 1]] == [
        2.0 ** (24 - i) for i in range(len(skipped) + 1)
    ]
    scales = work.attempt.events("scale")
    assert [(line["step"], line["old"], line["new"]) for line in scales] == [
        (record["step"], record["loss_scale"], record["loss_scale"] / 2) for record in skipped
    ]


def test_overflow_down_to_the_floor_is_a_collapse_with_the_weights_untouched(in_process: Any) -> None:
    work = in_process(
        precision={"mode": "fp16"}, loss_scaling={"init_scale": 2.0**30, "floor": 2.0**29, "ceiling": 2.0**30}
    )
    before = work.weights()
    end = work.fails()
    assert (end.reason, end.step) == ("loss_scale_collapsed", 1)
    assert same(work.weights(), before)


def test_finite_loss_with_bad_gradients_is_skipped_without_loss_scaling_too(in_process: Any) -> None:
    work = in_process()
    work.until(applied=1)
    before = work.weights()

    def broken(gradient: Any) -> Any:
        return gradient * math.inf

    work.run.model.classifier.bias.register_hook(broken)
    end = work.fails()
    assert end.reason == "non_finite"
    assert {record["skipped"] for record in work.attempt.steps()[-3:]} == {"non_finite_grad"}
    assert all(math.isfinite(record["loss"]) for record in work.attempt.steps())
    assert same(work.weights(), before)


def test_a_parameter_that_a_step_gives_no_gradient_is_left_alone_by_it(in_process: Any) -> None:
    work = in_process(optimizer={"weight_decay": 0.1, "undecayed": ""})
    work.until(applied=2)
    classifier = work.run.model.classifier
    before, moments = work.weights(), work.moments()
    bias = classifier.bias.numpy()
    classifier.forward = lambda x: paddle.nn.functional.linear(x, classifier.weight, paddle.to_tensor(bias))
    work.until(applied=3)
    of_bias = {name for name in moments if name.endswith("classifier.bias")}
    assert of_bias
    assert same({name: work.moments()[name] for name in of_bias}, {name: moments[name] for name in of_bias})
    assert (work.weights()["classifier.bias"] == before["classifier.bias"]).all()
    assert (work.weights()["classifier.weight"] != before["classifier.weight"]).any()


def test_the_recorded_norm_is_the_one_before_clipping_and_the_update_comes_from_the_clipped_gradient(
    in_process: Any,
) -> None:
    work = in_process(clipping={"max_norm": 1e-3}, training={"max_steps": 1})
    seen: dict[str, Any] = {}
    step = work.run.optimizer.step

    def spy() -> None:
        seen["norm"] = math.sqrt(
            sum(float((p.grad.astype("float64") ** 2).sum()) for p in work.run.model.parameters() if p.grad is not None)
        )
        step()

    work.run.optimizer.step = spy
    work.train()
    (record,) = work.attempt.steps()
    assert record["clipped"] and record["clip_norm"] == 1e-3 and record["grad_norm"] > 0.01
    assert seen["norm"] == pytest.approx(1e-3, rel=1e-5)


def test_norms_and_limits_are_of_the_unscaled_gradient_whatever_the_loss_scale(tmp_path: Path, dataset: Path) -> None:
    seen = {}
    for mode, scale in (("float32", 1.0), ("fp16", 16.0), ("fp16", 1024.0)):
        changes: dict[str, Any] = {
            "precision": {"mode": mode},
            "loss_scaling": {"init_scale": scale},
            "clipping": {"max_norm": 0.05},
            "monitoring": {"group_norms_every": 1},
            "training": {"max_steps": 1},
            "regularisation": {"dropout": 0.0},
        }
        work = InProcess(make_attempt(tmp_path / f"{mode}-{scale}", dataset, **changes), **changes)
        update: list[float] = []
        step = work.run.optimizer.step

        def spy(work: InProcess = work, update: list[float] = update, step: Any = step) -> None:
            update.append(gradients.norm_of(work.run.parameters))
            step()

        work.run.optimizer.step = spy
        work.train()
        (record,) = work.attempt.steps()
        assert record["clipped"] and update == [pytest.approx(0.05, rel=1e-3)]
        of_groups = [value for name, value in record["extras"].items() if name.startswith(GROUP_NORM)]
        assert math.hypot(*of_groups) == pytest.approx(record["grad_norm"], rel=1e-5)
        seen[mode, scale] = (record["grad_norm"], record["extras"][ZERO_GRADIENTS])
    norm, zeros = seen.pop(("float32", 1.0))
    assert norm > 0.06 and 0.1 < zeros < 0.9, "most characters are not in the batch"
    for rounded in seen.values():
        assert rounded == (pytest.approx(norm, rel=0.02), pytest.approx(zeros, abs=0.02))


def test_the_optimizer_steps_with_the_rate_that_is_recorded(in_process: Any) -> None:
    work = in_process(schedule={"warmup_steps": 2, "decay": "cosine"}, training={"max_steps": 6})
    rates: list[float] = []
    step = work.run.optimizer.step
    work.run.optimizer.step = lambda: (rates.append(work.run.optimizer.get_lr()), step())
    work.train()
    assert rates == [record["lr"] for record in work.attempt.steps()] and len(set(rates)) > 3


def test_o2_without_master_weights_has_its_weights_in_half_precision_after_every_step(in_process: Any) -> None:
    work = in_process(
        precision={"mode": "bf16", "level": "O2", "master_weights": False},
        optimizer={"learning_rate": 0.1},
        training={"max_steps": 2},
    )
    first = work.weights()["classifier.weight"]
    work.train()
    weight = work.run.model.classifier.weight
    assert np.array_equal(weight.astype("bfloat16").astype("float32").numpy(), weight.numpy())
    assert not np.array_equal(weight.numpy(), first)


def test_only_the_last_micro_batch_of_a_step_waits_for_the_other_ranks(in_process: Any) -> None:
    work = in_process(training={"batch_size": 4, "accumulation": 3, "max_steps": 2})
    asked: list[bool] = []
    work.run.ranks.without_sync = lambda model, without: (asked.append(without), nullcontext())[1]
    work.train()
    assert asked == [True, True, False] * 2


def test_a_batch_of_which_no_row_counts_changes_nothing_but_decay(in_process: Any) -> None:
    work = in_process(training={"max_steps": 2, "batch_size": 4}, optimizer={"weight_decay": 0.0})
    work.run.task.weights[work.run.sampler.take(work.run.progress.at)] = 0.0
    first = work.weights()
    after: list[Any] = []
    record = work.run.steps.record
    work.run.steps.record = lambda line: (after.append(work.weights()), record(line))
    work.train()
    one, other = work.attempt.steps()
    assert (one["loss"], one["grad_norm"], one["skipped"]) == (0.0, 0.0, None)
    assert same(after[0], first) and not same(after[1], first) and other["loss"] > 0


def test_a_row_with_a_broken_weight_counts_for_nothing_so_that_others_are_not_taken_for_broken(in_process: Any) -> None:
    work = in_process(training={"max_steps": 1, "batch_size": 4})
    work.run.task.weights[work.run.sampler.take(work.run.progress.at)[2]] = math.nan
    work.train()
    bad, good = work.attempt.steps()
    assert bad["skipped"] == "non_finite_input" and math.isnan(bad["loss"])
    assert [record["extras"]["counted"] for record in (bad, good)] == [3.0, 4.0]


def test_the_average_follows_the_weights_of_after_the_step_and_counts_applied_steps(in_process: Any) -> None:
    work = in_process(
        optimizer={"ema_memory": 0.99, "learning_rate": 0.1}, schedule={"warmup_steps": 0}, training={"max_steps": 3}
    )
    bad = work.run.sampler.take(Position(0, 4))
    work.run.task.weights[bad] = math.nan
    weights: list[Any] = [work.weights()["classifier.weight"].astype(np.float64)]
    record = work.run.steps.record
    work.run.steps.record = lambda line: (weights.append(work.weights()["classifier.weight"]), record(line))
    work.train()
    assert [line["applied"] for line in work.attempt.steps()] == [1, 1, 2, 3], "the second batch was bad"
    expected = weights[0]
    for applied, after in enumerate((weights[1], weights[3], weights[4]), 1):
        memory = (1 + applied) / (10 + applied)
        expected = memory * expected + (1 - memory) * after
    assert np.allclose(work.attempt.final("average")["classifier.weight"], expected, rtol=1e-5, atol=1e-7)


def test_checkpoints_and_evaluations_follow_applied_steps_and_a_skipped_one_makes_none(in_process: Any) -> None:
    work = in_process(
        training={"max_steps": 6, "batch_size": 4}, checkpoints={"every_steps": 2, "evaluate_every_steps": 2, "keep": 9}
    )
    for at in (8, 24):  # the third and the seventh step
        work.run.task.weights[work.run.sampler.take(Position(0, at))] = math.nan
    work.train()
    assert [line["applied"] for line in work.attempt.steps()] == [1, 2, 2, 3, 4, 5, 5, 6]
    for kind in ("checkpoint", "evaluation"):
        assert [(line["step"], line["applied"]) for line in work.attempt.events(kind)] == [(2, 2), (5, 4), (8, 6)], kind


def test_a_norm_below_the_threshold_is_left_alone(in_process: Any) -> None:
    work = in_process(clipping={"max_norm": 1e3}, training={"max_steps": 2})
    work.train()
    assert [record["clipped"] for record in work.attempt.steps()] == [False, False]


def test_micro_batches_add_up_to_the_big_batch(tmp_path: Path, dataset: Path) -> None:
    # 64 rows: batches of 12 leave a last one of 4, so micro-batches of 5 rows are unequal everywhere.
    results = []
    for name, batch, accumulation in (("big", 12, 1), ("small", 4, 3)):
        changes = {
            "training": {"batch_size": batch, "accumulation": accumulation, "max_steps": 7},
            "regularisation": {"dropout": 0.0},
        }
        work = InProcess(make_attempt(tmp_path / name, dataset, **changes), **changes)
        work.train()
        results.append(work)
    big, small = (work.attempt.steps() for work in results)
    assert (
        [record["samples"] for record in big] == [record["samples"] for record in small] == [12, 12, 12, 12, 12, 4, 12]
    )
    for one, other in zip(big, small, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    for name, weights in results[0].weights().items():
        assert np.allclose(weights, results[1].weights()[name], atol=2e-5), name


def test_weights_of_rows_count_in_loss_and_gradient(tmp_path: Path, dataset: Path) -> None:
    """A weight of 0 takes a row out; equal weights of any size change nothing."""
    changes = {"training": {"max_steps": 3}, "regularisation": {"dropout": 0.0}}
    losses = []
    for name, weight in (("ones", 1.0), ("fives", 5.0)):
        work = InProcess(make_attempt(tmp_path / name, dataset, **changes), **changes)
        work.run.task.weights[:] = weight
        work.train()
        losses.append([record["loss"] for record in work.attempt.steps()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)

    work = InProcess(make_attempt(tmp_path / "one-row", dataset, **changes), **changes)
    first = work.run.sampler.take(work.run.progress.at)
    work.run.task.weights[first[1:]] = 0.0
    batch = work.run.task.batch("train", first[:1])
    _, alone = work.run.task.losses(work.run.model, batch)
    work.train()
    assert work.attempt.steps()[0]["loss"] == pytest.approx(float(alone), rel=1e-5)


@pytest.mark.parametrize("bad", ["moment2", "average"])
def test_what_is_not_finite_is_never_written_as_a_checkpoint(in_process: Any, bad: str) -> None:
    work = in_process(optimizer={"ema_memory": 0.9})
    work.until(applied=2)
    good = work.attempt.checkpoints()
    moments = work.run.optimizer._accumulators["moment2"].values()
    for tensor in moments if bad == "moment2" else work.run.average.averages:
        tensor.set_value(np.full(tensor.shape, np.inf, np.float32))
    work._limit(max_steps=3)
    work.train()
    assert work.attempt.checkpoints() == good
    (note,) = [line for line in work.attempt.events("note") if line["level"] == "error"]
    assert bad in note["text"] and "No checkpoint at step 3" in note["text"]


@pytest.mark.parametrize("mode", ["float32", "fp16"])
def test_a_step_waits_for_the_device_once(in_process: Any, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """A bare loop that does not even read its loss does so 0 times, and once with Paddle's loss scaler."""
    work = in_process(precision={"mode": mode}, training={"max_steps": 6}, monitoring={"group_norms_every": None})
    waits, depth, after_step = [0], [0], []
    for name in ("numpy", "item", "tolist", "__bool__", "__float__", "__int__", "__array__"):
        original = getattr(paddle.Tensor, name)

        def counted(*arguments: Any, original: Any = original, **options: Any) -> Any:
            waits[0] += not depth[0]  # one of them may call another
            depth[0] += 1
            try:
                return original(*arguments, **options)
            finally:
                depth[0] -= 1

        monkeypatch.setattr(paddle.Tensor, name, counted)
    record = work.run.steps.record
    monkeypatch.setattr(work.run.steps, "record", lambda line: (after_step.append(waits[0]), record(line)))
    work.train()
    assert np.diff(after_step).tolist()[-3:] == [1] * 3
