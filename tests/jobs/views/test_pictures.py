"""Datasets made of pictures in the browser: upload and description, who sees pictures, and all of them as a zip."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from PIL import Image

from jobs import datasets, picture_datasets
from jobs.models import Dataset
from tests.jobs.views.conftest import MINE, People
from tests.jobs.views.streams import body, let_go
from tests.jobs.views.test_datasets import JSON, send
from workers.contract.datasets import Reading
from workers.images import write_folder

State = Dataset.State


@pytest.fixture(autouse=True)
def storage(settings: Any, tmp_path: Path) -> Path:
    settings.STORAGE_ROOT = tmp_path / "storage"
    return tmp_path / "storage"


def png(seed: int, size: tuple[int, int] = (40, 16), form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)).save(file, form)
    return file.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


PETS = {f"{label}/{i}.png": png(100 * n + i) for n, label in enumerate(("cat", "dog")) for i in range(10)}
WORDS = {f"words/{i}.png": png(i) for i in range(12)}
LINES = "".join(f"words/{i}.png\tword {i}\n" for i in range(12)).encode()


def upload(people: People, files: dict[str, tuple[str, bytes]]) -> Any:
    announced = [{"field": field, "name": name, "bytes": len(data)} for field, (name, data) in files.items()]
    answer = people.owner.post(
        "/datasets/new/", {"source": "file", "name": "set", "announced": json.dumps(announced)}, headers=JSON
    )
    if answer.status_code == 200:
        for url, (_name, data) in zip(answer.json()["uploads"], files.values(), strict=True):
            assert send(people.owner, url, data).status_code == 200
    return answer


@pytest.fixture
def pets(people: People, owner: Any, tmp_path: Path) -> Dataset:
    path = tmp_path / "pets.zip"
    path.write_bytes(zipped({**PETS, "cat/large.jpg": png(900, (400, 300), "JPEG")}))
    return datasets.register(path, name="pets", owner=owner, baseline=False)[0]


def first(dataset: Dataset, split: str = "train") -> dict[str, Any]:
    line = (datasets.settings.STORAGE_ROOT / dataset.key / f"{split}.jsonl").read_text("utf-8").splitlines()[0]
    row: dict[str, Any] = json.loads(line)
    return row


# --- upload and description ------------------------------------------------------------------


def test_an_archive_of_folders_is_guessed_previewed_and_asked_to_be_checked(people: People) -> None:
    assert upload(people, {"file": ("pets.zip", zipped(PETS))}).status_code == 200
    dataset = Dataset.objects.get()
    assert (dataset.state, dataset.kind) == (State.MAPPING, "images")
    page = people.owner.get(f"/datasets/{dataset.pk}/describe/").text
    assert "20 pictures" in page and '<th scope="row">cat</th>' in page and "cat/0.png" in page
    answer = people.owner.post(
        f"/datasets/{dataset.pk}/describe/",
        {"kind": "images", "layout": "folders", "dev_fraction": "0.2", "seed": "7", "leave_out": "on"},
    )
    assert answer.status_code == 302
    dataset.refresh_from_db()
    reading = Reading.model_validate(dataset.reading)
    assert dataset.state == State.CHECKING and dataset.kind == "images"
    assert (reading.images.layout, reading.dev_fraction, reading.seed, reading.leave_out) == ("folders", 0.2, 7, True)
    assert datasets.spec_of(Dataset(check_uid="0" * 32, check_try=1, source=dataset.source, reading=dataset.reading))


def test_label_files_beside_the_archive_are_of_their_splits(people: People) -> None:
    files = {
        "file": ("words.zip", zipped(WORDS)),
        "label_file": ("rec_gt_train.txt", LINES),
        "dev_file": ("rec_gt_test.txt", LINES),
    }
    assert upload(people, files).status_code == 200
    dataset = Dataset.objects.get()
    assert dataset.kind == "lines"
    assert {file["name"]: file["split"] for file in dataset.source["files"]} == {
        "words.zip": "train", "rec_gt_train.txt": "train", "rec_gt_test.txt": "dev",
    }  # fmt: skip
    page = people.owner.get(f"/datasets/{dataset.pk}/describe/").text
    assert "12 for training" in page and "12 for evaluation" in page and "word 6" in page
    # What is chosen here counts.
    given = {"kind": "lines", "list_0": "train", "list_1": "out", "dev_fraction": "0.1", "seed": "1", "preview": "1"}
    page = people.owner.post(f"/datasets/{dataset.pk}/describe/", given).text
    assert "12 of which a share is set apart" in page and "12 of a test set, not used" in page


def test_weights_of_label_files_are_recognised_shown_and_can_be_declined(people: People) -> None:
    lines = b"".join(line + b"\t%d.5\n" % i for i, line in enumerate(LINES.splitlines()))
    upload(people, {"file": ("words.zip", zipped({**WORDS, "a.txt": lines}))})
    dataset = Dataset.objects.get()
    url = f"/datasets/{dataset.pk}/describe/"
    page = people.owner.get(url).text
    assert 'name="weights" checked' in page and '<td class="number">3.5</td>' in page
    given = {"kind": "lines", "list_0": "", "dev_fraction": "0.1", "seed": "1"}
    declined = people.owner.post(url, {**given, "preview": "1"}).text
    assert 'name="weights" checked' not in declined and "Rows with a control character in the text" in declined
    assert people.owner.post(url, {**given, "weights": "on"}).status_code == 302
    dataset.refresh_from_db()
    assert Reading.model_validate(dataset.reading).images.weights


def test_what_a_label_file_is_read_for_can_be_chosen(people: People) -> None:
    upload(people, {"file": ("words.zip", zipped({**WORDS, "a.txt": LINES, "b.txt": LINES}))})
    dataset = Dataset.objects.get()
    url = f"/datasets/{dataset.pk}/describe/"
    given = {"kind": "lines", "list_0": "", "list_1": "not", "dev_fraction": "0.1", "seed": "1"}
    page = people.owner.post(url, {**given, "preview": "1"}, headers={"hx-request": "true"})
    assert page.status_code == 200 and "12 of which a share is set apart" in page.text
    assert people.owner.post(url, {**given, "list_0": "not"}).status_code == 422
    assert people.owner.post(url, given).status_code == 302
    dataset.refresh_from_db()
    assert [one.name for one in Reading.model_validate(dataset.reading).images.lists] == ["a.txt"]


def test_another_kind_brings_its_own_fields(people: People) -> None:
    upload(people, {"file": ("words.zip", zipped({**WORDS, "gt.txt": LINES}))})
    url = f"/datasets/{Dataset.objects.get().pk}/describe/"
    page = people.owner.post(url, {"kind": "images", "preview": "1"}, headers={"hx-request": "true"}).text
    assert 'name="label_names"' in page and 'name="list_0"' in page


def test_rows_and_pictures_are_not_mixed(people: People) -> None:
    rows, archive = ("a.jsonl", b'{"text": "x", "label": "y"}\n'), ("a.zip", zipped(PETS))
    for files, field in (
        ({"file": rows, "label_file": ("gt.txt", LINES)}, "label_file"),
        ({"file": rows, "dev_file": archive}, "dev_file"),
        ({"file": archive, "dev_file": rows}, "file"),
        ({"file": ("a.rar", b"x")}, "file"),
    ):
        answer = upload(people, files)
        assert answer.status_code == 422 and list(answer.json()["errors"]) == [field]
    assert not Dataset.objects.exists()


def test_an_archive_that_is_none_says_so_and_offers_another_upload(people: People) -> None:
    upload(people, {"file": ("a.zip", b"PK\x03\x04 no more")})
    page = people.owner.get(f"/datasets/{Dataset.objects.get().pk}/describe/").text
    assert "The archive is broken or not whole" in page and "Upload another file" in page


def test_a_folder_on_the_server_is_read_where_it_lies_below_a_root(
    people: People, settings: Any, tmp_path: Path
) -> None:
    settings.DATASET_ROOTS = [tmp_path / "sets"]
    for root in ("sets", "elsewhere"):
        for name, data in PETS.items():
            (tmp_path / root / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / root / "pets" / name).write_bytes(data)
    (tmp_path / "sets/link").symlink_to(tmp_path / "elsewhere/pets")
    for path in ("elsewhere/pets", "sets/link", "sets/../elsewhere/pets", "sets/none"):
        answer = people.owner.post(
            "/datasets/new/", {"source": "path", "name": "x", "path": str(tmp_path / path)}, headers=JSON
        )
        assert answer.status_code == 422
    answer = people.owner.post("/datasets/new/", {"source": "path", "name": "x", "path": str(tmp_path / "sets/pets")})
    assert answer.status_code == 302
    dataset = Dataset.objects.get()
    assert dataset.source["files"][0]["folder"] and dataset.kind == "images"
    assert "20 pictures" in people.owner.get(f"/datasets/{dataset.pk}/describe/").text
    # With a label file elsewhere below the root, but not below another folder.
    for folder, status in (("elsewhere", 422), ("sets", 302)):
        (tmp_path / folder / "gt.txt").write_text("".join(f"{name}\ttext {i}\n" for i, name in enumerate(PETS)))
        given = {"source": "path", "name": "y", "path": str(tmp_path / "sets/pets")}
        answer = people.owner.post("/datasets/new/", {**given, "label_path": str(tmp_path / folder / "gt.txt")})
        assert answer.status_code == status
    assert Dataset.objects.get(name="y").kind == "lines"


def test_without_javascript_the_files_come_with_the_form(people: People) -> None:
    given = {
        "source": "file", "name": "words",
        "file": SimpleUploadedFile("words.zip", zipped(WORDS)),
        "label_file": SimpleUploadedFile("gt.csv", LINES.replace(b"\t", b",")),
    }  # fmt: skip
    assert people.owner.post("/datasets/new/", given).status_code == 302
    dataset = Dataset.objects.get()
    assert dataset.kind == "lines"
    assert "12 of which a share is set apart" in people.owner.get(f"/datasets/{dataset.pk}/describe/").text


# --- pictures --------------------------------------------------------------------------------


def test_pictures_are_for_those_who_see_the_dataset(people: People, pets: Dataset) -> None:
    offset, size = first(pets)["image"]
    for url in (f"/datasets/{pets.pk}/pictures/{offset}-{size}", f"/datasets/{pets.pk}/pictures.zip"):
        assert people.ask(url) == MINE
        assert people.owner.post(url).status_code == 405
    Dataset.objects.update(shared=True)
    answer = people.other.get(f"/datasets/{pets.pk}/pictures/{offset}-{size}")
    assert asyncio.run(body(answer)) == PETS[first(pets)["id"]]
    assert answer["Content-Type"] == "image/png" and answer["Content-Disposition"].startswith("inline")
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert answer["Cache-Control"].startswith("private")


def test_there_is_nothing_but_pictures(people: People, pets: Dataset) -> None:
    offset, size = first(pets)["image"]
    whole = (datasets.settings.STORAGE_ROOT / pets.key / "images.bin").stat().st_size
    for at, length in ((offset + 1, size - 1), (offset, 0), (offset, whole + 1), (whole, 1), (10**30, 5), (0, 10**30)):
        assert people.owner.get(f"/datasets/{pets.pk}/pictures/{at}-{length}").status_code == 404
    Dataset.objects.update(key="../outside")
    assert people.owner.get(f"/datasets/{pets.pk}/pictures/{offset}-{size}").status_code == 404
    Dataset.objects.update(key=pets.key, kind="texts")
    assert people.owner.get(f"/datasets/{pets.pk}/pictures/{offset}-{size}").status_code == 404
    assert people.owner.get(f"/datasets/{pets.pk}/pictures.zip").status_code == 404


def test_the_page_shows_pictures_of_each_label(people: People, pets: Dataset) -> None:
    page = people.owner.get(f"/datasets/{pets.pk}/").text
    assert page.count("<img") >= 12 and "Training pictures of each label" in page
    assert f"/datasets/{pets.pk}/pictures.zip" in page
    large = next(
        (row for rows in pets.statistics["samples"].values() for row in rows if row["id"] == "cat/large.jpg"), None
    )
    if large is not None:
        assert large["image"] != large["of"] and f"/pictures/{large['of'][0]}-{large['of'][1]}" in page


def test_the_zip_has_all_pictures_and_can_be_uploaded_again(people: People, pets: Dataset, tmp_path: Path) -> None:
    answer = people.owner.get(f"/datasets/{pets.pk}/pictures.zip")
    (tmp_path / "again.zip").write_bytes(asyncio.run(body(answer)))
    with zipfile.ZipFile(tmp_path / "again.zip") as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in PETS} == PETS
    again, new = datasets.register(tmp_path / "again.zip", name="again", owner=pets.owner, baseline=False)
    assert new and again.kind == "images" and again.splits == pets.splits and again.labels == pets.labels
    assert first(again, "dev")["id"] == first(pets, "dev")["id"]


def test_pictures_of_one_name_are_all_given_back(tmp_path: Path) -> None:
    image = {name: PETS[name] for name in list(PETS)[:3]}
    rows = [("cat/1.png", data, {"label": label}) for data, label in zip(image.values(), "aba", strict=True)]
    write_folder(tmp_path, {"train": rows, "dev": rows[:1]})
    with zipfile.ZipFile(io.BytesIO(b"".join(picture_datasets.packed(tmp_path)))) as archive:
        said = [line.split("\t") for line in archive.read("train.txt").decode().splitlines()]
        assert [(archive.read(name), label) for name, label in said] == [
            (data, more["label"]) for _name, data, more in rows
        ]
        assert archive.read("dev.txt") == b"cat/1.png\ta\n" and len(archive.namelist()) == 5


def test_weights_are_given_back_with_the_rows(tmp_path: Path) -> None:
    rows = [
        (name, PETS[name], {"label": "a", "weight": weight}) for name, weight in zip(PETS, (0.5, "nan"), strict=False)
    ]
    write_folder(tmp_path, {"train": rows, "dev": rows[:1]})
    with zipfile.ZipFile(io.BytesIO(b"".join(picture_datasets.packed(tmp_path)))) as archive:
        said = archive.read("train.txt").decode().splitlines()
    assert said == [f"{name}\ta\t{weight}" for name, weight in zip(PETS, (0.5, "nan"), strict=False)]


def test_lines_show_texts_characters_and_room(people: People, owner: Any, tmp_path: Path) -> None:
    (tmp_path / "words.zip").write_bytes(zipped(WORDS))
    (tmp_path / "gt.txt").write_bytes(LINES)
    dataset, _new = datasets.register(
        tmp_path / "words.zip",
        name="words",
        owner=owner,
        kind="lines",
        label_files=[tmp_path / "gt.txt"],
        baseline=False,
    )
    page = people.owner.get(f"/datasets/{dataset.pk}/").text
    assert "Room for the texts" in page and "word 3" in page and "Characters of the training rows" in page
    answer = people.owner.get(f"/datasets/{dataset.pk}/pictures.zip")
    with zipfile.ZipFile(io.BytesIO(asyncio.run(body(answer)))) as archive:
        said = archive.read("train.txt").decode() + archive.read("dev.txt").decode()
    assert sorted(said.splitlines()) == sorted(LINES.decode().splitlines())
    let_go(answer)
