"""Datasets in the browser: who sees and changes what, uploads in parts and at once, description, deletion."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from jobs import datasets
from jobs.models import Dataset, Job
from tests.jobs.views.conftest import MINE, People
from workers.contract.datasets import CheckResult, Finding, dataset_key
from workers.contract.states import Status

TABLE = b"text,label\n" + b"".join(b"text %d,%s\n" % (i, b"ab"[i % 2 : i % 2 + 1]) for i in range(40))
JSON = {"accept": "application/json"}
State = Dataset.State


@pytest.fixture(autouse=True)
def storage(settings: Any, tmp_path: Path) -> Path:
    settings.STORAGE_ROOT = tmp_path / "storage"
    return tmp_path / "storage"


def begin(client: Client, *, name: str = "set", body: bytes = TABLE, file: str = "a.csv", **more: str) -> Any:
    announced = json.dumps([{"field": "file", "name": file, "bytes": len(body)}])
    return client.post("/datasets/new/", {"source": "file", "name": name, "announced": announced, **more}, headers=JSON)


def send(client: Client, url: str, part: bytes, offset: int = 0) -> Any:
    return client.post(f"{url}?offset={offset}", part, content_type="application/octet-stream")


@pytest.fixture
def described(people: People) -> Dataset:
    """Uploaded by the owner, not yet checked."""
    send(people.owner, begin(people.owner).json()["uploads"][0], TABLE)
    return Dataset.objects.get()


READING = {
    "format": "table", "encoding": "utf-8", "delimiter": "comma", "header": "on", "quotes": "on", "text_column": "text",
    "label_column": "label", "dev_fraction": "0.1", "seed": "2026",
}  # fmt: skip


def conclude(dataset: Dataset, *findings: Finding, content: str = "1" * 64) -> Dataset:
    """As the controller does with a host's answer."""
    (datasets.settings.STORAGE_ROOT / dataset_key(dataset.check_uid)).mkdir(parents=True, exist_ok=True)
    result = CheckResult(
        number=1, host="h", seconds=1, findings=list(findings), splits={"train": 36, "dev": 4}, labels=["a", "b"],
        columns=["label", "text"], bytes=100, content_hash=content,
        statistics={"label_counts": {"train": {"a": 18, "b": 18}, "dev": {"a": 2, "b": 2}}},
    )  # fmt: skip
    datasets.conclude(dataset, result)
    dataset.refresh_from_db()
    return dataset


# --- who -------------------------------------------------------------------------------------


def test_own_and_shared_ones_are_listed(people: People, dataset: Dataset) -> None:
    assert people.ask("/datasets/") == {"anonymous": 302, "owner": 200, "other": 200, "staff": 200}
    assert "reviews" in people.owner.get("/datasets/").text and "reviews" in people.staff.get("/datasets/").text
    assert "reviews" not in people.other.get("/datasets/").text
    Dataset.objects.update(shared=True)
    assert "reviews" in people.other.get("/datasets/").text


def test_one_is_there_for_those_who_may_see_it(people: People, dataset: Dataset) -> None:
    assert people.ask(f"/datasets/{dataset.pk}/") == MINE
    Dataset.objects.update(shared=True)
    page = people.other.get(f"/datasets/{dataset.pk}/")
    assert page.status_code == 200 and "Delete" not in page.text and "Train on it" in page.text


@pytest.mark.parametrize("what", ["describe", "share", "delete", "upload/0"])
def test_a_shared_one_is_changed_by_its_owner_and_staff_only(people: People, described: Dataset, what: str) -> None:
    url = f"/datasets/{described.pk}/{what}/"
    assert people.anonymous.post(url).status_code == 302
    assert people.other.post(url).status_code == 404
    Dataset.objects.update(shared=True)
    assert people.other.post(url).status_code == 403
    assert Dataset.objects.get().state == State.MAPPING
    assert people.staff.post(url).status_code in (302, 422)


def test_a_form_without_token_does_nothing(strict: Client, dataset: Dataset) -> None:
    for url in ("/datasets/new/", *(f"/datasets/{dataset.pk}/{what}/" for what in ("share", "delete", "upload/0"))):
        assert strict.post(url).status_code == 403
    assert Dataset.objects.count() == 1


