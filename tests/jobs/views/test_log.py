from __future__ import annotations

import asyncio

import pytest

from jobs.models import Attempt, Job
from jobs.templatetags.evenkeel import marked
from jobs.views.log import MATCHES
from tests.browser import seed
from tests.jobs.views.conftest import MINE, People
from tests.jobs.views.streams import body


@pytest.fixture
def written(job: Job, attempt: Attempt) -> Attempt:
    for start in range(0, 1000, 100):
        seed.write_log(attempt, [f"line {number} of rank 0" for number in range(start, start + 100)])
    seed.write_log(attempt, ["\x1b[31m警告\x1b[0m: Überlauf <b>"], rank=1)
    seed.write_log(attempt, ["LAUNCH INFO"], rank=-1)
    return attempt


def test_only_the_owner_and_staff_read_it(people: People, written: Attempt) -> None:
    assert people.ask(f"/jobs/{written.job_id}/log/") == MINE
    assert people.ask(f"/jobs/{written.job_id}/log/download/") == MINE


def test_shows_the_end_of_a_rank(people: People, written: Attempt) -> None:
    page = people.owner.get(f"/jobs/{written.job_id}/log/")
    assert "line 999 of rank 0" in page.text
    assert page.context["log_ranks"] == [0, 1, -1]


def test_text_of_any_script_is_kept_and_escapes_are_not(people: People, written: Attempt) -> None:
    page = people.owner.get(f"/jobs/{written.job_id}/log/", {"log_rank": "1"}).text
    assert "警告: Überlauf &lt;b&gt;" in page and "\x1b" not in page


def test_search_looks_through_the_whole_log_and_ignores_case(people: People, written: Attempt) -> None:
    page = people.owner.get(f"/jobs/{written.job_id}/log/", {"q": "LINE 7 OF"})
    assert page.context["log_lines"] == ["8: line 7 of rank 0"]
    many = people.owner.get(f"/jobs/{written.job_id}/log/", {"q": "line"})
    assert len(many.context["log_lines"]) == MATCHES and many.context["log_lines"][-1].startswith("1000:")
    assert "No line contains" in people.owner.get(f"/jobs/{written.job_id}/log/", {"q": "nowhere"}).text


def test_what_was_searched_for_is_marked_and_stays_escaped(people: People, written: Attempt) -> None:
    assert "8: <mark>line 7</mark> of" in people.owner.get(f"/jobs/{written.job_id}/log/", {"q": "LINE 7"}).text
    assert marked("a <b> & <B>", "<b>") == "a <mark>&lt;b&gt;</mark> &amp; <mark>&lt;B&gt;</mark>"


def test_a_refresh_brings_the_log_alone(people: People, written: Attempt) -> None:
    assert "<html" not in people.owner.get(f"/jobs/{written.job_id}/log/", headers={"HX-Request": "true"}).text


@pytest.mark.django_db(transaction=True)  # it is read in a thread
def test_the_download_is_the_log_byte_for_byte(people: People, written: Attempt) -> None:
    url = f"/jobs/{written.job_id}/log/download/"
    whole = "".join(f"line {number} of rank 0\n" for number in range(1000)).encode()
    answer = people.owner.get(url)
    assert answer["Content-Length"] == str(len(whole)) and "attachment" in answer["Content-Disposition"]
    assert asyncio.run(body(answer)) == whole
    part = people.owner.get(url, headers={"Range": "bytes=1500-4000"})
    assert part.status_code == 206 and asyncio.run(body(part)) == whole[1500:4001]


def test_a_rank_that_wrote_nothing_has_no_download(people: People, written: Attempt) -> None:
    assert people.owner.get(f"/jobs/{written.job_id}/log/download/", {"log_rank": "9"}).status_code == 404
