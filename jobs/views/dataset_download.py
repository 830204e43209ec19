"""The frozen rows of a dataset as they were checked: one JSON Lines file per split."""

from __future__ import annotations

from django.conf import settings
from django.http import Http404
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from jobs.models import Dataset
from jobs.streaming import file_download, plain_name
from jobs.views.rows import Asked, dataset_for
from workers.contract.datasets import SPLITS


@require_safe
def dataset_download(request: Asked, pk: int, split: str) -> HttpResponseBase:
    """To all who see the dataset: they see its rows, too."""
    dataset = dataset_for(request, pk)
    root = settings.STORAGE_ROOT.resolve()
    path = (root / dataset.key / f"{split}.jsonl").resolve()
    if split not in SPLITS or dataset.state != Dataset.State.READY or not path.is_relative_to(root):
        raise Http404
    try:
        return file_download(
            request,
            path,
            filename=f"{plain_name(dataset.name)}-v{dataset.version}-{split}.jsonl",
            content_type="application/jsonl; charset=utf-8",
            etag=f"{dataset.content_hash}-{split}",
        )
    except FileNotFoundError:
        raise Http404 from None
