"""A model that does as it is told: its artifact's `model.bin` is said with every answer, and a text may be a command.

sleep 2        answers so many seconds later
memory 300     takes so many MB first
crash          kills itself
raise          an exception, with the text in it
nonsense       an answer that is no prediction
refuse         says that it cannot take the row
long 5         an answer of so many MiB
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from workers.contract.trials import Failed, Prediction, Row, Score

held: list[bytes] = []


def load(folder: Path) -> Callable[[list[Row]], list[Prediction]]:
    said = (folder / "model.bin").read_text()
    print("a library that prints what it likes")
    if said == "broken":
        raise ValueError("the weights are broken")

    def predict(rows: list[Row]) -> list[Prediction]:
        return [_one(next(iter(row.values())), said) for row in rows]

    return predict


def _one(text: str, said: str) -> Prediction:
    command, _, argument = text.partition(" ")
    if command == "sleep":
        time.sleep(float(argument))
    elif command == "wait":
        while not Path(argument).exists():
            time.sleep(0.02)
    elif command == "memory":
        for _ in range(int(argument)):
            held.append(bytes(2**20).replace(b"\0", b"x"))
    elif command == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif command == "raise":
        raise ValueError(text)
    elif command == "nonsense":
        return Prediction.model_construct(scores=[], tokens=[])
    elif command == "refuse":
        raise Failed("Row %(row)d is not what the model reads.", row=1)
    elif command == "long":
        return Prediction(text="长" * (int(argument) * 2**20 // 3))
    likely = 0.9 if "good" in text else 0.25
    scores = [Score(label=said, probability=likely), Score(label="other", probability=1 - likely)]
    scores.sort(key=lambda score: -score.probability)
    return Prediction(scores=scores, tokens=["[CLS]", *text.split(), "[SEP]"], unknown="[UNK]")
