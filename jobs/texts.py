"""What hosts said (workers/contract/texts.py), in the reader's language."""

from __future__ import annotations

import re
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
    except (_Unknown, *_MISFIT, AttributeError, RecursionError):
        return english


# What does not fit a template; infinity, where there is a place for a whole number, is the overflow.
_MISFIT = (KeyError, TypeError, ValueError, OverflowError)
# Of a host's own templates: one number would fill the page, or all memory.
_WIDE = re.compile(r"%(\([^)]*\))?[-+ #0]*(\*|[0-9]{3}|[0-9]*\.(\*|[0-9]{3}))")


def filled(template: str, values: Any) -> str:
    """A host's one sentence in the reader's language; what does not fit together is shown as it is."""
    text = _(template) if template else ""
    if _WIDE.search(text):
        return template
    try:
        sentence: str = text % values
    except _MISFIT:
        return template
    return sentence


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
