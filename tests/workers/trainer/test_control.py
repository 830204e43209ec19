"""What people ask of a running attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.contract.messages import Control, Request
from workers.run_folder import atomic_write_json
from workers.trainer import control
from workers.trainer.control import ControlFile


@pytest.fixture(autouse=True)
def no_pause_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "INTERVAL_S", 0.0)


def test_nothing_is_asked_while_there_is_no_file(tmp_path: Path) -> None:
    assert ControlFile(tmp_path / "control.json").read() == Control()


def test_each_new_content_is_read(tmp_path: Path) -> None:
    file = ControlFile(tmp_path / "control.json")
    for asked in (Control(checkpoint=1), Control(leave=Request.PAUSE, checkpoint=1), Control(leave=Request.CANCEL)):
        atomic_write_json(tmp_path / "control.json", asked.model_dump(mode="json"))
        assert file.read() == asked


def test_rubbish_leaves_the_newest_readable_request(tmp_path: Path) -> None:
    file = ControlFile(tmp_path / "control.json")
    atomic_write_json(tmp_path / "control.json", {"leave": "pause"})
    assert file.read().leave is Request.PAUSE
    (tmp_path / "control.json").write_text("{")
    assert file.read().leave is Request.PAUSE


def test_between_two_looks_the_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "INTERVAL_S", 60.0)
    file = ControlFile(tmp_path / "control.json")
    file.read()
    atomic_write_json(tmp_path / "control.json", {"leave": "pause"})
    assert file.read() == Control()
    assert file.look().leave is Request.PAUSE, "whoever must know looks all the same"
