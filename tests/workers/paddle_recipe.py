from __future__ import annotations

from tests.scripted.recipe import ScriptedSettings
from workers.recipes.registry import Recipe

RECIPE = Recipe(
    "paddle_ranks",
    "Two real ranks",
    ScriptedSettings,
    "tests.workers.paddle_ranks",
    trainer=("-m", "tests.workers.paddle_ranks"),
    needs_dataset=False,
)
