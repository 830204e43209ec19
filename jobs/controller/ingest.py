"""Telemetry into the database, exactly once in effect.

A round: read entries of the stream, apply them in one transaction together with the cursors that say how
far each byte stream is stored, then acknowledge, delete the entries and announce. A crash before the
commit leaves everything as it was; after it, the same entries come again and are trimmed to nothing.

What cannot be applied must not stop the rest for ever. An entry that is no entry is dropped; a line of
a report or of events that makes no sense is passed over with an event that says where it was; a step
record that makes no sense is kept as it is, and is not charted. A kind of stream that only a newer
host knows is acknowledged and not kept, or its supervisor would send it for ever. Only the database or Redis being away
stops a round, and then the whole round is done again.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import redis
from django.db import DataError, Error, IntegrityError, ProgrammingError, connection, transaction
from redis.exceptions import RedisError

from jobs import bus, device_samples, logs
from jobs.controller import reports, steps
from jobs.controller.cursor import accept
from jobs.models import Attempt, Cursor, JobEvent
from jobs.steps import packed, store
from workers.contract.messages import (
    TELEMETRY_STREAM,
    Announcement,
    Control,
    Kind,
    Request,
    ack_key,
    request_key,
)

logger = logging.getLogger(__name__)

# Of one round: enough to catch up fast, and little enough for a transaction of well under a second.
MOST_ENTRIES = 1024
MOST_BYTES = 16 * 2**20
_READ = 64
# One writer at a time in SQLite: leave the others room between two rounds.
SPACING_S = {"sqlite": 0.25}
DEFAULT_SPACING_S = 0.05
KEPT_S = 86_400
# As wide as the cursor's column.
_STREAM = re.compile(r"[a-z_]{1,10}")

_CHANGED = {Kind.LOG: {"log"}, Kind.STEPS: {"steps"}, Kind.EVENTS: {"events"}, Kind.REPORT: {"events"}}


@dataclass(frozen=True)
class Entry:
    id: bytes
    attempt: str
    rank: int
    kind: Kind | str  # a string: a newer host's
    offset: int
    body: bytes

    @classmethod
    def of(cls, id: bytes, fields: dict[bytes, bytes]) -> Entry:
        """Raises KeyError or ValueError if it is none."""
        kind, body, offset = _kind(fields[b"kind"].decode()), fields[b"body"], int(fields[b"offset"])
        if offset < 0 or not body or (kind is not Kind.LOG and not body.endswith(b"\n")):
            raise ValueError("not whole lines at an offset")
        attempt = fields[b"attempt"].decode("ascii")
        if not attempt or len(attempt) > 32:
            raise ValueError("not a uid")
        rank = int(fields[b"rank"])
        if abs(rank) > 100_000:
            raise ValueError("not a rank")
        return cls(id, attempt, rank, kind, offset, body)


def _kind(name: str) -> Kind | str:
    if name in set(Kind):
        return Kind(name)
    if not _STREAM.fullmatch(name):
        raise ValueError("not a kind of stream")
    return name


@dataclass
class Round:
    """What one round did, for those who act after the commit."""

    entries: list[bytes] = field(default_factory=list)
    acks: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    unknown: set[str] = field(default_factory=set)
    changed: dict[tuple[int, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    attempts: set[int] = field(default_factory=set)


class Ingest:
    """Call `run` again and again; it returns at once when there is nothing, or when it is too early."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._next_at = 0.0
        self._spacing_s = SPACING_S.get(connection.vendor, DEFAULT_SPACING_S)

    def wait_s(self) -> float:
        """How long until `run` will read again."""
        return max(0.0, self._next_at - time.monotonic())

    def run(self) -> Round | None:
        if self.wait_s():
            return None
        entries, dropped = self._read()
        if not entries and not dropped:
            return None
        self._next_at = time.monotonic() + self._spacing_s
        done = apply(entries) if entries else Round()
        done.entries += dropped
        self._tell(done)
        return done

    def _read(self) -> tuple[list[Entry], list[bytes]]:
        entries: list[Entry] = []
        dropped: list[bytes] = []
        after, size = b"0", 0
        while len(entries) < MOST_ENTRIES and size < MOST_BYTES:
            answer = cast(Any, self._redis.xread({TELEMETRY_STREAM: after}, count=_READ))
            found = _entries_of(answer)
            for id, fields in found:
                after = id
                try:
                    entry = Entry.of(id, fields)
                except (KeyError, ValueError, AttributeError) as error:
                    logger.warning("Telemetry entry %s is dropped: %s", id.decode(), error)
                    dropped.append(id)
                    continue
                entries.append(entry)
                size += len(entry.body)
            if len(found) < _READ:
                break
        return entries, dropped

    def _tell(self, done: Round) -> None:
        """Acknowledge, delete, announce, in this order: whoever is told finds it stored."""
        pipe = self._redis.pipeline(transaction=False)
        for uid, offsets in done.acks.items():
            pipe.hset(ack_key(uid), mapping=cast(Any, offsets))
            pipe.expire(ack_key(uid), KEPT_S)
        for uid in done.unknown:
            # Nobody knows it any more (the database is an older one): its supervisor must stop.
            pipe.set(request_key(uid), Control(leave=Request.SUPERSEDE).model_dump_json(), ex=KEPT_S)
        for at in range(0, len(done.entries), 512):
            pipe.xdel(TELEMETRY_STREAM, *done.entries[at : at + 512])
        pipe.execute()
        bus.announce(
            self._redis,
            (
                Announcement(job=job, attempt=uid, changed=sorted(changed))
                for (job, uid), changed in done.changed.items()
            ),
        )


