"""The recipe for numeric sequences: real ranks, from rows to an exported program."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.recipes.examples import write_sequences
from tests.workers.trainer.conftest import Attempt, Ranks, make_attempt, settings
from tests.workers.trainer.test_loop import InProcess

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


@pytest.fixture
def sequences(tmp_path: Path) -> Path:
    write_sequences(tmp_path / "sequences")
    return tmp_path / "sequences"


@pytest.fixture
def in_process_sequences(tmp_path: Path, sequences: Path) -> Any:
    numbers = iter(range(100))

    def build(**changes: Any) -> InProcess:
        attempt = make_attempt(tmp_path / f"run{next(numbers)}", sequences, recipe="sequences", **changes)
        return InProcess(attempt, recipe="sequences", **changes)

    return build


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    write_sequences(tmp_path / "labelled", label=True)
    return tmp_path / "labelled"


def test_numbers_are_learnt_and_the_exported_program_says_them_in_the_units_of_the_data(
    train: Any, sequences: Path, tmp_path: Path
) -> None:
    from workers.contract.trials import Failed
    from workers.recipes.sequences import data, export
    from workers.recipes.sequences import predict as tries
    from workers.recipes.sequences.settings import SequencesSettings

    options = {"training": {"batch_size": 16, "epochs": 40, "max_steps": None}, "optimizer": {"learning_rate": 2e-2}}
    path = {"linear_steps": 6}
    attempt: Attempt = train("numbers", data=sequences, recipe="sequences", model=path, **options)
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    (plan,) = attempt.events("plan")
    assert (plan["best_by"], plan["lower_is_better"]) == ("mae", True)
    evaluations = attempt.events("evaluation")
    best = [line for line in evaluations if line["best"]][-1]
    assert best["metrics"]["mae"] == min(line["metrics"]["mae"] for line in evaluations)
    assert best["metrics"]["mae"] < 0.7 * plan["baselines"]["median"]
    assert {record["tokens"] for record in attempt.steps()} == {None}

    read = data.read(sequences / "dev.jsonl", SequencesSettings().data, [])
    found = data.samples(read, settings("sequences").data)
    predict = export.predictor(attempt.folder.artifacts / "inference")
    said = predict(data.gather(read.values, found.starts, found.lengths), found.lengths)
    error = np.abs(said - read.targets)
    assert error.mean() == pytest.approx(best["metrics"]["mae"], rel=1e-4)
    assert math.sqrt((error**2).mean()) == pytest.approx(best["metrics"]["rmse"], rel=1e-4)
    variance = ((read.targets - read.targets.mean()) ** 2).sum()
    assert best["metrics"]["r2"] == pytest.approx(1 - (error**2).sum() / variance, rel=1e-3)
    lines = [" ".join(f"{x},{same}" for x, same in read.values[read.begins[i] : read.begins[i + 1]]) for i in (0, 1, 2)]
    tried = tries.load(attempt.folder.artifacts / "inference")([{"text": line} for line in lines])
    assert [prediction.value for prediction in tried] == pytest.approx(said[:3].tolist(), rel=1e-4)
    assert [prediction.cut for prediction in tried] == [read.begins[i + 1] - read.begins[i] > 16 for i in (0, 1, 2)]
    with pytest.raises(Failed, match=r"Row 1: time step 2 has 1 values, but the model reads 2 in each: x, same\."):
        tries.steps("1,2 3", ["x", "same"], 1)
    _run_readme(attempt.folder.artifacts / "inference")
    rnn = _run_readme(attempt.folder.artifacts / "model")["rnn"]
    assert np.array_equal(rnn.weight_hh_l0.numpy(), attempt.final("best")["rnn.weight_hh_l0"])
    about = json.loads((attempt.folder.artifacts / "inference" / "inference.json").read_text())
    assert about["features"] == ["x", "same"] and about["normalisation"]["scale"][1] == 1.0


def _run_readme(folder: Path) -> dict[str, Any]:
    """The code in a README does what it says."""
    lines = [line[4:] for line in (folder / "README.md").read_text().splitlines() if line.startswith("    ")]
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec("\n".join(lines).replace("path/of/this/folder", str(folder)), names)  # noqa: S102
    return names


@pytest.mark.parametrize("labels", [[], ["a", "b", "c"]])
def test_with_a_linear_path_the_model_says_what_numpy_says_for_sequences_longer_and_shorter_than_it(
    labels: list[str],
) -> None:
    import paddle

    from workers.recipes.sequences import model
    from workers.recipes.sequences.data import Normalisation
    from workers.trainer import gradients

    shift, scale, steps, lengths = [1.0, 2.0], [2.0, 0.5], 5, np.array([1, 4, 5, 6, 9])
    goal = "classification" if labels else "regression"
    configuration = model.Configuration(
        goal, ["x", "y"], "lstm", 4, 1, False, 16, Normalisation(shift, scale), labels, linear_steps=steps
    )
    net = model.Recurrent(configuration)
    draw = np.random.default_rng(3)
    values = draw.normal(size=(5, 9, 2)).astype(np.float32)
    values[0, 0, 0] = 1e30  # float32 all along, though a weight of 0 times infinity were NaN
    weights = {name: weight.numpy().astype(np.float64) for name, weight in net.named_parameters()}
    assert not weights["linear_path.weight"].any()
    path = draw.normal(size=weights["linear_path.weight"].shape)

    def expected(path: Any) -> Any:
        said = []
        for row, length in zip(values.astype(np.float64), lengths, strict=True):
            inputs = (row[:length] - shift) / scale
            said.append(_lstm(weights, inputs) @ weights["head.weight"] + weights["head.bias"])
            for age, of_step in enumerate(inputs[::-1][:steps], 1):
                for feature in (0, 1):
                    said[-1] = said[-1] + of_step[feature] * path[2 * (steps - age) + feature]
        return np.array(said) if labels else np.array(said)[:, 0]

    for weight in (np.zeros_like(path), path):
        net.linear_path.weight.set_value(weight.astype(np.float32))
        said = net(paddle.to_tensor(values), paddle.to_tensor(lengths)).numpy()
        assert np.allclose(said, expected(weight), rtol=1e-5, atol=1e-5)
    shorter = net(paddle.to_tensor(values[:2, :4]), paddle.to_tensor(lengths[:2])).numpy()
    assert np.allclose(shorter, expected(path)[:2], rtol=1e-5, atol=1e-5)
    assert list(dict.fromkeys(gradients.groups(list(weights)))) == ["rnn", "head", "linear_path"]


def _lstm(weights: dict[str, Any], inputs: Any) -> Any:
    """The state after the last time step; gates in the order input, forget, cell, output."""
    with np.errstate(over="ignore"):
        state = cell = np.zeros(4)
        for one in inputs:
            gates = weights["rnn.weight_ih_l0"] @ one + weights["rnn.weight_hh_l0"] @ state
            i, f, g, o = np.split(gates + weights["rnn.bias_ih_l0"] + weights["rnn.bias_hh_l0"], 4)
            i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
            cell = f * cell + i * np.tanh(g)
            state = o * np.tanh(cell)
    return state


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_the_linear_path_learns_at_three_times_the_rate(in_process_sequences: Any, layer_decay: float) -> None:
    work = in_process_sequences(
        model={"hidden_size": 8, "linear_steps": 3},
        training={"max_steps": 1},
        optimizer={"kind": "adamw", "learning_rate": 1e-3, "layer_decay": layer_decay, "weight_decay": 0.0},
        schedule={"warmup_steps": 0},
    )
    before = work.run.model.head.weight.numpy()
    work.train()
    # Adam's first step is as long as the rate.
    assert np.abs(work.run.model.linear_path.weight.numpy()).max() == pytest.approx(3e-3, rel=1e-3)
    assert np.abs(work.run.model.head.weight.numpy() - before).max() == pytest.approx(1e-3, rel=1e-3)


def test_the_linear_path_takes_values_that_fp16_has_no_room_for(in_process_sequences: Any) -> None:
    work = in_process_sequences(model={"hidden_size": 8, "linear_steps": 3}, precision={"mode": "fp16"})
    task, net = work.run.task, work.run.model
    batch = task.batch("train", np.arange(8))
    batch.arrays["values"][:, 0, 0] = 1e9
    batch.arrays["lengths"][:] = 2
    outputs, losses = task.losses(net, batch)
    losses.mean().backward()
    assert np.isfinite(outputs.numpy()).all()
    assert all(np.isfinite(weight.grad.numpy()).all() for weight in net.parameters())


def test_labels_are_learnt(train: Any, labelled: Path) -> None:
    attempt: Attempt = train(
        "labels",
        data=labelled,
        recipe="sequences",
        columns={"goal": "classification", "features": "x"},
        model={"cell": "gru", "layers": 2, "bidirectional": True, "hidden_size": 8},
        training={"batch_size": 16, "epochs": 25, "max_steps": None},
        optimizer={"learning_rate": 2e-2},
    )
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    (plan,) = attempt.events("plan")
    best = [line for line in attempt.events("evaluation") if line["best"]][-1]["metrics"]
    assert plan["best_by"] == "accuracy" and not plan["lower_is_better"]
    assert best["accuracy"] > max(0.75, plan["baselines"]["majority"])
    assert sum(map(sum, best["confusion"])) == best["rows"] == 21
    (worst,) = attempt.events("worst")
    assert set(worst["rows"][0]) >= {"sequence", "values", "label", "predicted", "probability", "loss"}


def test_the_next_value_is_predicted_at_every_so_manieth_step(train: Any, sequences: Path) -> None:
    attempt: Attempt = train(
        "next", data=sequences, recipe="sequences", columns={"goal": "next_value", "next_every": 3, "next_of": "x"}
    )
    (plan,) = attempt.events("plan")
    lengths = [len(json.loads(line)["features"]["x"]) for line in (sequences / "train.jsonl").read_text().splitlines()]
    assert plan["train_rows"] == sum(-(-(length - 1) // 3) for length in lengths)
    assert set(plan["baselines"]) == {"median", "last_value"}
    config = json.loads((attempt.folder.artifacts / "model" / "config.json").read_text())
    assert config["predicts"] == "x"


def test_the_loss_is_what_the_settings_say_and_begins_as_numpy_says(in_process_sequences: Any) -> None:
    for loss, of in (
        ("squared", lambda e: e**2),
        ("absolute", np.abs),
        ("huber", lambda e: np.where(np.abs(e) <= 1, e**2 / 2, np.abs(e) - 0.5)),
    ):
        work = in_process_sequences(model={"loss": loss, "hidden_size": 8})
        task, model = work.run.task, work.run.model
        batch = task.batch("train", np.arange(20))
        outputs, losses = task.losses(model, batch)
        normalised = (batch.arrays["targets"] - task.normalisation.target_shift) / task.normalisation.target_scale
        assert np.allclose(losses.numpy(), of(outputs.numpy() - normalised), rtol=1e-4, atol=1e-6)


def test_what_stands_after_the_end_of_a_sequence_is_never_looked_at(in_process_sequences: Any) -> None:
    import paddle

    work = in_process_sequences(model={"hidden_size": 8, "layers": 2, "bidirectional": True})
    model = work.run.model
    model.eval()
    batch = work.run.task.batch("train", np.arange(12)).arrays
    plain = model(paddle.to_tensor(batch["values"]), paddle.to_tensor(batch["lengths"])).numpy()
    for i, length in enumerate(batch["lengths"]):
        batch["values"][i, length:] = 1e6
    assert len(set(batch["lengths"])) > 1
    assert np.array_equal(plain, model(paddle.to_tensor(batch["values"]), paddle.to_tensor(batch["lengths"])).numpy())


def test_normalisation_is_measured_on_training_rows_only_and_open_forget_gates_are_open(
    in_process_sequences: Any,
) -> None:
    work = in_process_sequences(data={"normalisation": "zscore"}, model={"hidden_size": 8})
    task, model = work.run.task, work.run.model
    train = task.sequences["train"].values
    assert task.normalisation.shift[0] == pytest.approx(train[:, 0].mean(), rel=1e-5)
    assert task.normalisation.scale == [pytest.approx(train[:, 0].std(), rel=1e-5), 1.0]
    biases = {name: value.numpy() for name, value in model.named_parameters() if "bias_" in name}
    assert (sum(biases.values())[8:16] == 1.0).all()
    robust = in_process_sequences(model={"hidden_size": 8}).run.task.normalisation
    low, middle, high = np.percentile(train[:, 0], [25, 50, 75])
    assert (robust.shift[0], robust.scale[0]) == (pytest.approx(middle), pytest.approx((high - low) / 1.349))
    assert robust.scale[1] == 1.0
    raw = in_process_sequences(data={"normalisation": "none"}, model={"hidden_size": 8, "open_forget_gate": False})
    assert raw.run.task.normalisation.scale == [1.0, 1.0] and raw.run.task.normalisation.target_scale == 1.0
    assert (
        abs(sum(value.numpy() for name, value in raw.run.model.named_parameters() if "bias_" in name)[8:16].mean())
        < 0.5
    )


def test_without_normalisation_a_poisoned_value_is_skipped_and_named(train: Any, sequences: Path) -> None:
    path = sequences / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[4]["features"]["x"][-1] = "nan"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    attempt: Attempt = train(
        "poisoned", data=sequences, recipe="sequences", training={"max_steps": 18, "batch_size": 4}
    )
    assert attempt.outcome()["end_reason"] == "completed"
    assert {record["skipped"] for record in attempt.steps()} == {None, "non_finite_input"}
    texts = [line["text"] for line in attempt.events("note")]
    assert "Not finite in the training rows of rank 0: values of row 5." in texts


def test_the_samples_of_a_sequence_count_as_much_as_it_does(in_process_sequences: Any, sequences: Path) -> None:
    path = sequences / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    given = [0.0, 2.0, *[0.5] * (len(rows) - 2)]
    for split, weights in (("train", given), ("dev", [1.0] * 21)):
        lines = (sequences / f"{split}.jsonl").read_text().splitlines()
        weighted = (json.loads(line) | {"weight": weight} for line, weight in zip(lines, weights, strict=True))
        (sequences / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in weighted))
    work = in_process_sequences(data={"weight_column": "weight"}, training={"batch_size": len(rows), "max_steps": 1})
    task = work.run.task
    assert task.weights.tolist() == given
    _outputs, losses = task.losses(work.run.model, task.batch("train", np.arange(len(rows))))
    expected = (losses.numpy() * given).sum() / sum(given)
    work.train()
    assert work.attempt.steps()[0]["loss"] == pytest.approx(expected, rel=1e-4)
    following = in_process_sequences(data={"weight_column": "weight", "goal": "next_value", "next_every": 4}).run.task
    counts = [-(-(len(row["features"]["x"]) - 1) // 4) for row in rows]
    assert following.weights.tolist() == np.repeat(given, counts).tolist()


def test_one_rank_with_twice_the_batch_does_the_same_as_two_ranks(train: Any, sequences: Path) -> None:
    options: dict[str, Any] = {
        "export": False,
        "data": sequences,
        "recipe": "sequences",
        "regularisation": {"dropout": 0.0},
    }
    one = train("one", world=1, training={"batch_size": 12, "max_steps": 7}, **options)
    two = train("two", world=2, training={"batch_size": 6, "max_steps": 7}, **options)
    for a, b in zip(one.steps(), two.steps(), strict=True):
        assert a["loss_all"] == pytest.approx(b["loss_all"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
    for name, weights in one.final().items():
        assert np.allclose(weights, two.final()[name], atol=2e-5), name


def test_it_starts_from_what_another_job_exported(train: Any, zygote: Any, sequences: Path, tmp_path: Path) -> None:
    first = train("first", data=sequences, recipe="sequences", model={"linear_steps": 3})

    def again(name: str, hidden_size: int, linear_steps: int = 3) -> Attempt:
        model = {"hidden_size": hidden_size, "linear_steps": linear_steps, "source": "job", "job": 1}
        rate = {"learning_rate": 1e-30}
        attempt = make_attempt(tmp_path / name, sequences, recipe="sequences", model=model, optimizer=rate)
        shutil.copytree(first.folder.artifacts / "model", attempt.folder.model)
        return Ranks(zygote, attempt, {}).wait()

    weights, begun = first.final("best"), again("same", 8).final()
    assert all(np.array_equal(weights[name], begun[name]) for name in weights)
    outcome = again("other", 4).outcome()
    assert outcome["end_reason"] == "bad_settings" and "does not fit" in outcome["detail"]
    outcome = again("without", 8, linear_steps=0).outcome()
    assert (
        outcome["end_reason"] == "bad_settings"
        and "“linear_path.weight” is [6, 1] there and None here" in outcome["detail"]
    )
