from __future__ import annotations

from typing import Any


async def body(response: Any) -> bytes:
    """All of an asynchronous stream."""
    return b"".join([chunk async for chunk in response.streaming_content])
