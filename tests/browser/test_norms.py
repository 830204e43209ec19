"""The chart of gradient norms by part of the model, and marks of live spikes."""

from __future__ import annotations

import math
from typing import Any

from django.contrib.auth.models import User
from playwright.sync_api import expect

from jobs.models import Attempt, Dataset
from tests.browser import seed
from tests.browser.conftest import Site


def with_groups(rows: list[dict[str, Any]], every: int = 20, groups: int = 32) -> list[dict[str, Any]]:
    """Norms that fall towards the top of the model; one part is dead from the start, one is NaN once."""
    names = ["ernie.embeddings", *(f"ernie.encoder.layers.{i}" for i in range(groups - 2)), "classifier"]
    for row in rows:
        step = row["step"]
        if step % every:
            continue
        noise = 1 + 0.3 * math.sin(step / 7)
        norms = {f"norm:{name}": noise * 10 ** (1 - 3 * i / groups) / (1 + step / 300) for i, name in enumerate(names)}
        norms["norm:ernie.encoder.layers.5"] = 0.0
        if step == 400:
            norms["norm:classifier"] = math.nan
        row["extras"] = norms | {"zero_gradients": 0.2 + 0.1 * math.sin(step / 90)}
    return rows


def running(person: User, data: Dataset) -> Attempt:
    attempt = seed.start(seed.submit(person, data, "Thirty layers", devices__devices_per_node=1))
    seed.add_steps(attempt, with_groups(seed.records(1, 640)))
    return attempt


def test_of_many_parts_some_are_chosen_and_the_newest_norms_come_by_themselves(
    site: Site, person: User, data: Dataset
) -> None:
    attempt = running(person, data)
    page = site.page(person)
    page.goto(f"/jobs/{attempt.job_id}/")
    section = page.locator("#norm-groups")
    section.scroll_into_view_if_needed()
    buttons = section.locator("[data-group]")
    expect(buttons).to_have_count(32)
    expect(section.locator("[aria-pressed=true]")).to_have_count(6)
    expect(buttons.first).to_have_attribute("aria-pressed", "true")
    expect(buttons.nth(6).locator(".value")).to_have_text("0")
    buttons.nth(7).click()
    expect(section.locator("[aria-pressed=true]")).to_have_count(7)
    section.get_by_role("button", name="none", exact=True).click()
    expect(section.locator("[aria-pressed=true]")).to_have_count(0)
    section.get_by_role("button", name="all", exact=True).click()
    expect(section.locator("[aria-pressed=true]")).to_have_count(32)
    expect(section.locator(".at")).to_have_text("640")

    # Live: a spike is marked at once, and what is recorded every so many steps follows.
    newer = with_groups(seed.records(641, 700))
    newer[-1]["extras"] |= {"spike": "grad_norm"}
    seed.add_steps(attempt, newer)
    seed.announce(attempt, "steps")
    expect(page.locator("#charts")).to_have_attribute("data-spikes", "1")
    expect(section.locator(".at")).to_have_text("700")
    expect(section.locator("[aria-pressed=true]")).to_have_count(32)
