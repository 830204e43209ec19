from __future__ import annotations

import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from jobs.controller.loop import Controller


class Command(BaseCommand):
    help = "Places attempts on hosts, stores what they send, and follows their leases. Run one; a second does no harm."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="each action once, then leave")

    def handle(self, *args: Any, **options: Any) -> None:
        controller = Controller()
        if options["once"]:
            controller.turn(all_due=True)
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: controller.stop())
        controller.run()
