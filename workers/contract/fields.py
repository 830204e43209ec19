"""How a setting is declared: once, as a pydantic field whose extras feed the form, the docs and the API."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

# Names and paths need none of them, and PostgreSQL keeps neither a NUL nor half of a surrogate pair.
CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class SettingsGroup(BaseModel):
    """A group of settings; `title` and the docstring are shown above its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @field_validator("*")
    @classmethod
    def _no_control_characters(cls, value: Any) -> Any:
        if isinstance(value, str) and CONTROL.search(value):
            raise Misfit("Must not contain control characters.")
        return value


class Misfit(ValueError):
    """Settings that are right one by one and do not fit together. `template` is an English sentence with named
    %-places for `values`; the web side translates it."""

    def __init__(self, template: str, **values: object) -> None:
        super().__init__(template % values)
        self.template, self.values = template, values


def setting(
    default: Any, title: str, help: str, *, unit: str = "", basic: bool = False, only: str = "", **limits: Any
) -> Any:
    """One field: label, help in words, unit, whether the basic form shows it; `only`: it counts only with these values of
    another field of its group, as in "mode=zclip,autoclip"; `limits` are pydantic's (gt, le …)."""
    extra: dict[str, Any] = {"unit": unit, "basic": basic, "only": only}
    return Field(default, title=title, description=help, json_schema_extra=extra, **limits)


def other_default(group: type[SettingsGroup], name: str, default: Any) -> Any:
    """The field `name` of a shared group once more, for a recipe's subclass of it that begins with another value."""
    info = group.model_fields[name]
    limits: dict[str, Any] = {}
    for limit in info.metadata:
        limits |= asdict(limit)
    extra: Any = info.json_schema_extra
    return Field(default, title=info.title, description=info.description, json_schema_extra=extra, **limits)
