"""Django's admin. What machines write is read-only here; the one thing done from it is retrying many jobs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import services
from jobs.forms import SettingField, SettingsForm
from jobs.models import (
    Artifact,
    Attempt,
    Checkpoint,
    Dataset,
    DeletedJob,
    Evaluation,
    Host,
    Job,
    JobEvent,
    Placement,
)
from workers.contract.states import ENDED
from workers.recipes.registry import RECIPES

admin.site.site_header = admin.site.site_title = "Evenkeel"
admin.site.index_title = gettext_lazy("Administration")
# Accounts have pages of their own, which write down who did what and keep the last superuser: jobs/people.py.
admin.site.unregister(User)
admin.site.unregister(Group)


if TYPE_CHECKING:  # generic for the type checker only
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline


class ReadOnly(ModelAdmin):
    """Rows that only the machinery writes; who gets into the admin at all, as staff does, sees them."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return True

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return True

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class AttemptRows(TabularInline):
    model = Attempt
    fk_name = "job"
    fields = ("number", "status", "end_reason", "end_detail", "cause", "asked_by", "attempted", "applied", "skipped")
    readonly_fields = fields
    extra = 0
    can_delete = False
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


# What a retry of many may override: offered only where the recipe of a selected job has it.
OVERRIDES = (
    "optimizer.learning_rate",
    "clipping.max_norm",
    "precision.mode",
    "schedule.warmup_steps",
    "schedule.warmup_fraction",
    "loss_scaling.init_scale",
    "limits.skip_limit",
    "limits.loss_limit",
    "training.batch_size",
    "training.epochs",
    "training.seed",
)


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = ("id", "name", "owner", "status", "end_reason", "page", "created_at")
    list_display_links = ("id", "name")
    list_filter = ("status", "end_reason", "recipe", "owner")
    search_fields = ("name", "owner__username", "dataset__name")
    date_hierarchy = "created_at"
    inlines = (AttemptRows,)
    actions = ("retry_selected",)
    list_select_related = ("owner",)

    @admin.display(description=gettext_lazy("page"))
    def page(self, job: Job) -> SafeString:
        return format_html('<a href="{}">{}</a>', reverse("job_detail", args=[job.pk]), _("open"))

    @admin.action(description=gettext_lazy("Retry selected jobs…"))
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponseBase | None:
        jobs = list(queryset.select_related("newest", "owner").order_by("pk"))
        fields = _override_fields(jobs)
        data = request.POST if "retry" in request.POST else None
        if data is not None:
            for item in fields:
                item.value = data.get(item.name, "").strip()
            overrides = {item.name: item.value for item in fields if item.value}
            problems = _retry_all(jobs, overrides, data.get("start") == "checkpoint", bool(data.get("anyway")), request)
            if not problems:
                return redirect(request.get_full_path())
            for text in problems:
                messages.error(request, text)
            if len(problems) < len(jobs):
                return redirect(request.get_full_path())
        rows = [
            {"job": job, "may": job.status in ENDED, "checkpoint": services.newest_good_checkpoint(job)} for job in jobs
        ]
        context = {
            **self.admin_site.each_context(request),
            "title": _("Retry selected jobs"),
            "opts": self.model._meta,
            "rows": rows,
            "fields": fields,
            "start": "checkpoint" if data is None else data.get("start"),
            "anyway": bool(data and data.get("anyway")),
            "action_checkbox_name": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/jobs/job/retry.html", context)


def _override_fields(jobs: list[Job]) -> list[SettingField]:
    fields: dict[str, SettingField] = {}
    for name in dict.fromkeys(job.recipe for job in jobs):
        if name in RECIPES:
            fields |= {item.name: item for item in SettingsForm(RECIPES[name]).fields() if item.name in OVERRIDES}
    for item in fields.values():
        item.value = ""
    return [fields[name] for name in OVERRIDES if name in fields]


def _retry_all(
    jobs: list[Job], overrides: dict[str, str], from_checkpoint: bool, anyway: bool, request: Any
) -> list[str]:
    """Each job by itself: one that cannot be retried does not keep the others from it."""
    problems = []
    for job in jobs:
        attempt = job.newest
        if attempt is None:
            continue
        try:
            made = services.retry(
                job,
                actor=request.user,
                settings=_overridden(attempt.settings, overrides),
                from_checkpoint=from_checkpoint,
                accepted_warnings=anyway,
            )
        except services.Warned as warned:
            texts = " ".join(warned.errors.values())
            problems.append(_("Job %(job)s was not retried; there are warnings. %(why)s") % {"job": job, "why": texts})
        except services.Refused as refused:
            texts = "; ".join(f"{name}: {text}" if name else text for name, text in refused.errors.items())
            problems.append(_("Job %(job)s was not retried. %(why)s") % {"job": job, "why": texts})
        else:
            start = (
                _("from step %(step)d") % {"step": made.start_from.step} if made.start_from else _("from the beginning")
            )
            text = _("Job %(job)s: attempt %(number)d is queued, %(start)s.")
            messages.success(request, text % {"job": job, "number": made.number, "start": start})
    return problems


def _overridden(settings: dict[str, Any], overrides: dict[str, str]) -> dict[str, Any]:
    """A copy with what was filled in, "none" for nothing; a setting that this job's recipe lacks is left alone."""
    copy = {name: dict(value) if isinstance(value, dict) else value for name, value in settings.items()}
    for name, value in overrides.items():
        group, _dot, key = name.partition(".")
        if isinstance(copy.get(group), dict) and key in copy[group]:
            copy[group][key] = None if value.lower() == "none" else value
    return copy


@admin.register(Attempt)
class AttemptAdmin(ReadOnly):
    list_display = ("id", "job", "number", "status", "end_reason", "cause", "attempted", "skipped", "created_at")
    list_filter = ("status", "end_reason", "cause")
    search_fields = ("job__name", "uid")
    list_select_related = ("job",)


@admin.register(Host)
class HostAdmin(ReadOnly):
    list_display = ("name", "address", "online", "draining", "enabled", "last_seen_at")
    list_filter = ("online", "draining", "enabled")
    # Whether a host takes attempts is a person's decision; the rest is what it said of itself.
    fields = ("name", "address", "enabled", "online", "draining", "devices", "versions", "last_seen_at", "boot")
    readonly_fields = tuple(name for name in fields if name != "enabled")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return ModelAdmin.has_change_permission(self, request, obj)


@admin.register(Dataset)
class DatasetAdmin(ReadOnly):
    list_display = ("name", "owner", "shared", "splits", "created_at")
    list_filter = ("shared",)
    search_fields = ("name",)
    # A version is immutable; who may use it is not.
    fields = (
        "name", "owner", "shared", "description", "columns", "labels", "splits", "statistics", "content_hash", "key",
        "created_at",
    )  # fmt: skip
    readonly_fields = tuple(name for name in fields if name not in ("owner", "shared", "description"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return ModelAdmin.has_change_permission(self, request, obj)


@admin.register(JobEvent)
class JobEventAdmin(ReadOnly):
    list_display = ("at", "job", "kind", "old", "new", "reason", "actor", "actor_name", "step", "rank", "message")
    list_filter = ("kind", "reason")
    search_fields = ("job__name", "message")
    list_select_related = ("job", "actor")
    date_hierarchy = "at"


@admin.register(Checkpoint)
class CheckpointAdmin(ReadOnly):
    list_display = ("id", "attempt", "step", "good", "bytes", "created_at", "removed_at")
    list_filter = ("good",)
    list_select_related = ("attempt",)


@admin.register(Evaluation)
class EvaluationAdmin(ReadOnly):
    list_display = ("id", "attempt", "step", "epoch", "best", "at")
    list_filter = ("best",)
    list_select_related = ("attempt",)


@admin.register(Artifact)
class ArtifactAdmin(ReadOnly):
    list_display = ("id", "attempt", "name", "bytes", "created_at")
    list_filter = ("name",)
    list_select_related = ("attempt",)


@admin.register(Placement)
class PlacementAdmin(ReadOnly):
    list_display = ("id", "attempt", "host", "node", "devices", "sent_at", "claimed_at", "released_at", "quarantined")
    list_filter = ("host", "quarantined")
    list_select_related = ("attempt", "host")


@admin.register(DeletedJob)
class DeletedJobAdmin(ReadOnly):
    list_display = ("number", "name", "owner", "deleted_at", "deleted_by", "rule", "freed_bytes", "done_at")
    list_filter = ("rule", "owner")
    search_fields = ("name", "number")
    list_select_related = ("owner", "deleted_by")
