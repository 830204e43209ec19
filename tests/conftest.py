"""Real servers for the tests: a Redis-protocol server, and SQLite or PostgreSQL by DATABASE_URL."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Before Django's settings are read: tests never touch the data folder of a demo.
_data = tempfile.TemporaryDirectory(prefix="evenkeel-test-")
os.environ["DATA_DIR"] = _data.name
for _name in ("STORAGE_ROOT", "SCRATCH_ROOT", "REDIS_URL", "STATIC_ROOT"):
    os.environ.pop(_name, None)

import redis  # noqa: E402

from workers import embedded_redis  # noqa: E402

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from jobs.models import Attempt, Dataset, Job


def pytest_configure() -> None:
    from django.conf import settings

    # Three users per test would otherwise cost a second of hashing; real hashes still verify.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", *settings.PASSWORD_HASHERS]


class RedisServer:
    """A real server on a socket of its own; `kill` is SIGKILL, and `start` again begins with no data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{embedded_redis.socket_path(folder)}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            embedded_redis.command(self.folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def kill(self, *, wipe: bool = True) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        if wipe:
            (self.folder / "redis.rdb").unlink(missing_ok=True)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)


@pytest.fixture(scope="session")
def _redis_of_session() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="evenkeel-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
def redis_server(_redis_of_session: RedisServer) -> RedisServer:
    """A running, empty server; shared by the session, flushed for each test."""
    if _redis_of_session.process is None or _redis_of_session.process.poll() is not None:
        _redis_of_session.start()
    with _redis_of_session.client() as client:
        client.flushall()
    return _redis_of_session


# --- rows that many tests need -------------------------------------------------------------


@pytest.fixture
def owner(db: None) -> User:
    return _user("olga")


@pytest.fixture
def other(db: None) -> User:
    return _user("oskar")


@pytest.fixture
def staff(db: None) -> User:
    return _user("stella", is_staff=True)


def _user(name: str, **more: bool) -> User:
    from django.contrib.auth.models import User

    return User.objects.create_user(name, password="correct horse battery", **more)  # noqa: S106


@pytest.fixture
def dataset(owner: User) -> Dataset:
    from jobs.models import Dataset

    return Dataset.objects.create(
        name="reviews",
        owner=owner,
        key="datasets/reviews-1",
        content_hash="0" * 64,
        columns=["text", "label"],
        labels=["negative", "positive"],
        splits={"train": 100, "dev": 20},
    )


@pytest.fixture
def job(owner: User, dataset: Dataset) -> Job:
    """Just submitted: one attempt, queued."""
    from jobs import services

    return services.submit(
        owner=owner, name="sentiment", recipe="text_classification", dataset=dataset, settings={}, actor=owner
    )


@pytest.fixture
def attempt(job: Job) -> Attempt:
    assert job.newest is not None
    return job.newest


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """SQLite in a file, as in production: in memory, Django's threads would share one cache and lock each other out."""
    from django.conf import settings

    database = settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        database["TEST"]["NAME"] = str(Path(_data.name) / "test.sqlite3")
