from __future__ import annotations

import gc
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
        few_collections()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: controller.stop())
        controller.run()


def few_collections() -> None:
    """A round of ingest makes a hundred thousand objects that soon go by themselves; by default the garbage
    collector looks at them again and again (a tenth of the time)."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
