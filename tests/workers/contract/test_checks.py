"""Each check across fields: at its border it is silent, one step further it speaks, and its text has the values."""

from __future__ import annotations

from typing import Any

import pytest

from workers.contract.checks import (
    CLASSIFICATION,
    DatasetFacts,
    Facts,
    Finding,
    HostFacts,
    SourceFacts,
    estimate,
    rate_fits_random_weights,
    share_longer,
)
from workers.contract.known_models import shape_of
from workers.recipes.registry import RECIPES
from workers.recipes.text_classification.presets import PRESETS
from workers.recipes.text_classification.settings import TextClassificationSettings

LENGTHS = {"min": 2, "p50": 20, "p90": 50, "p99": 100, "max": 300}
FOLDER = {"source": "folder", "folder": "ernie"}
Changes = dict[str, dict[str, Any]]


def gpus(capability: float, count: int = 2, **more: Any) -> HostFacts:
    given = {"memory_bytes": 16 * 2**30, "disk_free_bytes": 10**12} | more
    return HostFacts("gpu-1", "gpu", count, compute_capabilities=(capability,) * count, **given)


def ascend(name: str) -> HostFacts:
    return HostFacts("npu-1", "gpu", 8, 32 * 2**30, 10**12, device_names=(name,))


def found(facts: Facts, **changes: Any) -> dict[str, Finding]:
    settings = TextClassificationSettings.model_validate(changes)
    findings = [finding for check in CLASSIFICATION for finding in check(settings, facts)]
    return {finding.code: finding for finding in findings if finding.level != "advice"}


def rows(count: int, **lengths: int) -> Facts:
    return Facts(DatasetFacts(count, lengths))


def source(**changes: Any) -> Facts:
    return Facts(source=SourceFacts(**({"job": 7, "world_size": 2, "learning_rate": 5e-5, "max_norm": 1.0} | changes)))


