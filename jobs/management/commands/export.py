from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.exports import files
from jobs.models import Attempt


class Command(BaseCommand):
    help = "Write the metrics of an attempt to a file, or to a folder that VisualDL reads. NaN and infinities stay what they are."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job", type=int)
        parser.add_argument("--attempt", type=int, help="default: the newest")
        parser.add_argument("--rank", type=int, help="default: all ranks")
        parser.add_argument("--what", choices=list(files.FORMATS), default=files.STEPS)
        parser.add_argument("--format", choices=sorted({one for every in files.FORMATS.values() for one in every}))
        parser.add_argument(
            "--output",
            metavar="PATH",
            help="a file; for visualdl a folder that is new or empty, or a .zip; - is standard output; default: a name made from the job",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        attempts = Attempt.objects.filter(job=options["job"]).order_by("number")
        if options["attempt"] is not None:
            attempts = attempts.filter(number=options["attempt"])
        attempt = attempts.last()
        if attempt is None:
            raise CommandError(f"There is no such job or attempt: {options['job']}.")
        what, output = options["what"], options["output"]
        format = options["format"] or "csv"
        try:
            if format == "visualdl" and output and output != "-" and not output.endswith(".zip"):
                self._write_folder(attempt, options["rank"], Path(output))
                return
            file = files.of(attempt, what, format, options["rank"])
        except files.Nothing:
            known = ", ".join(files.FORMATS[what])
            if format not in files.FORMATS[what]:
                raise CommandError(f"{what} cannot be written as {format}, only as {known}.") from None
            raise CommandError(f"Attempt {attempt} has no {what} yet.") from None
        if output == "-":
            for chunk in file.chunks():
                sys.stdout.buffer.write(chunk)
            return
        self._write(Path(output or file.name), file.chunks())

    def _write_folder(self, attempt: Attempt, rank: int | None, folder: Path) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CommandError(f"{folder} is there already, and not empty.")
        for name, parts in files.folder_of(attempt, rank):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            self._write(folder / name, parts)

    def _write(self, path: Path, parts: Iterator[bytes]) -> None:
        """Beside it first, so that a file of that name is a whole one."""
        partial = path.with_name(f"{path.name}.partial")
        try:
            with partial.open("wb") as file:
                for part in parts:
                    file.write(part)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise CommandError(f"{path} cannot be written: {error.strerror}.") from None
        self.stderr.write(f"{path}  {path.stat().st_size} bytes")
