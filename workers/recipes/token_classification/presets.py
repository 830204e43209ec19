"""Presets of the token-classification recipe: those of text classification; tags take more passes to learn than labels do."""

from __future__ import annotations

from dataclasses import replace

from workers.recipes.text_classification import presets as of_texts

PRESETS = (
    of_texts.STANDARD,
    of_texts.SMALL,
    replace(
        of_texts.SCRATCH,
        help="Random weights: twenty times the rate of fine-tuning, gradients cut only above 5, many epochs.",
        values=of_texts.SCRATCH.values | {"training.epochs": 30, "optimizer.learning_rate": 1e-3},
    ),
)