# code: (facts, settings that it is silent about, settings that it speaks about, what the text says)
CASES: dict[str, tuple[Facts, Changes, Changes, str]] = {
    "column_missing": (
        Facts(DatasetFacts(6000, columns=("text", "label"))),
        {"data": {"text_column": "text"}},
        {"data": {"text_column": "review"}},
        "no column “review”; it has: text, label",
    ),
    "weights_unchecked": (
        Facts(DatasetFacts(6000, weight_column="w")),
        {"data": {"weight_column": "w"}},
        {"data": {"weight_column": "importance"}},
        "The column “importance” was not checked as weights",
    ),
    "weights_all_zero": (
        Facts(DatasetFacts(6000, weight_column="w", weightless=1.0)),
        {},
        {"data": {"weight_column": "w"}},
        "Every training row has the weight 0 in “w”",
    ),
    "weights_mostly_zero": (
        Facts(DatasetFacts(6000, weight_column="w", weightless=0.51)),
        {},
        {"data": {"weight_column": "w"}},
        "51 % of the training rows have the weight 0 in “w”",
    ),
    "weights_not_finite": (
        Facts(DatasetFacts(6000, weight_column="w", weights_not_finite=3)),
        {},
        {"data": {"weight_column": "w"}},
        "3 rows have a weight in “w” that is not finite",
    ),
    "bf16_on_ascend": (
        Facts(hosts=(ascend("Ascend 910B"),)),
        {"precision": {"mode": "fp16"}},
        {"precision": {"mode": "bf16"}},
        "Whether Ascend 910B computes in bf16 is not known here",
    ),
    "bf16_unsupported": (
        Facts(hosts=(gpus(7.5),)),
        {"precision": {"mode": "fp16"}},
        {"precision": {"mode": "bf16"}},
        "the best has 7.5",
    ),
    "loss_scaling_unused": (
        Facts(),
        {"precision": {"mode": "fp16"}, "loss_scaling": {"init_scale": 1024}},
        {"precision": {"mode": "bf16"}, "loss_scaling": {"init_scale": 1024}},
        "with bf16 it does nothing",
    ),
    "amp_unused": (
        Facts(),
        {"precision": {"mode": "bf16", "level": "O2", "black_list": "softmax"}},
        {"precision": {"mode": "float32", "black_list": "softmax"}},
        "with float32 they do nothing",
    ),
    "rate_low_for_sgd": (
        Facts(),
        {"optimizer": {"kind": "sgd", "learning_rate": 1e-3}},
        {"optimizer": {"kind": "sgd", "learning_rate": 9e-4}},
        "A learning rate of 0.0009 is one for adamw",
    ),
    # 1,000 rows in batches of 32 are 32 steps per epoch.
    "clip_never_learnt": (
        rows(1000),
        {"clipping": {"mode": "zclip", "adaptive_warmup": 95}},
        {"clipping": {"mode": "zclip", "adaptive_warmup": 96}},
        "zclip learns from 96 steps, but the whole training has 96",
    ),
    "rewind_to_the_beginning": (
        rows(1000),
        {"limits": {"on_bad_step": "rewind"}, "checkpoints": {"every_steps": 95}},
        {"spikes": {"action": "rewind"}, "checkpoints": {"every_steps": 96}},
        "one every 96 steps and 96 steps in all",
    ),
    "warmup_longer_than_training": (
        rows(1000),
        {"schedule": {"warmup_steps": 96}},
        {"schedule": {"warmup_steps": 97}},
        "takes 97 steps, but the whole training has 96",
    ),
    "rate_above_pretrained": (
        Facts(),
        {"model": FOLDER, "optimizer": {"learning_rate": 1e-3}},
        {"model": FOLDER, "optimizer": {"learning_rate": 1.1e-3}},
        "0.0011",
    ),
    "high_rate_without_clipping": (
        Facts(),
        {"model": FOLDER, "optimizer": {"learning_rate": 1e-4}, "clipping": {"max_norm": None}},
        {"model": FOLDER, "optimizer": {"learning_rate": 2e-4}, "clipping": {"max_norm": None}},
        "clipping is off",
    ),
    "high_rate_with_loose_clipping": (
        Facts(),
        {"optimizer": {"learning_rate": 2e-3}, "clipping": {"max_norm": 5.0}},
        {"optimizer": {"learning_rate": 2e-3}, "clipping": {"max_norm": 5.1}},
        "clipping at 5.1 is loose",
    ),
    "low_rate_heavy_regularisation": (
        Facts(),
        {"optimizer": {"learning_rate": 1e-5}, "regularisation": {"dropout": 0.3}},
        {"optimizer": {"learning_rate": 9e-6}, "regularisation": {"dropout": 0.3}},
        "dropout 0.3",
    ),
    "world_size_changed": (
        source(),
        {"devices": {"devices_per_node": 4}, "optimizer": {"learning_rate": 1e-4}},
        {"devices": {"devices_per_node": 4}},
        "Job 7 ran on 2 ranks, this one on 4",
    ),
    "batch_larger_than_dataset": (
        rows(128),
        {"training": {"batch_size": 32, "accumulation": 2}, "devices": {"devices_per_node": 2}},
        {"training": {"batch_size": 33, "accumulation": 2}, "devices": {"devices_per_node": 2}},
        "effective batch of 132 (batch per rank 33 × accumulation 2 × ranks 2)",
    ),
    "small_set_unregularised": (
        rows(4999),
        {"optimizer": {"weight_decay": 0}},
        {"optimizer": {"weight_decay": 0}, "regularisation": {"dropout": 0}},
        "With 4999 rows",
    ),
    # Half of the way from the 90th percentile (50) to the 99th (100) are 5.5 % longer.
    "texts_are_cut": (
        rows(1000, **LENGTHS),
        {"data": {"max_length": 80}},
        {"data": {"max_length": 77}},
        "of 77 tokens cuts about 5.5 %",
    ),
    "more_ranks_than_devices": (
        Facts(hosts=(gpus(8.0, 2), gpus(8.0, 4))),
        {"devices": {"devices_per_node": 4}},
        {"devices": {"devices_per_node": 5}},
        "5 ranks on one host are asked for, but no host that is online has more than 4",
    ),
    "memory_not_enough": (
        Facts(hosts=(gpus(8.0, memory_bytes=2 * 2**30),)),
        {"training": {"batch_size": 32}},
        {"training": {"batch_size": 4096}},
        "has 2.0 GiB",
    ),
    "disk_not_enough": (
        Facts(hosts=(gpus(8.0, disk_free_bytes=10**9),)),
        {"checkpoints": {"keep": 2}},
        {"checkpoints": {"keep": 100}},
        "Keep fewer checkpoints",
    ),
}