def apply(entries: list[Entry]) -> Round:
    """All `entries`, in one transaction. Database errors that concern no single entry are the caller's."""
    with transaction.atomic():
        done = Round(entries=[entry.id for entry in entries])
        uids = {entry.attempt for entry in entries}
        attempts = {attempt.uid: attempt for attempt in Attempt.objects.select_for_update().filter(uid__in=uids)}
        done.unknown = uids - attempts.keys()
        cursors = {
            (cursor.attempt_id, cursor.rank, cursor.kind): cursor
            for cursor in Cursor.objects.select_for_update().filter(attempt__in=list(attempts.values()))
        }
        for attempt, rank, kind, pieces in _streams(entries, attempts):
            cursor = cursors.get((attempt.pk, rank, str(kind)))
            if cursor is None:
                cursor = Cursor.objects.get_or_create(attempt=attempt, rank=rank, kind=str(kind))[0]
                cursors[attempt.pk, rank, str(kind)] = cursor
            body, gap = accept(cursor.offset, pieces)
            if gap:
                logger.info("%s %d/%s: not yet at %d, refused what is beyond", attempt, rank, kind, cursor.offset)
            if body:
                changed = _take(attempt, cursor, kind, body)
                done.changed[attempt.job_id, attempt.uid] |= changed
                done.attempts.add(attempt.pk)
            done.acks[attempt.uid][f"{rank}/{kind}"] = cursor.offset
    return done


def _streams(
    entries: list[Entry], attempts: dict[str, Attempt]
) -> Iterator[tuple[Attempt, int, Kind | str, list[tuple[int, bytes]]]]:
    """Records and logs put together per stream, then reports and events in the order in which they were said.

    Records first, so that an attempt's last steps are there when its end is.
    """
    whole: dict[tuple[str, int, Kind | str], list[tuple[int, bytes]]] = defaultdict(list)
    said: list[Entry] = []
    for entry in entries:
        if entry.attempt not in attempts:
            continue
        if entry.kind not in (Kind.EVENTS, Kind.REPORT):
            whole[entry.attempt, entry.rank, entry.kind].append((entry.offset, entry.body))
        else:
            said.append(entry)
    for (uid, rank, kind), pieces in whole.items():
        yield attempts[uid], rank, kind, pieces
    for entry in said:
        yield attempts[entry.attempt], entry.rank, entry.kind, [(entry.offset, entry.body)]


def _take(attempt: Attempt, cursor: Cursor, kind: Kind | str, body: bytes) -> set[str]:
    """Applies accepted bytes and moves the cursor behind them."""
    offset, lines = cursor.offset, cursor.lines
    if kind is Kind.LOG:
        logs.append(attempt.pk, cursor.rank, offset, body)
        changed = {"log"}
        cursor.lines += body.count(b"\n")
    elif kind is Kind.DEVICES:
        changed = _take_devices(attempt, cursor, body)
    elif kind is Kind.STEPS:
        changed = _take_steps(attempt, cursor, body)
    elif kind not in set(Kind):
        if not offset:
            logger.warning(
                "%s %d/%s: a kind of stream that this version does not know; not kept", attempt, cursor.rank, kind
            )
        changed = set()
    else:
        changed = _take_lines(attempt, cursor, body)
    moved = Cursor.objects.filter(pk=cursor.pk, offset=offset, lines=lines).update(
        offset=offset + len(body), lines=cursor.lines, state=cursor.state
    )
    if moved != 1:
        raise MovedElsewhere(f"{attempt} {cursor.rank}/{kind}")
    cursor.offset = offset + len(body)
    return changed


