"""The form of a new job in a real browser: presets, live checks, warnings, clones, files."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from jobs.models import Dataset, Job
from tests.browser import seed
from tests.browser.conftest import Site
from workers.contract.states import EndReason

pytestmark = pytest.mark.timeout(300)


def test_errors_block_and_warnings_want_a_tick(site: Site, person: User, data: Dataset) -> None:
    page = site.page(person)
    page.goto("/jobs/new/")
    page.get_by_label("Name", exact=True).fill("checked")
    check = page.locator("#check")
    expect(check).to_contain_text("The weights are random, and a learning rate of 5e-05 is one for fine-tuning")

    page.get_by_label("Batch per rank").fill("4096")
    page.get_by_role("button", name="All settings").click()
    page.get_by_label("Accumulation").fill("4")
    expect(check).to_contain_text("effective batch of 16384")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("The job was not submitted.")
    expect(page.get_by_label("Batch per rank")).to_have_attribute("aria-invalid", "true")
    assert not Job.objects.exists()

    page.get_by_label("Batch per rank").fill("32")
    page.get_by_label("Accumulation").fill("1")
    page.get_by_label("Warm-up steps").fill("5000")
    expect(check).to_contain_text("Warm-up takes 5000 steps, but the whole training has 1470")
    page.get_by_role("button", name="Submit", exact=True).last.click()
    expect(page.get_by_role("alert")).to_contain_text("there are warnings")
    assert not Job.objects.exists()
    page.get_by_role("alert").get_by_label("Submit anyway").check()
    page.get_by_role("button", name="Submit", exact=True).first.click()
    expect(page.get_by_role("heading", name="checked")).to_be_visible()
    expect(page.locator("#events")).to_contain_text("Submitted in spite of a warning: Warm-up takes 5000 steps")
    assert Job.objects.get().newest.settings["schedule"]["warmup_steps"] == 5000  # type: ignore[union-attr]


def test_a_preset_fills_in_and_what_differs_from_it_is_seen_while_typing(
    site: Site, person: User, data: Dataset
) -> None:
    page = site.page(person)
    page.goto("/jobs/new/")
    page.get_by_label("Name", exact=True).fill("kept")
    page.get_by_label("Longest text").fill("77")
    page.get_by_label("Preset", exact=True).select_option("From scratch")
    expect(page.get_by_label("Clip at norm")).to_have_value("5")
    expect(page.get_by_label("Name", exact=True)).to_have_value("kept")
    expect(page.get_by_label("Longest text")).to_have_value("77")
    expect(page.locator("#no-difference")).to_be_visible()
    page.get_by_label("Clip at norm").fill("2")
    expect(page.locator("#differences")).to_contain_text("Clip at norm")
    expect(page.get_by_text("preset: 5", exact=True)).to_be_visible()
    page.get_by_text("Command and YAML").click()
    expect(page.locator("pre.yaml")).to_contain_text("max_norm: 2.0")
    expect(page.locator("pre.command")).to_contain_text("submit kept.yaml --owner user")
    page.get_by_label("Epochs").fill("4")
    expect(page.locator("pre.yaml")).to_contain_text("epochs: 4")


def test_a_job_is_cloned_changed_and_submitted(site: Site, person: User, data: Dataset) -> None:
    job = seed.submit(person, data, "first", optimizer__learning_rate=3e-5)
    seed.succeed(job)
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")
    page.get_by_role("link", name="Clone", exact=True).click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("first, again")
    expect(page.get_by_label("Learning rate")).to_have_value("3e-5")
    page.get_by_label("Ranks per host").fill("4")
    expect(page.locator("#check")).to_contain_text(f"Job {job.pk} ran on 2 ranks, this one on 4")
    page.get_by_label("Learning rate").fill("6e-5")
    expect(page.locator("#check")).to_contain_text("a learning rate of 6e-05 is one for fine-tuning")
    expect(page.locator("#check")).not_to_contain_text("this one on 4")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", name="first, again")).to_be_visible()
    new = Job.objects.latest("pk").newest
    assert new is not None and new.devices_per_node == 4 and new.settings["optimizer"]["learning_rate"] == 6e-5


def test_a_job_starts_from_the_model_of_another_and_a_finished_one_trains_longer(
    site: Site, person: User, data: Dataset
) -> None:
    job = seed.submit(person, data, "first")
    seed.succeed(job)
    page = site.page(person)
    page.goto(f"/jobs/{job.pk}/")
    page.get_by_role("link", name="Start a job from it").click()
    expect(page.get_by_label("Start from")).to_have_value("job")
    expect(page.get_by_label("Job number")).to_have_value(str(job.pk))
    page.goto(f"/jobs/{job.pk}/")
    page.get_by_role("link", name="Train longer…").click()
    expect(page.locator("#differences")).to_contain_text("Epochs")
    page.get_by_role("button", name="Train longer").first.click()
    expect(page.locator("#attempts")).to_contain_text("Epochs: 2 → 4")


def test_a_file_that_was_saved_fills_the_form_again(site: Site, person: User, data: Dataset, tmp_path: Path) -> None:
    page = site.page(person)
    page.goto("/jobs/new/")
    page.get_by_label("Name", exact=True).fill("as a file")
    page.get_by_label("Epochs").fill("9")
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save as YAML").click()
    saving.value.save_as(tmp_path / "job.yaml")
    assert saving.value.suggested_filename == "as-a-file.yaml"
    page.get_by_role("link", name="From a YAML file…").click()
    page.get_by_label("File", exact=True).set_input_files(tmp_path / "job.yaml")
    page.get_by_role("button", name="Fill in the form").click()
    expect(page.get_by_label("Epochs")).to_have_value("9")
    page.go_back()
    page.get_by_label("Or its text").fill((tmp_path / "job.yaml").read_text().replace("epochs: 9", "epochs: nine"))
    page.get_by_label("File", exact=True).set_input_files([])
    page.get_by_role("button", name="Fill in the form").click()
    expect(page.get_by_role("alert")).to_contain_text("Must be a whole number, not “nine”.")


def test_the_form_works_without_javascript(site: Site, person: User, data: Dataset) -> None:
    page = site.page(person, java_script_enabled=False)
    page.goto("/jobs/new/")
    page.get_by_label("Name", exact=True).fill("plain")
    page.get_by_label("Preset", exact=True).select_option("Small labelled set")
    page.get_by_role("button", name="Fill in its values").click()
    expect(page.get_by_label("Dropout")).to_have_value("0.3")
    page.get_by_label("Most steps").fill("10")
    page.get_by_label("Name", exact=True).press("Enter")
    expect(page.get_by_role("heading", name="plain")).to_be_visible()
    assert Job.objects.get().newest.settings["training"]["max_steps"] == 10  # type: ignore[union-attr]


def test_a_dry_run_grows_on_its_page_and_its_clip_is_taken_into_the_form(
    site: Site, person: User, data: Dataset
) -> None:
    page = site.page(person)
    page.goto("/jobs/new/")
    page.get_by_label("Name", exact=True).fill("tried first")
    page.get_by_label("Learning rate").fill("3e-5")
    page.get_by_label("Ranks per host").fill("2")
    page.get_by_role("button", name="Dry run", exact=True).click()
    result = page.locator("#dry_run")
    expect(result).to_contain_text("It makes 30 steps of the real thing")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)

    job = Job.objects.get()
    assert job.dry_run
    attempt = seed.start(job, seed.host())
    rows = seed.records(1, 30, loss_scale=None, skipped=None, found_inf=False)
    for number, row in enumerate(rows, 1):
        row["grad_norm"] = number / 10
    for rank in range(2):
        seed.add_steps(attempt, rows[:12], rank)
    seed.announce(attempt, "status", "steps")
    expect(result).to_contain_text("12 of 30 steps so far.")
    for rank in range(2):
        seed.add_steps(attempt, rows[12:], rank)
    seed.end(attempt, EndReason.COMPLETED)
    seed.announce(attempt, "status", "steps")
    expect(result).to_contain_text("30 steps were made")
    expect(result).to_contain_text("Suggested: 2.8")

    result.get_by_role("link", name="Submit with the suggested clip…").click()
    expect(page.get_by_label("Clip at norm")).to_have_value("2.8")
    expect(page.get_by_label("Learning rate")).to_have_value("3e-5")
    expect(page.get_by_label("Ranks per host")).to_have_value("2")
    expect(page.get_by_label("Name", exact=True)).to_have_value("tried first")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_text("is queued.")).to_be_visible()
    real = Job.objects.latest("pk")
    assert not real.dry_run and real.newest is not None and real.newest.settings["clipping"]["max_norm"] == 2.8

    page.goto("/")
    expect(page.locator("#job-table tbody tr")).to_have_count(1)
    page.get_by_label("Kind").select_option("dry runs")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#job-table tbody tr")).to_contain_text("dry run")


def test_what_was_typed_outlives_the_session(site: Site, person: User, data: Dataset) -> None:
    page = site.page(person)
    page.goto("/jobs/new/")
    page.get_by_label("Preset", exact=True).select_option("From scratch")
    expect(page.get_by_label("Clip at norm")).to_have_value("5")
    page.get_by_label("Name", exact=True).fill("kept")
    page.get_by_label("Epochs").fill("7")
    expect(page.locator("pre.yaml")).to_contain_text("epochs: 7")
    session = [cookie for cookie in page.context.cookies() if cookie["name"] == "sessionid"]

    page.context.clear_cookies(name="sessionid")
    page.get_by_label("Epochs").fill("8")
    expect(page.locator("#logged-out")).to_contain_text("You are no longer logged in")
    expect(page.get_by_label("Name", exact=True)).to_have_value("kept")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.context.add_cookies(session)  # type: ignore[arg-type]
    page.goto("/jobs/new/")
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    page.get_by_role("button", name="Put it back").click()
    expect(page.get_by_label("Epochs")).to_have_value("8")
    expect(page.get_by_label("Name", exact=True)).to_have_value("kept")
    expect(page.locator("#draft")).to_be_hidden()

    page.get_by_role("button", name="Submit", exact=True).click(click_count=2, delay=150)
    expect(page.get_by_role("heading", name="kept")).to_be_visible()
    assert Job.objects.get().newest.settings["training"]["epochs"] == 8  # type: ignore[union-attr]
    page.goto("/jobs/new/")
    expect(page.get_by_label("Name", exact=True)).to_be_visible()
    expect(page.locator("#draft")).to_be_hidden()
    assert [complaint for complaint in site.complaints if "401" not in complaint] == []
    site.complaints.clear()


def test_what_does_nothing_with_the_chosen_mode_is_out_of_the_way(site: Site, person: User, data: Dataset) -> None:
    page = site.page(person)
    page.goto("/jobs/new/?mode=full")
    expect(page.get_by_label("z limit")).to_be_hidden()
    expect(page.get_by_label("Folder")).to_be_hidden()
    page.get_by_label("Start from").select_option("folder")
    expect(page.get_by_label("Folder")).to_be_visible()
    expect(page.get_by_label("Hidden size")).to_be_hidden()
    page.get_by_label("Mode", exact=True).select_option("zclip")
    expect(page.get_by_label("z limit")).to_be_visible()
    page.get_by_label("Clip at norm").fill("3")
    page.get_by_label("Optimizer", exact=True).select_option("sgd")
    # What differs from the preset is seen, used or not.
    page.get_by_label("Momentum").fill("0.8")
    page.get_by_role("button", name="Basic", exact=True).click()
    expect(page.get_by_label("Momentum")).to_have_value("0.8")
