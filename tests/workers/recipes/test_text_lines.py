"""The recipe for text lines: CTC against other code, lines that do not depend on their batch, rows that CTC cannot learn, and
real ranks."""

from __future__ import annotations

import base64
import io
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.workers.recipes.examples import glyphs, write_lines
from tests.workers.trainer.conftest import Attempt, make_attempt, settings
from tests.workers.trainer.test_loop import InProcess, same
from workers.contract import records
from workers.contract.trials import Failed
from workers.recipes.text_lines import (
    augment,
    baseline,
    ctc,
    data,
    export,
    first_batch,
    fitting,
    metrics,
    model,
    predict,
)
from workers.recipes.text_lines.settings import AugmentationSettings
from workers.trainer.modes import evaluating

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    # Of every BatchNorm in training.
    pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning"),
]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    write_lines(tmp_path / "lines")
    return tmp_path / "lines"


@pytest.fixture
def in_process(tmp_path: Path) -> Any:
    numbers = iter(range(100))

    def build(folder: Path, **changes: Any) -> InProcess:
        attempt = make_attempt(tmp_path / f"run{next(numbers)}", folder, recipe="text_lines", **changes)
        return InProcess(attempt, recipe="text_lines", **changes)

    return build


# --- CTC --------------------------------------------------------------------------------------


def _forward(logits: Any, label: list[int]) -> float:
    """−log p(label) by the sum over all paths (Graves et al. 2006, equations 6 to 8), in float64 and without logarithms."""
    raised = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    p = raised / raised.sum(axis=-1, keepdims=True)
    states = [0]
    for one in label:
        states += [one, 0]
    alpha = np.zeros(len(states))
    alpha[:2] = p[0, states[:2]]
    for row in p[1:]:
        before = alpha
        alpha = before + np.concatenate([[0], before[:-1]])
        for s in range(2, len(states)):
            if states[s] != 0 and states[s] != states[s - 2]:
                alpha[s] += before[s - 2]
        alpha = alpha * row[states]
    total = alpha[-2:].sum()
    return -math.log(total) if total else math.inf


def _loss(logits: Any, steps: list[int], labels: list[list[int]]) -> Any:
    padded, lengths = data.padded(labels)
    return ctc.losses(paddle.to_tensor(logits), paddle.to_tensor(steps), paddle.to_tensor(padded), lengths)


def test_the_loss_is_that_of_the_sum_over_all_paths() -> None:
    draw = np.random.Generator(np.random.PCG64(3))
    labels = [[1], [2, 2, 2], [3, 1, 1, 2], [], [4, 3, 2, 1, 1]]
    steps = [1, 5, 9, 4, 6]  # the second and the last have not one more than they need
    logits = draw.normal(size=(5, 9, 5)).astype(np.float32) * 3
    expected = [_forward(logits[i, : steps[i]], labels[i]) for i in range(5)]
    assert all(map(math.isfinite, expected))
    assert _loss(logits, steps, labels).numpy() == pytest.approx(expected, rel=1e-4)
    # What stands after the end of a line is not looked at, not even when it is not finite.
    for i, count in enumerate(steps):
        logits[i, count:] = np.nan
    assert _loss(logits, steps, labels).numpy() == pytest.approx(expected, rel=1e-4)


def test_a_batch_without_any_label_has_the_loss_of_saying_nothing() -> None:
    """Paddle's own kernel ends the process."""
    logits = np.random.Generator(np.random.PCG64(3)).normal(size=(3, 6, 4)).astype(np.float32)
    for i, count in enumerate([6, 2, 1]):
        logits[i, count:] = np.nan
    given = paddle.to_tensor(logits, stop_gradient=False)
    padded, lengths = data.padded([[], [], []])
    losses = ctc.losses(given, paddle.to_tensor([6, 2, 1]), paddle.to_tensor(padded), lengths)
    expected = [_forward(logits[i, :count], []) for i, count in enumerate([6, 2, 1])]
    assert losses.numpy() == pytest.approx(expected, rel=1e-5)