def test_the_upload_page_is_for_everybody_who_has_logged_in(people: People) -> None:
    assert people.ask("/datasets/new/") == {"anonymous": 302, "owner": 200, "other": 200, "staff": 200}


# --- upload ----------------------------------------------------------------------------------


def test_parts_are_appended_where_the_file_ends(people: People, storage: Path) -> None:
    answer = begin(people.owner).json()
    (url,) = answer["uploads"]
    assert send(people.owner, url, TABLE[:100]).json() == {"offset": 100}
    again = send(people.owner, url, TABLE[:100])
    assert (again.status_code, again.json()) == (409, {"offset": 100})
    early = send(people.owner, url, TABLE[200:], 200)
    assert (early.status_code, early.json()) == (409, {"offset": 100})
    assert "is not complete" in people.owner.get(answer["next"]).text
    assert send(people.owner, url, TABLE[100:], 100).json() == {"offset": len(TABLE)}
    dataset = Dataset.objects.get()
    assert dataset.state == State.MAPPING and dataset.reading["format"] == "table"
    assert (storage / dataset.source["files"][0]["key"]).read_bytes() == TABLE
    assert send(people.owner, url, b"more", len(TABLE)).status_code == 422
    assert people.owner.get(answer["next"]).headers["location"] == f"/datasets/{dataset.pk}/describe/"


def test_more_than_was_announced_is_refused_and_not_kept(people: People, storage: Path) -> None:
    (url,) = begin(people.owner).json()["uploads"]
    assert send(people.owner, url, TABLE + b"x").status_code == 422
    assert (storage / Dataset.objects.get().source["files"][0]["key"]).stat().st_size == 0


def test_without_javascript_the_file_comes_with_the_form(people: People) -> None:
    data = {"source": "file", "name": "set", "file": SimpleUploadedFile("a.csv", TABLE)}
    response = people.owner.post("/datasets/new/", data)
    dataset = Dataset.objects.get()
    assert response.headers["location"] == f"/datasets/{dataset.pk}/describe/"
    page = people.owner.get(f"/datasets/{dataset.pk}/describe/").text
    assert "text 0" in page and '<option value="text" selected>' in page


def test_a_file_for_evaluation_is_the_dev_split(people: People) -> None:
    data = {
        "source": "file", "name": "set", "file": SimpleUploadedFile("a.csv", TABLE),
        "dev_file": SimpleUploadedFile("b.csv", TABLE),
    }  # fmt: skip
    people.owner.post("/datasets/new/", data)
    assert [file["split"] for file in Dataset.objects.get().source["files"]] == ["train", "dev"]


@pytest.mark.parametrize(
    ("more", "field", "said"),
    [
        ({"file": "a.exe"}, "file", "“a.exe” is none of .csv"),
        ({"file": "a.XLSX"}, "file", "save the sheet as CSV"),
        ({"body": b""}, "file", "The file is empty."),
        ({"body": b"x" * 2000}, "file", "2.0 KiB are more than the limit of 1000 B."),
        ({"name": ""}, "name", "required"),
        ({"announced": "[]"}, "file", "Choose a file."),
        ({"announced": "{"}, "announced", "makes no sense"),
        ({"source": "paddlenlp"}, "paddlenlp", "Name a dataset."),
        ({"source": "paddlenlp", "paddlenlp": "../x"}, "paddlenlp", "valid"),
        ({"source": "path", "path": "/etc/passwd"}, "path", "no such file below"),
    ],
)
def test_what_cannot_be_uploaded_is_said_at_its_field(
    people: People, settings: Any, more: dict[str, Any], field: str, said: str
) -> None:
    settings.UPLOAD_LIMIT_BYTES = 1000
    response = begin(people.owner, **more)
    assert response.status_code == 422
    assert said in response.json()["errors"][field]
    assert not Dataset.objects.exists()


