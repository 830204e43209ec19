from __future__ import annotations

import json

import pytest

from jobs.models import Attempt, Host, Placement
from tests.browser import seed
from tests.jobs.test_device_samples import BEGAN, line, take
from tests.jobs.views.conftest import MINE, People


@pytest.fixture
def url(attempt: Attempt) -> str:
    take(attempt, *(line(i * 10) for i in range(5)))
    Placement.objects.create(attempt=attempt, host=seed.host("cpu-1"), device_kind="cpu", devices=[0])
    return f"/jobs/{attempt.job_id}/devices/"


def test_only_who_may_see_the_job_sees_its_devices(people: People, url: str) -> None:
    assert people.ask(url) == MINE


def test_the_chart_has_a_node_with_its_host(people: People, url: str) -> None:
    (node,) = people.owner.get(url).json()["nodes"]
    assert (node["node"], node["host"], len(node["t"])) == (0, "cpu-1", 5)


@pytest.mark.parametrize("query, count", [(f"after={BEGAN + 25}", 2), ("after=nan", 5), ("after=x&points=y", 5)])
def test_what_is_newer_can_be_asked_for(people: People, url: str, query: str, count: int) -> None:
    (node,) = people.owner.get(f"{url}?{query}").json()["nodes"]
    assert len(node["t"]) == count


def test_an_attempt_without_samples_has_no_nodes(people: People, attempt: Attempt) -> None:
    assert people.owner.get(f"/jobs/{attempt.job_id}/devices/").json()["nodes"] == []
    assert people.owner.get(f"/jobs/{attempt.job_id}/devices/?attempt=7").status_code == 404


def test_peaks_are_shown_with_the_numbers_and_the_ranks(people: People, url: str, attempt: Attempt) -> None:
    Attempt.objects.update(
        rank_states={"0": {"pid": 7}},
        newest_record={"loss": 1, "loss_scale": None},
        peak_memory={"rank0": 600 * 2**20, "0/gpu0": 2**34},
    )
    page = people.owner.get(f"/jobs/{attempt.job_id}/").content.decode()
    assert page.count("600.0 MiB") == 2 or page.count("600 MiB") == 2
    assert "Peak GPU memory" in page and "16" in page
    assert json.loads(page.split('id="device-words" type="application/json">')[1].split("<")[0])["rank_cpu"]


def test_hosts_show_what_their_gpus_do(people: People) -> None:
    seed.host(
        "gpu-1",
        devices=[{"index": 0, "kind": "gpu", "name": "A100", "memory_bytes": 2**36}],
        usage={
            "cpu": 0.25,
            "memory_available_bytes": 2**33,
            "gpus": [
                {"index": 0, "utilisation": 0.87, "memory_used_bytes": 2**34, "temperature_c": 61, "power_w": 250}
            ],
        },
    )
    page = people.other.get("/hosts/").text
    assert "87 %" in page and "61 °C" in page and "250 W" in page and "CPU 25 %" in page and "available" in page
    Host.objects.update(online=False)
    assert "87 %" not in people.other.get("/hosts/").text
