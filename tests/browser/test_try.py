"""Trying an exported model, and the charts of devices, in a real browser; the model is a real process."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from jobs.controller.trials import Trials as Controller
from jobs.models import Artifact, Dataset, Job, Trial
from tests.browser import seed
from tests.browser.conftest import Site
from tests.jobs.test_device_samples import line, take
from tests.scripted.recipe import RECIPE
from workers.config import Config
from workers.contract.states import EndReason
from workers.contract.trials import TrialField, TrialForm, TrialSpec
from workers.recipes import registry
from workers.trials.task import Trials

pytestmark = pytest.mark.timeout(300)
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Host:
    """In the place of Celery: the request goes straight to the code of a worker. The recipe's model is the scripted one,
    for web it is that of any recipe."""

    def __init__(self, settings: Any, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
        monkeypatch.setenv("STORAGE_ROOT", str(settings.STORAGE_ROOT))
        monkeypatch.setenv("SCRATCH_ROOT", str(scratch))
        monkeypatch.setitem(registry.RECIPES, "text_classification", RECIPE)
        self.trials = Trials(Config.from_environment())
        self.controller = Controller(self)  # type: ignore[arg-type]
        seed.host()

    def trial(self, spec: TrialSpec, host: str) -> None:
        self.trials.start(spec)

    def work(self) -> None:
        self.controller.run(time.monotonic())

    def answer(self) -> None:
        """What is asked, or is about to be, has its answer."""
        until(Trial.objects.waiting().exists)
        until(lambda: self.work() or not Trial.objects.waiting().exists())

    def close(self) -> None:
        for model in list(self.trials._models.values()):
            model.leave()
            model.join(60)


@pytest.fixture
def host(site: Site, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    made = Host(settings, monkeypatch, tmp_path / "scratch")
    yield made
    made.close()


@pytest.fixture
def job(site: Site, person: User, data: Dataset, settings: Any) -> Job:
    """Finished, with an export."""
    made = seed.submit(person, data, "sentiment")
    attempt = seed.start(made)
    take(attempt, *(line(10 * i, cpu=0.5 + i % 7 / 20) for i in range(40)))
    artifact = Artifact.objects.create(
        attempt=attempt, name="inference", key=f"artifacts/{attempt.uid}/inference", bytes=1, sha256=""
    )
    folder = settings.STORAGE_ROOT / artifact.key
    folder.mkdir(parents=True)
    (folder / "model.bin").write_text("positive")
    seed.end(attempt, EndReason.COMPLETED)
    return made


def test_two_texts_are_tried_on_a_finished_job(site: Site, person: User, job: Job, host: Host) -> None:
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")
    page.get_by_label("Text").fill("a good book\n\nanother")
    page.get_by_role("button", name="Try", exact=True).click()
    box = page.locator("#try")
    expect(box).to_contain_text("Looking for a host.")
    answer = page.locator("#try-answer > div")
    answer.evaluate("element => { element.mark = true }")
    host.answer()
    first, second = box.locator(".predictions li").first, box.locator(".predictions li").last
    expect(first).to_contain_text("a good book")
    expect(first.get_by_role("row").nth(1)).to_contain_text(re.compile(r"positive\s*90\.0 %"))
    expect(second.get_by_role("row").nth(1)).to_contain_text(re.compile(r"other\s*75\.0 %"))
    assert answer.evaluate("element => element.mark"), "it is changed where it differs, and stays the same element"
    first.get_by_text("5 tokens as the model saw them").click()
    expect(first.locator(".token").first).to_have_text("[CLS]")
    expect(box).to_contain_text("Starting the model took")
    expect(page.get_by_label("Text")).to_have_value("a good book\n\nanother")

    # The model stays where it is, and what goes wrong is said in the same place.
    page.get_by_label("Text").fill("raise an error")
    page.get_by_role("button", name="Try", exact=True).click()
    host.answer()
    expect(box.get_by_role("alert")).to_contain_text("The model could not answer on")
    page.get_by_label("Text").fill("a" * 2001)
    page.get_by_role("button", name="Try", exact=True).click()
    expect(box.get_by_role("alert")).to_contain_text("has 2001 characters; at most 2000 are taken.")


def test_without_javascript_question_and_answer_are_pages(site: Site, person: User, job: Job, host: Host) -> None:
    page = site.page(person, java_script_enabled=False)
    page.goto(f"/jobs/{job.pk}/")
    page.get_by_label("Text").fill("a good book")
    page.get_by_role("button", name="Try", exact=True).click()
    expect(page.get_by_text("Looking for a host.")).to_be_visible()
    host.answer()
    expect(page.locator(".predictions")).to_contain_text("90.0 %")
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_chosen_pictures_are_shown_before_and_beside_the_answer(
    site: Site, person: User, job: Job, host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Job.objects.update(recipe="image_classification")
    form = TrialForm("tests.scripted.predict", (TrialField("picture", "Pictures", kind="image"),))
    monkeypatch.setitem(registry.RECIPES, "image_classification", replace(RECIPE, trial=form))
    for name in ("one", "two"):
        (tmp_path / f"{name}.png").write_bytes(PNG)
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")
    page.get_by_label("Pictures").set_input_files([tmp_path / "one.png", tmp_path / "two.png"])
    # By a data: URL, which the content policy allows; a breach of it would be a complaint.
    shown = page.locator("#try-preview img.tiny")
    expect(shown).to_have_count(2)
    assert shown.first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    page.get_by_role("button", name="Try", exact=True).click()
    host.answer()
    answers = page.locator("#try .predictions li")
    expect(answers).to_have_count(2)
    expect(answers.last.get_by_role("img", name="Picture 2")).to_be_visible()
    assert answers.last.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    (tmp_path / "no.png").write_text("<svg></svg>")
    page.get_by_label("Pictures").set_input_files([tmp_path / "no.png"])
    page.get_by_role("button", name="Try", exact=True).click()
    expect(page.locator("#try").get_by_role("alert")).to_contain_text("“no.png” is no picture")


def test_devices_are_charted_and_follow_the_attempt(site: Site, person: User, data: Dataset) -> None:
    attempt = seed.start(seed.submit(person, data, "live"), seed.host())
    # As in life, the first has no rates yet.
    take(attempt, line(0, ranks={"0": {"memory": 500_000_000}}))
    page = site.page(person)
    page.goto(f"/jobs/{attempt.job_id}/")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    page.locator("#devices").scroll_into_view_if_needed()
    charts = page.locator("#devices .chart")
    expect(charts).to_have_count(5)
    take(attempt, *(line(10 * i) for i in range(1, 12)))
    seed.announce(attempt, "devices")
    expect(charts).to_have_count(6)
    memory = charts.filter(has_text="Memory of the ranks")
    expect(memory.locator(".value")).to_have_text("477 MiB")
    page.get_by_text("The whole host", exact=True).click()
    expect(charts.filter(has_text="Memory available on the host").locator("canvas")).to_be_visible()
    take(attempt, line(120, ranks={"0": {"cpu": 1.5, "memory": 2**30, "peak": 2**31}}))
    seed.announce(attempt, "devices")
    expect(memory.locator(".value")).to_have_text("1 GiB")


def test_nothing_of_it_scrolls_sideways_on_a_phone(site: Site, person: User, job: Job, host: Host) -> None:
    page = site.page(person, viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.goto(f"/jobs/{job.pk}/")
    page.get_by_label("Text").fill("good " + "x" * 300)
    page.get_by_role("button", name="Try", exact=True).click()
    host.answer()
    expect(page.locator(".predictions")).to_contain_text("90.0 %")
    page.locator("#try summary").click()
    page.locator("#devices").scroll_into_view_if_needed()
    expect(page.locator("#devices .chart").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
