"""The recipe for pictures: what it reads, how it changes them, its networks, and real ranks."""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from PIL import Image

from tests.workers.recipes.examples import write_pictures
from tests.workers.trainer.conftest import Attempt, Ranks, make_attempt
from tests.workers.trainer.test_loop import InProcess
from workers.contract.checks import DatasetFacts, Facts, HostFacts
from workers.contract.states import EndReason
from workers.contract.trials import Failed
from workers.images import Images, write_folder
from workers.recipes import drop_path
from workers.recipes.image_classification import checks, data, export, metrics, model, networks, predict, sample
from workers.recipes.image_classification.augment import augmented, kept_pixels, maps
from workers.recipes.image_classification.presets import PRESETS
from workers.recipes.image_classification.settings import AugmentationSettings, Fit, ImageClassificationSettings
from workers.recipes.registry import recipe
from workers.trainer import gradients
from workers.trainer.loop import named_parameters
from workers.trainer.modes import evaluating
from workers.trainer.optimizer import depth_of
from workers.trainer.task import TrainingFailed

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    # Paddle's BatchNorm says this at every forward pass in training.
    pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning"),
]
MEAN = [0.2, 0.5, 0.7]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder)
    return folder


@pytest.fixture
def in_process_pictures(tmp_path: Path, pictures: Path) -> Any:
    numbers = iter(range(100))

    def build(**changes: Any) -> InProcess:
        attempt = make_attempt(tmp_path / f"run{next(numbers)}", pictures, recipe="image_classification", **changes)
        return InProcess(attempt, recipe="image_classification", **changes)

    return build


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


# --- pictures ------------------------------------------------------------------------------


def test_pictures_that_are_no_squares_are_cropped_padded_or_stretched() -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :4], pixels[:, 12:] = (255, 0, 0), (0, 0, 255)
    wide = png(pixels)
    assert data.square(wide, 8, Fit.CROP).max() == 0, "the middle alone"
    stretched = data.square(wide, 8, Fit.STRETCH)
    assert tuple(stretched[4, 0]) == (255, 0, 0) and tuple(stretched[4, 7]) == (0, 0, 255)
    padded = data.square(wide, 8, Fit.PAD)
    assert padded.shape == (8, 8, 3) and padded[:2].max() == 0 and tuple(padded[4, 0]) == (255, 0, 0)


def test_decoded_pictures_are_kept_while_they_fit_and_are_the_same_in_any_case(pictures: Path) -> None:
    splits: dict[Any, data.Split] = {
        name: data.read(pictures / f"{name}.jsonl", ["neg", "pos"]) for name in ("train", "dev")
    }
    kept = data.Pictures(pictures, splits, 8, Fit.CROP, 1.0, 2)
    again = data.Pictures(pictures, splits, 8, Fit.CROP, 0.0, 2)
    assert (kept.kept, again.kept) == (True, False)
    rows = np.array([5, 3, 5, 60])
    first = kept.of("train", rows)
    assert first.dtype == np.uint8 and first.shape == (4, 8, 8, 3)
    assert np.array_equal(first, again.of("train", rows)) and np.array_equal(first, kept.of("train", rows))
    assert np.array_equal(first[0], first[2])
    mean, deviation = kept.measured()
    everything = again.of("train", np.arange(64)).reshape(-1, 3) / 255
    assert mean == pytest.approx(everything.mean(0).tolist()) and deviation == pytest.approx(everything.std(0).tolist())


def test_a_picture_that_cannot_be_decoded_and_a_row_without_one_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train": [("a", png(np.zeros((4, 4, 3), np.uint8)), {"label": "x"})]})
    good = (tmp_path / "train.jsonl").read_text()
    row = json.loads(good)
    row["image"][1] -= 40
    (tmp_path / "cut.jsonl").write_text(good + json.dumps(row) + "\n")
    split = data.read(tmp_path / "cut.jsonl", ["x"])
    with pytest.raises(TrainingFailed, match=r"The picture of row 2 of cut\.jsonl cannot be decoded: ") as failed:
        data.Pictures(tmp_path, {"cut": split}, 8, Fit.CROP, 1.0, 2).of("cut", np.array([0, 1]))
    assert failed.value.reason is EndReason.BAD_DATA
    for line, words in {
        '{"label": "x"}': "Row 1 of bad.jsonl is not a picture with a label",
        good.replace('"x"', '"y"'): "Row 1 of bad.jsonl has the label “y”, not one of: x",
    }.items():
        (tmp_path / "bad.jsonl").write_text(line)
        with pytest.raises(TrainingFailed, match=words):
            data.read(tmp_path / "bad.jsonl", ["x"])


