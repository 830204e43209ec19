"""Names of recipes and their declarations. Importing this imports no Paddle.

Recipes of other packages are added by naming their modules in EVENKEEL_RECIPES
(comma-separated), on the web side and on the hosts alike; each has a `RECIPE`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from workers.contract.checks import CLASSIFICATION, TAGS, Check, DatasetFacts
from workers.contract.datasets import Kind
from workers.contract.fields import SettingsGroup
from workers.contract.presets import Preset
from workers.contract.trials import TrialField, TrialForm
from workers.recipes.image_classification.checks import CHECKS as OF_PICTURES
from workers.recipes.image_classification.presets import PRESETS as FOR_PICTURES
from workers.recipes.image_classification.settings import ImageClassificationSettings
from workers.recipes.sequences.checks import CHECKS as OF_SEQUENCES
from workers.recipes.sequences.checks import suited_to
from workers.recipes.sequences.presets import PRESETS as FOR_SEQUENCES
from workers.recipes.sequences.settings import SequencesSettings
from workers.recipes.text_classification.presets import PRESETS
from workers.recipes.text_classification.settings import TextClassificationSettings
from workers.recipes.text_lines.checks import CHECKS as OF_LINES
from workers.recipes.text_lines.presets import PRESETS as FOR_LINES
from workers.recipes.text_lines.settings import TextLinesSettings
from workers.recipes.text_regression.presets import PRESETS as FOR_NUMBERS
from workers.recipes.text_regression.settings import TextRegressionSettings
from workers.recipes.token_classification.presets import PRESETS as FOR_TOKENS
from workers.recipes.token_classification.settings import TokenClassificationSettings


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    settings: type[SettingsGroup]
    # Imported by the trainer only; has `build(context) -> Task`.
    module: str
    # Arguments of the Python that a rank runs, and of the one that starts the ranks.
    trainer: tuple[str, ...] = ("-m", "workers.trainer")
    launcher: tuple[str, ...] = ("-m", "paddle.distributed.launch")
    needs_dataset: bool = True
    # Of the datasets that it trains on, see workers/contract/datasets.py.
    dataset_kind: Kind = "texts"
    presets: tuple[Preset, ...] = ()
    # Checks across fields, run at submission.
    checks: tuple[Check, ...] = ()
    # Values of settings that the form begins with because of the dataset, beside those that all recipes take from it.
    suited: Callable[[DatasetFacts], dict[str, str]] = lambda dataset: {}
    # Settings (dotted) that stay what they are when an attempt goes on from a checkpoint: with others its weights do not fit,
    # or mean something else. The trainer finds the rest, such as another vocabulary.
    bound: tuple[str, ...] = ()
    # How its exported model is tried in the browser, if it can be.
    trial: TrialForm | None = None

    def suited_to(self, dataset: DatasetFacts) -> dict[str, str]:
        """Values of settings that the form begins with because of the dataset; who checked weights wants them to count."""
        weights = {"data.weight_column": dataset.weight_column} if dataset.weight_column else {}
        return weights | self.suited(dataset)

    def in_todays_names(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings that an earlier version stored, as this one would have: with the defaults of what it did not know."""
        try:
            return self.settings.model_validate(settings).model_dump(mode="json")
        except ValidationError:
            return settings

    def misfits(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """The settings because of which a checkpoint that was made with `old` does not fit `new`, with their old values."""
        return {
            name: _at(old, name)
            for name in self.bound
            if _at(old, name) != _at(new, name) and self._counts(name, old) and self._counts(name, new)
        }

    def _counts(self, name: str, settings: dict[str, Any]) -> bool:
        group, _, key = name.partition(".")
        fields = getattr(self.settings.model_fields[group].annotation, "model_fields", {})
        other, _, values = str((fields[key].json_schema_extra or {}).get("only") or "").partition("=")
        return not other or str(_at(settings, f"{group}.{other}")) in values.split(",")

    @property
    def has_pretrained(self) -> bool:
        """Whether it can start from weights that were trained elsewhere, on much more."""
        model = self.settings.model_fields.get("model")
        source = getattr(model and model.annotation, "model_fields", {}).get("source")
        return source is not None and bool({"hub", "folder", "pretrained"} & {str(word) for word in source.annotation})

    def preset(self, name: str | None) -> Preset | None:
        """The preset called `name`; the first if there is none of that name; None without presets."""
        return next((one for one in self.presets if one.name == name), self.presets[0] if self.presets else None)


def _at(settings: dict[str, Any], name: str) -> Any:
    group, _, key = name.partition(".")
    return (settings.get(group) or {}).get(key)


# To what the weights of a checkpoint are bound, see `Recipe.bound`.
_OF_ENCODERS = ("source", "architecture", "hidden_size", "layers", "heads", "vocabulary_size")
_ENCODER = tuple(f"model.{name}" for name in _OF_ENCODERS)
_RECURRENT = ("model.cell", "model.hidden_size", "model.layers", "model.bidirectional")
_NETWORK = tuple(
    f"model.{name}" for name in ("architecture", "stem", "width", "norm", "patch", "hidden_size", "layers", "heads")
)

RECIPES: dict[str, Recipe] = {
    "text_classification": Recipe(
        "text_classification",
        "Text classification (ERNIE, BERT …)",
        TextClassificationSettings,
        "workers.recipes.text_classification.task",
        presets=PRESETS,
        checks=CLASSIFICATION,
        bound=("data.text_column", "data.label_column", *_ENCODER),
        trial=TrialForm("workers.recipes.text_classification.predict", (TrialField("text", "Text"),)),
    ),
    "text_regression": Recipe(
        "text_regression",
        "Text regression (ERNIE, BERT …)",
        TextRegressionSettings,
        "workers.recipes.text_regression.task",
        dataset_kind="numbers",
        presets=FOR_NUMBERS,
        checks=CLASSIFICATION,
        bound=("data.text_column", "data.label_column", "data.normalise", *_ENCODER),
        trial=TrialForm("workers.recipes.text_regression.predict", (TrialField("text", "Text"),)),
    ),
    "token_classification": Recipe(
        "token_classification",
        "Token classification (ERNIE, BERT …)",
        TokenClassificationSettings,
        "workers.recipes.token_classification.task",
        dataset_kind="tokens",
        presets=FOR_TOKENS,
        checks=TAGS,
        bound=_ENCODER,
        trial=TrialForm("workers.recipes.token_classification.predict", (TrialField("text", "Text"),)),
    ),
    "sequences": Recipe(
        "sequences",
        "Numeric sequences (LSTM, GRU)",
        SequencesSettings,
        "workers.recipes.sequences.task",
        dataset_kind="sequences",
        presets=FOR_SEQUENCES,
        checks=OF_SEQUENCES,
        bound=("data.goal", "data.normalisation", "model.linear_steps", *_RECURRENT),
        suited=suited_to,
        trial=TrialForm(
            "workers.recipes.sequences.predict", (TrialField("text", "Sequence", kind="numbers", longest=20_000),)
        ),
    ),
    "image_classification": Recipe(
        "image_classification",
        "Image classification (ResNet, ViT)",
        ImageClassificationSettings,
        "workers.recipes.image_classification.task",
        dataset_kind="images",
        presets=FOR_PICTURES,
        checks=OF_PICTURES,
        bound=("data.size", "data.fit", *_NETWORK),
        trial=TrialForm(
            "workers.recipes.image_classification.predict",
            (TrialField("picture", "Pictures", kind="image"),),
            most_rows=8,
        ),
    ),
    "text_lines": Recipe(
        "text_lines",
        "Text lines in pictures (CRNN + CTC)",
        TextLinesSettings,
        "workers.recipes.text_lines.task",
        dataset_kind="lines",
        presets=FOR_LINES,
        checks=OF_LINES,
        bound=("data.height", "data.colour", "model.channels", "model.reduction", *_RECURRENT),
        trial=TrialForm(
            "workers.recipes.text_lines.predict",
            (TrialField("picture", "Pictures", kind="image"),),
            most_rows=8,
        ),
    ),
}

for _name in filter(None, os.environ.get("EVENKEEL_RECIPES", "").split(",")):
    _added: Recipe = importlib.import_module(_name).RECIPE
    RECIPES[_added.name] = _added


def recipe(name: str) -> Recipe:
    """The recipe called `name`; ValueError with the known names if there is none."""
    try:
        return RECIPES[name]
    except KeyError:
        raise ValueError(f"there is no recipe “{name}”; known: {', '.join(sorted(RECIPES))}") from None
