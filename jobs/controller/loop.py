"""The loop: each action when it is due; none can stop another for long, and Redis or the database may go and come back."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import redis
from django.contrib.sessions.backends.db import SessionStore
from django.db import DatabaseError, InterfaceError, connection
from kombu.exceptions import OperationalError as BrokerError
from redis.exceptions import RedisError

from jobs import bus, retention, throttle
from jobs.controller import datasets, place, prune, remove, settle, trials
from jobs.controller.hosts import Hosts
from jobs.controller.ingest import Ingest, MovedElsewhere
from jobs.controller.leases import Leases
from jobs.controller.mirror import Mirror
from jobs.controller.send import Sender
from jobs.models import JobEvent
from jobs.steps import store
from workers.contract.messages import CONTROLLER_KEY, TELEMETRY_STREAM, UNRESPONSIVE_S, Announcement

logger = logging.getLogger(__name__)

# How long the loop sleeps when nothing wakes it. An entry in the stream does, at once.
IDLE_S = 0.1
AWAY_S = 1.0


def _forget() -> None:
    """What is only of use for a while: refused logins, and sessions that have run out."""
    throttle.prune()
    SessionStore.clear_expired()


@dataclass
class Action:
    name: str
    every_s: float
    run: Callable[[], object]
    due: float = float("-inf")
    complaint: str = ""


class Controller:
    """`clock` is the controller's own, monotonic; leases and the times of actions follow it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.redis: redis.Redis = bus.client()
        self.hosts, self.leases, self.mirror = Hosts(), Leases(), Mirror()
        self.ingest = Ingest(self.redis)
        self.sender = Sender()
        self.checks = datasets.Checks(self.sender)
        self.trials = trials.Trials(self.sender)
        self.stopped = False
        self._redis_away = False
        self._announced = JobEvent.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        # In the order in which they follow from each other.
        self.actions = [
            Action("alive", 2.0, self._alive),
            Action("hosts", 1.0, lambda: self.hosts.run(self.redis, self.clock())),
            Action("ingest", 0.0, self._ingest),
            Action("leases", 1.0, lambda: self.leases.run(self.redis, self.clock())),
            Action("settle", 0.5, settle.run),
            Action("place", 0.5, place.run),
            Action("send", 0.5, self.sender.run),
            Action("mirror", 0.25, lambda: self.mirror.run(self.redis, self.clock())),
            Action("announce", 0.25, self._announce),
            # What is usually done right after ingest; after a crash it is made up for.
            Action("seal", 30.0, lambda: self._seal(None)),
            Action("prune", 5.0, prune.run),
            Action("remove", 2.0, remove.run),
            Action("measure", 60.0, remove.measure),
            Action("retention", 60.0, retention.run),
            Action("checks", 0.5, lambda: self.checks.run(self.clock())),
            # Somebody sits and waits for these.
            Action("trials", 0.2, lambda: self.trials.run(self.clock())),
            Action("tidy", 600.0, datasets.tidy),
            Action("forget", 3600.0, _forget),
            Action("tidy trials", 600.0, trials.tidy),
        ]

    def run(self) -> None:
        """Until `stop`."""
        logger.info("The controller runs.")
        while not self.stopped:
            self.turn()
            self._wait()
        logger.info("The controller has stopped.")

    def stop(self) -> None:
        self.stopped = True

    def turn(self, *, all_due: bool = False) -> None:
        """Each action that is due, once."""
        if not self._redis_is_there():
            return
        for action in self.actions:
            if self.stopped:
                return
            now = self.clock()
            if not all_due and now < action.due:
                continue
            action.due = now + action.every_s
            try:
                action.run()
                action.complaint = ""
            except (RedisError, BrokerError) as error:
                self._lost_redis(error)
                return
            except (DatabaseError, InterfaceError) as error:
                # Locked for very long, or gone: nothing of the action is committed, and it comes again.
                self._complain(action, error, trace=False)
                connection.close()
            except (MovedElsewhere, store.Taken) as error:
                self._complain(action, error, trace=False)
            except Exception as error:  # noqa: BLE001 - a fault in one action must not stop the others
                self._complain(action, error, trace=True)

    # --- small actions ---

    def _alive(self) -> None:
        self.redis.set(CONTROLLER_KEY, self._name, ex=int(UNRESPONSIVE_S))

    def _ingest(self) -> None:
        done = self.ingest.run()
        if done is not None and done.attempts:
            self._seal(done.attempts)

    def _seal(self, attempts: Iterable[int] | None) -> None:
        for tail in store.overlong(attempts):
            store.seal(tail)

    def _announce(self) -> None:
        """Events that came about otherwise than by telemetry: pages hear of them too."""
        rows = list(
            JobEvent.objects.filter(pk__gt=self._announced)
            .order_by("pk")
            .values_list("pk", "job_id", "attempt__uid")[:1000]
        )
        if rows:
            told = {(job, uid or "") for _, job, uid in rows}
            bus.announce(
                self.redis, (Announcement(job=j, attempt=uid, changed=["events", "status"]) for j, uid in told)
            )
            self._announced = rows[-1][0]

    # --- when something is away ---

    def _redis_is_there(self) -> bool:
        try:
            self.redis.ping()
        except RedisError as error:
            self._lost_redis(error)
            return False
        if self._redis_away:
            logger.info("Redis is back; every lease is new.")
            self._redis_away = False
            self.hosts.forget()
            self.leases.forget()
            self.mirror.forget()
            self.checks.forget()
            self.trials.forget()
        return True

    def _lost_redis(self, error: Exception) -> None:
        if not self._redis_away:
            logger.warning("Redis cannot be reached; waiting for it. (%s)", error)
        self._redis_away = True

    def _wait(self) -> None:
        if self._redis_away:
            time.sleep(AWAY_S)
            return
        try:
            # Returns at once while there is something; ingest itself keeps its distance.
            if self.redis.xread({TELEMETRY_STREAM: "0"}, count=1, block=int(IDLE_S * 1000)):
                time.sleep(min(self.ingest.wait_s(), IDLE_S))
        except RedisError as error:
            self._lost_redis(error)

    def _complain(self, action: Action, error: Exception, *, trace: bool) -> None:
        complaint = f"{type(error).__name__}: {error}"
        if complaint != action.complaint:
            logger.error("%s failed and will be tried again: %s", action.name, complaint, exc_info=trace)
            action.complaint = complaint
        # Not at full speed.
        action.due = max(action.due, self.clock() + AWAY_S)
