from __future__ import annotations

from typing import Any


async def body(response: Any) -> bytes:
    """All of an asynchronous stream, which then lets go of its file."""
    try:
        return b"".join([chunk async for chunk in response.streaming_content])
    finally:
        let_go(response)


def let_go(response: Any) -> None:
    """What `close` does to files, without the end of a request, which would close the test's database connection."""
    for close in response._resource_closers:
        close()
