"""What simple models reach on a dataset's dev split, as the check measured it. Of numeric sequences a name begins with the goal."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.models import Dataset

TITLES: dict[str, str | Promise] = {
    "majority": gettext_lazy("Always the commonest label"),
    "bag_of_characters_logistic_regression": gettext_lazy("Logistic regression on single characters"),
    "regression/median": gettext_lazy("Always the median target"),
    "regression/summaries": gettext_lazy("Linear regression on a few numbers per sequence"),
    "classification/majority": gettext_lazy("Always the commonest label"),
    "classification/summaries": gettext_lazy("Logistic regression on a few numbers per sequence"),
    "next_value/median": gettext_lazy("Next value: always the median"),
    "number/median": gettext_lazy("Always the median number"),
    "number/ridge_on_characters": gettext_lazy("Linear regression on single characters"),
    "entities/most_frequent_tag": gettext_lazy("Each token's most frequent tag"),
    "tags/most_frequent_tag": gettext_lazy("Each token's most frequent tag"),
    "tags/majority": gettext_lazy("Always the commonest tag"),
    "next_value/last_value": gettext_lazy("Next value: the same as the last"),
    "cer/commonest_text": gettext_lazy("Always the commonest text"),
    "cer/nearest_line": gettext_lazy("The text of the training line that looks most alike"),
    "pixels_logistic_regression": gettext_lazy("Logistic regression on 8 × 8 pixels"),
}
ERRORS = ("regression", "next_value", "number", "cer")


@dataclass(frozen=True)
class Baseline:
    name: str
    title: str
    value: float
    is_share: bool  # an accuracy, or F1 of entities; else a mean absolute error

    @property
    def unit(self) -> str:
        if self.name.startswith("entities/"):
            return _("F1 of entities")
        if self.name.startswith("cer/"):
            return _("character error rate")
        return _("accuracy") if self.is_share else _("mean absolute error")


def of_dataset(dataset: Dataset) -> list[Baseline]:
    return [
        Baseline(name, str(TITLES.get(name, name.replace("_", " "))), float(value), name.split("/")[0] not in ERRORS)
        for name, value in (dataset.statistics.get("baselines") or {}).items()
    ]


def for_goal(dataset: Dataset, goal: str) -> dict[str, float]:
    """Those that a job with this goal is compared with, by the last part of their names. What the next value is depends on
    the job's settings; its trainer says what has to be beaten."""
    values = dataset.statistics.get("baselines") or {}
    if goal == "next_value":
        return {}
    if dataset.kind == Dataset.Kind.NUMBERS:
        goal = "number"
    if dataset.kind == Dataset.Kind.TOKENS:
        goal = "tags" if "tags/majority" in values else "entities"
    return {name.rpartition("/")[2]: value for name, value in values.items() if name.rpartition("/")[0] == goal}
