from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Dataset
from tests.jobs.views.conftest import MINE, People
from tests.jobs.views.streams import body, let_go

ROWS = b'{"text": "\xe5\xa5\xbd", "label": "a"}\n' * 3


@pytest.fixture
def stored(dataset: Dataset, settings: Any, tmp_path: Path) -> Dataset:
    settings.STORAGE_ROOT = tmp_path
    for split in ("train", "dev"):
        path = tmp_path / dataset.key / f"{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ROWS)
    return dataset


def test_who_sees_a_dataset_may_download_its_rows(people: People, stored: Dataset) -> None:
    assert people.ask(f"/datasets/{stored.pk}/train.jsonl") == MINE
    Dataset.objects.update(shared=True)
    answer = people.other.get(f"/datasets/{stored.pk}/dev.jsonl")
    assert answer.status_code == 200
    let_go(answer)


def test_the_rows_come_as_they_are_stored(people: People, stored: Dataset) -> None:
    Dataset.objects.update(name="影评 a/b")
    answer = people.owner.get(f"/datasets/{stored.pk}/train.jsonl")
    assert asyncio.run(body(answer)) == ROWS
    assert answer["Content-Disposition"].endswith("%E5%BD%B1%E8%AF%84_a_b-v1-train.jsonl")
    assert f'href="/datasets/{stored.pk}/dev.jsonl"' in people.owner.get(f"/datasets/{stored.pk}/").text


def test_a_large_split_is_sent_by_the_proxy(people: People, stored: Dataset, settings: Any) -> None:
    settings.PROXY_DOWNLOADS = True
    answer = people.owner.get(f"/datasets/{stored.pk}/train.jsonl")
    assert answer.content == b"" and answer["X-Accel-Redirect"] == f"/storage/{stored.key}/train.jsonl"


@pytest.mark.parametrize("split", ["test", "..", "train.jsonl"])
def test_there_is_nothing_but_the_splits(people: People, stored: Dataset, split: str) -> None:
    assert people.owner.get(f"/datasets/{stored.pk}/{split}.jsonl").status_code == 404


def test_what_is_not_ready_or_leads_out_of_the_storage_is_not_there(people: People, stored: Dataset) -> None:
    Dataset.objects.update(key="../outside")
    assert people.owner.get(f"/datasets/{stored.pk}/train.jsonl").status_code == 404
    Dataset.objects.update(key=stored.key, state="checking")
    assert people.owner.get(f"/datasets/{stored.pk}/train.jsonl").status_code == 404
