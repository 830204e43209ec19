"""Notes, the time limit, finishing early and deletion, in a real browser."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from jobs.models import Dataset, Job
from tests.browser import seed
from tests.browser.conftest import Site
from workers.contract.messages import Request
from workers.contract.states import EndReason

pytestmark = pytest.mark.timeout(300)


def test_from_a_time_limit_and_a_note_to_the_end_of_a_job(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "soon gone")
    attempt = seed.start(job)
    seed.add_steps(attempt, seed.records(1, 20))
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")

    # What is typed stays while the page refreshes itself.
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    page.locator("#status summary").get_by_text("Change").click()
    hours = page.locator("#status [name=hours]")
    hours.fill("1.5")
    seed.add_steps(attempt, seed.records(21, 40))
    seed.evaluate(attempt, 40, 0.7, 0.5)
    seed.announce(attempt, "status", "steps", "evaluations")
    expect(page.locator("#numbers")).to_contain_text("40")
    expect(hours).to_have_value("1.5")
    page.get_by_role("button", name="Set").click()
    expect(page.locator(".messages")).to_contain_text("The time limit is changed.")

    page.locator("#notes").get_by_role("link", name="Edit").click()
    page.get_by_label("Tags").fill("first, " + "x" * 41)
    page.get_by_label("Notes").fill("to be deleted")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#notes .field-error")).to_contain_text("has 41")
    page.get_by_label("Tags").fill("first")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#notes .notes")).to_have_text("to be deleted")
    expect(page.locator("#status .tag")).to_have_text("first")

    seed.end(attempt, EndReason.COMPLETED)
    page.goto("/?tag=first")
    page.get_by_label(f"Choose job {job.pk}").check()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete for good").click()
    expect(page.locator(".messages")).to_contain_text(f"Job {job.pk} is deleted.")
    assert not Job.objects.there().exists()


def test_finish_now_asks_first_and_its_end_shows_by_itself(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "long enough")
    attempt = seed.start(job)
    seed.add_steps(attempt, seed.records(1, 20))
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    finish = page.get_by_role("button", name="Finish now")
    page.once("dialog", lambda dialog: dialog.dismiss())
    finish.click()
    page.once("dialog", lambda dialog: dialog.accept())
    finish.click()
    expect(page.locator("#status")).to_contain_text("An early finish is asked for. (user)")
    attempt.refresh_from_db()
    assert attempt.leave == Request.FINISH
    assert job.events.filter(kind="request").count() == 1, "who says no to the question has asked for nothing"
    expect(finish).to_have_count(0)

    seed.evaluate(attempt, 20, 0.7, 0.5)
    seed.end(attempt, EndReason.FINISHED_EARLY)
    seed.announce(attempt, "status", "evaluations")
    expect(page.locator("#status .badge").first).to_have_text("Succeeded")
    expect(page.locator("#evaluations")).to_contain_text("0.7")
