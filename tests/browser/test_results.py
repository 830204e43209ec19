"""The results section in a real browser: curves, another evaluation's confusion, pairs and pages of the worst rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser import seed
from tests.browser.conftest import Site

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from jobs.models import Dataset

pytestmark = pytest.mark.django_db(transaction=True)


def test_results_are_looked_through(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "Overfits")
    attempt = seed.succeed(job)
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")
    expect(page.locator("#results .verdict")).to_contain_text("Overfitting")
    expect(page.locator("#evaluations canvas")).to_have_count(2)

    page.locator("#confusion select").select_option("490")
    expect(page.locator("#confusion h3")).to_contain_text("step 490")
    expect(page.locator("#confusion table.confusion td.right").first).to_contain_text("658")

    page.locator("#worst select").select_option("negative→positive")
    expect(page.locator("#worst tbody tr")).to_have_count(10)
    expect(page.locator("#worst tbody")).not_to_contain_text("NaN")
    page.locator("#worst .pages a").click()
    expect(page.locator("#worst")).to_contain_text("page 2 of 2")
    assert page.url.endswith(f"/jobs/{job.pk}/")

    with page.expect_download() as download:
        page.locator("#evaluations button", has_text="Parquet").click()
    assert download.value.suggested_filename == f"job-{job.pk}-attempt-{attempt.number}-steps.parquet"


def test_a_new_evaluation_comes_by_itself_and_what_was_chosen_stays(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "Runs", devices__devices_per_node=1)
    attempt = seed.start(job)
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")
    expect(page.locator("#results")).to_contain_text("The first evaluation comes after")
    expect(page.locator("#confusion")).to_be_hidden()
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    seed.evaluate(attempt, 100, 0.7, 0.6, best=True, train=(0.71, 0.58))
    seed.announce(attempt, "evaluations")
    expect(page.locator("#confusion h3")).to_contain_text("step 100")
    expect(page.locator("#evaluations canvas")).to_have_count(2)
    seed.evaluate(attempt, 200, 0.75, 0.5, best=True, train=(0.77, 0.48))
    seed.announce(attempt, "evaluations")
    expect(page.locator("#confusion h3")).to_contain_text("step 200")
    page.locator("#confusion select").select_option("100")
    expect(page.locator("#confusion h3")).to_contain_text("step 100")
    seed.evaluate(attempt, 300, 0.8, 0.45, best=True, train=(0.83, 0.41))
    seed.announce(attempt, "evaluations")
    expect(page.locator("#evaluations")).to_contain_text("Still improving")
    expect(page.locator("#confusion select option")).to_have_count(4)
    expect(page.locator("#confusion h3")).to_contain_text("step 100")
