"""A new job: a plain form made from the recipe's settings, blank or filled from a preset, another job or a file.

Every button of the form is a POST to the same address with `do`: submit, dry_run (a few steps of it), recipe (another one,
which takes over what is of no recipe), fill (with the chosen preset), basic or full, check (what would be submitted, and what speaks against it), yaml (the same as a file)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from jobs import checks, dry_run, job_file, limits, services, tags
from jobs.forms import SettingsForm
from jobs.models import Dataset, Job
from jobs.views.rows import Asked, attempt_of, job_for, whole_number
from workers.contract.checks import Finding
from workers.contract.presets import Preset
from workers.recipes.registry import RECIPES, Recipe

MODES = ("basic", "full")
# The newest of them; others are named in a job file.
JOBS_OFFERED = 200
# Datasets that the recipe cannot train on: so many are named.
OTHERS_NAMED = 8


@dataclass
class Draft:
    """A job that is not there yet."""

    recipe: Recipe
    name: str = ""
    dataset: int = 0
    settings: dict[str, Any] | None = None
    cloned_from: Job | None = None
    tags: str = ""  # as typed
    errors: dict[str, str] = field(default_factory=dict)


@require_http_methods(["GET", "HEAD", "POST"])
def job_new(request: Asked) -> HttpResponse:
    if request.method != "POST":
        draft = _draft(request)
        return form_page(request, draft, fill=draft.settings is None)
    data = request.POST
    draft = Draft(_recipe(data.get("recipe")), data.get("name", ""), whole_number(data.get("dataset"), 0))
    draft.tags = data.get("tags", "")
    if data.get("cloned_from"):
        number = whole_number(data["cloned_from"], 0)
        draft.cloned_from = Job.objects.visible_to(request.user).filter(pk=number).first()
    do = data.get("do") or "submit"
    if do == "recipe":
        kept = {"recipe": data.get("other_recipe")} | {key: data.get(key) for key in ("name", "dataset", "tags")}
        return redirect(reverse("job_new") + "?" + urlencode({key: value for key, value in kept.items() if value}))
    if do in MODES:
        request.session["form_mode"] = do
    form = _form(request, draft, fill=do == "fill")
    if do == "check" and request.htmx:
        return render(request, "jobs/new_check.html", _check(request, form, draft))
    if do == "yaml":
        return yaml_file(_as_yaml(request, form, draft), draft.name or "job")
    if do not in ("submit", "dry_run"):
        return _page(request, form, draft)
    anyway = _check(request, form, draft)["anyway"]
    return _submit(request, form, draft, anyway=anyway, dry_run=do == "dry_run")


@require_POST
def dry_run_submit(request: Asked, pk: int) -> HttpResponse:
    """The settings of a dry run as a job. What was accepted for the one is accepted for the other; a warning that has
    come since is shown."""
    tried = job_for(request, pk)
    if not tried.dry_run or tried.newest is None or tried.recipe not in RECIPES:
        raise Http404
    draft = _as_tried(tried, tried.newest.settings)
    form = SettingsForm(draft.recipe, initial=draft.settings, offers={"model.job": models_on_offer(request)})
    accepted = set(tried.events.filter(kind="warning_accepted").values_list("reason", flat=True))
    codes = {finding.code for finding, _text in _check(request, form, draft)["warnings"]}
    return _submit(request, form, draft, anyway=codes <= accepted, priority=tried.priority)


def _submit(
    request: Asked, form: SettingsForm, draft: Draft, *, anyway: bool, dry_run: bool = False, priority: int = 0
) -> HttpResponse:
    try:
        job = services.submit(
            owner=request.user,
            name=draft.name,
            recipe=draft.recipe.name,
            dataset=_dataset(request, draft),
            settings=form.raw(),
            actor=request.user,
            priority=priority,
            accepted_warnings=anyway,
            cloned_from=draft.cloned_from,
            dry_run=dry_run,
            names=tags.split(draft.tags),
        )
    except services.Warned:
        return _page(request, form, draft, failed="warned")
    except services.Refused as refused:
        draft.errors = form.add_errors(refused.errors)
        return _page(request, form, draft, failed="refused")
    said = _("Dry run %(number)d is queued.") if dry_run else _("Job %(number)d is queued.")
    messages.success(request, said % {"number": job.pk})
    return redirect("job_detail", job.pk)


def form_page(request: Asked, draft: Draft, *, fill: bool = False) -> HttpResponse:
    return _page(request, _form(request, draft, fill=fill), draft)


def yaml_file(text: str, name: str) -> HttpResponse:
    return HttpResponse(
        text,
        content_type="application/yaml; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{_file_name(name)}.yaml"'},
    )


def models_on_offer(request: Asked) -> list[tuple[str, str]]:
    """Jobs of which this user can take the exported weights."""
    jobs = Job.objects.visible_to(request.user).filter(attempts__artifacts__name="model").distinct().order_by("-pk")
    return [(str(job.pk), f"#{job.pk} {job.name}") for job in jobs[:JOBS_OFFERED]]


# --- where a draft comes from ---------------------------------------------------------------


def _draft(request: Asked) -> Draft:
    """Blank, or like another job: ?clone= with its own settings, ?from= starting from its exported weights, ?dry_run= as
    it was tried, with &clip= at the suggested norm."""
    asked = request.GET
    dataset = whole_number(asked.get("dataset"), 0)
    if asked.get("dry_run"):
        tried = job_for(request, whole_number(asked["dry_run"], 0))
        if tried.newest is None or tried.recipe not in RECIPES:
            return Draft(_recipe(None))
        settings = tried.newest.settings
        found = dry_run.of(tried, tried.newest) if asked.get("clip") and "clipping" in settings else None
        if found is not None and found.suggested is not None:
            settings = dry_run.with_clip(settings, found.suggested)
        return _as_tried(tried, settings)
    like = asked.get("clone") or asked.get("from")
    if not like:
        recipe = _recipe(asked.get("recipe")) if "recipe" in asked else _recipe_for(request, dataset)
        return Draft(recipe, asked.get("name", ""), dataset, tags=asked.get("tags", ""))
    job = job_for(request, whole_number(like, 0))
    if job.newest is None or job.recipe not in RECIPES:
        return Draft(_recipe(None))
    # Of a certain attempt, if one is named.
    settings = attempt_of(job, asked.get("attempt")).settings
    if asked.get("clone"):
        name = _("%(name)s, again") % {"name": job.name}
    else:
        name = _("%(name)s, continued") % {"name": job.name}
        settings = settings | {"model": settings.get("model", {}) | {"source": "job", "job": job.pk}}
    return Draft(RECIPES[job.recipe], name[:120], dataset or job.dataset_id or 0, settings, job, _tags(job))


def _as_tried(tried: Job, settings: dict[str, Any]) -> Draft:
    return Draft(RECIPES[tried.recipe], tried.name, tried.dataset_id or 0, settings, tried.cloned_from, _tags(tried))


def _tags(job: Job) -> str:
    return ", ".join(job.tags.values_list("name", flat=True))


def _recipe(name: str | None) -> Recipe:
    return RECIPES.get(name or "") or next(iter(RECIPES.values()))


def _recipe_for(request: Asked, dataset: int) -> Recipe:
    """The first that can train on it."""
    chosen = Dataset.objects.visible_to(request.user).filter(pk=dataset).first()
    fitting = (one for one in RECIPES.values() if chosen is not None and one.dataset_kind == chosen.kind)
    return next(fitting, _recipe(None))


def _form(request: Asked, draft: Draft, *, fill: bool) -> SettingsForm:
    data = request.POST if request.method == "POST" and draft.settings is None else None
    form = SettingsForm(
        draft.recipe,
        data=data,
        initial=draft.settings,
        preset=draft.recipe.preset((data or request.GET).get("preset") or _nearest(draft)),
        fill=fill,
        offers={"model.job": models_on_offer(request)},
    )
    facts = checks.of_dataset(_dataset(request, draft))
    if data is None and draft.settings is None and facts is not None:
        for name, value in draft.recipe.suited_to(facts).items():
            if (found := form.field(name)) is not None:
                found.value = value
    return form


def _nearest(draft: Draft) -> str | None:
    """The preset that most values of settings from elsewhere are those of."""

    def differences(preset: Preset) -> int:
        own = draft.settings or {}
        parts = [(name.partition("."), value) for name, value in preset.values.items()]
        return sum(own.get(group, {}).get(key) != value for (group, _dot, key), value in parts)

    return min(draft.recipe.presets, key=differences).name if draft.settings and draft.recipe.presets else None


def _dataset(request: Asked, draft: Draft) -> Dataset | None:
    return Dataset.objects.visible_to(request.user).filter(pk=draft.dataset).first()


# --- what is shown --------------------------------------------------------------------------


def _page(request: Asked, form: SettingsForm, draft: Draft, failed: str = "") -> HttpResponse:
    mode = request.GET.get("mode")
    if mode in MODES:
        request.session["form_mode"] = mode
    ready = Dataset.objects.visible_to(request.user).ready().order_by("name", "-id")
    offered = list(ready.for_recipe(draft.recipe))
    if request.method != "POST" and not draft.dataset and len(offered) == 1:
        draft.dataset = offered[0].pk
    context = _check(request, form, draft) | {
        "form": form,
        "recipe": draft.recipe,
        "recipes": list(RECIPES.values()),
        "datasets": offered,
        # Nobody trains on another one than he chose because that is gone.
        "none_chosen": draft.dataset not in [dataset.pk for dataset in offered],
        "kind": Dataset.Kind(draft.recipe.dataset_kind).label,
        "of_other_kinds": [
            {"name": dataset.name, "kind": dataset.get_kind_display()}
            for dataset in ready.exclude(kind=draft.recipe.dataset_kind)[:OTHERS_NAMED]
        ],
        "given": {"name": draft.name, "dataset": draft.dataset, "tags": draft.tags},
        "known_tags": tags.known(request.user),
        "cloned_from": draft.cloned_from,
        "errors": draft.errors,
        "failed": failed,
        "mode": request.session.get("form_mode", "basic"),
    }
    return render(request, "jobs/new.html", context, status=422 if failed else 200)


def _check(request: Asked, form: SettingsForm, draft: Draft) -> dict[str, Any]:
    """What would be submitted, and what speaks against it."""
    findings: list[Finding] = []
    complaints: dict[str, str] = {}
    dataset, needs = _dataset(request, draft), None
    missing = [] if draft.name.strip() else [_("a name")]
    if dataset is None and draft.recipe.needs_dataset:
        missing.append(_("a dataset"))
    try:
        checked = services.validated(draft.recipe.name, form.raw())
        of_job = (draft.recipe.name, checked, dataset, request.user, draft.cloned_from)
        findings, needs = checks.findings(*of_job), checks.estimate(*of_job)
        complaints = limits.against(request.user, settings=checked.model_dump(mode="json"), priority=0)
    except services.Refused as refused:
        complaints = refused.errors
    said = checks.judged(findings, request.POST)
    return said | {
        "complaints": [(form.title_of(name), text) for name, text in complaints.items()],
        "missing": missing,
        "needs": needs,
        "needs_unknown": needs is None and not complaints and checks.estimates(draft.recipe.name),
        "yaml": _as_yaml(request, form, draft),
        "command": _command(request, draft, bool(said["warnings"])),
    }


def _as_yaml(request: Asked, form: SettingsForm, draft: Draft) -> str:
    """As checked, defaults and all; as typed where it cannot be."""
    settings = form.raw()
    with suppress(services.Refused):
        settings = services.validated(draft.recipe.name, settings).model_dump(mode="json")
    return job_file.dump(
        name=draft.name,
        recipe=draft.recipe.name,
        dataset=_dataset(request, draft),
        settings=settings,
        tags=tags.split(draft.tags),
    )


def _command(request: Asked, draft: Draft, anyway: bool) -> str:
    words = [".venv/bin/python", "manage.py", "submit", f"{_file_name(draft.name or 'job')}.yaml"]
    words += ["--owner", request.user.get_username()]
    return " ".join(words) + (" --anyway" if anyway else "")


def _file_name(name: str) -> str:
    """Of letters that every system and every shell takes as they are."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return "-".join(filter(None, kept.split("-")))[:60] or "job"
