"""How what a check found is written on pages."""

from __future__ import annotations

import re
from typing import Any

from django import template
from django.utils.translation import gettext as _

from jobs import texts
from jobs.models import Dataset
from jobs.templatetags.evenkeel import number
from workers.contract.datasets import Finding
from workers.datasets.parsing import BadRow

register = template.Library()


@register.filter
def finding_text(finding: Finding) -> str:
    return texts.filled(finding.template, finding.values)


@register.filter
def fault(row: BadRow) -> str:
    """What is wrong with one row: the sentence without its count."""
    return re.sub(r"\s*[:：]\s*%\(count\)d.*$", "", _(row.template)) % row.values


@register.filter
def state_label(state: str) -> str:
    return str(Dataset.State(state).label)


@register.filter
def cell(values: dict[str, Any], column: str) -> str:
    value = values.get(column, "")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = " ".join(value[:200])
    text = "" if value is None else str(value)
    return text if len(text) <= 120 else f"{text[:119]}…"


@register.filter
def role(chosen: dict[str, Any], column: str) -> Any:
    """What a column was chosen as; nothing if it was not."""
    return chosen.get(column, "")


@register.filter
def said(value: Any) -> str:
    """A target or a label."""
    return number(value) if isinstance(value, float) else str("" if value is None else value)


@register.filter
def few_numbers(values: list[float]) -> str:
    return "  ".join(f"{value:.4g}" for value in values)
