"""The limit in front of Django."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from webapp.bodies import LimitedBodies


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_above_the_limit_is_refused_before_anybody_keeps_it(announced: bool) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            seen.append(len(message["body"]))
            if not message["more_body"]:
                break
        if message["type"] == "http.request":
            await send({"type": "http.response.start", "status": 200, "headers": []})

    def ask(sizes: list[int]) -> int:
        answers: list[Any] = []
        messages = [
            {"type": "http.request", "body": b"x" * n, "more_body": i + 1 < len(sizes)} for i, n in enumerate(sizes)
        ]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            answers.append(message)

        headers = [(b"content-length", str(sum(sizes)).encode())] if announced else []
        asyncio.run(LimitedBodies(app, 100)({"type": "http", "headers": headers}, receive, send))
        return int(answers[0]["status"])

    assert ask([50, 50]) == 200
    assert ask([50, 51]) == 413
    assert sum(seen) <= 150