class MovedElsewhere(Exception):
    """Another controller has taken the same bytes: everything of this round is rolled back and read again."""


def _take_steps(attempt: Attempt, cursor: Cursor, body: bytes) -> set[str]:
    state, lines = orjson.dumps(cursor.state), cursor.lines
    try:
        with transaction.atomic():
            changed = steps.apply(attempt, cursor, body)
            orjson.dumps(cursor.state)  # what its column could not hold shows here, and not for all attempts at once
            return changed
    except Exception as error:
        if _is_the_databases(error):
            raise
        logger.exception("%s %d/steps at %d: kept as it is, not charted", attempt, cursor.rank, cursor.offset)
        cursor.state, cursor.lines = orjson.loads(state), lines
        batch = packed.unreadable(body)
        store.append(attempt.pk, cursor.rank, cursor.lines, batch)
        cursor.lines += len(batch)
        _not_applied(attempt, cursor, Kind.STEPS, cursor.offset, error)
        return {"steps", "events"}


def _take_devices(attempt: Attempt, cursor: Cursor, body: bytes) -> set[str]:
    cursor.lines += body.count(b"\n")
    try:
        with transaction.atomic():
            device_samples.append(attempt, -1 - cursor.rank, body)
    except Exception as error:
        if _is_the_databases(error):
            raise
        # A gap in a chart, and no event of the job's.
        logger.exception("%s %d/devices at %d is passed over", attempt, cursor.rank, cursor.offset)
        return set()
    return {"devices"}


def _take_lines(attempt: Attempt, cursor: Cursor, body: bytes) -> set[str]:
    changed: set[str] = set()
    position = cursor.offset
    seen = cursor.state.setdefault("seen", {})
    for line in body[:-1].split(b"\n"):
        try:
            with transaction.atomic():
                # PostgreSQL keeps no NUL in texts, and an end must not be lost for one.
                said = orjson.loads(line.replace(b"\\u0000", b"\\ufffd"))
                changed |= reports.apply(attempt, cursor.rank, said, seen)
        except Exception as error:
            if _is_the_databases(error):
                raise
            kind = Kind(cursor.kind)
            logger.warning("%s %d/%s at %d is passed over: %r", attempt, cursor.rank, kind, position, error)
            if not isinstance(error, (ValueError, KeyError, TypeError)):
                logger.exception("unexpected")
            _not_applied(attempt, cursor, kind, position, error)
            attempt.refresh_from_db()
            changed.add("events")
        position += len(line) + 1
        cursor.lines += 1
    return changed


# A faulty controller or trainer must not fill the table of events either.
_MOST_NOT_APPLIED = 100


def _not_applied(attempt: Attempt, cursor: Cursor, kind: Kind, position: int, error: Exception) -> None:
    number = cursor.state.get("not_applied", 0) + 1
    cursor.state["not_applied"] = number
    if number <= _MOST_NOT_APPLIED:
        JobEvent.objects.create(
            job_id=attempt.job_id,
            attempt=attempt,
            kind="not_applied",
            rank=cursor.rank if cursor.rank >= 0 else None,
            actor_name="controller",
            message=f"A line of {cursor.rank}/{kind} at byte {position} makes no sense and was passed over: "
            f"{type(error).__name__}: {str(error)[:300]}",
        )


def _is_the_databases(error: Exception) -> bool:
    """Locked, gone, full, or changed by another controller: nothing that this entry is to blame for.

    A value that a column refuses is.
    """
    if isinstance(error, store.Taken | MovedElsewhere):
        return True
    return isinstance(error, Error | RedisError) and not isinstance(
        error, DataError | IntegrityError | ProgrammingError
    )


def _entries_of(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """XREAD's answer of one stream: a list of pairs, or a dictionary in newer protocols."""
    if not answer:
        return []
    if isinstance(answer, dict):
        (found,) = answer.values()
        return list(found[0]) if len(found) == 1 and isinstance(found[0], list) else list(found)
    return list(answer[0][1])
