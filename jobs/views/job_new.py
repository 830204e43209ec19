"""A new job: a plain form made from the recipe's settings."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from jobs import services
from jobs.forms import SettingsForm
from jobs.models import Dataset
from jobs.views.rows import Asked, whole_number
from workers.recipes.registry import RECIPES


@require_http_methods(["GET", "HEAD", "POST"])
def job_new(request: Asked) -> HttpResponse:
    asked = request.POST.get("recipe") or request.GET.get("recipe") or next(iter(RECIPES))
    recipe = RECIPES.get(asked) or next(iter(RECIPES.values()))
    datasets = Dataset.objects.visible_to(request.user).ready().order_by("name", "-id")
    data = request.POST if request.method == "POST" else None
    form = SettingsForm(recipe, data=data)
    name = request.POST.get("name", "")
    dataset = whole_number(request.POST.get("dataset") or request.GET.get("dataset"), 0)
    errors: dict[str, str] = {}
    if data is not None:
        try:
            job = services.submit(
                owner=request.user,
                name=name,
                recipe=recipe.name,
                dataset=datasets.filter(pk=dataset).first(),
                settings=form.raw(),
                actor=request.user,
            )
        except services.Refused as refused:
            errors = form.add_errors(refused.errors)
        else:
            messages.success(request, _("Job %(number)d is queued.") % {"number": job.pk})
            return redirect("job_detail", job.pk)
    context = {
        "form": form,
        "recipe": recipe,
        "recipes": list(RECIPES.values()),
        "datasets": datasets,
        "given": {"name": name, "dataset": dataset},
        "errors": errors,
        "failed": data is not None,
    }
    return render(request, "jobs/new.html", context, status=422 if data is not None else 200)
