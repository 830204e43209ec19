"""A real browser on a real server: uvicorn in a process of its own, on the test's database and Redis."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.conftest import RedisServer

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from jobs.models import Dataset

# Without these Chromium talks to the outside at every start; as root it needs no-sandbox.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip

# How long a page may take for anything. Only a failing test waits so long: a busy machine is no failure.
PATIENCE_MS = 45_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module. Playwright's loop runs in this thread as long as it is there: Django takes all for
    asynchronous code, and tests of other modules could not run loops of their own."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("Browser tests need Chromium: install Debian's package chromium.", pytrace=False)
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@dataclass
class Site:
    url: str
    browser: Browser
    pages: list[Page]
    complaints: list[str]

    def page(self, user: User | None = None, **options: Any) -> Page:
        """A new window, logged in as `user`."""
        context = self.browser.new_context(base_url=self.url, **options)
        context.set_default_timeout(PATIENCE_MS)
        if user is not None:
            from django.test import Client

            client = Client()
            client.force_login(user)
            context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": self.url}])
        page = context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._console)
        self.pages.append(page)
        return page

    def _console(self, message: Any) -> None:
        # A refused form is 422 on purpose; everything else, such as a breach of the content policy, is a fault.
        if message.type == "error" and "422" not in message.text:
            self.complaints.append(message.text)


@pytest.fixture
def person(transactional_db: None) -> User:
    from tests.browser import seed

    return seed.user("user")


@pytest.fixture
def data(transactional_db: None) -> Dataset:
    from tests.browser import seed

    return seed.dataset()


@dataclass
class Server:
    url: str
    storage: Path
    log: Path
    pid: int


@pytest.fixture(scope="module")
def server(
    django_db_setup: None, _redis_of_session: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One for a module: importing Django takes longer than most tests. The database is emptied under it after each."""
    from django.conf import settings

    folder = tmp_path_factory.mktemp("site")
    storage, log = folder / "storage", folder / "web.log"
    environment = os.environ | {
        "DATABASE_URL": _database_url(),
        "REDIS_URL": _redis_of_session.url,
        "STORAGE_ROOT": str(storage),
        "SECRET_KEY": settings.SECRET_KEY,
    }
    command = [sys.executable, "-m", "uvicorn", "webapp.asgi:application", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--timeout-graceful-shutdown", "1"], env=environment, stdout=output, stderr=output
        )
    try:
        yield Server(_address_of(process, log), storage, log, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def site(
    transactional_db: None, redis_server: RedisServer, server: Server, browser: Browser, settings: Any
) -> Iterator[Site]:
    settings.REDIS_URL = redis_server.url
    settings.STORAGE_ROOT = server.storage
    made = Site(server.url, browser, [], [])
    try:
        yield made
        assert made.complaints == [], f"the browser complained; server log:\n{server.log.read_text()[-4000:]}"
    finally:
        for page in made.pages:
            page.context.close()


def _database_url() -> str:
    """Of the test's database, for another process."""
    from django.db import connection

    made = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite://{made['NAME']}"
    who = quote(made["USER"]) + (f":{quote(made['PASSWORD'])}" if made["PASSWORD"] else "")
    return f"postgresql://{who}@{quote(made['HOST'], safe='')}:{made['PORT'] or 5432}/{made['NAME']}"


def _address_of(server: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, once it does: on a port that the system chose."""
    deadline = time.monotonic() + 90
    while server.poll() is None and time.monotonic() < deadline:
        if said := re.search(r"running on (http://[\d.:]+)", log.read_text()):
            with urllib.request.urlopen(said[1] + "/healthz", timeout=60):
                return said[1]
        time.sleep(0.1)
    pytest.fail(f"The web server did not start:\n{log.read_text()[-4000:]}")
