"""Settings of the text-classification recipe, and nothing that needs Paddle."""

from __future__ import annotations

from pydantic import model_validator

from workers.contract.choices import Choice
from workers.contract.fields import Misfit, SettingsGroup, setting
from workers.contract.training import (
    RecipeSettings,
    StartSettings,
    drop_path_setting,
    job_setting,
    label_smoothing_setting,
    weight_column_setting,
)


class ModelSource(Choice):
    SCRATCH = "scratch"
    JOB = "job"
    FOLDER = "folder"
    HUB = "hub"


class Architecture(Choice):
    ERNIE = "ernie"
    BERT = "bert"


# Datasets that were described as pairs have it.
SECOND_TEXT = "text_b"


class DataSettings(SettingsGroup):
    """Which columns of the dataset are read, and how much of each text."""

    text_column: str = setting("text", "Text column", "Name of the column with the text.", min_length=1, max_length=100)
    text_b_column: str | None = setting(
        SECOND_TEXT,
        "Second text column",
        "Name of the column with the second text of a pair; of a dataset without pairs nothing is read. Empty: only the "
        "first text.",
        max_length=100,
    )
    label_column: str = setting(
        "label", "Label column", "Name of the column with the label.", min_length=1, max_length=100
    )
    weight_column: str | None = weight_column_setting()
    max_length: int = setting(
        64,
        "Longest text",
        "Tokens of one text, or of a pair together, with the marks around them; the rest is cut off, of a pair from the longer "
        "text.",
        unit="tokens",
        basic=True,
        ge=8,
        le=2048,
    )


class ModelSettings(StartSettings):
    """Where the weights come from. The sizes count only for random weights."""

    source: ModelSource = setting(
        ModelSource.SCRATCH,
        "Start from",
        "scratch: random weights and a character vocabulary built from the training rows; job: the model another job exported; "
        "folder: a PaddleNLP folder (ERNIE, BERT, RoBERTa, ELECTRA …) under one of the host's model roots; hub: a name that PaddleNLP downloads.",
        basic=True,
    )
    job: int | None = job_setting(basic=True)
    folder: str | None = setting(
        None,
        "Folder",
        "For “folder”: path below a model root, such as ernie-3.0-base-zh.",
        basic=True,
        max_length=300,
        only="source=folder",
    )
    name: str | None = setting(
        None, "Hub name", "For “hub”: such as ernie-3.0-nano-zh.", basic=True, max_length=200, only="source=hub"
    )
    architecture: Architecture = setting(
        Architecture.ERNIE,
        "Architecture",
        "Of random weights; any other source says itself what it is.",
        only="source=scratch",
    )
    hidden_size: int = setting(128, "Hidden size", "Width of the model.", ge=8, le=4096, only="source=scratch")
    layers: int = setting(2, "Layers", "Transformer layers.", ge=1, le=48, only="source=scratch")
    heads: int = setting(
        4, "Heads", "Attention heads; must divide the hidden size.", ge=1, le=64, only="source=scratch"
    )
    vocabulary_size: int = setting(
        6000,
        "Vocabulary",
        "Most frequent characters that get a token of their own.",
        unit="characters",
        ge=50,
        le=200_000,
        only="source=scratch",
    )

    @model_validator(mode="after")
    def _complete(self) -> ModelSettings:
        needed = {ModelSource.FOLDER: "folder", ModelSource.HUB: "name"}.get(self.source)
        if needed and getattr(self, needed) in (None, ""):
            raise Misfit("To start from “%(source)s”, fill in “%(needed)s”.", source=self.source, needed=needed)
        if self.hidden_size % self.heads:
            raise Misfit(
                "The heads (%(heads)d) must divide the hidden size (%(hidden)d).",
                heads=self.heads,
                hidden=self.hidden_size,
            )
        return self


class RegularisationSettings(SettingsGroup):
    """Against learning the training rows by heart."""

    dropout: float = setting(
        0.1, "Dropout", "Share of activations and attention weights set to zero in training.", basic=True, ge=0, lt=1
    )
    label_smoothing: float = label_smoothing_setting()
    drop_path: float = drop_path_setting("layer")


class TextClassificationSettings(RecipeSettings):
    """Fine-tune ERNIE, BERT or another pretrained model to give each text, or each pair of texts, one label."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    regularisation: RegularisationSettings = RegularisationSettings()
