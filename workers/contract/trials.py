"""Trying an exported model: what the web side asks of a host, and what the host answers.

As with checks of datasets nothing depends on Redis: the request is sent until it is claimed, and what is typed and what
is answered are files below STORAGE_ROOT, which the controller removes as soon as it has the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

TRY_TASK = "workers.try_model"

# Below STORAGE_ROOT: a trial's folder. Files are replaced, never rewritten; `claim-<number>` belongs to one host.
ROWS, PROGRESS, RESULT = "rows.json", "progress.json", "result.json"
# Predictions of all rows; what else a result says is far less. 16 rows of 2,000 characters with a tag each are 2.4 MiB.
LARGEST_ANSWER_BYTES = 4 * 2**20
LARGEST_RESULT_BYTES = LARGEST_ANSWER_BYTES + 64 * 1024
# Of what a row may be, the likeliest: a dataset may have 10,000 labels of 200 characters.
MOST_SCORES = 20
# Of one picture's file, and of all of a question together: it is kept as a row of the database for a day.
PICTURE_BYTES, PICTURES_BYTES = 8 * 2**20, 16 * 2**20


def trial_key(uid: str) -> str:
    return f"trials/{uid}"


# --- what a recipe declares ----------------------------------------------------------------


@dataclass(frozen=True)
class TrialField:
    """One thing that people fill in per row; `name` is its key in a Row."""

    name: str
    title: str
    # Of "numbers" a line has time steps with spaces between, each with its features' values and commas between. Of "image" each
    # row is a picture file that was chosen, in base64.
    kind: Literal["text", "numbers", "image"] = "text"
    longest: int = 2000  # characters


@dataclass(frozen=True)
class TrialForm:
    """How a recipe's exported model is tried.

    `module` is imported on hosts only, by a process of its own. Its `load(folder)` takes the unpacked artifact and
    nothing else, and returns a function from rows to as many `Prediction`s, in their order. Of rows that it cannot take
    it raises `Failed`, which people are told.
    """

    module: str
    fields: tuple[TrialField, ...]
    artifact: str = "inference"
    most_rows: int = 16


Row = dict[str, str]


# --- messages ------------------------------------------------------------------------------


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrialSpec(_Frozen):
    """Holds nothing that somebody typed: that is a file, so that no queue and no log has it."""

    uid: str = Field(pattern="^[0-9a-f]{32}$")
    number: int = Field(ge=1, description="of the try: a host acts once on each")
    recipe: str
    artifact: str = Field(description="folder below STORAGE_ROOT")


class Progress(_Frozen):
    """`seq` counts up while the host is at it."""

    number: int
    seq: int
    host: str
    stage: str


class Failed(Exception):
    """An English sentence with %-places for `values`, for people: why there is no answer, such as what is wrong with which row."""

    def __init__(self, template: str, **values: str | int | float) -> None:
        super().__init__(template % values)
        self.template, self.values = template, values


class Score(_Frozen):
    label: str
    probability: float = Field(ge=0, le=1)


class Entity(_Frozen):
    """A stretch of what was typed, by its characters, and what it is."""

    start: int = Field(ge=0)
    end: int = Field(ge=0, description="one after the last")
    label: str
    probability: float = Field(ge=0, le=1)


class Prediction(_Frozen):
    """Of one row: its likeliest labels with their probabilities, the likeliest first, or a number, or the stretches of it that are
    something, or the text that was read; and the tokens as the model saw them."""

    scores: list[Score] = []
    less_likely: int = Field(0, ge=0, description="labels that are not among the scores")
    value: float | None = None
    spans: list[Entity] | None = None
    text: str | None = Field(None, description="what stands in a picture; empty: nothing")
    confidence: float | None = Field(None, ge=0, le=1, description="mean probability of the text's characters")
    tokens: list[str] = []
    cut: bool = Field(False, description="the row is longer than what the model was trained with")
    unknown: str = Field("", description="the token that stands for what the vocabulary does not have")

    @model_validator(mode="after")
    def _says_something(self) -> Prediction:
        if (self.value is not None) + (self.spans is not None) + (self.text is not None) + bool(self.scores) != 1:
            raise ValueError("a prediction has either scores, or a value, or spans, or a text")
        return self


class TrialResult(_Frozen):
    """Predictions, or an English sentence with %-places for `values`; web translates it."""

    number: int
    host: str
    predictions: list[Prediction] = []
    seconds: float = Field(0.0, description="of the model, without its start")
    start_seconds: float = Field(0.0, description="of the start; 0 if the model was there already")
    template: str = ""
    values: dict[str, str | int | float] = {}
