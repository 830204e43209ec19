"""Every setting of the recipe's own changes something that can be seen; what it shares with others is in
tests/workers/trainer/test_settings.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.workers.recipes import test_sequences
from tests.workers.recipes.examples import write_sequences
from tests.workers.trainer.conftest import make_attempt
from tests.workers.trainer.test_loop import InProcess
from workers.contract.checks import Facts
from workers.recipes import registry
from workers.recipes.sequences import checks
from workers.recipes.sequences.settings import SequencesSettings

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

STEPS = {"training": {"max_steps": 3}}
NEXT = {"data": {"goal": "next_value"}}
LABELS = {"data": {"goal": "classification"}}
GROUPS = ("data", "model", "regularisation")

# field: (what it is set to, the other settings with which it shows)
SHOWS: dict[str, tuple[Any, dict[str, dict[str, Any]]]] = {
    "data.goal": ("next_value", {}),
    "data.features": ("x", {}),
    "data.next_of": ("same", NEXT),
    "data.next_every": (2, NEXT),
    "data.max_length": (3, {}),
    "data.normalisation": ("zscore", {}),
    "model.cell": ("gru", {}),
    "model.hidden_size": (5, {}),
    "model.layers": (2, {}),
    "model.bidirectional": (True, {}),
    "model.open_forget_gate": (False, {}),
    "model.linear_steps": (4, {}),
    "model.loss": ("huber", {}),
    "regularisation.dropout": (0.5, {}),
    "regularisation.label_smoothing": (0.3, LABELS),
}
# field: the test that shows it
ELSEWHERE = {
    "model.source": test_sequences.test_it_starts_from_what_another_job_exported,
    "model.job": test_sequences.test_it_starts_from_what_another_job_exported,
    "data.weight_column": test_sequences.test_the_samples_of_a_sequence_count_as_much_as_it_does,
}


def test_each_field_has_an_entry() -> None:
    own = [
        f"{group}.{name}"
        for group in GROUPS
        for name in SequencesSettings.model_fields[group].annotation.model_fields  # type: ignore[union-attr]
    ]
    assert sorted(own) == sorted([*SHOWS, *ELSEWHERE])


def test_the_linear_path_is_no_longer_than_what_is_read_and_bound_to_a_checkpoint() -> None:
    def problems(steps: int) -> list[tuple[str, str]]:
        settings = SequencesSettings.model_validate({"data": {"max_length": 16}, "model": {"linear_steps": steps}})
        found = [finding for check in checks.CHECKS for finding in check(settings, Facts())]
        return [(finding.setting, str(finding)) for finding in found if finding.level == "error"]

    assert problems(16) == []
    text = "The linear path is of 17 time steps, but the model reads at most 16 of a sequence."
    assert problems(17) == [("model.linear_steps", text)]
    recipe = registry.recipe("sequences")
    stored = recipe.in_todays_names({"model": {"hidden_size": 64}})  # by a version that knew of no path
    assert recipe.misfits(stored, {**stored, "model": stored["model"] | {"linear_steps": 8}}) == {
        "model.linear_steps": 0
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("rows")
    for label in (False, True):
        write_sequences(folder / str(label), label=label)
    return {label: folder / str(label) for label in (False, True)}


def losses(path: Path, rows: dict[bool, Path], changes: dict[str, dict[str, Any]]) -> list[float]:
    merged = {group: {**STEPS.get(group, {}), **changes.get(group, {})} for group in STEPS.keys() | changes.keys()}
    data = rows[merged.get("data", {}).get("goal") == "classification"]
    work = InProcess(make_attempt(path, data, recipe="sequences", **merged), recipe="sequences", **merged)
    work.train()
    return [record["loss"] for record in work.attempt.steps()]


_before: dict[str, list[float]] = {}


@pytest.mark.parametrize("field", SHOWS)
def test_it_is_honoured(tmp_path: Path, rows: dict[bool, Path], field: str) -> None:
    value, others = SHOWS[field]
    group, _, name = field.partition(".")
    key = str(others)
    if key not in _before:
        _before[key] = losses(tmp_path / "before", rows, others)
        assert losses(tmp_path / "again", rows, others) == _before[key], "a run repeats exactly"
    changed = {**others, group: {**others.get(group, {}), name: value}}
    after = losses(tmp_path / "after", rows, changed)
    assert len(after) == 3 and after != _before[key]