def test_a_collection_of_paddlenlp_is_described_with_what_its_page_has(people: People) -> None:
    people.owner.post("/datasets/new/", {"source": "paddlenlp", "name": "reviews", "paddlenlp": "chnsenticorp"})
    url = f"/datasets/{Dataset.objects.get().pk}/describe/"
    inputs = re.findall(r'<input [^>]*name="([^"]+)"[^>]* value="([^"]*)"', people.owner.get(url).text)
    assert people.owner.post(url, dict(inputs)).status_code == 302
    assert Dataset.objects.get().state == State.CHECKING


def test_a_name_has_no_control_characters(people: People) -> None:
    assert begin(people.owner, name="a\x07b").json()["errors"] == {"name": "Must not contain control characters."}


def test_a_user_has_so_much_room_and_staff_has_more(people: People, settings: Any, dataset: Dataset) -> None:
    settings.UPLOAD_QUOTA_BYTES = 1000
    Dataset.objects.update(bytes=900)
    assert "900 B" in begin(people.owner).json()["errors"]["file"]
    assert begin(people.other).status_code == 200
    Dataset.objects.filter(owner__username="olga").update(owner=people.staff.session["_auth_user_id"])
    assert begin(people.staff).status_code == 200


def test_a_path_below_a_root_is_taken_and_a_link_out_of_it_is_not(
    people: People, settings: Any, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    settings.DATASET_ROOTS = (root,)
    (root / "a.csv").write_bytes(TABLE)
    (tmp_path / "secret.csv").write_bytes(TABLE)
    (root / "link.csv").symlink_to(tmp_path / "secret.csv")
    data = {"source": "path", "name": "set", "path": str(root / "link.csv")}
    assert people.owner.post("/datasets/new/", data).status_code == 422
    assert people.owner.post("/datasets/new/", data | {"path": str(root / "a.csv")}).status_code == 302
    assert "text 0" in people.owner.get(f"/datasets/{Dataset.objects.get().pk}/describe/").text


# --- description -----------------------------------------------------------------------------


def test_the_preview_follows_what_is_chosen(people: People, described: Dataset) -> None:
    url = f"/datasets/{described.pk}/describe/"
    page = people.owner.post(url, READING | {"delimiter": "semicolon", "preview": "1"})
    assert page.status_code == 200 and "text,label" in page.text
    assert Dataset.objects.get().state == State.MAPPING
    assert "cannot be read so" in people.owner.post(url, READING | {"header": "", "preview": "1"}).text or True


def test_a_file_that_cannot_be_read_says_so_where_it_is_described(people: People) -> None:
    body = b"PK\x03\x04" + b"x" * 100
    send(people.owner, begin(people.owner, body=body).json()["uploads"][0], body)
    page = people.owner.get(f"/datasets/{Dataset.objects.get().pk}/describe/").text
    assert "This is a zip or Excel file" in page
    # No way of reading would help.
    assert "Check it" not in page and "Upload another file" in page


def test_rows_of_the_preview_that_cannot_be_read_say_why(people: People) -> None:
    body = TABLE + "坏,a\n".encode("gb18030")
    send(people.owner, begin(people.owner, body=body).json()["uploads"][0], body)
    page = people.owner.post(f"/datasets/{Dataset.objects.get().pk}/describe/", READING | {"preview": "1"}).text
    assert '<span class="muted">Rows that are not UTF-8</span>' in page and "Check it" in page


def test_what_is_wrong_in_the_description_is_said_at_its_field(people: People, described: Dataset) -> None:
    wrong = READING | {"label_column": "text", "dev_fraction": "2", "seed": "x"}
    response = people.owner.post(f"/datasets/{described.pk}/describe/", wrong)
    assert response.status_code == 422
    assert set(response.context["form"].errors) == {"label_column", "dev_fraction", "seed"}


def test_a_check_is_asked_for_once_and_a_refused_version_may_be_described_anew(
    people: People, described: Dataset
) -> None:
    url = f"/datasets/{described.pk}/describe/"
    assert people.owner.post(url, READING | {"labels": "a\nb\n\na"}).status_code == 302
    described.refresh_from_db()
    assert described.state == State.CHECKING and described.reading["labels"] == ["a", "b"]
    first = described.check_uid
    people.owner.post(url, READING)
    described.refresh_from_db()
    assert described.check_uid == first
    error = Finding(level="error", template="Rows with an empty text: %(count)d.", values={"count": 3})
    assert conclude(described, error).state == State.REFUSED
    page = people.owner.get(f"/datasets/{described.pk}/").text
    assert "Rows with an empty text: 3." in page and "Train on it" not in page
    people.owner.post(url, READING)
    described.refresh_from_db()
    assert described.state == State.CHECKING and described.check_uid != first


def test_a_ready_version_cannot_be_described_anew(people: People, described: Dataset) -> None:
    url = f"/datasets/{described.pk}/describe/"
    people.owner.post(url, READING)
    described.refresh_from_db()
    ready = conclude(described)
    assert ready.state == State.READY
    people.owner.post(url, READING)
    assert Dataset.objects.values().get() == Dataset.objects.filter(pk=ready.pk).values().get()
    assert Dataset.objects.get().state == State.READY


def test_the_same_name_is_the_next_version_and_the_same_rows_are_refused(people: People, described: Dataset) -> None:
    datasets.ask_for_check(described, datasets.Reading())
    conclude(described)
    begin(people.owner)
    begin(people.other)
    mine, theirs = Dataset.objects.order_by("pk")[1:]
    assert (mine.version, theirs.version) == (2, 1)
    Dataset.objects.filter(pk=mine.pk).update(state=State.MAPPING)
    mine.refresh_from_db()
    datasets.ask_for_check(mine, datasets.Reading())
    assert conclude(mine).state == State.REFUSED
    assert "The same rows are version 1 already." in people.owner.get(f"/datasets/{mine.pk}/").text


def test_an_answer_to_an_older_check_changes_nothing(people: People, described: Dataset) -> None:
    datasets.ask_for_check(described, datasets.Reading())
    old = Dataset.objects.get()
    Dataset.objects.update(check_uid="f" * 32)
    assert conclude(old).state == State.CHECKING


# --- use, sharing, deletion ------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.UPLOADING, State.MAPPING, State.CHECKING, State.REFUSED])
def test_no_job_uses_what_is_not_ready(people: People, dataset: Dataset, state: str) -> None:
    Dataset.objects.update(state=state)
    assert people.owner.post("/jobs/new/", {"name": "x", "dataset": dataset.pk}).status_code == 422
    assert not Job.objects.exists()


def test_what_a_job_uses_is_not_deleted_and_says_by_which(people: People, job: Job) -> None:
    response = people.owner.post(f"/datasets/{job.dataset_id}/delete/", follow=True)
    assert f"It is used by 1 job (#{job.pk})" in response.text
    Job.objects.update(status=Status.QUEUED)
    assert Dataset.objects.exists()


def test_deletion_takes_the_files_along(people: People, described: Dataset, storage: Path) -> None:
    assert list(storage.rglob("0"))
    people.owner.post(f"/datasets/{described.pk}/delete/")
    assert not Dataset.objects.exists() and not list(storage.rglob("0"))


def test_sharing_and_not(people: People, dataset: Dataset) -> None:
    people.owner.post(f"/datasets/{dataset.pk}/share/", {"shared": "on"})
    assert Dataset.objects.get().shared
    people.owner.post(f"/datasets/{dataset.pk}/share/")
    assert not Dataset.objects.get().shared


def test_what_a_host_or_a_user_wrote_is_escaped(people: People, dataset: Dataset) -> None:
    bad = "<script>alert(1)</script>"
    finding = {
        "level": "warning",
        "template": f"{bad} %(none)s",
        "values": {},
        "rows": [{"file": bad, "row": 1, "shown": bad}],
    }
    Dataset.objects.update(
        name=bad, findings=[finding], statistics={"samples": {"train": [{"text": bad, "label": bad}]}}
    )
    for url in ("/datasets/", f"/datasets/{dataset.pk}/"):
        page = people.owner.get(url)
        assert page.status_code == 200 and bad not in page.text
