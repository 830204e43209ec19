"""The supervisor's contact with the controller: beats, requests, and the lease they renew."""

from __future__ import annotations

import sys
import threading
import time

import redis
from pydantic import ValidationError

from workers.contract.messages import BEAT_S, LEASE_MARGIN_S, AttemptBeat, AttemptSpec, Control, beat_key, request_key
from workers.run_folder import RunFolder, atomic_write_json, read_json
from workers.supervisor.time_limit import TimeLimit

_POLL_S = 0.25
_BEAT_KEPT_S = 60


def connect(url: str) -> redis.Redis:
    """A client that waits for nothing longer than a few seconds: Redis may be gone at any time."""
    client: redis.Redis = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
    return client


class Lifeline:
    """`control` is the newest request, also in control.json; `lost` says that the lease is as good as over."""

    def __init__(self, folder: RunFolder, spec: AttemptSpec, redis_url: str, host: str) -> None:
        self._folder = folder
        self._spec = spec
        self._redis = connect(redis_url)
        self._host = host
        self._seq = 0
        # Twice within the time the lease leaves, however short that is.
        self._beat_every_s = min(BEAT_S, self._allowance_s / 2)
        self._renewed = time.monotonic()
        self._stop = threading.Event()
        self.stage = "claimed"
        self.control = self._written = self._said = Control.model_validate(read_json(folder.control) or {})
        self.time_limit = TimeLimit(spec)
        self._thread = threading.Thread(target=self._run, name="lifeline", daemon=True)
        self._thread.start()

    @property
    def _allowance_s(self) -> float:
        return max(self._spec.lease_s - LEASE_MARGIN_S, 0.5)

    @property
    def lost(self) -> bool:
        return time.monotonic() - self._renewed > self._allowance_s

    def close(self) -> None:
        self._stop.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        next_beat = 0.0
        told = False
        while not self._stop.wait(_POLL_S):
            try:
                if time.monotonic() >= next_beat:
                    self._beat()
                    self._renewed = time.monotonic()
                    next_beat = self._renewed + self._beat_every_s
                self._listen()
                told = False
            except Exception as error:  # noqa: BLE001 - whatever it is, the lease decides what it means
                if not told:
                    print(f"no contact: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    told = True
                next_beat = 0.0
            self._obey()

    def _beat(self) -> None:
        self._seq += 1
        beat = AttemptBeat(
            attempt=self._spec.attempt, node=self._spec.node, host=self._host, seq=self._seq, stage=self.stage
        )
        self._redis.set(beat_key(beat.attempt, beat.node), beat.model_dump_json(), ex=_BEAT_KEPT_S)

    def _listen(self) -> None:
        said = self._redis.get(request_key(self._spec.attempt))
        if said is None:
            return
        try:
            control = Control.model_validate_json(said)
        except ValidationError as error:
            print(f"a request that makes no sense: {error}", file=sys.stderr, flush=True)
            return
        self._said = control

    def _obey(self) -> None:
        """Also without Redis: time does not stand still."""
        self.control = control = self.time_limit.applied_to(self._said)
        if control == self._written:
            return
        try:
            atomic_write_json(self._folder.control, control.model_dump(mode="json"))
            self._written = control
        except OSError as error:
            print(f"control.json cannot be written: {error}", file=sys.stderr, flush=True)
