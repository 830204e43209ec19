"""Redis as the web side and the controller use it. Everything in it may be lost at any moment."""

from __future__ import annotations

from collections.abc import Iterable

import redis
from django.conf import settings

from workers.contract.messages import Announcement, live_channel


def client(timeout_s: float = 5.0) -> redis.Redis:
    """A client with a pool of its own. A call that gets no answer in `timeout_s` raises redis.RedisError."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)


def announce(bus: redis.Redis, announcements: Iterable[Announcement]) -> None:
    """Tell open pages that something is new in the database: call it after the commit, never within a transaction."""
    pipe = bus.pipeline(transaction=False)
    for announcement in announcements:
        pipe.publish(live_channel(announcement.job), announcement.model_dump_json())
    pipe.execute()
