"""Static files under ASGI. WhiteNoise streams them from a synchronous iterator, which Django has to collect in a
thread, with a warning, before the first byte; ours are small, so they are sent whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware  # type: ignore[import-untyped]
from whitenoise.responders import StaticFile  # type: ignore[import-untyped]


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Empty without collectstatic: the files are then found where they lie. WhiteNoise warns if it is missing.
        Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
        super().__init__(*args, **kwargs)

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        answer = static_file.get_response(request.method, request.META)
        content = b""
        if answer.file is not None:
            with answer.file as file:
                content = file.read()
        response = HttpResponse(content, status=int(answer.status))
        del response["Content-Type"]
        for name, value in answer.headers:
            response[name] = value
        if response.status_code == 200 and request.method == "GET":
            # The file may have been replaced since the server started and measured it.
            response["Content-Length"] = str(len(content))
        return response