@pytest.mark.parametrize("code", CASES)
def test_it_is_silent_at_its_border_and_speaks_beyond_it(code: str) -> None:
    facts, silent, speaks, text = CASES[code]
    assert code not in found(facts, **silent)
    finding = found(facts, **speaks)[code]
    assert text in str(finding)
    assert len(code) <= 30, "an event keeps it as its reason"


def test_only_what_cannot_work_is_an_error() -> None:
    levels = {code: found(facts, **speaks)[code].level for code, (facts, _, speaks, _) in CASES.items()}
    assert sorted(code for code, level in levels.items() if level == "error") == [
        "batch_larger_than_dataset",
        "bf16_unsupported",
        "column_missing",
        "weights_all_zero",
    ]


def test_each_hangs_on_the_setting_to_change_first() -> None:
    places = {code: found(facts, **speaks)[code].setting for code, (facts, _, speaks, _) in CASES.items()}
    assert {
        code: place for code, place in places.items() if code.startswith(("weights", "bf16", "texts", "memory"))
    } == {
        "weights_unchecked": "data.weight_column",
        "weights_all_zero": "data.weight_column",
        "weights_mostly_zero": "data.weight_column",
        "weights_not_finite": "data.weight_column",
        "bf16_on_ascend": "precision.mode",
        "bf16_unsupported": "precision.mode",
        "texts_are_cut": "data.max_length",
        "memory_not_enough": "training.batch_size",
    }


def test_an_ascend_npu_computes_in_fp16_whatever_old_gpus_stand_beside_it() -> None:
    for name in ("Ascend 910", "Huawei NPU 310"):
        assert found(Facts(hosts=(gpus(6.0), ascend(name))), precision={"mode": "fp16"}) == {}
    old = gpus(6.0, device_names=("Tesla P100",))
    text = str(found(Facts(hosts=(old,)), precision={"mode": "fp16"})["fp16_without_tensor_cores"])
    assert (
        "no device that is online has Tensor Cores (compute capability 7.0; the best has 6.0) or is an Ascend NPU"
        in text
    )
    assert found(Facts(hosts=(gpus(8.0), ascend("Ascend 910"))), precision={"mode": "bf16"}) == {}


def test_counted_tokens_are_compared_as_they_are_and_characters_leave_room_for_the_marks() -> None:
    percentiles = {f"p{percent}": 20 + percent for percent in range(101)}  # 20 … 120
    counted = Facts(DatasetFacts(1000, percentiles, in_tokens=True))
    assert found(counted, data={"max_length": 116}) == {}
    text = str(found(counted, data={"max_length": 100})["texts_are_cut"])
    assert "cuts about 20.0 % of the training texts, and" in text and "the longest has 120 tokens" in text
    by_characters = Facts(DatasetFacts(1000, percentiles))
    assert "about 22.0 % of the training texts (by their characters)" in str(
        found(by_characters, data={"max_length": 100})["texts_are_cut"]
    )
    # Another model's tokenizer was not counted with.
    other = str(found(counted, data={"max_length": 100}, model=FOLDER)["texts_are_cut"])
    assert "about 20.0 % of the training texts (by their characters)" in other


