"""Typed reads of environment variables: a wrong value is one clear sentence, at start."""

from __future__ import annotations

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def text(name: str, default: str) -> str:
    return os.environ.get(name) or default


def boolean(name: str, default: bool) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if not value:
        return default
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise ImproperlyConfigured(f"{name} must be true or false, not “{value}”.")


def integer(name: str, default: int) -> int:
    value = os.environ.get(name, "").strip()
    try:
        return int(value) if value else default
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a whole number, not “{value}”.") from None


def number(name: str, default: float) -> float:
    value = os.environ.get(name, "").strip()
    try:
        return float(value) if value else default
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a number, not “{value}”.") from None


def words(name: str, default: list[str]) -> list[str]:
    value = os.environ.get(name, "")
    return [word.strip() for word in value.split(",") if word.strip()] if value else default


def path(name: str, default: Path) -> Path:
    return Path(os.environ.get(name) or default).expanduser().absolute()


def paths(name: str) -> tuple[Path, ...]:
    return tuple(Path(word).expanduser().absolute() for word in words(name, []))
