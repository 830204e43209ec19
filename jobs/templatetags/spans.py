"""Texts with their spans, each marked and named."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobs.spans import colour

register = template.Library()


@register.filter
def spans(parts: list[list[Any]], kinds: list[str]) -> SafeString:
    """[text, type or ""] each."""
    return format_html_join("", "{}", ((_part(str(text), str(kind), kinds),) for text, kind in parts or ()))


def _part(text: str, kind: str, kinds: list[str]) -> str:
    if not kind:
        return text
    return format_html('<mark class="span c{}">{}<small>{}</small></mark>', colour(kind, kinds), text, kind)


@register.filter
def tag_colour(kind: str, kinds: list[str]) -> int:
    return colour(kind, kinds)
