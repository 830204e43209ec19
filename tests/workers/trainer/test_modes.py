"""Evaluation mode, BatchNorm's statistics, and DropPath."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from tests.workers.trainer.test_loop import in_process  # noqa: F401
from workers.recipes import drop_path
from workers.recipes.drop_path import DropPath
from workers.recipes.text_classification.export import run as exported
from workers.trainer.finish import finish
from workers.trainer.modes import Statistics, evaluating

# Paddle's BatchNorm says this at every forward pass in training.
pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning")


def test_an_evaluation_is_the_same_twice_with_dropout_and_leaves_training_mode_on() -> None:
    model = paddle.nn.Sequential(
        paddle.nn.Linear(4, 4), paddle.nn.Dropout(0.5), DropPath(0.5), paddle.nn.BatchNorm1D(4)
    )
    x, before = paddle.rand([8, 4]), model[3]._mean.numpy()
    with evaluating(model):
        assert np.array_equal(model(x).numpy(), model(x).numpy())
        assert model(x).stop_gradient
    assert np.array_equal(model[3]._mean.numpy(), before)
    assert model.training and model[1].training
    assert not np.array_equal(model(x).numpy(), model(x).numpy())


class Normalised:
    """The test's model with a BatchNorm after it, whose statistics the loop must look after."""

    def __init__(self, work: Any) -> None:
        run, losses = work.run, work.run.task.losses
        run.model.add_sublayer("after", paddle.nn.BatchNorm1D(2, weight_attr=False, bias_attr=False))
        run.statistics = Statistics(run.model)
        self.layer, self.seen = run.model.after, []  # type: ignore[var-annotated]

        def normalised(model: Any, batch: Any) -> Any:
            outputs, values = losses(model, batch)
            self.layer(outputs)
            if model.training:
                self.seen.append(self.layer._mean.numpy())
            return outputs, values

        run.task.losses = normalised


def test_statistics_of_batchnorm_move_only_on_applied_steps(in_process: Any) -> None:  # noqa: F811
    work = in_process(training={"max_steps": 4})
    normalised = Normalised(work)
    taken = work.run.sampler.take(type(work.run.progress.at)(0, 8))  # the rows of the third step
    work.run.task.weights[taken] = np.nan
    means = []
    record = work.run.steps.record

    def recorded(line: Any) -> None:
        means.append(normalised.layer._mean.numpy())
        record(line)

    work.run.steps.record = recorded
    work.train()
    assert [line["skipped"] is None for line in work.attempt.steps()] == [True, True, False, True, True]
    assert np.array_equal(means[2], means[1]) and not np.array_equal(normalised.seen[2], means[1])
    assert not np.array_equal(means[3], means[2])
    assert work.attempt.final()["after._mean"].tobytes() == normalised.layer._mean.numpy().tobytes()


def test_an_evaluation_has_the_statistics_of_the_first_rank_on_all_ranks(in_process: Any) -> None:  # noqa: F811
    work = in_process(training={"max_steps": 2})
    normalised = Normalised(work)
    taken: list[Any] = []
    work.run.ranks.take_from_first = taken.extend
    work.train()
    names = {tensor.name for tensor in taken}
    assert names >= {normalised.layer._mean.name, normalised.layer._variance.name}


def test_a_buffer_is_remembered_unless_the_model_says_that_it_never_moves() -> None:
    class Counting(paddle.nn.Layer):  # type: ignore[misc]
        constants = ("factor",)

    model = Counting()
    model.register_buffer("factor", paddle.ones([2]))
    model.register_buffer("seen", paddle.zeros([1]))
    statistics = Statistics(model)
    statistics.remember()
    model.seen.add_(paddle.ones([1]))
    statistics.put_back()
    assert len(statistics.tensors) == 1
    assert model.seen.item() == 0.0


def test_drop_path_leaves_out_whole_samples_and_keeps_the_mean() -> None:
    layer, x = DropPath(0.25), paddle.ones([4000, 3, 2])
    paddle.seed(4)
    y = layer(x).numpy()
    each = y.reshape(4000, -1)
    assert np.allclose(each.max(1), each.min(1)), "a sample is kept or dropped as a whole"
    assert np.unique(each) == pytest.approx([0.0, 1 / 0.75])
    assert y.mean() == pytest.approx(1.0, abs=0.03)
    layer.eval()
    assert np.array_equal(layer(x).numpy(), x.numpy())


def test_drop_path_grows_with_depth() -> None:
    assert drop_path.rates(0.3, 4) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert drop_path.rates(0.3, 1) == [0.3]


def test_drop_path_is_in_both_branches_of_a_transformers_layer() -> None:
    layers = [paddle.nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0) for _ in range(2)]
    drop_path.into_transformer(layers, 1 - 1e-12)
    x = paddle.rand([3, 5, 4])
    dropped = layers[1](x)
    for branch in (layers[1].dropout1, layers[1].dropout2):
        assert isinstance(branch[1], DropPath)
    both = layers[1].norm2(layers[1].norm1(x))
    assert np.allclose(dropped.numpy(), both.numpy(), atol=1e-6), "nothing is left but the residual"


def test_an_export_of_a_model_with_drop_path_and_smoothing_is_that_of_its_weights(in_process: Any) -> None:  # noqa: F811
    work = in_process(regularisation={"drop_path": 0.5, "label_smoothing": 0.1}, training={"max_steps": 2})
    finish(work.run, work.train())
    ids = work.run.task.batch("dev", np.arange(4)).arrays["input_ids"]
    folder: Path = work.attempt.folder.artifacts / "inference"
    with evaluating(work.run.model):
        assert np.allclose(exported(folder, ids), work.run.model(paddle.to_tensor(ids)).numpy(), atol=1e-4)


def test_smoothing_is_for_training_only(in_process: Any) -> None:  # noqa: F811
    work = in_process(regularisation={"label_smoothing": 0.4, "dropout": 0.0})
    batch = work.run.task.batch("train", np.arange(6))
    logits, smoothed = work.run.task.losses(work.run.model, batch)
    z = logits.numpy().astype(np.float64)
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    target = np.full((6, 2), 0.2)
    target[np.arange(6), batch.arrays["labels"]] = 0.8
    assert np.allclose(smoothed.numpy(), -(target * logs).sum(1), atol=1e-6)
    with evaluating(work.run.model):
        _, plain = work.run.task.losses(work.run.model, batch)
    assert np.allclose(plain.numpy(), -logs[np.arange(6), batch.arrays["labels"]], atol=1e-6)
