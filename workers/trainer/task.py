"""What a recipe gives the trainer. The loop, AMP, records, checkpoints and ranks are the trainer's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from workers.contract.messages import AttemptSpec
from workers.contract.states import EndReason
from workers.run_folder import RunFolder

Split = Literal["train", "dev"]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


class TrainingFailed(Exception):
    """The attempt ends here, on purpose, with a reason and a sentence for people."""

    def __init__(
        self,
        reason: EndReason,
        detail: str,
        *,
        rank: int | None = None,
        step: int | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.rank, self.step = reason, detail, rank, step
        self.more = more or {}  # for the event


@dataclass(frozen=True)
class Context:
    """What `build` of a recipe's module gets."""

    folder: RunFolder
    spec: AttemptSpec
    settings: Any  # an instance of the recipe's settings model
    rank: int
    stage: Callable[[str, str], None]  # (what is being done, detail or "")


@dataclass(frozen=True)
class Batch:
    """Samples of one forward pass, as NumPy arrays whose first axis is the sample."""

    arrays: dict[str, npt.NDArray[Any]]
    rows: Rows  # row numbers within the split, from 0
    tokens: int | None  # without padding; None where there is no such thing
    extras: dict[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """One recipe at work: data in memory, a model, a loss, metrics, an export.

    The loss of a step is the mean over the whole global batch, weighted by `weights`; the trainer
    does the weighting, so that micro-batches and ranks of unequal size come out exact.
    """

    rows: dict[Split, int]
    # [train rows]: what each row counts for. Not finite means: a broken row, which must be noticed.
    weights: Floats
    # [train rows] or None: rows of like length then come in the same batch (less padding).
    lengths: Rows | None
    # What a checkpoint must have been trained with: name -> value (labels, a hash of the vocabulary …).
    identity: dict[str, Any]
    # Metric by which the best weights are chosen, and whether less of it is better (an error) or more (an accuracy).
    best_by: str
    lower_is_better: bool
    # What has to be beaten on the dev split, as far as it costs nothing to know: name -> its value of `best_by`.
    baselines: dict[str, float]

    def build_model(self) -> Any:
        """A paddle.nn.Layer with its initial or pretrained weights. Called once, after seeding."""

    def batch(self, split: Split, rows: Rows) -> Batch:
        """Rows as they are. Evaluations measure training rows too: what augments them belongs into `losses`, where the
        model says whether it is being trained."""

    def losses(self, model: Any, batch: Batch) -> tuple[Any, Any]:
        """(outputs, loss of each sample [n] as float32 Tensor)."""

    def tally(self, outputs: Any, losses: Any, batch: Batch) -> Floats:
        """Sums from which `metrics` are made; added up over batches and ranks."""

    def tally_of_nothing(self) -> Floats: ...

    def metrics(self, tally: Floats) -> dict[str, Any]: ...

    def shown(self, outputs: Any, batch: Batch, i: int) -> dict[str, Any]:
        """What people see of sample `i` of a dev batch when it is among those with the greatest loss, by column: of
        the row (a text, a label, a target), and what the model made of it (“predicted”, “probability” …).
        A text with its spans is a list of [part, name of its span or ""]; “image” is a picture's place in the dataset's
        file of them, [offset, bytes]. Long texts are cut by the trainer. Only those
        who may see the dataset see more than probability and the names in “label” and “predicted”."""

    def export(self, model: Any, folder: Path) -> list[str]:
        """Write finished models as subfolders of `folder`; returns their names. Rank 0 only."""