HUB = {"source": "hub", "name": "ernie-3.0-base-zh"}


def test_memory_and_disk_are_known_for_models_with_a_known_name() -> None:
    settings = TextClassificationSettings.model_validate({"model": HUB})
    known = estimate(settings, rows(1000))
    assert known is not None and known.parameters == 117_944_832
    assert known.memory_bytes == pytest.approx(20 * 117_944_832 + 2**30 + 2 * 12 * 32 * 64 * (34 * 768 + 60 * 64))
    assert known.disk_bytes == 3 * 16 * 117_944_832 + 12 * 117_944_832 + 450 * 96
    small = Facts(hosts=(gpus(8.0, memory_bytes=2 * 2**30, disk_free_bytes=10**9),))
    assert found(small, model=HUB).keys() == {"memory_not_enough", "disk_not_enough"}
    folder = {"source": "folder", "folder": "zoo/BERT-base-Chinese/"}
    assert estimate(TextClassificationSettings.model_validate({"model": folder}), Facts()) is not None
    assert "118 million parameters" in str(found(small, model=HUB)["memory_not_enough"])


def test_of_other_models_nothing_is_claimed() -> None:
    unknown = TextClassificationSettings.model_validate({"model": FOLDER})
    assert estimate(unknown, Facts()) is None
    assert found(Facts(hosts=(gpus(8.0, memory_bytes=1, disk_free_bytes=1),)), model=FOLDER) == {}


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("ernie-3.0-nano-zh", 18),
        ("ernie-3.0-xbase-zh", 296),
        ("bert-base-uncased", 109),
        ("hfl/roberta-wwm-ext-large", 326),
    ],
)
def test_sizes_are_those_that_were_published(name: str, millions: int) -> None:
    shape = shape_of(name)
    assert shape is not None and round(shape.parameters / 1e6) == millions


@pytest.mark.parametrize(
    ("capabilities", "speaks"), [([6.1], True), ([6.9], True), ([7.0], False), ([6.1, 7.5], False), ([], False)]
)
def test_fp16_wants_one_host_with_tensor_cores(capabilities: list[float], speaks: bool) -> None:
    facts = Facts(hosts=tuple(gpus(value) for value in capabilities))
    assert ("fp16_without_tensor_cores" in found(facts, precision={"mode": "fp16"})) is speaks
    assert "fp16_without_tensor_cores" not in found(facts)


def test_hosts_without_a_gpu_say_nothing_about_precision() -> None:
    cpu = HostFacts("cpu-1", "cpu", 2, 2**34, 10**12)
    assert found(Facts(hosts=(cpu,)), precision={"mode": "bf16"}) == {}


def test_bf16_is_fine_from_8_0_on() -> None:
    assert found(Facts(hosts=(gpus(8.0),)), precision={"mode": "bf16"}) == {}


def test_most_steps_shorten_the_training_that_warm_up_is_compared_with() -> None:
    assert "warmup_longer_than_training" in found(rows(1000), schedule={"warmup_steps": 50}, training={"max_steps": 49})
    assert found(rows(1000), schedule={"warmup_steps": 50}, training={"max_steps": 50}) == {}


def test_a_model_of_random_weights_takes_higher_rates() -> None:
    assert found(Facts(), optimizer={"learning_rate": 1e-3}, clipping={"max_norm": None}) == {}
    assert found(Facts(), optimizer={"learning_rate": 0.5}) == {}


