"""Every setting changes something that can be seen; a field without an entry here fails the test."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.workers.recipes import test_data, test_model_sources
from tests.workers.trainer import test_early_stopping, test_ranks, test_spikes
from tests.workers.trainer.conftest import make_attempt
from tests.workers.trainer.test_loop import InProcess
from workers.recipes.text_classification.settings import TextClassificationSettings
from workers.trainer.task import TrainingFailed

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

BF16 = {"precision": {"mode": "bf16"}}
FP16 = {"precision": {"mode": "fp16"}}
GROWING = {**FP16, "loss_scaling": {"init_scale": 4.0, "growth_interval": 2, "floor": 2.0, "ceiling": 2.0**24}}
OVERFLOWING = {**FP16, "loss_scaling": {"init_scale": 2.0**26, "floor": 1.0, "ceiling": 2.0**26}}
CLIPPED = {"clipping": {"max_norm": 1e-3}, "optimizer": {"epsilon": 1e-2}}
EPOCHS = {"training": {"max_steps": None, "batch_size": 16, "epochs": 1}}
EVALUATED = {"checkpoints": {"evaluate_every_steps": 2}}
BAD = {"optimizer": {"learning_rate": 1e12}, "schedule": {"warmup_steps": 0}, "training": {"max_steps": 20}}

SPIKY = {"spikes": {"window": 20, "active_after": 4, "sigmas": 1.0}, "training": {"max_steps": 25}}

# field: (what it is set to, the other settings with which it shows)
SHOWS: dict[str, tuple[Any, dict[str, dict[str, Any]]]] = {
    "data.max_length": (8, {}),
    "model.architecture": ("bert", {}),
    "model.hidden_size": (32, {}),
    "model.layers": (2, {}),
    "model.heads": (4, {}),
    "model.vocabulary_size": (50, {}),
    "training.epochs": (2, EPOCHS),
    "training.max_steps": (5, {}),
    "training.batch_size": (6, {}),
    "training.accumulation": (2, {}),
    "training.seed": (7, {}),
    "optimizer.learning_rate": (1e-2, {}),
    "optimizer.weight_decay": (0.9, {"optimizer": {"learning_rate": 1e-2}}),
    "optimizer.beta1": (0.5, {}),
    "optimizer.beta2": (0.9, {}),
    "optimizer.epsilon": (1e-2, {}),
    "optimizer.kind": ("sgd", {}),
    "optimizer.momentum": (0.5, {"optimizer": {"kind": "sgd"}}),
    "optimizer.undecayed": ("bias", {"optimizer": {"learning_rate": 1e-2, "weight_decay": 0.9}}),
    "optimizer.layer_decay": (0.5, {}),
    "optimizer.ema_memory": (0.5, EVALUATED),
    "schedule.warmup_steps": (6, {}),
    "schedule.warmup_fraction": (0.9, {}),
    "schedule.decay": ("constant", {}),
    "schedule.power": (3.0, {"schedule": {"decay": "polynomial"}}),
    "schedule.final_fraction": (0.5, {}),
    "clipping.mode": ("per_tensor", CLIPPED),
    "clipping.max_norm": (1e-3, {"optimizer": {"epsilon": 1e-2}}),
    "clipping.max_value": (1e-4, {**CLIPPED, "clipping": {"mode": "value"}}),
    "clipping.z_limit": (0.5, {**CLIPPED, "clipping": {"mode": "zclip", "adaptive_warmup": 2}}),
    "clipping.memory": (0.5, {**CLIPPED, "clipping": {"mode": "zclip", "adaptive_warmup": 2}}),
    "clipping.percentile": (20.0, {**CLIPPED, "clipping": {"mode": "autoclip", "adaptive_warmup": 2}}),
    "clipping.history": (10, {"clipping": {"mode": "autoclip", "adaptive_warmup": 2}, "training": {"max_steps": 20}}),
    "clipping.adaptive_warmup": (3, {**CLIPPED, "clipping": {"mode": "autoclip"}}),
    "precision.mode": ("bf16", {}),
    "precision.level": ("O2", BF16),
    "precision.master_weights": (False, {"precision": {"mode": "bf16", "level": "O2"}}),
    "precision.master_grad": (False, {"precision": {"mode": "bf16", "level": "O2"}}),
    "precision.white_list": ("layer_norm", BF16),
    "precision.black_list": ("matmul_v2", BF16),
    "loss_scaling.init_scale": (64.0, FP16),
    "loss_scaling.growth_interval": (3, GROWING),
    "loss_scaling.growth_factor": (4.0, GROWING),
    "loss_scaling.backoff_factor": (0.25, OVERFLOWING),
    "loss_scaling.hysteresis": (2, OVERFLOWING),
    "loss_scaling.floor": (2.0**26, OVERFLOWING),
    "loss_scaling.ceiling": (8.0, GROWING),
    "regularisation.dropout": (0.5, {}),
    "regularisation.label_smoothing": (0.2, {}),
    "regularisation.drop_path": (0.5, {}),
    "limits.on_bad_step": ("stop", BAD),
    "limits.most_rewinds": (1, {**BAD, "limits": {"on_bad_step": "rewind", "skip_limit": 2}}),
    "limits.input_limit": (0.5, {"limits": {"skip_limit": 2}}),
    "spikes.action": ("ignore", SPIKY),
    "spikes.sigmas": (50.0, SPIKY),
    "spikes.active_after": (15, SPIKY),
    "limits.skip_limit": (2, BAD),
    "limits.loss_limit": (0.1, {"limits": {"skip_limit": 2}}),
    "limits.grad_norm_limit": (1e-3, {"limits": {"skip_limit": 2}}),
    "checkpoints.every_steps": (3, {}),
    "checkpoints.keep": (1, {"checkpoints": {"every_steps": 3, "keep": 2}}),
    "checkpoints.evaluate_every_steps": (3, {}),
    "monitoring.group_norms_every": (4, {}),
    "early_stopping.patience": (1, {**EVALUATED, "early_stopping": {"min_delta": 1.0}}),
}
# field: the test that shows it
ELSEWHERE = {
    "data.text_column": test_data.test_columns_are_read_by_the_names_that_were_set,
    "data.text_b_column": test_data.test_a_second_text_is_read_where_there_is_one,
    "data.label_column": test_data.test_columns_are_read_by_the_names_that_were_set,
    "data.weight_column": test_data.test_columns_are_read_by_the_names_that_were_set,
    "model.source": test_model_sources.test_another_job_starts_from_the_exported_weights,
    "model.job": test_model_sources.test_another_job_starts_from_the_exported_weights,
    "model.folder": test_model_sources.test_a_folder_below_a_model_root_is_loaded,
    "model.name": test_model_sources.test_a_hub_name_is_refused_where_hosts_fetch_nothing,
    "early_stopping.min_delta": test_early_stopping.test_it_ends_after_so_many_evaluations_without_a_gain,
    "spikes.window": test_spikes.test_it_is_six_deviations_above_the_mean_of_the_latest_steps_without_spikes,
    "monitoring.local_norms": test_ranks.test_each_ranks_own_norm_shows_which_one_overflowed,
    "monitoring.compare_ranks_every": test_ranks.test_a_rank_whose_weights_differ_by_one_bit_is_found_and_named,
    "limits.time_limit_hours": None,  # the supervisor's, see tests/workers/test_supervisor.py
    "devices.devices_per_node": None,  # decides the placement, before any rank exists
}


def observed(path: Path, dataset: Path, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All that a run leaves behind, times aside."""
    work = InProcess(make_attempt(path, dataset, **changes), **changes)
    try:
        end = str(work.train())
    except TrainingFailed as failed:
        end = f"{failed.reason}: {failed.detail}"
    seen = []
    for record in work.attempt.steps():
        for name in ("t", "step_ms", "data_ms", "mem_mb"):
            del record[name]
        seen.append({k: "nan" if isinstance(v, float) and math.isnan(v) else v for k, v in record.items()})
    digest = hashlib.sha256()
    for name, array in sorted(work.weights().items()):
        digest.update(name.encode() + array.tobytes())
    return {
        "end": end,
        "steps": seen,
        "checkpoints": [path.name for path in work.attempt.checkpoints()],
        "spikes": [(line["step"], line["sigmas"]) for line in work.attempt.events("spike")],
        "evaluations": [line["step"] for line in work.attempt.events("evaluation")],
        "weights": digest.hexdigest(),
        "averaged": (work.attempt.checkpoints() or [path])[-1].joinpath("average.safetensors").exists(),
    }


def fields() -> list[str]:
    return [
        f"{group}.{name}"
        for group, declared in TextClassificationSettings.model_fields.items()
        for name in declared.annotation.model_fields  # type: ignore[union-attr]
    ]


def test_each_field_has_an_entry() -> None:
    assert sorted(fields()) == sorted([*SHOWS, *ELSEWHERE])


_before: dict[str, dict[str, Any]] = {}


def before(path: Path, dataset: Path, others: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Many fields are seen against the same other settings."""
    key = json.dumps(others, sort_keys=True)
    if key not in _before:
        _before[key] = observed(path / "before", dataset, others)
        if len(_before) == 1:
            assert _before[key] == observed(path / "again", dataset, others), "a run repeats exactly"
    return _before[key]


@pytest.mark.parametrize("field", SHOWS)
def test_it_is_honoured(tmp_path: Path, dataset: Path, field: str) -> None:
    value, others = SHOWS[field]
    group, _, name = field.partition(".")
    changed = {**others, group: {**others.get(group, {}), name: value}}
    assert before(tmp_path, dataset, others) != observed(tmp_path / "after", dataset, changed)
