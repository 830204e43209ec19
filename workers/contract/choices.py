"""Sets of words: what Python 3.11 calls StrEnum, for 3.10 too."""

from __future__ import annotations

from enum import Enum


class Choice(str, Enum):
    """A member is the string that it is written as, in JSON, in logs and in sentences."""

    def __str__(self) -> str:
        return str(self.value)
