"""Rules of retention: staff sets the days, and sees what would go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from jobs import retention
from jobs.models import DeletedJob, RetentionRule
from jobs.retention import Keep, Preview, Rule, What
from jobs.services import Refused
from jobs.views.rows import Asked

SHOWN = 20


@dataclass
class Row:
    rule: Rule
    days: str  # as typed
    error: str = ""
    preview: Preview | None = None

    @property
    def some(self) -> list[int]:
        return self.preview.jobs[:SHOWN] if self.preview else []

    @property
    def more(self) -> int:
        return max(len(self.preview.jobs) - SHOWN, 0) if self.preview else 0


@require_http_methods(["GET", "HEAD", "POST"])
def retention_rules(request: Asked) -> HttpResponse:
    """Every POST shows what the rules would do; only the one that saves, saves."""
    if not request.user.is_staff:
        raise PermissionDenied
    posted = request.POST if request.method == "POST" else None
    rows = [_row(rule, posted) for rule in retention.rules()]
    failed = any(row.error for row in rows)
    if posted is not None and not failed and posted.get("do") == "save":
        count = retention.set_rules([row.rule for row in rows], actor=request.user)
        text = ngettext("%(count)d rule is changed.", "%(count)d rules are changed.", count)
        messages.success(request, text % {"count": count} if count else _("The rules were so already."))
        return redirect("retention")
    for row in rows:
        row.preview = None if row.error else retention.preview(row.rule)
    context = {
        "rows": rows,
        "keeps": RetentionRule.Keep.choices,
        "failed": failed,
        "previewed": posted is not None,
        "deleted": DeletedJob.objects.select_related("owner", "deleted_by")[:SHOWN],
    }
    return render(request, "storage/retention.html", context, status=422 if failed else 200)


def _row(rule: Rule, posted: Any) -> Row:
    """As it is, or as typed."""
    if posted is None:
        return Row(rule, "" if rule.days is None else str(rule.days))
    typed = posted.get(f"{rule.what}.days", "")
    keep = posted.get(f"{rule.what}.keep", rule.keep)
    try:
        days = retention.checked_days(typed)
    except Refused as refused:
        return Row(rule, typed, "".join(refused.errors.values()))
    kept = Keep(keep) if keep in Keep.values else rule.keep
    return Row(Rule(What(rule.what), days, kept, rule.row), typed)
