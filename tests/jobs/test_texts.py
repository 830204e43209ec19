"""What hosts said, in the reader's language."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from jobs import services
from jobs.models import Attempt, JobEvent
from jobs.templatetags.evenkeel import end_in_words
from jobs.texts import filled, in_words
from workers.contract.states import EndReason, Status
from workers.contract.texts import Text

ENGLISH, CHINESE = "one has taken the attempt.", "one 已接手这次尝试。"
TEMPLATE = "%(host)s has taken the attempt."


@pytest.fixture(autouse=True)
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A catalogue of two texts, whatever the real one has by now."""
    known = {
        TEMPLATE: "%(host)s 已接手这次尝试。",
        "rank %(rank)d": "进程 %(rank)d",
        "At %(x).2g on %(ranks)s.": "%(ranks)s：%(x).2g。",
    }
    monkeypatch.setattr("jobs.texts._", lambda text: known.get(text, text))
    with translation.override("zh-hans"):
        yield


def test_a_known_template_is_filled_in_in_the_readers_language() -> None:
    text = Text(TEMPLATE, host="one")
    assert in_words(text, text.said) == CHINESE
    with translation.override("en"):
        assert in_words(text, text.said) == ENGLISH


def test_numbers_that_are_not_finite_and_texts_within_texts() -> None:
    text = Text("At %(x).2g on %(ranks)s.", x=float("nan"), ranks=Text("rank %(rank)d", rank=3))
    said = [{"template": part["template"], "values": part["values"] | {"x": "nan"}} for part in text.said]
    assert in_words(text, said) == "进程 3：nan。"


def test_words_of_no_language_stand_between_sentences_as_they_are() -> None:
    text = Text.joined(Text(TEMPLATE, host="one"), "OSError: 5")
    assert in_words(text, text.said) == f"{CHINESE} OSError: 5"


def _nested(depth: int) -> list[Any]:
    said: list[Any] = ["one"]
    for _level in range(depth):
        said = [{"template": TEMPLATE, "values": {"host": said}}]
    return said


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "nonsense",
        7,
        [{"template": TEMPLATE}],
        [{"template": TEMPLATE, "values": {}}],
        [{"template": TEMPLATE, "values": []}],
        [{"values": {}}],
        [{"template": "Nobody %(host)s knows it.", "values": {"host": "x"}}],
        [{"template": "%(host)1000000000d", "values": {"host": 1}}],
        [{"template": "At %(x).2g on %(ranks)s.", "values": {"x": [], "ranks": "r"}}],
        [{"template": "rank %(rank)d", "values": {"rank": "inf"}}],
        _nested(400),
    ],
)
def test_what_makes_no_sense_is_shown_as_the_host_wrote_it(said: Any) -> None:
    assert in_words(ENGLISH, said) == ENGLISH


def test_an_end_keeps_its_english_and_is_told_in_chinese(attempt: Attempt, client: Client) -> None:
    detail = Text(TEMPLATE, host="one")
    services.transition(attempt, Status.STARTING, actor_name="controller")
    assert services.transition(attempt, Status.FAILED, reason=EndReason.TRAINER_ERROR, detail=detail)
    attempt.refresh_from_db()
    assert attempt.end_detail == ENGLISH
    assert JobEvent.objects.filter(attempt=attempt).latest("pk").message == ENGLISH
    assert end_in_words(attempt) == CHINESE
    client.force_login(attempt.job.owner)
    page = client.get(f"/jobs/{attempt.job_id}/", headers={"accept-language": "zh-hans"}).text
    assert page.count(CHINESE) == 2 and ENGLISH not in page


def test_rows_from_before_have_their_english(attempt: Attempt) -> None:
    attempt.end_detail = "Rank 0 was killed by SIGKILL."
    assert end_in_words(attempt) == "Rank 0 was killed by SIGKILL."


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("%(a)999999999d", {"a": 1}),
        ("%(a).999999999f", {"a": 1.0}),
        ("%(a)*d", {"a": 1}),
        ("%(a)d", {"a": "x"}),
        ("%(a)d", {"a": float("inf")}),
        ("%(b)s", {"a": 1}),
        ("", {}),
        ("100 %", {}),
    ],
)
def test_a_sentence_that_does_not_fit_together_is_shown_as_it_is(template: str, values: dict[str, Any]) -> None:
    assert filled(template, values) == template
    assert filled("%(host)s: %(x)12.3f", {"host": "one", "x": 0.5}) == "one:        0.500"
