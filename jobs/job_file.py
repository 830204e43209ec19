"""A job as a YAML file: name, recipe, dataset, settings. What is left out has its default."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from django.contrib.auth.models import User

from jobs import services
from jobs.models import Dataset, Job

KEYS = {"name": str, "recipe": str, "dataset": (str, int), "priority": int, "settings": dict}


@dataclass
class JobFile:
    name: str
    recipe: str = "text_classification"
    dataset: str | int | None = None
    priority: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> JobFile:
        """Raises services.Refused with what is wrong, by field."""
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise services.Refused({"": f"{path} cannot be read: {error.strerror}."}) from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise services.Refused({"": f"{path} is not YAML: {error}"}) from None
        return cls.of(content)

    @classmethod
    def of(cls, content: Any) -> JobFile:
        if not isinstance(content, dict):
            raise services.Refused({"": f"A job has the keys {', '.join(KEYS)}."})
        errors = {}
        for key, value in content.items():
            if key not in KEYS:
                errors[str(key)] = f"There is no such key; known: {', '.join(KEYS)}."
            elif isinstance(value, bool) or not isinstance(value, KEYS[key]):  # type: ignore[arg-type]
                errors[key] = f"Cannot be “{value}”."
        if "name" not in content:
            errors["name"] = "Give the job a name."
        if errors:
            raise services.Refused(errors)
        return cls(**content)

    def set(self, dotted: str, value: Any) -> None:
        """One setting, such as "optimizer.learning_rate"; whether there is such a one is checked with the rest."""
        *groups, last = dotted.split(".")
        inner = self.settings
        for group in groups:
            inner = inner.setdefault(group, {})
            if not isinstance(inner, dict):
                raise services.Refused({dotted: f"“{group}” is no group of settings."})
        inner[last] = value

    def submit(self, *, owner: User) -> Job:
        """Raises services.Refused."""
        return services.submit(
            owner=owner,
            name=self.name,
            recipe=self.recipe,
            dataset=self._dataset(owner),
            settings=self.settings,
            actor=owner,
            priority=self.priority,
        )

    def _dataset(self, owner: User) -> Dataset | None:
        """By number, or the newest of the name."""
        if self.dataset is None:
            return None
        visible = Dataset.objects.visible_to(owner)
        if isinstance(self.dataset, int):
            found = visible.filter(pk=self.dataset).first()
        else:
            found = visible.ready().filter(name=self.dataset).order_by("-pk").first()
        if found is None:
            names = sorted(set(visible.values_list("name", flat=True)))
            raise services.Refused(
                {"dataset": f"There is no dataset “{self.dataset}” for {owner}; known: {', '.join(names) or 'none'}."}
            )
        return found
