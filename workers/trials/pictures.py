"""A picture that somebody tries a model with, in base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import TypeVar

from workers.contract.datasets import MOST_PIXELS
from workers.contract.trials import Failed
from workers.images import NoPicture, TooLarge

Decoded = TypeVar("Decoded")


def decoded(given: str, number: int, by: Callable[[bytes], Decoded]) -> Decoded:
    """`by` of the picture's bytes; it may raise NoPicture. Raises Failed with what is wrong with picture `number`, from 1."""
    try:
        return by(base64.b64decode(given, validate=True))
    except TooLarge as error:
        raise Failed(
            "Picture %(number)d has %(width)d × %(height)d pixels, and at most %(limit)d million are taken: make it smaller.",
            number=number,
            width=error.width,
            height=error.height,
            limit=MOST_PIXELS // 10**6,
        ) from None
    except (NoPicture, binascii.Error) as error:
        raise Failed(
            "Picture %(number)d cannot be decoded (%(said)s): save it anew as PNG or JPEG.",
            number=number,
            said=str(error)[:200],
        ) from None
