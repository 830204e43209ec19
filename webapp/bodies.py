"""Django keeps the whole body of a request before anybody has asked who sends it: so there is a limit before Django.
Larger files come in parts (jobs/views/datasets.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class LimitedBodies:
    """An ASGI application whose requests have bodies of at most `limit` bytes; others are answered with 413."""

    def __init__(self, app: App, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not announced.isdigit() or int(announced) > self._limit:
            await _refuse(send)
            return
        read, refused = 0, False

        async def counted() -> Any:
            nonlocal read, refused
            message = await receive()
            read += len(message.get("body", b""))
            if read <= self._limit:
                return message
            if not refused:
                refused = True
                await _refuse(send)
            return {"type": "http.disconnect"}

        async def answered(message: Message) -> None:
            if not refused:
                await send(message)

        await self._app(scope, counted, answered)


async def _refuse(send: Send) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": b"The request is too large.\n"})
