from __future__ import annotations

from typing import Any

from workers.contract.fields import SettingsGroup, setting
from workers.contract.training import DeviceSettings
from workers.contract.trials import TrialField, TrialForm
from workers.recipes.registry import Recipe


class ScriptedSettings(SettingsGroup):
    """What a scripted run does; see tests/scripted/trainer.py."""

    script: list[dict[str, Any]] = setting(
        [{"do": "steps", "n": 20, "ms": 2}], "Script", "Commands, one after another."
    )
    devices: DeviceSettings = DeviceSettings()


RECIPE = Recipe(
    "scripted",
    "Scripted",
    ScriptedSettings,
    "tests.scripted.trainer",
    trainer=("-m", "tests.scripted.trainer"),
    launcher=("-m", "tests.scripted.launcher"),
    needs_dataset=False,
    trial=TrialForm("tests.scripted.predict", (TrialField("text", "Text"),)),
)
