"""What is new, to every open page. One subscription to Redis per process; newer records are read once per
job, in a thread, and fanned out to the viewers' bounded queues.

Redis only says that something changed. If it says nothing, or is away, the rooms look by themselves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, get_args
from weakref import WeakKeyDictionary

import orjson
import redis.asyncio
from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError, close_old_connections
from django.utils import timezone
from redis.exceptions import RedisError

from jobs.models import Attempt
from jobs.steps.read import records as read_records
from workers.contract.messages import Change, live_channel
from workers.contract.records import SPIKE, dumps

STILL_S = 15.0  # keeps proxies from closing a quiet stream, and tells the page that it is not cut off
CHANGED_S = 1.0  # partials are refetched at most so often
# How often a room looks unasked; soon without Redis, or when an end is near.
LOOK_S, LOOK_SOON_S = 5.0, 1.0
# An EventSource comes back by itself; this makes it prove its access again now and then.
LIFETIME_S = 3600.0
QUEUE = 64
# Of one user and process: each holds a socket, and nobody reads so many pages. Others look every few seconds.
MOST_STREAMS = 50
# A viewer further behind than this fetches the chart again instead of every record.
CATCH_UP = 2000
# What the end of an attempt leaves behind arrives within this; later nobody waits for it.
SETTLING = timedelta(minutes=2)
EVERYTHING = get_args(Change)
COLUMNS = (
    "step", "seg", "applied", "epoch", "t", "loss", "loss_all", "lr", "grad_norm", "clip_norm", "clipped",
    "loss_scale", "found_inf", "skipped", "step_ms", "data_ms", "mem_mb",
)  # fmt: skip

log = logging.getLogger(__name__)
T = TypeVar("T")
Key = tuple[int, int]  # attempt, rank
# Threads of its own: long downloads in asyncio's shared pool must not delay live points.
_readers = ThreadPoolExecutor(2, thread_name_prefix="live")


def is_live(attempt: Attempt) -> bool:
    """Whether anything may still arrive. A finished attempt gets no stream."""
    if attempt.ended_at is None:
        return True
    return attempt.complete_at is None and timezone.now() - attempt.ended_at < SETTLING


def message(event: str, data: Any, id: int | None = None) -> bytes:
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {event}\ndata: ".encode() + dumps(data) + b"\n\n"


@dataclass(frozen=True)
class Batch:
    """Newer records of one attempt and rank, encoded once for all who watch them."""

    first: int
    last: int
    records: list[dict[str, Any]]
    message: bytes

    @staticmethod
    def of(records: list[dict[str, Any]]) -> Batch:
        columns = {name: [record.get(name) for record in records] for name in COLUMNS}
        columns["spike"] = [(record.get("extras") or {}).get(SPIKE) for record in records]
        first, last = records[0]["step"], records[-1]["step"]
        return Batch(first, last, records, message("steps", columns, last))

    def after(self, step: int) -> bytes:
        """The message, without what a viewer has already had."""
        if self.first > step:
            return self.message
        newer = [record for record in self.records if record["step"] > step]
        return Batch.of(newer).message if newer else b""


END = object()
GONE = object()  # who watches has been deactivated


@dataclass(eq=False)
class Viewer:
    key: Key
    sent: int  # newest step that was sent
    user: int = 0
    queue: asyncio.Queue[Batch | bytes | object] = field(default_factory=lambda: asyncio.Queue(QUEUE))
    overrun: bool = False

    def put(self, item: Batch | bytes | object) -> None:
        """Never waits: who reads too slowly loses what is queued, and is told to fetch the chart again."""
        if self.queue.full():
            self.overrun = True
            while not self.queue.empty():
                self.queue.get_nowait()
        self.queue.put_nowait(item)


class Room:
    """The viewers of one job, and the task that reads for them."""

    def __init__(self, hub: Hub, job: int) -> None:
        self.hub, self.job = hub, job
        self.viewers: set[Viewer] = set()
        self.positions: dict[Key, int] = {}  # newest step that was fanned out
        self.changed: set[str] = set()
        self.ending = False  # an attempt has ended and its last words are on their way
        self.wake = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    def announce(self, changed: Iterable[str]) -> None:
        self.changed.update(changed)
        self.wake.set()

    async def _run(self) -> None:
        told_at, untold = 0.0, set[str]()
        while True:
            look = LOOK_S if self.hub.connected and not self.ending else LOOK_SOON_S
            wait = told_at + CHANGED_S - time.monotonic() if untold else look
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.wake.wait(), max(wait, 0))
            self.wake.clear()
            fresh, self.changed = self.changed, set()
            if not fresh and not untold:
                fresh = {"status", "steps"}  # nobody said so; look anyway
            untold |= fresh
            if fresh:
                await self._read()
            if untold and time.monotonic() - told_at >= CHANGED_S:
                for viewer in self.viewers:
                    viewer.put(message("changed", sorted(untold)))
                told_at, untold = time.monotonic(), set()

    async def _read(self) -> None:
        wanted = {viewer.key for viewer in self.viewers}
        positions = {key: self.positions.get(key, 0) for key in wanted}
        users = {viewer.user for viewer in self.viewers}
        try:
            (newer, over, self.ending), welcome = await in_thread(lambda: (_newer(positions), _active(users)))
        except DatabaseError:
            log.warning("Could not read what is new of job %d; trying again.", self.job, exc_info=True)
            await asyncio.sleep(LOOK_SOON_S)
            return
        batches: dict[Key, Batch | bytes] = {}
        for key, (records, far_behind) in newer.items():
            if far_behind:
                # The chart endpoint sends those better. The rest goes on record by record.
                batches[key] = message("reset", {})
            elif records:
                batches[key] = Batch.of(records)
            if records:
                self.positions[key] = records[-1]["step"]
        for viewer in self.viewers:
            if viewer.key in batches:
                viewer.put(batches[viewer.key])
            if viewer.key[0] in over:
                viewer.put(END)
            if viewer.user and viewer.user not in welcome:
                viewer.put(GONE)


class Hub:
    """One per process: the rooms, and the one subscription that wakes them."""

    def __init__(self) -> None:
        self.rooms: dict[int, Room] = {}
        self.connected = False
        self.listener: asyncio.Task[None] | None = None

    def is_full_for(self, user: int) -> bool:
        return sum(viewer.user == user for room in self.rooms.values() for viewer in room.viewers) >= MOST_STREAMS

    async def watch(self, job: int, attempt: int, rank: int, after: int, user: int = 0) -> AsyncIterator[bytes]:
        """The events of one open page, until its attempt has ended or the page has gone."""
        viewer = Viewer((attempt, rank), after, user)
        room = self._enter(job, viewer)
        until = time.monotonic() + LIFETIME_S
        try:
            yield b"retry: 2000\n\n"
            # In the room first, then what came before: nothing falls between the two.
            if room.positions.setdefault(viewer.key, after) > after:
                records, far_behind = (await in_thread(lambda: _newer({viewer.key: after})))[0][viewer.key]
                viewer.overrun = far_behind
                if records and not far_behind:
                    viewer.sent = records[-1]["step"]
                    yield Batch.of(records).message
            # Nor does what was announced between the making of the page and now. While nothing is heard, it follows.
            if self.connected:
                yield message("changed", EVERYTHING)
            room.announce(["steps"])
            while time.monotonic() < until:
                if viewer.overrun:
                    viewer.overrun = False
                    yield message("reset", {})
                try:
                    item = await asyncio.wait_for(viewer.queue.get(), STILL_S)
                except asyncio.TimeoutError:
                    yield message("still", {})
                    continue
                if item is GONE:
                    return
                if item is END:
                    yield message("end", {})
                    return
                if isinstance(item, Batch):
                    if text := item.after(viewer.sent):
                        viewer.sent = item.last
                        yield text
                elif isinstance(item, bytes):
                    yield item
        finally:
            self._leave(room, viewer)

    def _enter(self, job: int, viewer: Viewer) -> Room:
        room = self.rooms.get(job)
        if room is None:
            room = self.rooms[job] = Room(self, job)
        room.viewers.add(viewer)
        if self.listener is None:
            self.listener = asyncio.create_task(self._listen())
        return room

    def _leave(self, room: Room, viewer: Viewer) -> None:
        room.viewers.discard(viewer)
        if not room.viewers:
            room.task.cancel()
            self.rooms.pop(room.job, None)
        if not self.rooms and self.listener is not None:
            self.listener.cancel()
            self.listener = None

    async def _listen(self) -> None:
        """Wakes rooms when the controller announces something. A pattern, so that entering a room needs no word
        to Redis; announcements are small, and one without viewers costs a look in a dict."""
        prefix = live_channel(0).removesuffix("0")
        while True:
            # redis-py would give up on a silent socket after 5 s; a subscription is silent by nature.
            client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_timeout=None)
            try:
                async with client, client.pubsub() as subscription:
                    await subscription.psubscribe(prefix + "*")
                    async for said in subscription.listen():
                        if said["type"] == "psubscribe":
                            # Whatever was announced before, nobody here has heard.
                            self.connected = True
                            for room in self.rooms.values():
                                room.announce(EVERYTHING)
                            continue
                        job = int(said["channel"].decode().removeprefix(prefix))
                        if job in self.rooms:
                            self.rooms[job].announce(orjson.loads(said["data"])["changed"])
            except (RedisError, OSError, ValueError, KeyError) as error:
                log.warning("Live pages do without Redis for now: %s", error)
            finally:
                self.connected = False
            await asyncio.sleep(LOOK_SOON_S)


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())


async def in_thread(function: Callable[[], T]) -> T:
    """`function` may use the ORM; its connection does not outlive it."""

    def call() -> T:
        try:
            return function()
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(_readers, call)


def _active(users: set[int]) -> set[int]:
    return set(User.objects.filter(pk__in=users, is_active=True).values_list("pk", flat=True))


def _newer(positions: dict[Key, int]) -> tuple[dict[Key, tuple[list[dict[str, Any]], bool]], set[int], bool]:
    """Records after each position and whether they are too many to send; the attempts of which nothing more
    will come; whether another has ended and something still may."""
    attempts = Attempt.objects.in_bulk({attempt for attempt, _ in positions})
    newer: dict[Key, tuple[list[dict[str, Any]], bool]] = {}
    for (pk, rank), position in positions.items():
        records = read_records(attempts[pk], rank, after_step=position, limit=CATCH_UP + 1) if pk in attempts else []
        newer[pk, rank] = (records, len(records) > CATCH_UP)
    over = {pk for pk, _ in positions if pk not in attempts or not is_live(attempts[pk])}
    return newer, over, any(attempt.ended_at and pk not in over for pk, attempt in attempts.items())
