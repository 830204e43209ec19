"""What hosts said (workers/contract/texts.py), in the reader's language."""

from __future__ import annotations

from functools import reduce
from typing import Any

from django.utils.translation import get_language
from django.utils.translation import gettext as _

from workers.contract.records import from_json_number


def in_words(english: str, said: Any) -> str:
    """In the language that is active now. English is what the host wrote; what cannot be translated stays so.

    A host's template is only ever looked up: what is filled in is the catalogue's own text.
    """
    if not said or not isinstance(said, list) or (get_language() or "en").startswith("en"):
        return english
    try:
        return _sentences(said)
    except (_Unknown, AttributeError, KeyError, TypeError, ValueError):
        return english


class _Unknown(Exception):
    pass


def _sentences(said: list[Any]) -> str:
    texts = [_one(part) for part in said]
    return reduce(lambda before, next: _("%(before)s %(next)s") % {"before": before, "next": next}, texts)


def _one(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    template = str(part["template"])
    known = _(template) if template else template
    if known == template:
        raise _Unknown
    return known % {name: _value(value) for name, value in part["values"].items()}


def _value(value: Any) -> Any:
    return _sentences(value) if isinstance(value, list) else from_json_number(value)
