"""Settings of the text-regression recipe, and nothing that needs Paddle."""

from __future__ import annotations

from workers.contract.fields import SettingsGroup, setting
from workers.contract.training import RecipeSettings, drop_path_setting
from workers.recipes.sequences.settings import Loss
from workers.recipes.text_classification.settings import DataSettings as TextSettings
from workers.recipes.text_classification.settings import ModelSettings as BackboneSettings


class DataSettings(TextSettings):
    __doc__ = TextSettings.__doc__
    label_column: str = setting(
        "label", "Number column", "Name of the column with the number.", min_length=1, max_length=100
    )
    normalise: bool = setting(
        True,
        "Normalise the number",
        "By the training rows: minus their mean, over their standard deviation. The exported program gives numbers in the "
        "units of the data either way.",
    )


class ModelSettings(BackboneSettings):
    __doc__ = BackboneSettings.__doc__
    loss: Loss = setting(
        Loss.SQUARED,
        "Loss",
        "Squared and absolute error, or huber: squared up to 1 and absolute beyond, so that outliers pull less. In units of "
        "the normalised number.",
        basic=True,
    )


class RegularisationSettings(SettingsGroup):
    """Against learning the training rows by heart."""

    dropout: float = setting(
        0.1, "Dropout", "Share of activations and attention weights set to zero in training.", basic=True, ge=0, lt=1
    )
    drop_path: float = drop_path_setting("layer")


class TextRegressionSettings(RecipeSettings):
    """Fine-tune ERNIE, BERT or another pretrained model to say a number of each text, or of each pair of texts."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    regularisation: RegularisationSettings = RegularisationSettings()
