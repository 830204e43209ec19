"""Recipes: a folder each, with settings, dataset schema and checks (read by the web side too), model and
metrics (imported by the trainer only)."""

from __future__ import annotations

from workers.recipes.registry import RECIPES, Recipe, recipe

__all__ = ["RECIPES", "Recipe", "recipe"]
