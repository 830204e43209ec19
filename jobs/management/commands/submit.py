from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import yaml
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs import dry_run, services
from jobs.console import Console, dry_run_lines
from jobs.job_file import JobFile
from jobs.models import Attempt, Evaluation, Job
from workers.contract.records import jsonable
from workers.contract.states import ENDED, EndReason, Status

LOOK_S = 1.0
# The exit status; that of a job that failed is 1.
REFUSED, INTERRUPTED = 2, 130


class Command(BaseCommand):
    help = "Submit a job from a YAML file; see docs/examples/. With --wait the exit status is 0 only on success."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--owner", help="default: the only user, or the only one who is not staff")
        parser.add_argument("--set", action="append", default=[], metavar="GROUP.SETTING=VALUE", dest="changes")
        parser.add_argument(
            "--anyway", action="store_true", help="in spite of warnings, which are recorded with the job"
        )
        parser.add_argument("--tag", action="append", default=[], dest="tags", help="a tag beside those of the file")
        parser.add_argument("--wait", action="store_true", help="until it has ended; progress goes to stderr")
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help=f"only {dry_run.STEPS} steps of it, and what they tell of the whole; waits for it",
        )
        parser.add_argument("--json", action="store_true", help="a summary as JSON on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            file = JobFile.read(options["file"])
            for change in options["changes"]:
                name, equals, value = change.partition("=")
                if not equals:
                    raise CommandError(f"--set wants GROUP.SETTING=VALUE, not “{change}”.")
                file.set(name.strip(), yaml.safe_load(value))
            file.tags = list(dict.fromkeys([*file.tags, *options["tags"]]))
            job = file.submit(owner=owner(options["owner"]), anyway=options["anyway"], dry_run=options["dry_run"])
        except services.Warned as warned:
            lines = [f"{finding.setting}: warning: {finding}" for finding in warned.warnings]
            lines.append("Nothing was submitted. To submit anyway, add --anyway.")
            raise CommandError("\n".join(lines), returncode=REFUSED) from None
        except services.Refused as refused:
            lines = [f"{name}: {text}" if name else text for name, text in refused.errors.items()]
            raise CommandError("\n".join(lines), returncode=REFUSED) from None
        self.stderr.write(f"{'Dry run' if job.dry_run else 'Job'} {job.pk} “{job.name}” is queued.")
        wait = options["wait"] or job.dry_run
        if wait and not self.wait(job):
            self.stderr.write(f"Not waiting any longer; job {job.pk} goes on.")
            raise SystemExit(INTERRUPTED)
        if options["json"]:
            self.stdout.write(json.dumps(summary(job), ensure_ascii=False))
        elif not wait:
            self.stdout.write(str(job.pk))
        elif job.dry_run and job.newest and (result := dry_run.of(job, job.newest)):
            self.stdout.write("\n".join(dry_run_lines(result)))
        if wait and job.status != Status.SUCCEEDED:
            raise SystemExit(1)

    def wait(self, job: Job) -> bool:
        """Until it has ended and all its records are here; a drained job has not ended: its next attempt is waited for.
        False as soon as Ctrl-C says so."""
        # An exception in the middle of a query would be the database's, or nobody's.
        interrupted = threading.Event()
        before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
        try:
            return self._wait(job, interrupted)
        finally:
            signal.signal(signal.SIGINT, before)

    def _wait(self, job: Job, interrupted: threading.Event) -> bool:
        console = Console(job)
        while True:
            for line in console.lines():
                self.stderr.write(line)
            if not Job.objects.there().filter(pk=job.pk).exists():
                raise CommandError(f"Job {job.pk} was deleted.")
            job.refresh_from_db()
            newest = job.newest
            if newest is not None and is_over(newest):
                return True
            if interrupted.wait(LOOK_S):
                return False


def is_over(attempt: Attempt) -> bool:
    if attempt.status not in ENDED or attempt.end_reason == EndReason.DRAINED:
        return False
    return attempt.complete_at is not None or not attempt.placements.exists()


def owner(name: str | None) -> User:
    users = User.objects.filter(is_active=True)
    if name:
        found = list(users.filter(username=name))
        if not found:
            raise CommandError(f"There is no user “{name}”.")
    else:
        found = list(users[:2])
        if len(found) != 1:
            found = list(users.filter(is_staff=False)[:2])
        if len(found) != 1:
            raise CommandError("Say for whom: --owner NAME.")
    return found[0]


def summary(job: Job) -> dict[str, Any]:
    attempts = list(Attempt.objects.filter(job=job).order_by("number"))
    last = Evaluation.objects.filter(attempt__job=job).order_by("-pk").first()
    tried = dry_run.of(job, attempts[-1]) if job.dry_run else None
    result: dict[str, Any] = jsonable(
        {
            "job": job.pk,
            "status": job.status,
            "end_reason": job.end_reason or None,
            "end_detail": attempts[-1].end_detail or None,
            "attempts": len(attempts),
            "steps_attempted": attempts[-1].attempted,
            "steps_applied": attempts[-1].applied,
            "steps_skipped": attempts[-1].skipped,
            "metrics": last.metrics if last else None,
        }
        | ({"dry_run": tried.as_dict() if tried else None} if job.dry_run else {})
    )
    return result
