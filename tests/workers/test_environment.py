from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from workers.environment import code


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    (folder / "file").write_text("one")
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    return folder


def test_a_checkout_has_a_revision_and_says_when_it_was_modified(checkout: Path) -> None:
    found = code(checkout)
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert found == {"revision": head.stdout.strip(), "modified": False}
    (checkout / "file").write_text("two")
    assert code(checkout) is found  # once per process
    code.cache_clear()
    assert code(checkout)["modified"] is True


def test_an_image_has_what_it_was_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_REVISION", "3f786850e387550fdab836ed7e6dc881de23001b")
    assert code(tmp_path) == {"revision": "3f786850e387550fdab836ed7e6dc881de23001b", "modified": False}
    code.cache_clear()
    monkeypatch.setenv("EVENKEEL_REVISION", "$(reboot)")
    assert code(tmp_path) == {}