def test_other_clipping_than_the_source_had_is_an_adjustment_too() -> None:
    assert found(source(max_norm=0.5), devices={"devices_per_node": 4}) == {}
    assert found(source(), devices={"devices_per_node": 2}) == {}


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ({}, True),  # 5e-5, and random weights
        ({"optimizer": {"learning_rate": 2e-4}}, False),
        ({"optimizer": {"kind": "sgd"}}, False),
        ({"model": FOLDER}, False),
        (PRESETS[2].over({}), False),
    ],
)
def test_random_weights_at_the_rate_of_fine_tuning_are_advised_about_and_nothing_is_asked(
    changes: Changes, advised: bool
) -> None:
    findings = list(rate_fits_random_weights(TextClassificationSettings.model_validate(changes), Facts()))
    assert [finding.level for finding in findings] == ["advice"] * advised
    assert not advised or "a learning rate of 5e-05 is one for fine-tuning" in str(findings[0])


def test_five_thousand_rows_are_no_small_set() -> None:
    assert found(rows(5000), optimizer={"weight_decay": 0}, regularisation={"dropout": 0}) == {}


def test_what_is_not_known_is_not_complained_about() -> None:
    assert found(Facts(), training={"batch_size": 4096}, devices={"devices_per_node": 64}) == {}
    assert found(rows(0), data={"max_length": 8}, schedule={"warmup_steps": 10**6}) == {}


@pytest.mark.parametrize(
    ("limit", "share"), [(1, 1.0), (2, 1.0), (20, 0.5), (50, 0.1), (75, 0.055), (100, 0.01), (300, 0.0), (999, 0.0)]
)
def test_the_share_of_longer_texts_is_read_between_the_percentiles(limit: int, share: float) -> None:
    assert share_longer(LENGTHS, limit) == pytest.approx(share)
    assert share_longer({}, limit) is None


def test_all_texts_of_one_length_are_cut_or_not() -> None:
    same = dict.fromkeys(LENGTHS, 30)
    assert share_longer(same, 29) == 1.0
    assert share_longer(same, 30) == 0.0


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
@pytest.mark.parametrize("model", [{}, FOLDER])
def test_no_preset_brings_a_warning_of_its_own(preset: Any, model: dict[str, Any]) -> None:
    if preset.name == "scratch" and model:
        return  # says itself what it is for
    assert found(rows(1000, **{name: 20 for name in LENGTHS}), **preset.over({"model": model})) == {}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_sets_what_there_is_and_leaves_the_rest(preset: Any) -> None:
    given = {"data": {"max_length": 99}, "optimizer": {"learning_rate": 0.5}}
    settings = TextClassificationSettings.model_validate(preset.over(given)).model_dump()
    for dotted, value in preset.values.items():
        group, name = dotted.split(".")
        assert settings[group][name] == value
    assert settings["data"]["max_length"] == 99
    assert given["optimizer"] == {"learning_rate": 0.5}


def test_modes_without_a_fixed_norm_are_no_loose_clipping_but_none_is() -> None:
    high: dict[str, Any] = {"model": FOLDER, "optimizer": {"learning_rate": 5e-4}}
    for mode in ("value", "zclip", "autoclip"):
        assert found(Facts(), **high, clipping={"mode": mode, "max_norm": None}) == {}
    assert list(found(Facts(), **high, clipping={"mode": "none"})) == ["high_rate_without_clipping"]


def test_rates_of_sgd_are_not_measured_by_those_of_adam() -> None:
    assert (
        found(Facts(), model=FOLDER, optimizer={"kind": "sgd", "learning_rate": 0.05}, clipping={"max_norm": 5}) == {}
    )


@pytest.mark.parametrize("recipe", ["text_classification", "text_regression", "token_classification"])
def test_the_rate_that_is_advised_from_scratch_is_that_of_the_recipes_own_preset(recipe: str) -> None:
    declared = RECIPES[recipe]
    own = next(preset for preset in declared.presets if preset.name == "scratch")
    findings = [
        finding for check in declared.checks for finding in check(declared.settings.model_validate({}), Facts())
    ]
    [advice] = [finding for finding in findings if finding.code == "rate_for_pretrained"]
    assert advice.values["usual"] == own.values["optimizer.learning_rate"]
