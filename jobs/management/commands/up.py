from __future__ import annotations

import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from jobs import services
from jobs.console import Console
from jobs.models import Attempt, Host
from webapp import embedded
from workers.config import Config

TICK_S = 0.2
LOOK_S = 1.0
DRAIN_S = 90.0


class Command(BaseCommand):
    help = "Start everything on this machine (web, controller, worker and, without REDIS_URL, a Redis-protocol server) and tend it until Ctrl-C."
    requires_system_checks = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", default=os.environ.get("PORT") or "8000")
        parser.add_argument(
            "--address", default="127.0.0.1", help="where web listens; others than this machine need ALLOWED_HOSTS too"
        )
        parser.add_argument("--demo", action="store_true", help="with accounts, a sample dataset and a sample job")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stops = 0
        os.umask(0o077)  # also where the folder itself was made by someone else
        self.data_dir: Path = settings.DATA_DIR
        self.scratch_root: Path = settings.SCRATCH_ROOT
        try:
            port = port_number(options["port"])
            self.host_name = Config.from_environment().host_name
            with embedded.held(self.data_dir):
                embedded.check_disk(self.data_dir)
                embedded.check_port(options["address"], port)
                self.children = embedded.Children.of(
                    embedded.parts(self.data_dir, options["address"], port), self.data_dir / "logs"
                )
                signal.signal(signal.SIGINT, self.on_signal)
                signal.signal(signal.SIGTERM, self.on_signal)
                try:
                    self.run(f"http://{options['address']}:{port}/", demo=options["demo"])
                finally:
                    self.children.stop()
                    self.kill_what_is_left()
        except (embedded.Unusable, services.Refused, ValueError) as error:
            raise CommandError(str(error)) from None

    def on_signal(self, number: int, frame: object) -> None:
        self.stops += 1
        if self.stops == 2:
            self.say("Killing everything at once; jobs go on from their last checkpoint with the next start.")
            embedded.kill_all(self.data_dir, self.scratch_root)
            os._exit(130)

    # --- start and tend ---

    def run(self, url: str, *, demo: bool) -> None:
        self.say(f"Starting on {self.data_dir}")
        self.children.start("redis")
        call_command("migrate", verbosity=0)
        embedded.wait_for_redis(settings.REDIS_URL)
        for host in Host.objects.filter(name=self.host_name, draining=True):
            services.undrain(host)
        console = Console.from_now()
        self.children.start("worker", "controller", "web")
        sample = None
        if demo:
            from jobs.sample import Demo

            sample = Demo(self.data_dir, self.say)
            sample.prepare()
        self.wait_for_web(url)
        self.say(f"Evenkeel is at {url}  (Ctrl-C stops it)")
        if sample is not None and sample.first is not None:
            self.say(f"The sample job is at {url}jobs/{sample.first.pk}/")

        due = 0.0
        while not self.stops:
            self.children.tend(self.say)
            if time.monotonic() >= due:
                try:
                    for line in console.lines():
                        self.say(line)
                    if sample is not None:
                        sample.go_on()
                except DatabaseError as error:
                    self.say(f"The database does not answer: {error}")
                due = time.monotonic() + LOOK_S
            time.sleep(TICK_S)
        self.drain(console)

    def wait_for_web(self, url: str) -> None:
        deadline = time.monotonic() + 60
        while not self.stops:
            try:
                with urllib.request.urlopen(f"{url}healthz", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > deadline:
                    raise embedded.Unusable(f"Web does not answer; see {self.data_dir / 'logs' / 'web.log'}.") from None
            self.children.tend(self.say)
            time.sleep(TICK_S)

    # --- stop ---

    def drain(self, console: Console) -> None:
        host = Host.objects.filter(name=self.host_name).first()
        if host is not None:
            services.drain(host, actor_name="shutdown")
        if self.busy(host):
            self.say(
                "Stopping: running jobs save a checkpoint first and go on with the next start. Ctrl-C again kills them."
            )
        deadline = time.monotonic() + DRAIN_S
        due = 0.0
        while self.busy(host):
            if time.monotonic() > deadline:
                self.say(
                    f"Not all jobs have left after {DRAIN_S:.0f} s; they are killed and can be retried from their last checkpoint."
                )
                break
            self.children.tend(self.say)
            if time.monotonic() >= due:
                for line in console.lines():
                    self.say(line)
                due = time.monotonic() + LOOK_S
            time.sleep(TICK_S)
        for line in console.lines():
            self.say(line)
        self.say("Stopping worker, web and controller")

    def busy(self, host: Host | None) -> bool:
        """Whether an attempt is still on its way out: one that is placed here, or a process that still relays its records."""
        if embedded.run_processes(self.data_dir, self.scratch_root):
            return True
        return host is not None and Attempt.objects.on_host().filter(placements__host=host).exists()

    def kill_what_is_left(self) -> None:
        left = embedded.kill_all(self.data_dir, self.scratch_root)
        if left:
            self.say("These processes could not be ended: " + "; ".join(left))
        else:
            self.say("Stopped; no process is left, all data is kept.")

    def say(self, text: str) -> None:
        try:
            print(f"{timezone.localtime():%H:%M:%S}  {text}", flush=True)
        except BrokenPipeError:  # nobody reads any more; stopping in order matters more
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115


def port_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise embedded.Unusable(f"PORT must be a number from 1 to 65535, not “{text}”.")
    return int(text)
