"""Upload, description, check and use of a dataset, in a real browser; a host's check runs for real."""

from __future__ import annotations

import http.client
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.test import Client
from PIL import Image
from playwright.sync_api import Page, expect

from jobs.controller.datasets import Checks
from jobs.models import Dataset
from tests.browser import seed
from tests.browser.conftest import Server, Site
from workers.config import Config
from workers.contract.datasets import CheckSpec
from workers.datasets import task

pytestmark = pytest.mark.timeout(300)
PARTS, PART = 25, 8 * 2**20


class Host:
    """In the place of Celery: the request goes straight to the code of a worker."""

    def __init__(self, settings: Any, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
        monkeypatch.setenv("STORAGE_ROOT", str(settings.STORAGE_ROOT))
        monkeypatch.setenv("SCRATCH_ROOT", str(scratch))
        self.checks = task.Checks(Config.from_environment())
        self.controller = Checks(self)  # type: ignore[arg-type]
        seed.host()

    def check(self, spec: CheckSpec, host: str) -> None:
        self.checks.run(spec)

    def work(self) -> None:
        self.controller.run(0)
        self.controller.run(1)


@pytest.fixture
def host(site: Site, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    return Host(settings, monkeypatch, tmp_path / "scratch")


def upload(page: Page, path: Path, name: str) -> None:
    page.goto("/datasets/new/")
    page.get_by_label("File", exact=True).set_input_files(path)
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Upload").click()
    expect(page).to_have_url(re.compile("/describe/$"))


def table(tmp_path: Path, more: bytes = b"") -> Path:
    path = tmp_path / "table.csv"
    rows = b"".join(b"this is review %d,%s\n" % (i, b"ab"[i % 2 : i % 2 + 1]) for i in range(400))
    path.write_bytes(b"words,class\n" + rows + more)
    return path


def test_a_broken_file_shows_its_errors_with_their_rows_and_a_good_one_is_trained_on(
    site: Site, host: Host, tmp_path: Path
) -> None:
    page = site.page(seed.user("user"))
    upload(page, table(tmp_path, b"ragged\n,a\n"), "reviews")
    page.get_by_label("Text column", exact=True).select_option("words")
    page.get_by_label("Label column").select_option("class")
    page.get_by_role("button", name="Check it").click()
    expect(page.get_by_text("Waiting for a host.")).to_be_visible()
    host.work()
    findings = page.locator("#findings")
    expect(findings).to_contain_text("Rows with another number of columns than 2: 1.")
    expect(findings.get_by_role("row").filter(has_text="402")).to_contain_text("1: ragged")
    expect(findings.get_by_role("row").filter(has_text="403")).to_be_visible()
    expect(page.get_by_role("link", name="Train on it")).to_have_count(0)

    upload(page, table(tmp_path), "reviews")
    page.get_by_label("Text column", exact=True).select_option("words")
    page.get_by_label("Label column").select_option("class")
    page.get_by_role("button", name="Check it").click()
    expect(page.get_by_role("heading", name="Every row is being checked")).to_be_visible()
    host.work()
    expect(page.locator("#first-batch")).to_contain_text("[CLS]")
    dataset = Dataset.objects.get(state="ready")
    assert dataset.version == 2 and dataset.splits == {"train": 360, "dev": 40}
    page.get_by_role("link", name="Train on it").click()
    expect(page.locator("#id_dataset")).to_have_value(str(dataset.pk))


def test_an_upload_that_stopped_goes_on_where_it_was(site: Site, tmp_path: Path) -> None:
    page = site.page(seed.user("user"))
    path = table(tmp_path)
    page.route("**/upload/0/**", lambda route: route.abort())
    page.goto("/datasets/new/")
    page.get_by_label("File", exact=True).set_input_files(path)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text("The connection was lost")).to_be_visible()
    site.complaints.clear()
    dataset = Dataset.objects.get()
    # Left first: the page before would go on by itself.
    page.goto(f"/datasets/{dataset.pk}/")
    page.unroute("**/upload/0/**")
    page.locator("input[type=file]").set_input_files(path)
    page.get_by_role("button", name="Go on").click()
    expect(page).to_have_url(re.compile("/describe/$"))
    site.complaints.clear()


def test_another_delimiter_shows_other_columns_at_once(site: Site, tmp_path: Path) -> None:
    page = site.page(seed.user("user"))
    path = tmp_path / "a.csv"
    path.write_text("text;x,label;y\n" + "a;b,c;d\n" * 30)
    upload(page, path, "reviews")
    expect(page.get_by_role("columnheader", name="text;x")).to_be_visible()
    # As who drags it larger: htmx may not carry the style over to the new form, the content policy forbids it.
    page.get_by_label("Label set").evaluate("area => { area.style.height = '200px' }")
    page.get_by_label("Delimiter").select_option("semicolon")
    expect(page.get_by_role("columnheader", name="x,label")).to_be_visible()


def test_without_javascript_a_file_comes_with_the_form(site: Site, tmp_path: Path) -> None:
    page = site.page(seed.user("user"), java_script_enabled=False)
    upload(page, table(tmp_path), "plain")
    expect(page.get_by_role("columnheader", name="words")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_of_a_dataset_scrolls_sideways_on_a_phone(site: Site, host: Host, tmp_path: Path, scheme: Any) -> None:
    page = site.page(seed.user("user"), viewport={"width": 390, "height": 800}, color_scheme=scheme)
    upload(page, table(tmp_path), "reviews")
    here = page.url
    page.get_by_role("button", name="Check it").click()
    expect(page.get_by_text("Waiting for a host.")).to_be_visible()
    for url in ("/datasets/", "/datasets/new/", here, here.replace("describe/", "")):
        page.goto(url)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, url
    host.work()
    page.goto(here.replace("describe/", ""))
    expect(page.locator("#findings, .good-note, #first-batch").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_memory_stays_flat_during_an_upload_of_200_mb(site: Site, server: Server, owner: Any) -> None:
    client = Client()
    client.force_login(owner)
    host, port = site.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    headers = {"Cookie": f"sessionid={client.cookies['sessionid'].value}; csrftoken={'a' * 32}"}
    headers |= {"X-CSRFToken": "a" * 32, "Accept": "application/json"}
    announced = json.dumps([{"field": "file", "name": "a.csv", "bytes": PARTS * PART}])
    form = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/datasets/new/", f"source=file&name=large&announced={announced}", form)
    answer = connection.getresponse()
    (url,) = json.loads(answer.read())["uploads"]
    before, peak = _memory_mb(server.pid), 0
    part = (b"some text of a row,label\n" * (PART // 25 + 1))[:PART]
    binary = {**headers, "Content-Type": "application/octet-stream"}
    for i in range(PARTS):
        connection.request("POST", f"{url}?offset={i * PART}", part, binary)
        assert json.loads(connection.getresponse().read()) == {"offset": (i + 1) * PART}
        peak = max(peak, _memory_mb(server.pid))
    connection.close()
    assert peak - before < 40


def _memory_mb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


@pytest.mark.slow
def test_pictures_of_text_lines_are_uploaded_with_a_label_file_beside_them_and_shown(
    site: Site, host: Host, tmp_path: Path
) -> None:
    page = site.page(seed.user("user"))
    said = [f"word {i}" for i in range(20)]
    with zipfile.ZipFile(tmp_path / "words.zip", "w") as archive:
        for i in range(20):
            pixels = np.random.default_rng(i).integers(0, 255, (16, 60), np.uint8)
            picture = io.BytesIO()
            Image.fromarray(pixels).save(picture, "PNG")
            archive.writestr(f"words/{i}.png", picture.getvalue())
    (tmp_path / "gt.txt").write_text("".join(f"words/{i}.png\t{text}\n" for i, text in enumerate(said)))
    page.goto("/datasets/new/")
    page.get_by_label("File", exact=True).set_input_files(tmp_path / "words.zip")
    page.get_by_label("Label file of pictures", exact=True).set_input_files(tmp_path / "gt.txt")
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("#preview")).to_contain_text("20 pictures · 20 of which a share is set apart")
    # Another kind brings other fields, and back again.
    page.get_by_label("What belongs to a picture").select_option("images")
    expect(page.get_by_label("Names of the labels")).to_be_visible()
    page.get_by_label("What belongs to a picture").select_option("lines")
    expect(page.get_by_label("Names of the labels")).to_have_count(0)
    page.get_by_role("button", name="Check it").click()
    expect(page.get_by_text("Waiting for a host.")).to_be_visible()
    host.work()
    expect(page.get_by_role("link", name="Train on it")).to_be_visible()
    shown = page.locator(".text-lines img").first
    expect(shown).to_be_visible()
    assert shown.evaluate("async (img) => { await img.decode(); return [img.naturalWidth, img.naturalHeight]; }") == [
        60,
        16,
    ]
    with page.expect_download() as download:
        page.get_by_role("link", name="words-v1.zip").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert len(archive.namelist()) == 22 and archive.testzip() is None
