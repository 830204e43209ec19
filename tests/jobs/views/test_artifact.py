from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Artifact, Attempt, Job
from jobs.streaming import CHUNK
from tests.jobs.views.conftest import MINE, People
from tests.jobs.views.streams import body, let_go

CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def artifact(attempt: Attempt, settings: Any, tmp_path: Path) -> Artifact:
    settings.STORAGE_ROOT = tmp_path
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "model.tar").write_bytes(CONTENT)
    (tmp_path.parent / "outside.tar").write_bytes(b"secret")
    return Artifact.objects.create(
        attempt=attempt, name="model", key="artifacts/model", bytes=len(CONTENT), sha256="ab" * 32
    )


def _url(artifact: Artifact) -> str:
    return f"/jobs/{artifact.attempt.job_id}/artifacts/{artifact.pk}/"


def test_only_the_owner_and_staff_download_it(people: People, artifact: Artifact) -> None:
    assert people.ask(_url(artifact)) == MINE


def test_it_comes_whole_and_in_chunks(people: People, artifact: Artifact) -> None:
    answer = people.owner.get(_url(artifact))
    assert answer["Content-Type"] == "application/x-tar" and answer["Content-Length"] == str(len(CONTENT))
    assert asyncio.run(body(answer)) == CONTENT


def test_it_is_read_a_chunk_at_a_time_and_closed_when_the_client_goes(people: People, artifact: Artifact) -> None:
    answer = people.owner.get(_url(artifact))
    assert _is_open("model.tar")

    async def first_chunk() -> bytes:
        stream = aiter(answer.streaming_content)
        chunk: bytes = await anext(stream)
        await stream.aclose()
        return chunk

    assert asyncio.run(first_chunk()) == CONTENT[:CHUNK]
    let_go(answer)
    assert not _is_open("model.tar")


def _is_open(name: str) -> bool:
    return any(str(link.readlink()).endswith(name) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("bytes=0-9", 0, 9), ("bytes=1000-", 1000, len(CONTENT) - 1), ("bytes=-5", len(CONTENT) - 5, len(CONTENT) - 1)],
)
def test_a_range_is_honoured(people: People, artifact: Artifact, asked: str, first: int, last: int) -> None:
    answer = people.owner.get(_url(artifact), headers={"Range": asked})
    assert answer.status_code == 206
    assert answer["Content-Range"] == f"bytes {first}-{last}/{len(CONTENT)}"
    assert asyncio.run(body(answer)) == CONTENT[first : last + 1]


def test_a_range_beyond_the_end_is_refused(people: People, artifact: Artifact) -> None:
    answer = people.owner.get(_url(artifact), headers={"Range": f"bytes={len(CONTENT)}-"})
    assert answer.status_code == 416 and answer["Content-Range"] == f"bytes */{len(CONTENT)}"


def test_a_continued_download_of_another_version_starts_over(people: People, artifact: Artifact) -> None:
    answer = people.owner.get(_url(artifact), headers={"Range": "bytes=5-", "If-Range": '"other"'})
    assert answer.status_code == 200 and asyncio.run(body(answer)) == CONTENT


@pytest.fixture
def behind_proxy(settings: Any) -> None:
    settings.PROXY_DOWNLOADS = True


@pytest.mark.usefixtures("behind_proxy")
def test_behind_a_proxy_only_the_owner_and_staff_are_handed_over(people: People, artifact: Artifact) -> None:
    assert people.ask(_url(artifact)) == MINE


@pytest.mark.usefixtures("behind_proxy")
def test_a_proxy_is_told_the_file_and_sends_it(people: People, artifact: Artifact, settings: Any) -> None:
    (settings.STORAGE_ROOT / "artifacts" / "模型 1%.tar").write_bytes(b"x")
    Artifact.objects.update(key="artifacts/模型 1%")
    answer = people.owner.get(_url(artifact), headers={"Range": "bytes=5-"})
    assert answer.status_code == 200 and answer.content == b""
    assert answer["X-Accel-Redirect"] == "/storage/artifacts/%E6%A8%A1%E5%9E%8B%201%25.tar"
    assert answer["Content-Type"] == "application/x-tar" and answer["Cache-Control"] == "private, no-transform"
    name = f"job-{artifact.attempt.job_id}-1-model.tar"
    assert answer["Content-Disposition"] == f"attachment; filename*=UTF-8''{name}"
    assert not _is_open("model.tar")


@pytest.mark.usefixtures("behind_proxy")
@pytest.mark.parametrize("key", ["artifacts/gone", "../outside"])
def test_a_proxy_is_told_of_nothing_else(people: People, artifact: Artifact, key: str) -> None:
    Artifact.objects.update(key=key)
    answer = people.owner.get(_url(artifact))
    assert answer.status_code == 404 and "X-Accel-Redirect" not in answer


def test_without_a_proxy_no_path_is_told(people: People, artifact: Artifact) -> None:
    answer = people.owner.get(_url(artifact))
    assert "X-Accel-Redirect" not in answer
    let_go(answer)


def test_an_artifact_of_another_job_is_not_there(people: People, artifact: Artifact, job: Job) -> None:
    assert people.owner.get(f"/jobs/{job.pk + 1}/artifacts/{artifact.pk}/").status_code == 404


def test_a_missing_file_is_not_found(people: People, artifact: Artifact, settings: Any) -> None:
    (settings.STORAGE_ROOT / "artifacts" / "model.tar").unlink()
    assert people.owner.get(_url(artifact)).status_code == 404


def test_no_key_leads_out_of_the_storage(people: People, artifact: Artifact) -> None:
    Artifact.objects.update(key="../outside")
    assert people.owner.get(_url(artifact)).status_code == 404


@pytest.mark.parametrize("digits", [19, 5000])
def test_a_range_that_no_file_can_have_is_ignored(people: People, artifact: Artifact, digits: int) -> None:
    number = "9" * digits
    for wanted in (f"bytes={number}-", f"bytes=0-{number}", f"bytes=-{number}"):
        answer = people.owner.get(_url(artifact), headers={"Range": wanted})
        assert (answer.status_code, answer["Content-Length"]) == (200, str(len(CONTENT)))
        let_go(answer)
