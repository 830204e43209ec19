"""Output of ranks and launchers, stored in chunks at their byte offsets."""

from __future__ import annotations

from jobs.models import LogChunk

# A job that writes a line a minute would else get a row for each.
CHUNK_BYTES = 32 * 2**10


def append(attempt: int, rank: int, offset: int, body: bytes) -> None:
    """`body` at `offset`, which is where what is stored ends; small pieces are put together."""
    last = (
        LogChunk.objects.filter(attempt=attempt, rank=rank).order_by("-offset").values("pk", "offset", "length").first()
    )
    if last is not None and last["length"] + len(body) <= CHUNK_BYTES:
        chunk = LogChunk.objects.get(pk=last["pk"])
        chunk.body, chunk.length = bytes(chunk.body) + body, last["length"] + len(body)
        chunk.save(update_fields=["body", "length"])
    else:
        LogChunk.objects.create(attempt_id=attempt, rank=rank, offset=offset, length=len(body), body=body)