# --- augmentation --------------------------------------------------------------------------


def settings_of(**values: Any) -> AugmentationSettings:
    return AugmentationSettings(**{"crop": "none", **values})


def numbered(count: int, side: int = 8) -> Any:
    """Pictures of which every pixel is another colour."""
    return paddle.to_tensor(np.random.default_rng(1).random((count, 3, side, side)).astype(np.float32))


def mean_colour() -> Any:
    return paddle.to_tensor(MEAN, "float32").reshape([1, 3, 1, 1])


def test_shifted_pictures_move_by_whole_pixels_and_show_the_mean_where_they_were_not() -> None:
    np.random.seed(3)
    before, size = numbered(40), 8
    after = augmented(before, settings_of(crop="shift", padding=0.25), mean_colour())[0].numpy()
    padded = np.pad(before.numpy() - np.reshape(MEAN, (1, 3, 1, 1)), ((0, 0), (0, 0), (2, 2), (2, 2)))
    padded = padded + np.reshape(MEAN, (1, 3, 1, 1))
    found = set()
    for i in range(40):
        places = {
            (y - 2, x - 2): np.abs(padded[i, :, y : y + size, x : x + size] - after[i]).max()
            for y in range(5)
            for x in range(5)
        }
        place = min(places, key=places.__getitem__)
        assert places[place] < 1e-6
        found.add(place)
    assert len(found) > 12


def test_mirrored_pictures_are_half_of_them_and_exact() -> None:
    np.random.seed(1)
    before = numbered(60)
    after = augmented(before, settings_of(flip=True), mean_colour())[0].numpy()
    same = np.abs(after - before.numpy()).reshape(60, -1).max(1) < 1e-6
    mirrored = np.abs(after - before.numpy()[..., ::-1]).reshape(60, -1).max(1) < 1e-6
    assert (same ^ mirrored).all() and 15 < mirrored.sum() < 45


def test_enlarged_parts_lie_within_the_picture_and_have_the_area_that_is_set() -> None:
    np.random.seed(1)
    found = maps(2000, 8, settings_of(crop="resize", least_area=0.4))
    width, height, right, down = found[:, 0, 0], found[:, 1, 1], found[:, 0, 2], found[:, 1, 2]
    assert (np.abs(right) + width <= 1 + 1e-6).all() and (np.abs(down) + height <= 1 + 1e-6).all()
    area = width * height
    assert 0.39 < area.min() < 0.45 and area.max() <= 1.0 and abs(area.mean() - 0.69) < 0.03
    np.random.seed(1)
    # A picture of one colour stays one wherever it is looked at.
    plain = paddle.full([6, 3, 8, 8], 0.6)
    assert np.allclose(augmented(plain, settings_of(crop="resize"), mean_colour())[0][:, :, 2:6, 2:6].numpy(), 0.6)


def test_a_rotation_by_a_right_angle_is_one() -> None:
    np.random.seed(1)
    before = numbered(1)
    turned = maps(1, 8, settings_of(rotation=90.0))
    angle = np.degrees(np.arctan2(turned[0, 1, 0], turned[0, 0, 0]))
    assert -90 <= angle <= 90 and np.allclose(np.linalg.det(turned[0, :, :2]), 1.0)
    exact = paddle.to_tensor(np.array([[[0, -1, 0], [1, 0, 0]]], np.float32))
    grid = paddle.nn.functional.affine_grid(exact, [1, 3, 8, 8], align_corners=False)
    seen = paddle.nn.functional.grid_sample(before, grid, align_corners=False).numpy()
    assert np.allclose(seen[0], np.rot90(before.numpy()[0], k=1, axes=(1, 2)), atol=1e-5) or np.allclose(
        seen[0], np.rot90(before.numpy()[0], k=-1, axes=(1, 2)), atol=1e-5
    )


