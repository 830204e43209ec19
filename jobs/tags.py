"""Tags: short words that people put on jobs, to find them again."""

from __future__ import annotations

import re
from collections.abc import Iterable

from django.contrib.auth.models import User
from django.utils.translation import gettext as _

from jobs.models import Job, JobTag
from workers.contract.fields import CONTROL

LONGEST, MOST, MOST_KNOWN = 40, 20, 500


def split(text: str) -> list[str]:
    """As typed: separated by commas, also Chinese ones, semicolons or new lines; each once."""
    parts = re.split(r"[,，、;；\n]", text)
    return list(dict.fromkeys(name for part in parts if (name := " ".join(part.split()))))


def problem(names: Iterable[str]) -> str:
    """What is wrong with these tags; "" for nothing."""
    names = list(names)
    for name in names:
        if len(name) > LONGEST:
            text = _("A tag has at most %(most)d characters; “%(tag)s…” has %(count)d.")
            return text % {"most": LONGEST, "tag": name[:20], "count": len(name)}
        if CONTROL.search(name) or split(name) != [name]:
            return _("A tag is a word or a few, without commas, semicolons and control characters.")
    if len(names) > MOST:
        return _("At most %(most)d tags; these are %(count)d.") % {"most": MOST, "count": len(names)}
    return ""


def put(job: Job, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """These and no others, in the caller's transaction; returns what came and what went."""
    wanted = list(dict.fromkeys(names))
    there = list(job.tags.values_list("name", flat=True))
    added = [name for name in wanted if name not in there]
    removed = [name for name in there if name not in wanted]
    job.tags.filter(name__in=removed).delete()
    JobTag.objects.bulk_create(JobTag(job=job, name=name) for name in added)
    return added, removed


def known(user: User) -> list[str]:
    """Those of the jobs that this user sees."""
    seen = JobTag.objects.filter(job__in=Job.objects.visible_to(user))
    return list(seen.order_by("name").values_list("name", flat=True).distinct()[:MOST_KNOWN])