def test_what_is_not_finite_is_no_loss_of_zero() -> None:
    logits = np.zeros((2, 6, 4), np.float32)
    for value in (math.nan, math.inf):
        logits[1, 2, 3] = value
        for labels in ([[1], [2, 3]], [[], []]):
            losses = _loss(logits, [6, 6], labels).numpy()
            assert math.isfinite(losses[0]) and not math.isfinite(losses[1])


@given(st.text("abc", max_size=8))
def test_a_text_needs_the_steps_of_its_shortest_path(text: str) -> None:
    label = data.encoded(text, {"a": 1, "b": 2, "c": 3})
    needed = fitting.needed_steps(text)
    assert needed == len(text) + sum(text[i] == text[i - 1] for i in range(1, len(text)))
    if text:
        assert math.isfinite(_forward(np.zeros((needed, 4)), label))
        assert needed == 1 or _forward(np.zeros((needed - 1, 4)), label) == math.inf


def test_reading_takes_repetitions_together_and_leaves_out_blanks() -> None:
    classes = [0, 1, 1, 0, 1, 2, 2, 0, 0]
    probabilities = np.full((len(classes), 3), 0.1)
    probabilities[range(len(classes)), classes] = [0.8, 0.5, 0.9, 0.8, 0.7, 0.6, 0.8, 0.8, 0.8]
    reading = ctc.read(probabilities, ["x", "y"])
    assert reading.text == "xxy" and reading.confidence == pytest.approx((0.5 + 0.7 + 0.6) / 3)
    nothing = ctc.read(probabilities[[0, 3]], ["x", "y"])
    assert nothing.text == "" and nothing.confidence == pytest.approx(0.8)


# --- metrics ----------------------------------------------------------------------------------


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_edits_are_as_the_definition_says(a: str, b: str) -> None:
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    assert metrics.edits(a, b) == distance(len(a), len(b)) == metrics.edits(b, a)


def test_rates_of_parts_add_up_to_those_of_the_whole() -> None:
    read, texts = ["abc", "", "abd", "xyzxyz"], ["abc", "ab", "abc", "xy"]
    whole = metrics.metrics(metrics.tally(read, texts, 4.0))
    assert whole == {"loss": 1.0, "cer": 7 / 10, "accuracy": 0.25, "rows": 4}
    parts = metrics.tally(read[:1], texts[:1], 1.0) + metrics.tally(read[1:], texts[1:], 3.0)
    assert metrics.metrics(parts) == whole


# --- the model --------------------------------------------------------------------------------

CONFIGURATION = model.Configuration(16, 64, False, 4, 4, "lstm", 8, 2, True)


@pytest.mark.parametrize("changes", [{}, {"reduction": 8, "cell": "gru"}, {"reduction": 2, "colour": True}])
def test_the_loss_of_a_line_does_not_depend_on_the_lines_beside_it(changes: dict[str, Any]) -> None:
    draw = np.random.Generator(np.random.PCG64(5))
    configuration = model.Configuration(**(CONFIGURATION.dump() | changes))
    reader = model.LineReader(configuration, list("abc"))
    colours = 3 if configuration.colour else 1
    pictures = [draw.integers(0, 256, (colours, 16, width), dtype=np.uint8) for width in (64, 41, 7, 1, 30)]
    labels = [[1, 2, 2], [3, 1], [1], [2], [1, 2]]

    def losses(rows: list[int], noise: bool = False) -> Any:
        together, widths = data.side_by_side([pictures[i] for i in rows])
        if noise:
            for i, width in enumerate(widths):
                together[i, :, :, width:] = 255
        logits, steps = reader(paddle.to_tensor(together).astype("float32"), paddle.to_tensor(widths))
        counts = [fitting.steps_of(int(width), configuration.reduction) for width in widths]
        assert steps.numpy().tolist() == counts == export.given_steps(widths, configuration.reduction).tolist()
        padded, lengths = data.padded([labels[i] for i in rows])
        return ctc.losses(logits, steps, paddle.to_tensor(padded), lengths).numpy()

    for _ in range(3):  # statistics that are those of these lines
        losses([0, 1, 2, 3, 4])
    with evaluating(reader):
        together = losses([0, 1, 2, 3, 4])
        alone = np.concatenate([losses([i]) for i in range(5)])
        assert together == pytest.approx(alone, rel=1e-5)
        assert losses([4, 2, 1], noise=True) == pytest.approx(alone[[4, 2, 1]], rel=1e-5)


