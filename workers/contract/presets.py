"""A preset: values that go together, under a name. A recipe declares its own; the form fills them in and shows what
was changed since. What a preset does not name (columns, model, devices) is left as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    name: str
    title: str
    help: str
    # Dotted name of a setting -> value, as in "optimizer.learning_rate".
    values: dict[str, Any]

    def over(self, settings: dict[str, Any]) -> dict[str, Any]:
        """`settings` (nested) with the values of this preset in their places."""
        filled = {key: dict(value) if isinstance(value, dict) else value for key, value in settings.items()}
        for dotted, value in self.values.items():
            group, _, name = dotted.partition(".")
            filled.setdefault(group, {})[name] = value
        return filled
