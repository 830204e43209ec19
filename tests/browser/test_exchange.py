"""Parts of a page that are exchanged while somebody is at work in them, on a slow line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, Route, expect

from jobs.models import Attempt, Dataset
from tests.browser import seed
from tests.browser.conftest import Site
from workers.contract.states import EndReason

pytestmark = pytest.mark.timeout(300)


class Held:
    """Answers of the server that wait until they are let go, one after the other."""

    def __init__(self, page: Page, wanted: Callable[[str, str], bool]) -> None:
        self.page = page
        self.routes: list[Route] = []
        self.wanted = wanted
        # However long it is held, it is no silent server.
        page.add_init_script("addEventListener('htmx:configRequest', ({ detail }) => (detail.timeout = 0))")
        page.route("**/*", self._hold)

    def _hold(self, route: Route) -> None:
        if self.wanted(route.request.url, route.request.post_data or ""):
            self.routes.append(route)
        else:
            route.continue_()

    def wait(self) -> None:
        """Until one is on its way."""
        for _ in range(4500):
            if self.routes:
                return
            self.page.wait_for_timeout(10)
        pytest.fail("Nothing was asked for.")

    def wait_for(self, *words: str) -> None:
        """Until one of each is on its way."""
        for _ in range(4500):
            if all(any(word in route.request.url for route in self.routes) for word in words):
                return
            self.page.wait_for_timeout(10)
        pytest.fail(f"Not all of {words} were asked for.")

    def hold(self, wanted: Callable[[str, str], bool]) -> None:
        """From now on others; what else is held goes on."""
        self.wanted = wanted
        before, self.routes = self.routes, []
        for route in before:
            self._hold(route)

    def let_go(self) -> None:
        self.wait()
        while self.routes:
            route = self.routes.pop(0)
            with self.page.expect_event("requestfinished", lambda request, route=route: request == route.request):
                route.continue_()
        # What the page makes of an answer follows it at once.
        self.page.wait_for_timeout(100)


def running(person: User, data: Dataset) -> Attempt:
    attempt = seed.start(seed.submit(person, data, "live"))
    seed.add_steps(attempt, seed.records(1, 20))
    return attempt


def news(attempt: Attempt, first: int, last: int) -> None:
    seed.add_steps(attempt, seed.records(first, last))
    seed.announce(attempt, "status", "steps")


def nothing(_url: str, _body: str) -> bool:
    return False


def part(name: str) -> Callable[[str, str], bool]:
    return lambda url, _body: f"part={name}" in url


def test_news_of_a_job_leave_alone_what_somebody_is_at(site: Site, person: User, data: Dataset) -> None:
    attempt = running(person, data)
    page = site.page(person)
    held = Held(page, part("status"))
    page.goto(f"/jobs/{attempt.job_id}/")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    held.let_go()
    status, pause = page.locator("#status"), page.get_by_role("button", name="Pause")

    # With the keyboard: a typed value, the caret in it, and what was opened.
    page.get_by_text("Change", exact=True).click()
    hours = page.get_by_label("Hours, counted from the start")
    hours.fill("1234")
    hours.evaluate("input => input.setSelectionRange(1, 3)")
    news(attempt, 21, 30)
    held.let_go()
    expect(status).to_contain_text("28 of 980 steps")
    expect(hours).to_be_focused()
    assert hours.evaluate("input => [input.value, input.selectionStart, input.selectionEnd]") == ["1234", 1, 3]
    pause.focus()
    news(attempt, 31, 40)
    held.let_go()
    expect(status).to_contain_text("38 of 980 steps")
    expect(pause).to_be_focused()
    expect(hours).to_have_value("1234")

    # With the mouse: the answer comes between the two halves of a click, in an open menu.
    menu = status.locator("details.menu")
    menu.locator("summary").click()
    box = menu.get_by_role("button", name="Checkpoint now").bounding_box()
    assert box is not None
    news(attempt, 41, 50)
    held.wait()
    page.mouse.move(box["x"] + 10, box["y"] + 10)
    page.mouse.down()
    held.let_go()
    expect(status).to_contain_text("38 of 980 steps")
    with page.expect_navigation():
        page.mouse.up()
    expect(page.locator(".messages")).to_contain_text("A checkpoint is asked for.")


def test_a_button_does_not_become_another_one_under_the_pointer(site: Site, person: User, data: Dataset) -> None:
    attempt = running(person, data)
    page = site.page(person)
    held = Held(page, part("status"))
    page.goto(f"/jobs/{attempt.job_id}/")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    held.let_go()
    pause = page.get_by_role("button", name="Pause").element_handle()
    seed.end(attempt, EndReason.COMPLETED)
    seed.announce(attempt, "status")
    held.wait()
    page.mouse.move(5, 300)
    page.mouse.down()
    held.let_go()
    assert pause.evaluate("button => button.isConnected")
    page.mouse.up()
    expect(page.locator("#status")).to_contain_text("Training is complete.")
    assert not pause.evaluate("button => button.isConnected")
    expect(page.get_by_role("link", name="Clone", exact=True)).to_be_visible()


def test_what_is_typed_while_a_form_is_filled_in_stays(site: Site, person: User, data: Dataset) -> None:
    page = site.page(person)
    page.goto("/jobs/new/")
    name, rate, clip = (page.get_by_label(label, exact=True) for label in ("Name", "Learning rate", "Clip at norm"))
    name.fill("slow")
    held = Held(page, lambda url, body: "do=fill" in body or "do=full" in body)
    page.get_by_label("Preset", exact=True).select_option("From scratch")
    held.wait()
    # What is sent now would be the old values under the new preset.
    expect(page.get_by_role("button", name="Submit", exact=True).last).to_be_disabled()
    rate.fill("7e-4")
    name.fill("slow line")
    name.evaluate("input => input.setSelectionRange(2, 5)")
    held.let_go()
    expect(clip).to_have_value("5")
    expect(rate).to_have_value("7e-4")
    expect(name).to_be_focused()
    assert name.evaluate("input => [input.value, input.selectionStart, input.selectionEnd]") == ["slow line", 2, 5]
    # What was kept is checked and compared like everything that is typed.
    expect(page.locator("#differences")).to_contain_text("Learning rate")
    expect(page.locator("pre.yaml")).to_contain_text("name: slow line")
    expect(page.locator("pre.yaml")).to_contain_text("learning_rate: 0.0007")
    expect(page.get_by_role("button", name="Submit", exact=True).last).to_be_enabled()

    # What was typed before the request is the server's to change.
    longest = page.get_by_label("Longest text")
    clip.fill("2")
    page.get_by_role("button", name="All settings").click()
    held.wait()
    longest.fill("7")
    page.keyboard.type("7")
    held.let_go()
    expect(page.get_by_label("Accumulation")).to_be_visible()
    expect(longest).to_have_value("77")
    expect(longest).to_be_focused()
    page.get_by_role("button", name="Fill in its values").click()
    held.let_go()
    expect(clip).to_have_value("5")
    expect(longest).to_have_value("77")


def test_consent_is_to_the_warnings_that_were_shown(site: Site, person: User, data: Dataset) -> None:
    page = site.page(person)
    page.goto("/jobs/new/?mode=full")
    page.get_by_label("Name", exact=True).fill("warned")
    page.get_by_label("Warm-up steps").fill("5000")
    anyway = page.get_by_label("Submit anyway")
    expect(page.locator("#check")).to_contain_text("Warm-up takes 5000 steps")
    held = Held(page, lambda url, body: "do=check" in body)
    page.get_by_label("Epochs").fill("3")
    held.wait()
    anyway.check()
    held.let_go()
    expect(anyway).to_be_checked()
    # That tick is checked in its turn; the next answer has another warning as well.
    held.hold(lambda url, body: "do=check" in body and "learning_rate=1e-8" in body)
    page.get_by_label("Dropout").fill("0.9")
    page.get_by_label("Learning rate").fill("1e-8")
    held.wait()
    anyway.uncheck()
    anyway.check()
    held.let_go()
    expect(page.locator("#check .warning")).to_have_count(2)
    expect(anyway).not_to_be_checked()


def test_charts_say_that_they_are_on_their_way_and_when_they_do_not_come(
    site: Site, person: User, data: Dataset
) -> None:
    attempt = running(person, data)
    seed.end(attempt, EndReason.COMPLETED)
    page = site.page(person)
    held = Held(page, lambda url, _body: "/devices/" in url or "/norms/" in url or "/chart/" in url)
    page.goto(f"/jobs/{attempt.job_id}/")
    for name, none in (("norm-groups", "None were recorded."), ("charts", "No step yet.")):
        section = page.locator(f"#{name}")
        section.scroll_into_view_if_needed()
        held.wait()
        expect(section.get_by_text("Loading…").first).to_be_visible()
        expect(section.get_by_text(none)).to_be_hidden()
    held.wait_for("/norms/", "/chart/")
    for route in held.routes:
        route.abort()
    held.routes.clear()
    for name in ("norm-groups", "charts"):
        expect(page.locator(f"#{name}")).to_contain_text("The charts could not be loaded.")
    expect(page.locator("#no-answer")).to_be_visible()
    held.hold(nothing)
    for name in ("norm-groups", "charts"):
        page.locator(f"#{name}").get_by_role("button", name="Try again").click()
    expect(page.locator("#norm-groups").get_by_text("None were recorded.")).to_be_visible()
    expect(page.locator("#charts canvas").first).to_be_visible()
    expect(page.locator("#no-answer")).to_be_hidden()
    site.complaints[:] = [text for text in site.complaints if "Failed to load resource" not in text]


def test_devices_are_not_said_to_be_none_before_they_were_asked_for(site: Site, person: User, data: Dataset) -> None:
    attempt = running(person, data)
    page = site.page(person)
    # The stream as well: once it is open, it says that everything is to be asked for.
    held = Held(page, lambda url, _body: "/devices/" in url or "/live/" in url)
    page.goto(f"/jobs/{attempt.job_id}/")
    devices = page.locator("#devices")
    devices.scroll_into_view_if_needed()
    held.wait_for("/devices/", "/live/")
    expect(devices.get_by_text("Loading…")).to_be_visible()
    expect(devices.get_by_text("none yet")).to_be_hidden()
    for route in [route for route in held.routes if "/devices/" in route.request.url]:
        held.routes.remove(route)
        route.fulfill(status=503, body="a proxy without a server")
    expect(devices).to_contain_text("The charts could not be loaded.")
    # News of a live job ask again by themselves.
    held.hold(nothing)
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    seed.announce(attempt, "devices")
    expect(devices.get_by_text("none yet")).to_be_visible()
    expect(devices.get_by_role("button", name="Try again")).to_be_hidden()
    site.complaints[:] = [text for text in site.complaints if "Failed to load resource" not in text]


def test_a_page_without_a_server_says_so_and_catches_up(site: Site, person: User, data: Dataset) -> None:
    attempt = running(person, data)
    page = site.page(person)
    page.goto(f"/jobs/{attempt.job_id}/")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    page.route("**/jobs/**", lambda route: route.abort())
    seed.add_steps(attempt, seed.records(21, 30))
    seed.announce(attempt, "status", "steps")
    expect(page.locator("#no-answer")).to_be_visible()
    page.unroute_all()
    seed.announce(attempt, "status", "steps")
    expect(page.locator("#status")).to_contain_text("28 of 980 steps")
    expect(page.locator("#no-answer")).to_be_hidden()
    kinds = ("Failed to load resource", "htmx:sendError", "htmx:afterRequest")
    site.complaints[:] = [text for text in site.complaints if not any(kind in text for kind in kinds)]


def test_a_stream_that_has_fallen_silent_is_left_for_another(site: Site, person: User, data: Dataset) -> None:
    attempt = running(person, data)
    page = site.page(person)
    page.clock.install()
    page.goto(f"/jobs/{attempt.job_id}/")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    with page.expect_request(lambda request: "/live/" in request.url):
        page.clock.fast_forward(60_000)
    news(attempt, 21, 30)
    expect(page.locator("#charts")).to_have_attribute("data-newest-step", "30")


def test_a_search_of_the_log_and_the_rank_that_was_chosen_outlast_its_news(
    site: Site, person: User, data: Dataset
) -> None:
    attempt = running(person, data)
    for rank in range(2):
        seed.write_log(attempt, [f"line {number} of rank {rank}" for number in range(60)], rank)
    page = site.page(person)
    page.goto(f"/jobs/{attempt.job_id}/")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    log, search = page.locator("#log .log"), page.get_by_role("searchbox")
    page.get_by_label("Rank", exact=True).select_option("1")
    expect(log).to_contain_text("line 59 of rank 1")
    search.fill("not sent yet")
    seed.write_log(attempt, ["line 60 of rank 1"], 1)
    seed.announce(attempt, "log")
    expect(log).to_contain_text("line 60 of rank 1")
    expect(search).to_have_value("not sent yet")
    expect(search).to_be_focused()

    # Whoever reads further up is not disturbed by any news, and sees the newest on the way back.
    log.evaluate("log => log.scrollTo(0, 0)")
    page.wait_for_timeout(100)
    seed.write_log(attempt, ["line 61 of rank 1"], 1)
    seed.announce(attempt, "log")
    news(attempt, 21, 30)
    expect(page.locator("#status")).to_contain_text("28 of 980 steps")
    assert log.evaluate("log => log.scrollTop") == 0
    expect(log).not_to_contain_text("line 61")
    log.evaluate("log => log.scrollTo(0, log.scrollHeight)")
    expect(log).to_contain_text("line 61 of rank 1")


def test_an_answer_that_comes_after_that_of_a_later_question_is_left_aside(
    site: Site, person: User, data: Dataset
) -> None:
    attempt = running(person, data)
    for rank in range(2):
        seed.write_log(attempt, [f"a line of rank {rank}"], rank)
    page = site.page(person)
    held = Held(page, lambda url, _body: "/log/" in url and "log_rank=1" not in url)
    page.goto(f"/jobs/{attempt.job_id}/")
    held.wait()
    page.get_by_label("Rank", exact=True).select_option("1")
    expect(page.locator("#log .log")).to_have_text("a line of rank 1\n")
    held.let_go()
    assert page.locator("#log .log").inner_text() == "a line of rank 1\n"
    assert page.get_by_label("Rank", exact=True).input_value() == "1"
