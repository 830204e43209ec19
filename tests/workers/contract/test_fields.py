from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

from workers.contract.fields import SettingsGroup, other_default
from workers.contract.training import OptimizerSettings, RecipeSettings
from workers.recipes.registry import RECIPES


def _whole_numbers(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for group, info in model.model_fields.items():
        assert isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
        for name, inner in info.annotation.model_fields.items():
            if int in (inner.annotation, *get_args(inner.annotation)):
                yield group, name


ALL = [(one.settings, *place) for one in RECIPES.values() for place in _whole_numbers(one.settings)]


@pytest.mark.parametrize(("settings", "group", "name"), ALL)
def test_no_whole_number_is_too_large_for_what_it_is_stored_in(
    settings: type[SettingsGroup], group: str, name: str
) -> None:
    with pytest.raises(ValidationError, match="less than"):
        settings.model_validate({group: {name: 2**63}})


def test_another_default_changes_nothing_else() -> None:
    class Milder(OptimizerSettings):
        learning_rate: float = other_default(OptimizerSettings, "learning_rate", 1e-3)

    assert Milder().learning_rate == 1e-3 and Milder.model_validate({"beta1": 0.5}).learning_rate == 1e-3
    assert OptimizerSettings().learning_rate == 5e-5 and list(Milder.model_fields) == list(
        OptimizerSettings.model_fields
    )
    ours, theirs = Milder.model_fields["learning_rate"], OptimizerSettings.model_fields["learning_rate"]
    assert (ours.title, ours.description, ours.json_schema_extra) == (
        theirs.title,
        theirs.description,
        theirs.json_schema_extra,
    )
    with pytest.raises(ValidationError, match="greater than 0"):
        Milder(learning_rate=0)


def test_recipes_that_can_start_from_pretrained_weights_are_known() -> None:
    assert {name for name, recipe in RECIPES.items() if recipe.has_pretrained} >= {
        "text_classification", "text_regression", "token_classification", "image_classification",
    }  # fmt: skip
    assert not RECIPES["sequences"].has_pretrained and not RECIPES["text_lines"].has_pretrained


SHIPPED = [recipe.settings for name, recipe in RECIPES.items() if recipe.module.startswith("workers.recipes.")]


@pytest.mark.parametrize("settings", SHIPPED)
def test_every_recipe_has_the_shared_groups_in_their_order(settings: type[SettingsGroup]) -> None:
    shared = RecipeSettings.model_fields
    assert [name for name in settings.model_fields if name in shared] == list(shared)
    for name, info in shared.items():
        own, group = settings.model_fields[name].annotation, info.annotation
        assert own and group and issubclass(own, group), name
