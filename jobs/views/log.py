"""What a rank wrote to its output: the tail, a search, and the whole as a download."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from django.db import close_old_connections
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from jobs.models import Attempt, Cursor, LogChunk
from jobs.streaming import download
from jobs.views.rows import Asked, attempt_of, job_for, whole_number
from workers.contract.messages import Kind

TAIL_BYTES, MATCHES = 48 * 1024, 300
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@require_safe
def job_log(request: Asked, pk: int) -> HttpResponse:
    """The last lines of a rank, or its newest lines that contain `q`."""
    job = job_for(request, pk)
    attempt = attempt_of(job, request.GET.get("attempt"))
    context = {"job": job, "attempt": attempt, **log_context(attempt, request)}
    return render(request, "jobs/detail_log.html" if request.htmx else "jobs/log.html", context)


def log_context(attempt: Attempt, request: Asked) -> dict[str, object]:
    ranks = log_ranks(attempt)
    rank = whole_number(request.GET.get("log_rank"), ranks[0] if ranks else 0)
    text = request.GET.get("q", "").strip()
    size = _size(attempt, rank)
    if text:
        lines = search(attempt, rank, text)
        cut = len(lines) == MATCHES
    else:
        start = max(size - TAIL_BYTES, 0)
        tail = _clean(_read(attempt, rank, start, TAIL_BYTES))
        # A tail that begins inside a line begins with the next one.
        lines = (tail.partition("\n")[2] if start else tail).splitlines()
        cut = start > 0
    return {
        "log_ranks": ranks,
        "log_rank": rank,
        "log_text": text,
        "log_lines": lines,
        "log_cut": cut,
        "log_size": size,
    }


def log_ranks(attempt: Attempt) -> list[int]:
    """Ranks, then launchers, that have written anything."""
    written = Cursor.objects.filter(attempt=attempt, kind=Kind.LOG.value, offset__gt=0).values_list("rank", flat=True)
    return sorted(written, key=lambda rank: (rank < 0, abs(rank)))


def search(attempt: Attempt, rank: int, text: str) -> list[str]:
    """The newest lines with `text`, whatever its case, each with its number."""
    wanted = text.casefold()
    found: deque[str] = deque(maxlen=MATCHES)
    for number, line in enumerate(_lines(attempt, rank), 1):
        if wanted in line.casefold():
            found.append(f"{number}: {line}")
    return list(found)


@require_safe
def job_log_download(request: Asked, pk: int) -> HttpResponseBase:
    job = job_for(request, pk)
    attempt = attempt_of(job, request.GET.get("attempt"))
    rank = whole_number(request.GET.get("log_rank"), 0)
    size = _size(attempt, rank)
    if not size or attempt.log_removed_at is not None:
        raise Http404

    def read(offset: int, length: int) -> bytes:
        try:
            return _read(attempt, rank, offset, length)
        finally:
            close_old_connections()

    name = f"job-{job.pk}-attempt-{attempt.number}-" + (f"rank-{rank}" if rank >= 0 else f"launcher-{-1 - rank}")
    return download(request, read, size, filename=f"{name}.log", content_type="text/plain; charset=utf-8")


def _size(attempt: Attempt, rank: int) -> int:
    cursor = Cursor.objects.filter(attempt=attempt, rank=rank, kind=Kind.LOG.value).first()
    return cursor.offset if cursor else 0


def _read(attempt: Attempt, rank: int, offset: int, length: int) -> bytes:
    chunks = LogChunk.objects.filter(attempt=attempt, rank=rank, offset__lt=offset + length)
    before = chunks.filter(offset__lte=offset).order_by("-offset").values_list("offset", flat=True).first()
    parts = []
    for start, body in chunks.filter(offset__gte=before or 0).order_by("offset").values_list("offset", "body"):
        parts.append(bytes(body)[max(offset - start, 0) : max(offset + length - start, 0)])
    return b"".join(parts)


def _lines(attempt: Attempt, rank: int) -> Iterator[str]:
    rest = b""
    chunks = LogChunk.objects.filter(attempt=attempt, rank=rank).order_by("offset").values_list("body", flat=True)
    for body in chunks.iterator(chunk_size=16):
        *whole, rest = (rest + bytes(body)).split(b"\n")
        yield from map(_clean, whole)
    if rest:
        yield _clean(rest)


def _clean(data: bytes) -> str:
    return _ESCAPES.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")