def test_each_convolution_each_recurrent_layer_and_the_head_have_norms_of_their_own(
    in_process: Any, lines: Path
) -> None:
    work = in_process(lines, model={"layers": 2}, monitoring={"group_norms_every": 1}, training={"max_steps": 2})
    work.train()
    extras = work.attempt.steps()[-1]["extras"]
    parts = [*(f"convolutions.{i}" for i in range(5)), "recurrent.0", "recurrent.1", "head", "shortcut"]
    assert {f"{records.GROUP_NORM}{part}" for part in parts} <= extras.keys()


# --- augmentation -----------------------------------------------------------------------------


def test_lines_are_changed_in_training_only_and_in_the_same_way_from_the_same_seed(
    in_process: Any, lines: Path
) -> None:
    task = in_process(lines).run.task
    seen: list[Any] = []

    class Looks(paddle.nn.Layer):
        def forward(self, pictures: Any, widths: Any) -> Any:
            seen.append(pictures.numpy())
            return paddle.zeros([len(widths), pictures.shape[3] // 4, 8]), widths // 4

    looks, batch = Looks(), task.batch("train", np.arange(8))
    for training, seed in ((False, 1), (True, 1), (True, 1), (True, 2)):
        looks.train() if training else looks.eval()
        np.random.seed(seed)
        task.losses(looks, batch)
    plain, first, again, other = seen
    assert np.array_equal(plain, batch.arrays["pictures"])
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert not np.array_equal(first, plain) and first.min() >= 0 and first.max() <= 255


def test_with_nothing_set_a_line_stays_what_it_is_and_no_change_shows_what_lies_beyond_its_end() -> None:
    draw = np.random.Generator(np.random.PCG64(5))
    pictures, widths = data.side_by_side([draw.integers(0, 100, (1, 16, width), dtype=np.uint8) for width in (40, 25)])
    given = paddle.to_tensor(pictures).astype("float32")
    off = AugmentationSettings(tilt=0, slant=0, scale=0, light=0, blur=0, noise=0)
    assert np.array_equal(augment.augmented(given, widths, off).numpy(), pictures)
    middle = off.model_copy(update={"tilt": 1e-9})
    assert augment.augmented(given, widths, middle).numpy()[:, :, :, :25] == pytest.approx(
        pictures[:, :, :, :25].astype(float), abs=1e-2
    )
    given[1, :, :, 25:] = 255.0
    moved = augment.augmented(given, widths, off.model_copy(update={"tilt": 0.4, "slant": 0.5, "scale": 0.4}))
    assert moved.numpy()[1, :, :, :25].max() < 100


# --- rows that CTC cannot learn ---------------------------------------------------------------


def test_rows_that_cannot_be_learnt_end_the_job_before_training_and_are_named(train: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "bad", said={"train": {3: "", 5: "aabbccddeeff" * 3, 9: ""}, "dev": {2: ""}})
    attempt: Attempt = train("refused", data=tmp_path / "bad", recipe="text_lines")
    outcome = attempt.outcome()
    assert outcome["end_reason"] == "bad_data" and not attempt.steps()
    for words in (
        "Rows of train.jsonl without a text: 2 (3 = train3.png, 9 = train9.png).",
        "Rows of train.jsonl with a text that needs more steps than the picture gives: 1 (5 = train5.png). The first needs 54,",
        "Rows of dev.jsonl without a text: 1 (2 = dev2.png).",
    ):
        assert words in outcome["detail"]
    assert outcome["detail"].count("data.leave_out") == 1


def test_rows_that_cannot_be_learnt_are_left_out_if_that_is_wanted(in_process: Any, tmp_path: Path) -> None:
    write_lines(tmp_path / "bad", said={"train": {3: "", 5: "aabbccddeeff" * 3}, "dev": {2: ""}})
    work = in_process(tmp_path / "bad", data={"leave_out": True})
    task = work.run.task
    assert task.rows == {"train": 62, "dev": 20} and len(task.weights) == len(task.lengths) == 62
    assert {"train3.png", "train5.png"}.isdisjoint(task.lines["train"].ids)
    assert task.lines["train"].numbers[[1, 2, 3]].tolist() == [2, 4, 6]  # as in the file
    work.train()
    assert all(record["loss"] > 0 for record in work.attempt.steps())


def test_characters_that_only_dev_has_are_mistakes_and_no_errors(in_process: Any, tmp_path: Path) -> None:
    """Rows of nothing else have no label: a batch of them alone ends no process."""
    write_lines(tmp_path / "unknown", said={"dev": {i: "xyz" for i in range(1, 22)}})
    work = in_process(tmp_path / "unknown", training={"max_steps": 2})
    assert work.run.task.characters == list("abcdef")
    assert work.train().value == "completed"
    metrics = work.attempt.events("evaluation")[-1]["metrics"]
    assert metrics["accuracy"] == 0 and metrics["cer"] >= 1 and math.isfinite(metrics["loss"])


def test_a_line_is_as_wide_as_its_shape_says_and_squeezed_at_the_limit() -> None:
    assert fitting.width_at((100, 50), 32, 960) == 64
    assert fitting.width_at((1000, 10), 32, 960) == 960
    assert fitting.width_at((1, 1000), 32, 960) == 1
    assert [fitting.steps_of(width, 4) for width in (1, 4, 5, 960)] == [1, 1, 2, 240]
    picture = Image.fromarray(glyphs("abc", 10))
    assert data.scaled(picture, 32, 960, colour=False).shape == (1, 32, 80)
    assert data.scaled(picture, 32, 50, colour=True).shape == (3, 32, 50)


def test_lines_are_kept_as_long_as_there_is_room_and_a_broken_one_is_named(lines: Path) -> None:
    rows = {"dev": data.read(lines / "dev.jsonl")}
    roomy, narrow = (settings("text_lines", data={"height": 16, "cache_gib": gib}) for gib in (1.0, 1e-6))
    kept, again = data.Pictures(lines, rows, roomy), data.Pictures(lines, rows, narrow)
    for row in (0, 1, 0, 2):
        assert np.array_equal(kept.of("dev", row), again.of("dev", row))
    assert kept.of("dev", 2) is kept.of("dev", 2) and again.of("dev", 2) is not again.of("dev", 2)
    offset, size = rows["dev"].places[4]
    (lines / "images.bin").chmod(0o600)
    with (lines / "images.bin").open("r+b") as file:
        file.seek(offset + 20)
        file.write(bytes(size - 20))
    with pytest.raises(model.TrainingFailed, match=r"The picture of row 5 of dev.jsonl cannot be decoded") as caught:
        data.Pictures(lines, rows, roomy).of("dev", 4)
    assert str(caught.value.reason) == "bad_data"


@pytest.mark.parametrize("change", [{"text": 7}, {"image": [0]}, {"size": [0, 3]}, {"text": None}])
def test_a_row_that_is_no_line_is_named(lines: Path, change: dict[str, Any]) -> None:
    path = lines / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[6] |= change
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(model.TrainingFailed, match=r"Row 7 of train.jsonl is not a picture with its text."):
        data.read(path)


def test_weights_are_read_where_a_column_is_named(lines: Path) -> None:
    path = lines / "train.jsonl"
    rows = [json.loads(line) | {"weight": i / 2} for i, line in enumerate(path.read_text().splitlines())]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert set(data.read(path).weights) == {1.0}
    assert data.read(path, "weight").weights.tolist() == [i / 2 for i in range(len(rows))]
    with pytest.raises(
        model.TrainingFailed, match=r"Row 1 of train.jsonl has no column “w”; it has: id, image, size, text"
    ):
        data.read(path, "w")
    for wrong in (-1, True, "many"):
        rows[6]["weight"] = wrong
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(model.TrainingFailed, match=r"Row 7 of train.jsonl: “weight” is not a number of 0 or more"):
            data.read(path, "weight")


def test_the_check_of_a_dataset_shows_what_the_model_sees_and_what_is_to_be_beaten(lines: Path) -> None:
    seen = first_batch.first_batch(lines)
    assert seen["batch"] == 32 and seen["characters"] == 6 and seen["squeezed_share"] == 0.0
    assert seen["padded_to"] == max(row["width"] for row in seen["rows"])
    row = seen["rows"][0]
    assert row["needed"] == fitting.needed_steps(row["text"]) and row["steps"] == -(-row["width"] // 4)
    found = baseline.baselines(lines)
    assert found.keys() == {"cer/commonest_text", "cer/nearest_line"}
    assert found["cer/nearest_line"] < found["cer/commonest_text"] <= 3


# --- real ranks -------------------------------------------------------------------------------


def test_lines_are_learnt_and_the_exported_program_reads_them(train: Any, lines: Path) -> None:
    attempt: Attempt = train(
        "read",
        data=lines,
        recipe="text_lines",
        columns={"height": 16, "max_width": 100},
        model={"channels": 8, "hidden_size": 24, "layers": 1},
        training={"batch_size": 16, "epochs": 16, "max_steps": None},
        optimizer={"learning_rate": 1e-2},
        augmentation={"tilt": 0.0, "slant": 0.0, "scale": 0.0, "blur": 0.0},
        checkpoints={"evaluate_every_steps": 40},
    )
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    (plan,) = attempt.events("plan")
    assert (plan["best_by"], plan["lower_is_better"]) == ("cer", True)
    best = [line for line in attempt.events("evaluation") if line["best"]][-1]["metrics"]
    assert best["cer"] < 0.3 < plan["baselines"]["commonest_text"]
    assert best["cer"] == min(line["metrics"]["cer"] for line in attempt.events("evaluation"))
    (worst,) = attempt.events("worst")
    first = worst["rows"][0]
    assert set(first) >= {"image", "text", "read", "edits", "probability", "loss", "id"}

    # What the program reads of the dev rows is what the evaluation counted.
    folder = attempt.folder.artifacts / "inference"
    read = predict.load(folder)
    rows = data.read(lines / "dev.jsonl")
    content = (lines / "images.bin").read_bytes()
    files = [content[offset : offset + size] for offset, size in rows.places]
    said = read([{"picture": base64.b64encode(file).decode()} for file in files])
    texts = [prediction.text or "" for prediction in said]
    again = metrics.metrics(metrics.tally(texts, rows.texts, best["loss"] * len(texts)))
    assert again["cer"] == pytest.approx(best["cer"]) and again["accuracy"] == pytest.approx(best["accuracy"])
    assert all(0 < (prediction.confidence or 0) <= 1 for prediction in said)
    wide = io.BytesIO()
    Image.fromarray(glyphs("abcdefabcdef", 4)).save(wide, "PNG")
    assert [one.cut for one in read([{"picture": base64.b64encode(wide.getvalue()).decode()}])] == [True]

    with pytest.raises(Failed, match="Picture 2 cannot be decoded"):
        read([{"picture": base64.b64encode(one).decode()} for one in (files[0], b"GIF89a")])
    picture = lines / "line.png"
    picture.write_bytes(files[0])
    assert _run_readme(folder, picture)["text"] == texts[0]
    head = _run_readme(attempt.folder.artifacts / "model", picture)["head"]
    assert np.array_equal(head.weight.numpy(), attempt.final("best")["head.weight"])
    assert model.read_characters(folder) == list("abcdef")


def _run_readme(folder: Path, picture: Path) -> dict[str, Any]:
    """The code in a README does what it says."""
    code = [line[4:] for line in (folder / "README.md").read_text().splitlines() if line.startswith("    ")]
    text = "\n".join(code).replace("path/of/this/folder", str(folder)).replace("path/of/a/line.png", str(picture))
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(text, names)  # noqa: S102
    return names


def test_another_jobs_model_is_taken_over_with_the_characters_that_both_know(tmp_path: Path) -> None:
    known = model.LineReader(CONFIGURATION, list("abc"))
    export.model_folder(known, tmp_path / "model")
    built = model.build(CONFIGURATION, list("bcd"), 0.0, tmp_path / "model")
    weights, taken = model.arrays_of(known), model.arrays_of(built)
    assert all(np.array_equal(weights[n], taken[n]) for n in weights if not n.startswith(model.PER_CHARACTER))
    for name in ("head.weight", "head.bias", "shortcut.weight", "shortcut.bias"):
        assert np.array_equal(taken[name][..., [0, 1, 2]], weights[name][..., [0, 2, 3]])  # blank, b, c
    larger = model.Configuration(**(CONFIGURATION.dump() | {"hidden_size": 9}))
    with pytest.raises(model.TrainingFailed, match="does not fit"):
        model.build(larger, list("abc"), 0.0, tmp_path / "model")


def test_an_overflow_in_emulated_half_precision_is_skipped_and_told_as_what_it_is(in_process: Any, lines: Path) -> None:
    half = {"precision": {"mode": "fp16"}, "loss_scaling": {"init_scale": 2.0**24}}
    work = in_process(lines, training={"max_steps": 4}, **half)
    work.train()
    steps = work.attempt.steps()
    assert {step["emulated"] for step in steps} == {True} and steps[0]["skipped"] == "found_inf"
    assert all(math.isfinite(step["loss"]) and step["loss"] > 0 for step in steps)
    assert sum(step["skipped"] is None for step in steps) == 4

    # Infinite outputs of a convolution become NaN in BatchNorm and 0 in a ReLU on CPU: only the gradient tells.
    work = in_process(lines, limits={"skip_limit": 3}, **half)
    scale = work.run.model.convolutions[3].norm.weight
    scale.set_value(np.full(scale.shape, 1e6, np.float32))
    before = work.weights()
    assert str(work.fails().reason) in ("non_finite", "loss_scale_collapsed")
    assert all(step["skipped"] and not math.isfinite(step["grad_norm"]) for step in work.attempt.steps())
    assert same(before, work.weights())


def test_a_row_that_counts_nan_is_skipped_and_named(in_process: Any, lines: Path) -> None:
    for split in ("train", "dev"):
        path = lines / f"{split}.jsonl"
        rows = [json.loads(line) | {"weight": 1} for line in path.read_text().splitlines()]
        rows[4]["weight"] = "nan" if split == "train" else 1
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = in_process(lines, data={"weight_column": "weight"}, training={"max_steps": 16, "batch_size": 4})
    work.train()
    assert {record["skipped"] for record in work.attempt.steps()} == {None, "non_finite_input"}
    assert any("weight of row 5" in line["text"] for line in work.attempt.events("note"))


def test_best_by_accuracy_and_loss_per_line_are_what_the_settings_say(in_process: Any, lines: Path) -> None:
    by_line = in_process(lines, data={"best_by": "accuracy"}, model={"loss_per": "line"})
    by_character = in_process(lines)
    assert (by_line.run.task.best_by, by_line.run.task.lower_is_better) == ("accuracy", False)
    losses = []
    for work in (by_line, by_character):
        task = work.run.task
        with evaluating(work.run.model):
            batch = task.batch("dev", np.arange(6))
            losses.append(task.losses(work.run.model, batch)[1].numpy())
    assert losses[0] / batch.arrays["lengths"] == pytest.approx(losses[1], rel=1e-5)


def test_settings_that_cannot_be_are_refused() -> None:
    for changes in ({"model": {"reduction": 3}}, {"model": {"source": "job"}}):
        with pytest.raises(ValueError, match=r"pixels per step|fill in"):
            settings("text_lines", **changes)
