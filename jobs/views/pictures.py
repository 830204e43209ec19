"""Datasets made of pictures: how they are read, single pictures for pages, and all of them for download."""

from __future__ import annotations

import os

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from jobs import datasets, picture_datasets
from jobs.models import Dataset
from jobs.picture_forms import PicturesForm, kind_of
from jobs.services import Refused
from jobs.streaming import download, generated, plain_name
from jobs.views.rows import Asked, dataset_for
from workers.contract.datasets import PICTURE_KINDS, Reading
from workers.datasets.archives import LARGEST_PICTURE_BYTES
from workers.datasets.parsing import Unreadable


def describe(request: Asked, dataset: Dataset) -> HttpResponse:
    """Of `datasets.dataset_describe`, for who may change the dataset."""
    posted = request.method == "POST"
    only_preview = posted and "preview" in request.POST
    reading = Reading.model_validate(dataset.reading)
    context = {"dataset": dataset, "pictures": True, "failed": posted and not only_preview}
    template = "datasets/describe_pictures.html" if request.htmx else "datasets/describe.html"
    try:
        sources = picture_datasets.sources_of(dataset)
        look = picture_datasets.look_at(sources, reading if reading.kind in PICTURE_KINDS else None)
    except Unreadable as error:
        return render(request, template, context | {"problem": _(error.template) % error.values, "hopeless": True})
    reading = look.reading
    if posted and kind_of(request.POST, reading) != reading.kind:
        kind = kind_of(request.POST, reading)
        reading = reading.model_copy(update={"kind": kind, "images": picture_datasets.guessed(look, kind)})
    form = PicturesForm(request.POST if posted else None, lists=look.lists, texts=look.texts, reading=reading)
    if posted and form.is_valid():
        if not only_preview:
            try:
                datasets.ask_for_check(dataset, form.reading())
            except Refused as refused:
                messages.error(request, " ".join(refused.errors.values()))
            return redirect("dataset_detail", dataset.pk)
        look = picture_datasets.look_at(picture_datasets.sources_of(dataset), form.reading())
    context |= {"form": form, "look": look}
    if look.problem:
        context["problem"] = _(look.problem.template) % look.problem.values
    return render(request, template, context, status=422 if context["failed"] else 200)


@require_safe
def dataset_picture(request: Asked, pk: int, offset: int, size: int) -> HttpResponseBase:
    """A picture by its place in the file of them, as rows have it. To all who see the dataset."""
    path = picture_datasets.images_path(dataset_for(request, pk))
    if path is None or not 0 < size <= LARGEST_PICTURE_BYTES or offset >= 2**60:
        raise Http404
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise Http404 from None
    there = os.fstat(file.fileno()).st_size
    kind = picture_datasets.content_type(os.pread(file.fileno(), picture_datasets.TYPE_BYTES, offset))
    if offset + size > there or not kind:
        file.close()
        raise Http404
    response = download(
        request,
        lambda at, length: os.pread(file.fileno(), length, offset + at),
        size,
        filename=f"{offset}-{size}.{kind.partition('/')[2]}",
        content_type=kind,
        inline=True,
    )
    response._resource_closers.append(file.close)  # type: ignore[attr-defined]
    # Whatever a browser would take it for: nothing of it runs. A place never holds another picture.
    response["Content-Security-Policy"] = "default-src 'none'; sandbox"
    response["Cache-Control"] = "private, max-age=86400, no-transform"
    return response


@require_safe
def dataset_pictures(request: Asked, pk: int) -> HttpResponseBase:
    """All rows and pictures as a zip that can be uploaded again."""
    dataset = dataset_for(request, pk)
    path = picture_datasets.images_path(dataset)
    if path is None or not path.is_file():
        raise Http404
    return generated(
        lambda: picture_datasets.packed(path.parent),
        filename=f"{plain_name(dataset.name)}-v{dataset.version}.zip",
        content_type="application/zip",
    )
