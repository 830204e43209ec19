"""Settings of the token-classification recipe, and nothing that needs Paddle."""

from __future__ import annotations

from workers.contract.fields import SettingsGroup, setting
from workers.contract.training import RecipeSettings, weight_column_setting
from workers.recipes.text_classification.settings import ModelSettings, RegularisationSettings


class DataSettings(SettingsGroup):
    """How much of each row is read. Tokens and tags are those of the dataset."""

    max_length: int = setting(
        128,
        "Longest row",
        "Tokens of the model in one row, with the marks around them; the rest is cut off. What is cut off is not learnt from, "
        "and counts as O in evaluation. A Chinese character is one token, a word of other languages one or several.",
        unit="tokens",
        basic=True,
        ge=8,
        le=2048,
    )
    weight_column: str | None = weight_column_setting()


class TokenClassificationSettings(RecipeSettings):
    """Fine-tune ERNIE, BERT or another pretrained model to give each token of a text a tag: names of persons, places and
    organisations, parts of speech, words …"""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    regularisation: RegularisationSettings = RegularisationSettings()
