"""A user of a stack: HTTP as a browser sends it, without the pages."""

from __future__ import annotations

import http.client
import time
from typing import Any
from urllib.parse import urlencode

NAME, PASSWORD = "owner", "only-for-the-tests"


class Visitor:
    """Logged in as the stack's owner."""

    def __init__(self, url: str) -> None:
        from django.contrib.auth.hashers import PBKDF2PasswordHasher
        from django.contrib.auth.models import User

        # As the stack hashes: tests have a faster way, which it does not know.
        User.objects.filter(username=NAME).update(password=PBKDF2PasswordHasher().encode(PASSWORD, "salt"))
        self._connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=120)
        self._used = 0.0
        token = "a" * 32
        self._headers = {"Cookie": f"csrftoken={token}", "X-CSRFToken": token}
        answer = self.post("/login/", {"username": NAME, "password": PASSWORD})
        answer.read()
        session = next(value for value in answer.headers.get_all("Set-Cookie", []) if value.startswith("sessionid="))
        self._headers["Cookie"] += f"; {session.partition(';')[0]}"

    def ask(self, method: str, url: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
        """Read the answer before the next question."""
        if time.monotonic() - self._used > 2:
            # The server closes what is idle for 5 s.
            self._connection.close()
        self._connection.request(method, url, body, self._headers | headers)
        self._used = time.monotonic()
        return self._connection.getresponse()

    def post(self, url: str, data: dict[str, Any], **headers: str) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return self.ask("POST", url, urlencode(data).encode(), **headers)

    def close(self) -> None:
        self._connection.close()
