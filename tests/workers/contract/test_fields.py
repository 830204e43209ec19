from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from workers.recipes.registry import recipe

RECIPE = recipe("text_classification")


def _whole_numbers(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for group, info in model.model_fields.items():
        assert isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
        for name, inner in info.annotation.model_fields.items():
            if int in (inner.annotation, *get_args(inner.annotation)):
                yield group, name


@pytest.mark.parametrize(("group", "name"), list(_whole_numbers(RECIPE.settings)))
def test_no_whole_number_is_too_large_for_what_it_is_stored_in(group: str, name: str) -> None:
    settings: dict[str, Any] = {group: {name: 2**63}}
    with pytest.raises(ValidationError, match="less than"):
        RECIPE.settings.model_validate(settings)
