"""CTC (Graves et al. 2006): the loss of a text given its line, and what a line says.

Paddle's kernel ends the process by SIGFPE when no row of a batch has a label, waits for ever when a length is greater than
the input's, and gives a loss of exactly 0 for a label that does not fit [measured]. The first is taken care of here, the
others before training (data.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
import paddle.nn.functional as F

from workers.recipes.text_lines.data import BLANK
from workers.trainer.task import Floats, Rows


def losses(logits: Any, steps: Any, labels: Any, lengths: Rows) -> Any:
    """−log p(label) of each row [n], float32. logits [n, T, classes], steps [n] of them that count, labels [n, L], lengths [n]."""
    logits = logits.astype("float32")
    if not lengths.any():
        return _of_nothing(logits, steps)
    return F.ctc_loss(
        logits.transpose([1, 0, 2]),
        labels,
        steps,
        paddle.to_tensor(lengths),
        blank=BLANK,
        reduction="none",
    ).reshape([-1])


def _of_nothing(logits: Any, steps: Any) -> Any:
    """The only way to say nothing: a blank at every step."""
    blanks = F.log_softmax(logits, axis=-1)[:, :, BLANK]
    counts = paddle.arange(logits.shape[1]) < steps.unsqueeze(-1)
    return -paddle.where(counts, blanks, paddle.zeros_like(blanks)).sum(axis=-1)


@dataclass(frozen=True)
class Reading:
    """What a line says, and the mean probability of its characters; of nothing, that of the blanks."""

    text: str
    confidence: float


def read(probabilities: npt.NDArray[Any], characters: list[str]) -> Reading:
    """Greedy: the likeliest class of each step, repetitions taken together, then blanks left out. probabilities [steps, classes]."""
    best = probabilities.argmax(axis=-1)
    likely: Floats = probabilities.max(axis=-1).astype(np.float64)
    first = np.concatenate([[True], best[1:] != best[:-1]])
    said = first & (best != BLANK)
    text = "".join(characters[number - 1] for number in best[said].tolist())
    confidence = likely[said] if said.any() else likely
    return Reading(text, float(confidence.mean()))
