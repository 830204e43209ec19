"""Datasets: the list, one of them, upload, description, sharing, deletion."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from jobs import baselines, datasets, picture_datasets, spans
from jobs.dataset_forms import FILE, FORMS, PATH, SourceForm, how_read
from jobs.dataset_pictures import histogram, label_bars, sequence_lines
from jobs.models import Dataset, Job
from jobs.services import Refused
from jobs.views import pictures
from jobs.views.rows import Asked, dataset_for, whole_number
from workers.contract.datasets import Finding, Reading
from workers.datasets.parsing import Unreadable

PER_PAGE = 50
State = Dataset.State


def managed(request: Asked, pk: int) -> Dataset:
    """To those who see it and may not change it this is forbidden; to others it is not there."""
    dataset = dataset_for(request, pk)
    if not may_manage(request, dataset):
        raise PermissionDenied
    return dataset


def may_manage(request: Asked, dataset: Dataset) -> bool:
    return Dataset.objects.managed_by(request.user).filter(pk=dataset.pk).exists()


@require_safe
def dataset_list(request: Asked) -> HttpResponse:
    visible = Dataset.objects.visible_to(request.user)
    text = request.GET.get("q", "").strip()
    found = visible.filter(name__icontains=text) if text else visible
    page = Paginator(
        found.select_related("owner").annotate(used=Count("jobs")).order_by("name", "-version", "-pk"), PER_PAGE
    ).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": [{"dataset": dataset, **verdict(dataset)} for dataset in page],
        "any": visible.exists(),
        "query": request.GET,
        "live": any(dataset.state in (State.UPLOADING, State.CHECKING) for dataset in page),
    }
    return render(request, "datasets/list_table.html" if request.htmx else "datasets/list.html", context)


def verdict(dataset: Dataset) -> dict[str, Any]:
    levels = [finding["level"] for finding in dataset.findings]
    return {"errors": levels.count("error"), "warnings": levels.count("warning"), "total": sum(dataset.splits.values())}


@require_safe
def dataset_detail(request: Asked, pk: int) -> HttpResponse:
    dataset = dataset_for(request, pk)
    mine = may_manage(request, dataset)
    context: dict[str, Any] = {"dataset": dataset, "mine": mine, **verdict(dataset)}
    if request.htmx and dataset.state in (State.UPLOADING, State.CHECKING):
        return render(request, "datasets/detail_state.html", context | _moving(dataset))
    if dataset.state == State.MAPPING and mine and not request.htmx:
        return redirect("dataset_describe", dataset.pk)
    used_by = dataset.jobs.order_by("-pk")
    seen = Job.objects.visible_to(request.user).filter(dataset=dataset).order_by("-pk")
    statistics = dataset.statistics
    context |= _moving(dataset) | {
        "findings": [Finding.model_validate(finding) for finding in dataset.findings],
        "used_by": seen[:20],
        "used_count": used_by.count(),
        "versions": Dataset.objects.visible_to(request.user)
        .filter(owner=dataset.owner, name=dataset.name)
        .exclude(pk=dataset.pk),
        "bars": label_bars(statistics.get("label_counts", {})),
        "histogram": histogram(statistics.get("length_histogram")),
        "samples": statistics.get("samples", {}),
        "tag_rows": tag_rows(dataset),
        "span_kinds": spans.kinds(dataset.labels) if dataset.kind == Dataset.Kind.TOKENS else [],
        "first_batch": statistics.get("first_batch") or None,
        "lines": sequence_lines(statistics.get("first_batch")) if dataset.kind == Dataset.Kind.SEQUENCES else [],
        "baselines": baselines.of_dataset(dataset),
        "reading": dataset.reading,
        **picture_datasets.page(dataset),
    }
    response = render(request, "datasets/detail.html", context)
    if request.htmx:
        # What was being checked is ready or refused: the whole page is another one now.
        response["HX-Refresh"] = "true"
    return response


def tag_rows(dataset: Dataset) -> list[dict[str, Any]]:
    counts = dataset.statistics.get("tag_counts") or {}
    names = dataset.labels if counts else []
    return [{"name": name, "counts": [of.get(name, 0) for of in counts.values()]} for name in names]


def _moving(dataset: Dataset) -> dict[str, Any]:
    if dataset.state == State.UPLOADING:
        files = dataset.source.get("files", [])
        uploads = [
            {
                "name": file["name"],
                "bytes": file["bytes"],
                "url": reverse("dataset_upload", args=[dataset.pk, index]),
            }
            for index, file in enumerate(files)
        ]
        total = sum(file["bytes"] for file in files)
        return {"uploads": uploads, "received": datasets.received(dataset), "to_receive": total}
    return {"progress": dataset.check_progress}


# --- upload ----------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
def dataset_new(request: Asked) -> HttpResponse:
    posted = request.method == "POST"
    initial = {"name": request.GET.get("name", ""), "source": FILE}
    form = SourceForm(request.POST, request.FILES) if posted else SourceForm(initial=initial)
    in_parts = request.headers.get("Accept") == "application/json"
    if posted and form.is_valid():
        try:
            dataset = _begin(request, form)
        except Refused as refused:
            for name, text in refused.errors.items():
                form.add_error(name if name in form.fields else None, text)
        else:
            if not in_parts:
                return redirect("dataset_describe", dataset.pk)
            uploads = (
                [upload["url"] for upload in _moving(dataset)["uploads"]] if dataset.state == State.UPLOADING else []
            )
            return JsonResponse({"uploads": uploads, "next": reverse("dataset_detail", args=[dataset.pk])})
    if posted and in_parts:
        return JsonResponse(
            {"errors": {name: " ".join(map(str, form.errors[name])) for name in form.errors}}, status=422
        )
    context = {
        "form": form,
        "limit": settings.UPLOAD_LIMIT_BYTES,
        "whole_limit": settings.WHOLE_BODY_LIMIT_BYTES,
        "part": settings.UPLOAD_PART_BYTES,
        "roots": settings.DATASET_ROOTS,
    }
    return render(request, "datasets/new.html", context, status=422 if posted else 200)


def _begin(request: Asked, form: SourceForm) -> Dataset:
    given = form.cleaned_data
    common: dict[str, Any] = {
        "owner": request.user,
        "name": given["name"].strip(),
        "shared": given["shared"],
        "description": given["description"],
    }
    if given["source"] == PATH:
        paths = {name: given[name].strip() for name in ("path", "dev_path", "label_path")}
        return datasets.begin_path(**common, **paths, label_split=form.split_of_label_file())
    if given["source"] == FILE:
        files = form.files_to_come()
        both = any(field == "dev_file" for field, _name, _size in files)
        splits = {"file": "train" if both else "", "dev_file": "dev", "label_file": form.split_of_label_file()}
        dataset = datasets.begin_upload(**common, files=[(name, splits[field], size) for field, name, size in files])
        if not given["announced"]:
            try:
                for index, (field, _name, _size) in enumerate(files):
                    datasets.receive(dataset, index, 0, given[field].file)
            except BaseException:
                datasets.delete(dataset)
                raise
        return dataset
    return datasets.begin_paddlenlp(**common, paddlenlp=given["paddlenlp"])


@require_POST
def dataset_upload(request: Asked, pk: int, index: int) -> HttpResponse:
    """One part of a file, as the body, at `offset`. 409 with the right offset if that is not where the file ends."""
    dataset = managed(request, pk)
    try:
        offset = datasets.receive(dataset, index, whole_number(request.GET.get("offset"), 0), request)  # type: ignore[arg-type]
    except datasets.Behind as behind:
        return JsonResponse({"offset": behind.offset}, status=409)
    except Refused as refused:
        return JsonResponse({"errors": refused.errors}, status=422)
    return JsonResponse({"offset": offset})


# --- description and check -------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
def dataset_describe(request: Asked, pk: int) -> HttpResponse:
    dataset = managed(request, pk)
    if dataset.state not in (State.MAPPING, State.REFUSED):
        return redirect("dataset_detail", dataset.pk)
    if picture_datasets.are_pictures(dataset):
        return pictures.describe(request, dataset)
    posted = request.method == "POST"
    reading = Reading.model_validate(dataset.reading)
    as_posted = how_read(request.POST, reading) if posted else reading
    look, problem, hopeless = None, "", False
    if not dataset.source.get("paddlenlp"):
        try:
            look = datasets.look_at(dataset, as_posted)
        except Unreadable as error:
            problem, hopeless = _(error.template) % error.values, error.however
    columns = look.columns if look else []
    if posted and as_posted.kind == "sequences" and "layout" not in request.POST:
        # Another kind was chosen a moment ago: its fields begin as guessed.
        reading = as_posted.model_copy(update={"sequences": datasets.guessed_sequences(look)})
        form = FORMS[reading.kind](None, columns=columns, reading=reading)
    elif posted and as_posted.kind == "tokens" and _other_columns(request, columns):
        reading = as_posted.model_copy(update={"tagging": datasets.guessed_tags(look)})
        form = FORMS[reading.kind](None, columns=columns, reading=reading)
    else:
        form = FORMS[as_posted.kind](request.POST if posted else None, columns=columns, reading=reading)
    only_preview = posted and "preview" in request.POST
    if posted and not only_preview and not problem and form.is_valid():
        try:
            datasets.ask_for_check(dataset, form.reading())
        except Refused as refused:
            messages.error(request, " ".join(refused.errors.values()))
        return redirect("dataset_detail", dataset.pk)
    context = {
        "dataset": dataset,
        "form": form,
        "look": look,
        "problem": problem,
        "hopeless": hopeless,
        "chosen": form.chosen(),
        "has_dev_file": any(file.get("split") == "dev" for file in dataset.source.get("files", [])),
        "failed": posted and not only_preview,
    }
    template = "datasets/describe_form.html" if request.htmx else "datasets/describe.html"
    return render(request, template, context, status=422 if posted and not only_preview else 200)


def _other_columns(request: Asked, columns: list[str]) -> bool:
    """Whether the kind, or what makes columns, was changed a moment ago, so that those of tokens begin as guessed."""
    if "scheme" not in request.POST:
        return True
    return bool(columns) and request.POST.get("tokens_column") not in columns


# --- sharing and deleting --------------------------------------------------------------------


@require_POST
def dataset_share(request: Asked, pk: int) -> HttpResponse:
    dataset = managed(request, pk)
    shared = request.POST.get("shared") == "on"
    Dataset.objects.filter(pk=dataset.pk).update(shared=shared)
    messages.success(
        request, _("Every user may train on it now.") if shared else _("Only you and administrators see it now.")
    )
    return redirect("dataset_detail", dataset.pk)


@require_POST
def dataset_delete(request: Asked, pk: int) -> HttpResponse:
    dataset = managed(request, pk)
    try:
        datasets.delete(dataset)
    except Refused as refused:
        messages.error(request, " ".join(refused.errors.values()))
        return redirect("dataset_detail", dataset.pk)
    messages.success(
        request,
        _("“%(name)s”, version %(version)d, is deleted.") % {"name": dataset.name, "version": dataset.version},
    )
    return redirect("dataset_list")
