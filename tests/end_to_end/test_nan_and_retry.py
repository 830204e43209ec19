"""From the form to the retry in a real browser, with Paddle's ranks: an absurd rate goes NaN, a sane one succeeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import browser  # noqa: F401  (a fixture)
from tests.end_to_end.stack import Stack, newest, why
from tests.end_to_end.test_real_ranks import TINY, register
from workers.contract.states import EndReason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PASSWORD = "a-password-for-this-test"  # noqa: S105


def test_a_job_that_goes_nan_is_retried_by_an_admin_and_succeeds(
    stack: Stack,
    tmp_path: Path,
    browser: Browser,  # noqa: F811
) -> None:
    register(stack, tmp_path)
    # Not from this process: its passwords are hashed in the fast way of tests, which web does not take.
    stack.env["DJANGO_SUPERUSER_PASSWORD"] = PASSWORD
    stack.manage("createsuperuser", "--noinput", "--username", "boss", "--email", "")
    absurd = {
        **TINY,
        "training": {"epochs": 3, "batch_size": 8},
        "optimizer": {"learning_rate": 1e30},
        "precision": {"mode": "float32"},
        "loss_scaling": {},
        "checkpoints": {"every_steps": 1, "keep": 3},
        "limits": {"skip_limit": 5},
    }
    job = stack.submit_file(
        {"name": "absurd", "recipe": "text_classification", "dataset": "books", "settings": absurd, "anyway": True}
    )
    first = stack.wait_for_end(job, 120)
    assert first.end_reason == EndReason.NON_FINITE, why(first)
    assert first.end_step is not None and f"At step {first.end_step} " in first.end_detail

    page = browser.new_context(base_url=stack.url).new_page()
    page.goto("/admin/jobs/job/?status__exact=failed&end_reason__exact=non_finite")
    page.locator("input[name=username]").fill("boss")
    page.locator("input[name=password]").fill(PASSWORD)
    page.locator("input[name=password]").press("Enter")
    page.get_by_role("row").filter(has_text="absurd").locator("input.action-select").check()
    page.locator("select[name=action]").select_option("retry_selected")
    page.get_by_role("button", name="Go").click()
    page.get_by_label("Learning rate:").fill("0.003")
    page.locator("select[name=start]").select_option("scratch")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator(".messagelist .success")).to_have_count(1)

    page.goto(f"/jobs/{job.pk}/")
    expect(page.locator("#status")).to_contain_text("Succeeded", timeout=180_000)
    expect(page.locator("#attempts")).to_contain_text("1e30 → 0.003")
    # Both attempts are on the chart: the series of the page itself.
    answer = page.request.get(f"/jobs/{job.pk}/chart/?fields=loss")
    assert sorted(series["number"] for series in answer.json()["attempts"]) == [1, 2]
    page.context.close()
    second = newest(job)
    assert (second.number, second.end_reason, second.skipped) == (2, EndReason.COMPLETED, 0), why(second)
    assert second.asked_by is not None and second.asked_by.username == "boss"
    stack.assert_all_stored_once(first, 2)
    stack.assert_all_stored_once(second, 2)