def test_erased_rectangles_have_the_size_of_the_paper_and_come_as_often_as_set() -> None:
    np.random.seed(1)
    kept = kept_pixels(3000, 32, 0.4)
    area = 1 - kept.reshape(3000, -1).mean(1)
    erased = area > 0
    assert abs(erased.mean() - 0.4) < 0.03
    assert area[erased].max() < 0.36 and area[erased].min() > 0.012 and abs(area[erased].mean() - 0.17) < 0.03
    for mask in kept[erased][:50, 0]:
        rows, columns = np.flatnonzero((mask == 0).any(1)), np.flatnonzero((mask == 0).any(0))
        assert (mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] == 0).all(), "a rectangle"


def test_light_and_contrast_stay_within_what_a_picture_can_show() -> None:
    np.random.seed(1)
    before = numbered(30)
    after = augmented(before, settings_of(brightness=0.4, contrast=0.5), mean_colour())[0].numpy()
    assert after.min() >= 0 and after.max() <= 1
    ratio = after.mean((1, 2, 3)) / before.numpy().mean((1, 2, 3))
    assert ratio.min() < 0.75 and 1.15 < ratio.max() <= 1.45


def test_nothing_set_changes_nothing_and_the_same_numbers_change_the_same() -> None:
    before = numbered(5)
    plain, mixed = augmented(before, settings_of(), mean_colour())
    assert mixed is None and np.array_equal(plain.numpy(), before.numpy())
    everything = AugmentationSettings(
        crop="resize", flip=True, rotation=20, brightness=0.3, contrast=0.3, erasing=0.5, mixup=0.4
    )
    seen = []
    for _ in range(2):
        np.random.seed(9)
        seen.append(augmented(before, everything, mean_colour())[0].numpy())
    assert np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[0], before.numpy())
    assert np.isfinite(seen[0]).all()


def test_losses_of_mixed_pictures_are_mixed_and_evaluations_see_pictures_as_they_are(in_process_pictures: Any) -> None:
    work = in_process_pictures(
        augmentation={"crop": "none", "mixup": 0.5}, regularisation={"label_smoothing": 0.2}, model={"norm": "group"}
    )
    task, network = work.run.task, work.run.model
    batch = task.batch("train", np.arange(12))
    assert batch.arrays["pictures"].dtype == np.uint8
    np.random.seed(5)
    logits, losses = task.losses(network, batch)
    np.random.seed(5)
    share, partners = np.random.beta(0.5, 0.5), np.random.permutation(12)
    z = logits.numpy().astype(np.float64)
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))

    def of(labels: Any) -> Any:
        target = np.full((12, 2), 0.1)
        target[np.arange(12), labels] = 0.9
        return -(target * logs).sum(1)

    labels = batch.arrays["labels"]
    assert losses.shape == [12]
    assert np.allclose(losses.numpy(), share * of(labels) + (1 - share) * of(labels[partners]), atol=1e-5)
    with evaluating(network):
        plain, _ = task.losses(network, batch)
        pixels = paddle.to_tensor(batch.arrays["pictures"].transpose(0, 3, 1, 2).astype(np.float32) / 255)
        assert np.array_equal(plain.numpy(), network(pixels).numpy())
        # A batch of one has losses all the same.
        assert task.losses(network, task.batch("dev", np.array([3])))[1].shape == [1]


# --- networks ------------------------------------------------------------------------------


def configuration(**values: Any) -> model.Configuration:
    given: dict[str, Any] = {
        "architecture": "resnet18", "labels": ["a", "b", "c"], "size": 16, "fit": "crop", "mean": MEAN,
        "deviation": [0.5, 0.25, 1.0], "width": 8, "small_stem": True, "norm": "batch", "patch": 4, "hidden_size": 24,
        "layers": 3, "heads": 2,
    }  # fmt: skip
    return model.Configuration(**{**given, **values})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"architecture": "resnet50", "norm": "group"},
        {"architecture": "resnet34", "small_stem": False, "size": 32},
        {"architecture": "vit"},
    ],
)
def test_every_network_gives_logits_and_a_gradient_to_every_weight(values: dict[str, Any]) -> None:
    about = configuration(**values)
    network = networks.build(about.dump(), dropout=0.1)
    for block in getattr(network, "blocks", []):
        # New blocks begin as what goes beside their branch, into which no gradient comes in the first step.
        assert not block.last_norm.weight.numpy().any()
        block.last_norm.weight.set_value(paddle.ones_like(block.last_norm.weight))
    logits = network(numbered(2, about.size))
    assert logits.shape == [2, 3]
    logits.square().sum().backward()
    for name, parameter in named_parameters(network):
        assert parameter.grad is not None and np.abs(parameter.grad.numpy()).sum() > 0, name


