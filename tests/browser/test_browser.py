"""Form → database → live page, in a real browser."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from jobs.models import Attempt, Dataset, Job
from tests.browser import seed
from tests.browser.conftest import Site
from workers.contract.states import EndReason

pytestmark = pytest.mark.timeout(300)


def newest_step(page: Page) -> int:
    return int(page.locator("#charts").get_attribute("data-newest-step") or 0)


def wait_for_step(page: Page, step: int) -> None:
    page.wait_for_function("step => +document.getElementById('charts').dataset.newestStep >= step", arg=step)


def test_log_in_fill_the_form_wrongly_then_rightly_and_find_the_job_in_the_database(
    site: Site, person: User, data: Dataset
) -> None:
    page = site.page()
    page.goto("/jobs/new/")
    page.get_by_label("User name").fill("user")
    page.get_by_label("Password").fill(seed.PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{site.url}/jobs/new/")

    page.get_by_label("Name", exact=True).fill("from a browser")
    page.get_by_label("Learning rate").fill("fast")
    page.get_by_label("Epochs").fill("2")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator(".field-error")).to_contain_text("Must be a number, not “fast”.")
    expect(page.get_by_label("Epochs")).to_have_value("2")
    assert not Job.objects.exists()

    page.get_by_label("Learning rate").fill("3e-5")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="from a browser")).to_be_visible()
    job = Job.objects.get()
    assert job.owner == person and job.newest is not None
    assert job.newest.settings["optimizer"]["learning_rate"] == 3e-5
    assert job.newest.settings["training"]["epochs"] == 2
    expect(page.get_by_text("No host takes jobs now")).to_be_visible()


def test_points_arrive_on_an_open_page_without_reloading(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "live", precision__mode="fp16")
    attempt = seed.start(job)
    seed.add_steps(attempt, seed.records(1, 20))
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")
    wait_for_step(page, 20)
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    page.evaluate("window.same = true")

    for step in range(21, 31):
        seed.add_steps(attempt, seed.records(step, step))
        seed.announce(attempt, "steps")
    wait_for_step(page, 30)
    expect(page.locator("#numbers")).to_contain_text("30")
    seed.evaluate(attempt, 30, 0.7654, 0.5, best=True)
    seed.announce(attempt, "evaluations")
    expect(page.locator("#evaluations")).to_contain_text("0.7654")
    seed.write_log(attempt, ["a line that came later"])
    seed.announce(attempt, "log")
    expect(page.locator("#log")).to_contain_text("a line that came later")

    seed.end(attempt, EndReason.COMPLETED)
    seed.announce(attempt, "status")
    expect(page.locator("#status")).to_contain_text("Training is complete.")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "ended")
    assert page.evaluate("window.same") is True


def test_a_hidden_tab_closes_its_stream_and_catches_up_when_it_is_seen(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "hidden")
    attempt = seed.start(job)
    seed.add_steps(attempt, seed.records(1, 5))
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")
    wait_for_step(page, 5)
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    expect(page.locator("#live-state")).to_have_attribute("data-state", "paused")
    seed.add_steps(attempt, seed.records(6, 40))
    seed.announce(attempt, "steps")
    page.wait_for_timeout(700)
    assert newest_step(page) == 5
    page.evaluate(hide, False)
    wait_for_step(page, 40)
    seed.add_steps(attempt, seed.records(41, 45))
    seed.announce(attempt, "steps")
    wait_for_step(page, 45)


def test_without_a_stream_the_page_looks_by_itself(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "no stream")
    attempt = seed.start(job)
    seed.add_steps(attempt, seed.records(1, 5))
    page = site.page(person)
    page.route("**/live/**", lambda route: route.fulfill(status=404, body="a proxy that does not stream"))
    page.goto(f"/jobs/{job.pk}/")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "polling")
    seed.add_steps(attempt, seed.records(6, 12))
    wait_for_step(page, 12)
    site.complaints[:] = [text for text in site.complaints if "404" not in text]


def test_zooming_into_a_part_and_back(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "zoom")
    attempt = seed.start(job)
    seed.add_steps(attempt, seed.records(1, 900))
    page = site.page(person, viewport={"width": 1280, "height": 900})
    page.goto(f"/jobs/{job.pk}/")
    wait_for_step(page, 900)
    over = page.locator(".plot .u-over").first
    box = over.bounding_box()
    assert box is not None
    with page.expect_request(lambda request: "first=" in request.url and "/chart/" in request.url) as asked:
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=5)
        page.mouse.up()
    part = {name: int(value) for name, value in re.findall(r"(first|last)=(\d+)", asked.value.url)}
    assert part == pytest.approx({"first": 360, "last": 540}, abs=5)
    whole = page.get_by_role("button", name="Whole run")
    expect(whole).to_be_visible()
    with page.expect_request(lambda request: "/chart/" in request.url and "first=" not in request.url):
        whole.click()
    expect(whole).to_be_hidden()


def test_a_job_that_went_nan_is_found_by_its_reason_and_retried_by_an_admin(
    site: Site, person: User, data: Dataset
) -> None:
    admin = seed.user("admin", staff=True)
    job = seed.submit(person, data, "absurd", optimizer__learning_rate=0.5)
    seed.fail_with_nan(job)
    page = site.page(admin)
    page.goto("/?status=failed&reason=non_finite")
    page.get_by_role("link", name="absurd").click()
    expect(page.locator("#status")).to_contain_text("Loss was NaN at step 341 on rank 1")
    page.get_by_role("link", name="Retry…").click()
    expect(page.get_by_label("From the checkpoint at step 200 of attempt 1")).to_be_checked()
    page.get_by_label("Learning rate").fill("5e-5")
    expect(page.locator("#differences")).to_contain_text("5e-5")
    page.get_by_role("button", name="Start the retry").first.click()
    expect(page.locator("#attempts")).to_contain_text("Learning rate: 0.5 → 5e-5")
    new = Attempt.objects.get(job=job, number=2)
    assert new.asked_by == admin and new.start_from is not None and new.start_from.step == 200


def test_many_jobs_are_retried_from_the_admin_under_the_strict_policy(site: Site, person: User, data: Dataset) -> None:
    admin = seed.user("admin", staff=True)
    jobs = [seed.submit(person, data, f"absurd {number}", optimizer__learning_rate=0.5) for number in range(2)]
    for job in jobs:
        seed.fail_with_nan(job, at=40)
    page = site.page(admin)
    page.goto("/admin/jobs/job/?status__exact=failed&end_reason__exact=non_finite")
    page.locator("#action-toggle").check()
    page.locator("select[name=action]").select_option("retry_selected")
    page.get_by_role("button", name="Go").click()
    page.get_by_label("Learning rate:").fill("2e-5")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator(".messagelist .success")).to_have_count(2)
    for job in jobs:
        job.refresh_from_db()
        assert job.newest is not None and job.newest.number == 2
        assert job.newest.settings["optimizer"]["learning_rate"] == 2e-5


def test_the_language_is_switched_and_kept(site: Site, person: User) -> None:
    page = site.page(person)
    page.goto("/hosts/")
    page.locator(".top .menu summary").click()
    page.get_by_role("button", name="简体中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
    expect(page).to_have_url(f"{site.url}/hosts/")
    page.goto("/")
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways_on_a_phone(site: Site, scheme: str) -> None:
    seed.everything()
    page = site.page(User.objects.get(username="admin"), viewport={"width": 390, "height": 800}, color_scheme=scheme)
    numbers = list(Job.objects.values_list("pk", flat=True))
    failed = Job.objects.filter(status="failed").values_list("pk", flat=True)[0]
    for url in ("/", "/jobs/new/", "/hosts/", f"/jobs/{failed}/retry/", *(f"/jobs/{number}/" for number in numbers)):
        page.goto(url)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, url


def test_pages_work_without_javascript(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "plain")
    attempt = seed.start(job)
    seed.add_steps(attempt, seed.records(1, 5))
    page = site.page(person, java_script_enabled=False)
    page.goto(f"/jobs/{job.pk}/")
    expect(page.locator("#numbers")).to_contain_text("Gradient norm")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#status")).to_contain_text("Cancellation is asked for")
    page.goto("/?status=active")
    expect(page.get_by_role("link", name="plain")).to_be_visible()
