"""The only streaming responses, and downloads by the proxy in front. Django's own would read a whole file into memory under ASGI, or
keep a generator from yielding before it has ended; a lint rule keeps them out of everywhere else."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from django.conf import settings
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse  # noqa: TID251
from django.http.response import HttpResponseBase

CHUNK = 256 * 1024
# The proxy's internal location whose files are those of STORAGE_ROOT, see docs/deployment/nginx/site.conf.
HANDED_OVER = "/storage/"


def event_stream(events: AsyncIterator[bytes]) -> HttpResponseBase:
    """Server-sent events. `events` must not touch the ORM: an open stream would pin its connection."""
    response = StreamingHttpResponse(events, content_type="text/event-stream; charset=utf-8")
    response["Cache-Control"] = "no-cache, no-transform"
    response["X-Accel-Buffering"] = "no"
    return response


def download(
    request: HttpRequest,
    read: Callable[[int, int], bytes],
    size: int,
    *,
    filename: str,
    content_type: str,
    etag: str = "",
    inline: bool = False,
) -> HttpResponseBase:
    """Bytes 0 to `size` of whatever `read(offset, length)` reads, in a thread, a chunk at a time.

    One range (RFC 9110) is honoured, so that a broken download can go on.
    """
    first, last = 0, size - 1
    status = 200
    wanted = request.headers.get("Range", "")
    still_the_same = request.headers.get("If-Range", f'"{etag}"') == f'"{etag}"'
    if (
        wanted
        and still_the_same
        and (match := re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", wanted.strip()))
        and any(match.groups())
    ):
        start, end = match.groups()
        if start:
            first, last = int(start), min(int(end), size - 1) if end else size - 1
        else:
            first = max(size - int(end), 0)
        if first >= size or first > last:
            refused = HttpResponse(status=416)
            refused["Content-Range"] = f"bytes */{size}"
            return refused
        status = 206

    response = StreamingHttpResponse(_chunks(read, first, last), status=status, content_type=content_type)
    response["Content-Length"] = str(last - first + 1)
    response["Accept-Ranges"] = "bytes"
    _describe(response, filename, "inline" if inline else "attachment")
    if etag:
        response["ETag"] = f'"{etag}"'
    if status == 206:
        response["Content-Range"] = f"bytes {first}-{last}/{size}"
    return response


def generated(make: Callable[[], Iterator[bytes]], *, filename: str, content_type: str) -> HttpResponseBase:
    """A download of unknown size, made while it is sent, each piece in a thread. `make`'s iterator may use the ORM, but no
    query of it may stay open between two pieces: each may come in another thread, and lets its connection go.

    What breaks on the way leaves the client with a download that it sees to be incomplete."""
    response = StreamingHttpResponse(_made(make), content_type=content_type)
    response["X-Accel-Buffering"] = "no"
    _describe(response, filename)
    return response


def file_download(
    request: HttpRequest, path: Path, *, filename: str, content_type: str, etag: str = ""
) -> HttpResponseBase:
    """`path` as a download; FileNotFoundError if it is not there, before anything is sent.

    With PROXY_DOWNLOADS the answer only names the file to the proxy, which then also sees to ranges.
    """
    file = path.open("rb", buffering=0)
    if settings.PROXY_DOWNLOADS and path.is_relative_to(root := settings.STORAGE_ROOT.resolve()):
        file.close()
        handed_over = HttpResponse(content_type=content_type)
        handed_over["X-Accel-Redirect"] = HANDED_OVER + quote(path.relative_to(root).as_posix())
        _describe(handed_over, filename)
        return handed_over
    response = download(
        request,
        # At its own offset, so that an abandoned read in a thread disturbs nobody.
        lambda offset, length: os.pread(file.fileno(), length, offset),
        os.fstat(file.fileno()).st_size,
        filename=filename,
        content_type=content_type,
        etag=etag,
    )
    response._resource_closers.append(file.close)  # type: ignore[attr-defined]
    return response


def plain_name(name: str) -> str:
    """For a file: without spaces and whatever else a shell or a file system would take amiss; letters of all scripts stay."""
    return re.sub(r"[^\w.-]+", "_", name)


def _describe(response: HttpResponseBase, filename: str, disposition: str = "attachment") -> None:
    response["Cache-Control"] = "private, no-transform"
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Disposition"] = f"{disposition}; filename*=UTF-8''{quote(filename)}"


async def _made(make: Callable[[], Iterator[bytes]]) -> AsyncIterator[bytes]:
    pieces: Iterator[bytes] | None = None

    def some() -> bytes | None:
        """The next pieces, CHUNK bytes or more; None at the end."""
        nonlocal pieces
        try:
            pieces = pieces or make()
            taken: list[bytes] = []
            while sum(map(len, taken)) < CHUNK:
                piece = next(pieces, None)
                if piece is None:
                    break
                taken.append(piece)
            return b"".join(taken) or None
        finally:
            close_old_connections()

    while (chunk := await asyncio.to_thread(some)) is not None:
        yield chunk


async def _chunks(read: Callable[[int, int], bytes], first: int, last: int) -> AsyncIterator[bytes]:
    position = first
    while position <= last:
        chunk = await asyncio.to_thread(read, position, min(CHUNK, last - position + 1))
        if not chunk:
            return  # it has become shorter; the client sees an incomplete download, not a wrong one
        position += len(chunk)
        yield chunk