def test_parts_are_named_stem_stages_and_head_and_rates_fall_from_the_head_down() -> None:
    resnet = networks.build(configuration().dump())
    names = [name for name, parameter in resnet.named_parameters() if not parameter.stop_gradient]
    groups = list(dict.fromkeys(gradients.groups(names)))
    blocks = [f"stage{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    assert groups == ["stem.conv", "stem.norm", *blocks, "head"]
    assert depth_of(["stem.conv.weight", "stage1.0.conv1.weight", "stage4.1.conv1.weight", "head.weight"]) == [
        0, 1, 2, 3,
    ]  # fmt: skip
    vit = networks.build(configuration(architecture="vit").dump())
    groups = list(dict.fromkeys(gradients.groups([name for name, _ in vit.named_parameters()])))
    assert groups == ["position", "patches", *(f"encoder.layers.{i}" for i in range(3)), "encoder.norm", "head"]


def test_drop_path_is_in_every_residual_branch_and_grows_with_depth() -> None:
    for architecture, count, each in (("resnet18", 8, 1), ("resnet50", 16, 1), ("vit", 3, 2)):
        settings = ImageClassificationSettings(regularisation={"drop_path": 0.3})
        about = configuration(architecture=architecture)
        network = model.build(about, settings, None)
        layers = [layer for layer in network.sublayers() if isinstance(layer, drop_path.DropPath)]
        expected = [rate for rate in drop_path.rates(0.3, count) for _ in range(each)]
        assert [layer.rate for layer in layers] == pytest.approx(expected)
        # Left out for certain, a branch leaves what goes beside it.
        for layer in layers:
            layer.rate = 1 - 1e-9
        network.train()
        assert np.isfinite(network(numbered(4, 16)).numpy()).all()


def test_a_resnet_with_the_weights_of_paddle_vision_says_the_same_as_paddle_vision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.numpy import save_file

    theirs = paddle.vision.models.resnet18(num_classes=1000)
    theirs.eval()
    save_file(
        {name: np.array(tensor.numpy()) for name, tensor in theirs.state_dict().items()},
        tmp_path / "resnet18.safetensors",
    )
    monkeypatch.setenv("MODEL_ROOTS", str(tmp_path))
    settings = ImageClassificationSettings(model={"source": "pretrained"}, data={"size": 64})
    sizes = model.sizes(settings.model, 64, None)
    about = configuration(labels=[str(i) for i in range(1000)], size=64, **sizes)
    ours = model.build(about, settings, None)
    ours.eval()
    seen = numbered(2, 64)
    assert np.allclose(ours(seen).numpy(), theirs(ours.normalised(seen)).numpy(), atol=1e-4)
    # For other labels the last layer alone is new.
    few = model.build(configuration(size=64, **sizes), settings, None)
    assert few.head.weight.shape == [512, 3]
    assert np.array_equal(few.stage4[1].conv2.weight.numpy(), theirs.layer4[1].conv2.weight.numpy())


def test_pretrained_weights_are_only_had_as_the_host_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_ROOTS", str(tmp_path))
    monkeypatch.delenv("HUB_ALLOWED", raising=False)
    monkeypatch.delenv("ALLOW_PICKLE_MODELS", raising=False)
    with pytest.raises(TrainingFailed, match="does not fetch models, so “resnet18” is not to be had") as failed:
        model.pretrained("resnet18")
    assert failed.value.reason is EndReason.MODEL_UNAVAILABLE
    (tmp_path / "resnet18.pdparams").write_bytes(b"no pickle")
    with pytest.raises(TrainingFailed, match=r"ALLOW_PICKLE_MODELS=true\. resnet18\.safetensors in one of its"):
        model.pretrained("resnet18")
    monkeypatch.setenv("ALLOW_PICKLE_MODELS", "true")
    with pytest.raises(TrainingFailed, match="The weights of “resnet18” could not be had: "):
        model.pretrained("resnet18")
    paddle.save({"conv1.weight": paddle.ones([2])}, str(tmp_path / "resnet18.pdparams"))
    assert model.pretrained("resnet18")["conv1.weight"].tolist() == [1.0, 1.0]
    (tmp_path / "resnet18.pdparams").unlink()

    def offline(url: str, md5: str) -> str:
        raise RuntimeError(f"Downloading from {url} failed")

    monkeypatch.setenv("HUB_ALLOWED", "true")
    monkeypatch.setattr("paddle.utils.download.get_weights_path_from_url", offline)
    with pytest.raises(TrainingFailed, match="If this host is offline, put resnet18"):
        model.pretrained("resnet18")


def test_positions_of_a_vit_are_taken_over_for_pictures_of_another_size() -> None:
    learnt = networks.positions(4, 24)
    finer = model._positions(learnt, 64)
    assert finer.shape == (1, 64, 24)
    assert np.allclose(model._positions(learnt, 16), learnt, atol=1e-6)
    assert np.abs(finer.reshape(8, 8, 24)[::2, ::2] - learnt.reshape(4, 4, 24)).max() < 0.35


def test_biases_norms_and_positions_are_not_decayed() -> None:
    from workers.trainer.optimizer import _decayed

    undecayed = ImageClassificationSettings().optimizer.undecayed
    for values in ({}, {"architecture": "vit"}):
        network = networks.build(configuration(**values).dump())
        named = [(name, one) for name, one in network.named_parameters() if not one.stop_gradient]
        decayed = _decayed(network, named, undecayed)
        for name, parameter in named:
            assert (parameter.name in decayed) == (parameter.ndim > 1 and name != "position"), name


# --- numbers -------------------------------------------------------------------------------


def test_metrics_are_those_of_scikit_learn_and_rows_without_an_answer_are_wrong() -> None:
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, top_k_accuracy_score

    random = np.random.default_rng(2)
    logits, actual = random.normal(size=(300, 8)), random.integers(0, 8, 300)
    labels = [f"l{i}" for i in range(8)]
    parts = [metrics.tally(logits[part], actual[part], 1.5) for part in (slice(0, 100), slice(100, 300))]
    found = metrics.metrics(parts[0] + parts[1], labels)
    predicted = logits.argmax(1)
    assert found["loss"] == pytest.approx(0.01) and found["rows"] == 300
    assert found["accuracy"] == accuracy_score(actual, predicted)
    assert found["macro_f1"] == pytest.approx(f1_score(actual, predicted, average="macro"))
    assert found["top5_accuracy"] == top_k_accuracy_score(actual, logits, k=5)
    assert found["confusion"] == confusion_matrix(actual, predicted).tolist()
    assert len(metrics.of_nothing(8)) == len(parts[0])

    broken = logits.copy()
    broken[:30, 0] = np.nan
    said = metrics.metrics(metrics.tally(broken, actual, float("nan")), labels)
    assert np.isnan(said["loss"]) and said["rows"] == 300
    assert said["accuracy"] == (predicted == actual)[30:].sum() / 300
    assert sum(map(sum, said["confusion"])) == 270
    assert metrics.metrics(metrics.tally(broken[:30], actual[:30], 0.0), labels)["accuracy"] == 0.0


def test_of_many_labels_the_same_is_counted_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    logits, actual = random.normal(size=(300, 8)), random.integers(0, 8, 300)
    labels = [f"l{i}" for i in range(8)]
    full = metrics.metrics(metrics.tally(logits, actual, 1.5), labels)
    monkeypatch.setattr(metrics, "MOST_CONFUSED", 7)
    short = metrics.metrics(metrics.tally(logits, actual, 1.5), labels)
    assert "confusion" not in short and "labels" not in short
    assert short == {name: value for name, value in full.items() if name not in ("confusion", "labels")}
    assert len(metrics.of_nothing(8)) == len(metrics.tally(logits, actual, 1.5))


def test_what_convolutions_and_batchnorm_give_is_rounded_under_an_emulated_fp16(in_process_pictures: Any) -> None:
    work = in_process_pictures(precision={"mode": "fp16"}, augmentation={"crop": "none"})
    network = work.run.model
    pixels = numbered(3, 8)
    with evaluating(network), work.run.caster.forward():
        said = network.stem.conv(pixels).numpy()
        assert np.array_equal(said, said.astype(np.float16).astype(np.float32))
        normed = network.stem.norm(paddle.to_tensor(said)).numpy()
    # Against the definition, in float64.
    weight = network.stem.conv.weight.numpy().astype(np.float64)
    padded = np.pad(pixels.numpy().astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    exact = np.zeros(said.shape)
    for y in range(3):
        for x in range(3):
            exact += np.einsum("nchw,oc->nohw", padded[:, :, y : y + 8, x : x + 8], weight[:, :, y, x])
    assert np.abs(said - exact).max() < 2e-3 * np.abs(exact).max()
    # BatchNorm stays float32 under O1: a new one has mean 0 and variance 1.
    assert np.allclose(normed, said / np.sqrt(1 + 1e-5), atol=1e-6)
    assert not np.array_equal(normed, normed.astype(np.float16).astype(np.float32))
    with work.run.caster.forward():
        x = paddle.to_tensor(np.full((1, 3, 8, 8), 6e4, np.float32))
        network.stem.conv.weight.set_value(paddle.ones_like(network.stem.conv.weight))
        assert np.isinf(network.stem.conv(x).numpy()).any(), "27 × 60,000 is beyond fp16"


def test_statistics_of_a_resnet_stay_where_they_are_in_a_step_that_overflows(in_process_pictures: Any) -> None:
    work = in_process_pictures(
        precision={"mode": "fp16"},
        loss_scaling={"init_scale": 2.0**40, "ceiling": 2.0**40, "growth_interval": 1000, "backoff_factor": 2.0**-30},
        training={"max_steps": 3},
    )
    run = work.run
    network, seen, means = run.model, [], []
    losses, record = run.task.losses, run.steps.record

    def watched(model: Any, batch: Any) -> Any:
        found = losses(model, batch)
        if model.training:
            seen.append(network.stage4[1].bn2._variance.numpy())
        return found

    def recorded(line: Any) -> None:
        means.append(network.stage4[1].bn2._variance.numpy())
        record(line)

    run.task.losses, run.steps.record = watched, recorded
    before = network.stage4[1].bn2._variance.numpy()
    work.train()
    skipped = [line["skipped"] is not None for line in work.attempt.steps()]
    assert skipped[0] and not skipped[-1] and work.attempt.steps()[0]["found_inf"]
    assert not np.array_equal(seen[0], before), "the forward pass moved them"
    assert np.array_equal(means[0], before), "and the skipped step put them back"
    assert not np.array_equal(means[-1], before)


# --- checks --------------------------------------------------------------------------------


def codes(facts: Facts | None = None, **settings: Any) -> set[str]:
    chosen = ImageClassificationSettings.model_validate(settings)
    return {finding.code for check in checks.CHECKS for finding in check(chosen, facts or Facts())}


def test_checks_say_what_does_not_go_together() -> None:
    assert codes() == set()
    slow = {"optimizer": {"learning_rate": 1e-4}}
    assert codes(model={"source": "pretrained"}, data={"size": 32}, **slow) == {"small_for_pretrained"}
    assert codes(model={"source": "pretrained"}, data={"size": 224}, **slow) == set()
    assert "rate_above_pretrained" in codes(
        model={"source": "pretrained"}, data={"size": 224}, optimizer={"learning_rate": 3e-3}
    )
    assert codes(model={"stem": "large"}) == {"large_stem_small_picture"}
    assert codes(training={"batch_size": 4}) == {"batch_small_for_batchnorm"}
    assert codes(training={"batch_size": 4}, model={"norm": "group"}) == set()
    assert codes(training={"batch_size": 4}, model={"architecture": "vit"}) == set()
    many = Facts(dataset=DatasetFacts(train_rows=200_000), hosts=(HostFacts("h", "cpu", 1, 8 * 2**30, 2**40),))
    assert codes(many, data={"size": 224}, model={"architecture": "resnet50"}) == {
        "pictures_not_kept",
        "memory_not_enough",
    }
    assert codes(many, data={"size": 224, "cache_gib": 0}, training={"batch_size": 8}) == set()
    assert "batch_larger_than_dataset" in codes(Facts(dataset=DatasetFacts(train_rows=50)))


def test_the_estimate_of_parameters_is_near_to_what_networks_have() -> None:
    for values in (
        {"architecture": "resnet18", "width": 16},
        {"architecture": "resnet50", "width": 16},
        {"architecture": "vit", "patch": 4, "hidden_size": 48, "layers": 3},
    ):
        settings = ImageClassificationSettings.model_validate({"model": values})
        sizes = model.sizes(settings.model, 32, None)
        network = networks.build(configuration(size=32, **sizes).dump())
        count = sum(int(np.prod(one.shape)) for one in network.parameters() if not one.stop_gradient)
        assert checks.parameters(settings, Facts()) == pytest.approx(count, rel=0.05), values


def test_settings_that_fit_no_model_are_refused_and_presets_are_valid() -> None:
    for values, words in (
        ({"model": {"architecture": "vit", "patch": 5}}, r"The patch \(5\) must divide the picture size \(32\)"),
        ({"model": {"architecture": "vit", "source": "pretrained"}}, "no pretrained weights for vit"),
        ({"model": {"source": "job"}}, "To start from “job”, fill in “job”"),
        ({"model": {"hidden_size": 50, "heads": 4}}, "must divide the hidden size"),
    ):
        with pytest.raises(ValueError, match=words):
            ImageClassificationSettings.model_validate(values)
    for preset in PRESETS:
        nested: dict[str, dict[str, Any]] = {}
        for name, value in preset.values.items():
            group, field = name.split(".")
            nested.setdefault(group, {})[field] = value
        assert codes(**nested) == set(), preset.name


# --- real ranks ----------------------------------------------------------------------------


def test_a_trained_model_is_exported_tried_and_gone_on_from(
    train: Any, zygote: Any, pictures: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"training": {"max_steps": 24, "epochs": 50, "batch_size": 16}}
    attempt: Attempt = train("first", data=pictures, recipe="image_classification", **options)
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    best = [line for line in attempt.events("evaluation") if line["best"]][-1]["metrics"]
    assert best["accuracy"] > 0.8 and sum(map(sum, best["confusion"])) == 21
    (worst,) = attempt.events("worst")
    assert worst["rows"][0].keys() >= {"image", "id", "label", "predicted", "probability", "loss"}

    inference = attempt.folder.artifacts / "inference"
    split = data.read(pictures / "dev.jsonl", ["neg", "pos"])
    pixels = data.Pictures(pictures, {"dev": split}, 8, Fit.CROP, 1.0, 1).of("dev", np.arange(21))
    logits = export.predictor(inference)(pixels)
    assert (logits.argmax(1) == split.labels).mean() == pytest.approx(best["accuracy"])
    with Images(pictures) as images:
        files = [images.read(*place) for place in split.places[:3]]
    ask = predict.load(inference)
    tried = ask([{"picture": base64.b64encode(file).decode()} for file in files])
    assert [said.scores[0].label for said in tried] == [["neg", "pos"][i] for i in logits[:3].argmax(1)]
    with pytest.raises(Failed, match=r"Picture 2 cannot be decoded \(not a picture"):
        ask([{"picture": base64.b64encode(file).decode()} for file in (files[0], b"<svg></svg>")])
    for folder in ("model", "inference"):
        (tmp_path / "picture.png").write_bytes(files[0])
        assert np.allclose(_run_readme(attempt.folder.artifacts / folder, tmp_path), logits[0], atol=1e-4), folder

    sizes = {"source": "job", "job": 1, "width": 64, "architecture": "resnet50"}
    again = make_attempt(
        tmp_path / "again", pictures, recipe="image_classification", model=sizes, optimizer={"learning_rate": 1e-30}
    )
    shutil.copytree(attempt.folder.artifacts / "model", again.folder.model)
    Ranks(zygote, again, {}).wait()
    weights, begun = attempt.final("best"), again.final()
    trained = [name for name in weights if not name.endswith(("_mean", "_variance"))]
    assert all(np.array_equal(weights[name], begun[name]) for name in trained), "it is what the other job's model says"


def _run_readme(folder: Path, cwd: Path) -> Any:
    """The code in a README does what it says: the logits that it comes to."""
    lines = [line[4:] for line in (folder / "README.md").read_text().splitlines() if line.startswith("    ")]
    names: dict[str, Any] = {}
    code = "\n".join(lines).replace("path/of/this/folder", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code.replace("picture.png", str(cwd / "picture.png")), names)  # noqa: S102
    sys.modules.pop("networks", None)
    sys.path[:] = [path for path in sys.path if path != str(folder)]
    return np.asarray(names["logits"])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    rows = [(name, file, {"label": label}) for name, file, label in sample.digits()]
    order = np.random.default_rng(1).permutation(len(rows))
    write_folder(folder, {"dev": [rows[i] for i in order[:180]], "train": [rows[i] for i in order[180:]]})
    return folder


def digits_attempt(path: Path, folder: Path, preset: str, **changes: Any) -> Attempt:
    values = recipe("image_classification").preset(preset).values  # type: ignore[union-attr]
    nested: dict[str, dict[str, Any]] = {}
    for name, value in (values | changes).items():
        group, field = name.split(".")
        nested.setdefault(group, {})[field] = value
    attempt = make_attempt(path, folder, recipe="image_classification", **nested)
    spec = json.loads(attempt.folder.spec.read_text())
    spec["dataset"]["labels"] = [str(i) for i in range(10)]
    attempt.folder.spec.write_text(json.dumps(spec))
    return attempt


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_digits_are_learnt_by_a_narrow_resnet(zygote: Any, digits: Path, tmp_path: Path) -> None:
    made = digits_attempt(tmp_path / "run", digits, "small_pictures", **{"training.max_steps": None, "data.size": 8})
    attempt = Ranks(zygote, made, {}).wait()
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    best = [line["metrics"] for line in attempt.events("evaluation") if line["best"]][-1]
    assert best["accuracy"] > 0.96 and best["top5_accuracy"] > 0.99 and len(best["confusion"]) == 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_digits_are_learnt_by_a_small_vit(zygote: Any, digits: Path, tmp_path: Path) -> None:
    changes = {
        "data.size": 8, "model.patch": 2, "model.hidden_size": 48, "model.layers": 3, "training.epochs": 15,
        "training.max_steps": None, "optimizer.learning_rate": 3e-3, "regularisation.drop_path": 0.05,
        "augmentation.crop": "none", "augmentation.erasing": 0.0,
    }  # fmt: skip
    attempt = Ranks(zygote, digits_attempt(tmp_path / "run", digits, "vit", **changes), {}).wait()
    assert attempt.outcome()["end_reason"] == "completed", attempt.log()
    best = [line["metrics"] for line in attempt.events("evaluation") if line["best"]][-1]
    assert best["accuracy"] > 0.8


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "sizes", [{"architecture": "vit", "hidden_size": 16, "layers": 2}, {"width": 8, "norm": "group"}]
)
def test_one_rank_with_twice_the_batch_does_the_same_as_two_ranks(
    train: Any, pictures: Path, sizes: dict[str, Any]
) -> None:
    """Where nothing is normalised over a rank's batch; BatchNorm is, and differs."""
    options: dict[str, Any] = {
        "export": False,
        "data": pictures, "recipe": "image_classification", "model": sizes, "augmentation": {"crop": "none"},
        "optimizer": {"learning_rate": 1e-4},
    }  # fmt: skip
    one = train("one", world=1, training={"batch_size": 12, "max_steps": 7}, **options)
    two = train("two", world=2, training={"batch_size": 6, "max_steps": 7}, **options)
    for a, b in zip(one.steps(), two.steps(), strict=True):
        assert a["loss_all"] == pytest.approx(b["loss_all"], rel=1e-4)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)
    for name, weights in one.final().items():
        assert np.allclose(weights, two.final()[name], atol=1e-4), name
