"""Presets of the text-regression recipe: those of text classification, without what only labels have."""

from __future__ import annotations

from dataclasses import replace

from workers.contract.presets import Preset
from workers.recipes.text_classification import presets as of_labels


def _for_numbers(preset: Preset) -> Preset:
    values = {name: value for name, value in preset.values.items() if name != "regularisation.label_smoothing"}
    # In units of the data, which no preset knows.
    return replace(preset, values=values | {"early_stopping.min_delta": 0.0, "model.loss": "squared"})


PRESETS = tuple(map(_for_numbers, of_labels.PRESETS))
