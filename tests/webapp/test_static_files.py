from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client

from webapp.static_files import StaticFiles


def test_own_files_and_those_of_packages_are_served_whole(client: Client) -> None:
    for path in ("css/evenkeel.css", "js/charts.js", "django_htmx/htmx-2.min.js", "uplot/uPlot.iife.min.js"):
        answer = client.get(f"/static/{path}")
        assert answer.status_code == 200 and len(answer.content) == int(answer["Content-Length"]) > 500, path


def test_a_browser_that_has_it_is_not_sent_it_again(client: Client) -> None:
    first = client.get("/static/css/evenkeel.css")
    again = client.get("/static/css/evenkeel.css", headers={"If-None-Match": first["ETag"]})
    assert again.status_code == 304 and again.content == b""


def test_a_file_replaced_under_a_running_server_is_still_whole(tmp_path: Path, rf: object) -> None:
    file = tmp_path / "script.js"
    file.write_text("short")
    middleware = StaticFiles(lambda request: pytest.fail("not served"))
    middleware.add_file_to_dictionary("/static/script.js", str(file))
    file.write_text("much longer than before")
    answer = middleware(rf.get("/static/script.js"))  # type: ignore[attr-defined]
    assert answer.content == b"much longer than before" and answer["Content-Length"] == "23"
