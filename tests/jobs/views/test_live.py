"""The stream of a job page. Who may open it is asked through the view, what it says through the hub."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from django.test import AsyncClient
from django.utils import timezone

from jobs import live, services
from jobs.models import Attempt, Job
from tests.browser import seed
from tests.conftest import RedisServer
from tests.jobs.views.conftest import People
from workers.contract.states import EndReason, Status

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(job: Job, redis_server: RedisServer, settings: Any) -> Attempt:
    settings.REDIS_URL = redis_server.url
    return seed.start(job)


def test_only_the_owner_and_staff_open_it(people: People, running: Attempt) -> None:
    url = f"/jobs/{running.job_id}/live/"
    assert people.ask(url) == {"anonymous": 302, "owner": 200, "other": 404, "staff": 200}
    answer = people.owner.get(url)
    assert answer["Content-Type"].startswith("text/event-stream")
    assert answer["X-Accel-Buffering"] == "no" and "no-cache" in answer["Cache-Control"]
    assert people.owner.get(url, {"attempt": "9" * 25}).status_code == 404


def test_a_finished_job_gets_no_stream_and_is_told_not_to_ask_again(people: People, running: Attempt) -> None:
    seed.end(running, EndReason.COMPLETED)
    assert people.owner.get(f"/jobs/{running.job_id}/live/").status_code == 204


class Page:
    """One open page: collects what it is told."""

    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self.stream = stream
        self.said: list[tuple[str, Any, str]] = []
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for text in self.stream:
            lines = dict(line.split(": ", 1) for line in text.decode().strip().split("\n") if ": " in line)
            if "event" in lines:
                self.said.append((lines["event"], json.loads(lines["data"]), lines.get("id", "")))

    @property
    def steps(self) -> list[int]:
        return [step for event, data, _ in self.said if event == "steps" for step in data["step"]]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(3000):
            if condition():
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"{what}; it was told {self.said}")

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def play(scene: Callable[[live.Hub], Any]) -> None:
    async def run() -> None:
        hub = live.hub()
        try:
            await scene(hub)
        finally:
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await sync_to_async(connections.close_all)()

    asyncio.run(run())


do = sync_to_async


def test_records_reach_every_viewer_once_and_in_order(running: Attempt) -> None:
    async def scene(hub: live.Hub) -> None:
        pages = [Page(hub.watch(running.job_id, running.pk, 0, 0)) for _ in range(3)]
        await pages[0].until(lambda: hub.connected, "no subscription")
        for first in range(1, 31, 10):
            await do(seed.add_steps)(running, seed.records(first, first + 9))
            await do(seed.announce)(running, "steps")
        late = Page(hub.watch(running.job_id, running.pk, 0, 15))
        for page in pages:
            await page.until(lambda page=page: len(page.steps) >= 30, "not all steps came")  # type: ignore[misc]
            assert page.steps == list(range(1, 31))
            assert page.said[-1][2] == "30" or page.said[-1][0] == "changed"
        await late.until(lambda: len(late.steps) >= 15, "the newcomer did not catch up")
        assert late.steps == list(range(16, 31))
        assert len(hub.rooms) == 1
        for page in [*pages, late]:
            await page.close()
        assert not hub.rooms and hub.listener is None

    play(scene)


def test_nan_and_infinity_stay_what_they_are(running: Attempt) -> None:
    async def scene(hub: live.Hub) -> None:
        page = Page(hub.watch(running.job_id, running.pk, 0, 0))
        await do(seed.add_steps)(running, seed.records(1, 3, nan_from=3))
        await do(seed.announce)(running, "steps")
        await page.until(lambda: len(page.steps) == 3, "not all steps came")
        columns = next(data for event, data, _ in page.said if event == "steps")
        assert columns["loss_all"][2] == "nan" and columns["grad_norm"][0] == "inf"
        await page.close()

    play(scene)


def test_each_rank_is_a_stream_of_its_own(running: Attempt) -> None:
    async def scene(hub: live.Hub) -> None:
        zero, one = (Page(hub.watch(running.job_id, running.pk, rank, 0)) for rank in (0, 1))
        await do(seed.add_steps)(running, seed.records(1, 2))
        await do(seed.add_steps)(running, seed.records(1, 5, rank=1), 1)
        await do(seed.announce)(running, "steps")
        await one.until(lambda: len(one.steps) == 5, "rank 1 did not arrive")
        await zero.until(lambda: len(zero.steps) == 2, "rank 0 did not arrive")
        await zero.close()
        await one.close()

    play(scene)


def test_what_was_announced_before_a_page_listened_is_told_when_it_does(running: Attempt) -> None:
    def all_told(page: Page) -> bool:
        told = [name for event, data, _ in page.said if event == "changed" for name in data]
        return set(told) == set(live.EVERYTHING)

    async def scene(hub: live.Hub) -> None:
        first = Page(hub.watch(running.job_id, running.pk, 0, 0))
        await first.until(lambda: all_told(first), "the first page, which waited for the subscription, was not told")
        second = Page(hub.watch(running.job_id, running.pk, 0, 0))
        await second.until(lambda: all_told(second), "the second page was not told")
        assert hub.connected
        await first.close()
        await second.close()

    play(scene)


def test_changes_are_told_together_and_not_more_than_once_a_second(running: Attempt) -> None:
    async def scene(hub: live.Hub) -> None:
        began = time.monotonic()
        page = Page(hub.watch(running.job_id, running.pk, 0, 0))
        await page.until(lambda: hub.connected, "no subscription")
        for _ in range(20):
            await do(seed.announce)(running, "events", "log")
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.1)
        told = [data for event, data, _ in page.said if event == "changed"]
        assert 1 <= len(told) <= 2 + (time.monotonic() - began) / live.CHANGED_S
        assert {"events", "log"} <= {name for names in told for name in names}
        await page.close()

    play(scene)


def test_the_end_of_the_attempt_ends_the_stream(running: Attempt) -> None:
    async def scene(hub: live.Hub) -> None:
        page = Page(hub.watch(running.job_id, running.pk, 0, 0))
        await page.until(lambda: hub.connected, "no subscription")
        await do(seed.add_steps)(running, seed.records(1, 2))
        await do(seed.end)(running, EndReason.COMPLETED)
        await do(seed.announce)(running, "status")
        await asyncio.wait_for(page.task, 5)
        assert page.steps == [1, 2] and page.said[-1][0] == "end"
        assert not hub.rooms

    play(scene)


def test_the_stream_of_who_is_deactivated_breaks_off_and_others_stay(running: Attempt, staff: User) -> None:
    owner = running.job.owner

    async def scene(hub: live.Hub) -> None:
        mine = Page(hub.watch(running.job_id, running.pk, 0, 0, owner.pk))
        staffs = Page(hub.watch(running.job_id, running.pk, 0, 0, staff.pk))
        await mine.until(lambda: hub.connected, "no subscription")
        await do(User.objects.filter(pk=owner.pk).update)(is_active=False)
        await do(seed.add_steps)(running, seed.records(1, 2))
        await do(seed.announce)(running, "steps")
        await asyncio.wait_for(mine.task, 5)
        assert "end" not in [event for event, _data, _id in mine.said]
        await staffs.until(lambda: staffs.steps == [1, 2], "staff's stream stopped, too")
        await staffs.close()

    play(scene)


def test_the_last_words_of_an_ended_attempt_are_waited_for(running: Attempt) -> None:
    async def scene(hub: live.Hub) -> None:
        page = Page(hub.watch(running.job_id, running.pk, 0, 0))
        await page.until(lambda: hub.connected, "no subscription")
        await do(services.transition)(running, Status.SUCCEEDED, reason=EndReason.COMPLETED)
        await do(seed.announce)(running, "status")
        await page.until(
            lambda: any("status" in data for event, data, _ in page.said if event == "changed"), "no word of the end"
        )
        assert not page.task.done()
        # Nobody announces that all has arrived.
        await do(seed.add_steps)(running, seed.records(1, 2))
        await do(Attempt.objects.filter(pk=running.pk).update)(complete_at=timezone.now())
        await asyncio.wait_for(page.task, 60)
        assert page.steps == [1, 2] and page.said[-1][0] == "end"

    play(scene)


def test_without_redis_pages_still_move_on(running: Attempt, redis_server: RedisServer, settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"

    async def scene(hub: live.Hub) -> None:
        page = Page(hub.watch(running.job_id, running.pk, 0, 0))
        await do(seed.add_steps)(running, seed.records(1, 4))
        await page.until(lambda: len(page.steps) == 4, "nothing came")
        await page.close()

    play(scene)


def test_a_page_far_behind_fetches_the_chart_instead(running: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CATCH_UP", 10)
    seed.add_steps(running, seed.records(1, 50))

    async def scene(hub: live.Hub) -> None:
        page = Page(hub.watch(running.job_id, running.pk, 0, 0))
        await page.until(lambda: any(event == "reset" for event, _, _ in page.said), "no reset came")
        await page.close()

    play(scene)


def test_a_viewer_that_does_not_read_keeps_nothing_but_the_newest(running: Attempt) -> None:
    async def scene(hub: live.Hub) -> None:
        viewer = live.Viewer((running.pk, 0), 0)
        for number in range(10 * live.QUEUE):
            viewer.put(live.message("changed", [number]))
        assert viewer.overrun and viewer.queue.qsize() <= live.QUEUE

    play(scene)


def test_an_open_stream_holds_no_database_connection(running: Attempt) -> None:
    async def scene(hub: live.Hub) -> None:
        page = Page(hub.watch(running.job_id, running.pk, 0, 0))
        await page.until(lambda: hub.connected, "no subscription")
        await do(seed.add_steps)(running, seed.records(1, 2))
        await do(seed.announce)(running, "steps")
        await page.until(lambda: len(page.steps) == 2, "nothing came")
        # The thread that reads for the rooms has closed what it opened.
        left = await asyncio.get_running_loop().run_in_executor(live._readers, _open_connection)
        assert left is None
        await page.close()

    def _open_connection() -> object:
        return connections["default"].connection

    play(scene)


def test_a_retry_does_not_mix_with_the_attempt_before(running: Attempt, job: Job) -> None:
    seed.add_steps(running, seed.records(1, 10))
    seed.end(running, EndReason.NON_FINITE)
    services.retry(job, actor=job.owner, settings=running.settings, from_checkpoint=False)
    again = seed.start(job)

    async def scene(hub: live.Hub) -> None:
        page = Page(hub.watch(job.pk, again.pk, 0, 0))
        await do(seed.add_steps)(again, seed.records(1, 3))
        await do(seed.announce)(again, "steps")
        await page.until(lambda: bool(page.steps), "nothing came")
        assert page.steps == [1, 2, 3]
        await page.close()

    play(scene)


def test_one_user_cannot_hold_all_the_streams(running: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_STREAMS", 2)
    owner, url = running.job.owner, f"/jobs/{running.job_id}/live/"
    client, other = AsyncClient(), AsyncClient()

    async def scene(hub: live.Hub) -> None:
        await client.aforce_login(owner)
        await other.aforce_login(await do(User.objects.create_superuser)("another"))
        pages = [Page((await client.get(url)).streaming_content) for _ in range(2)]
        for page in pages:
            await page.until(lambda: hub.is_full_for(owner.pk), "they are not counted")
        assert (await client.get(url)).status_code == 429
        assert (await other.get(url)).status_code == 200
        await pages[0].close()
        assert (await client.get(url)).status_code == 200
        await pages[1].close()

    play(scene)
