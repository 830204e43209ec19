"""The dev rows that the finished model gets most wrong."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest

from tests.workers.recipes.examples import write_texts
from workers.contract.messages import Control, Request
from workers.trainer import worst
from workers.trainer.task import Batch


def test_they_are_the_rows_of_the_dev_file_with_the_best_weights(tmp_path: Path, train: Any) -> None:
    write_texts(tmp_path / "data", dev=30)
    run = train(
        "run", export=True, data=tmp_path / "data", training={"max_steps": 30}, checkpoints={"evaluate_every_steps": 10}
    )
    (said,) = run.events("worst")
    best = [line for line in run.events("evaluation") if line["best"]][-1]
    assert said["of"] == len(said["rows"]) == 30 and said["step"] == best["step"]
    losses = [row["loss"] for row in said["rows"]]
    assert losses == sorted(losses, reverse=True)
    assert np.mean(losses) == pytest.approx(best["metrics"]["loss"], rel=1e-4)
    right = sum(row["label"] == row["predicted"] for row in said["rows"])
    assert right / 30 == pytest.approx(best["metrics"]["accuracy"])
    lines = (tmp_path / "data" / "dev.jsonl").read_text().splitlines()
    for row in said["rows"]:
        there = json.loads(lines[row["row"] - 1])
        assert (row["text"], row["label"]) == (there["text"], there["label"])
        chance = row["probability"] if row["label"] == row["predicted"] else 1 - row["probability"]
        assert row["loss"] == pytest.approx(-math.log(chance), rel=1e-3)


def _found(each: list[float], asked: Request | None = None, text: str = "t") -> Any:
    """What is found in a dev split with these losses, whose batches come from its end to its beginning."""

    class Scripted:
        rows = {"dev": len(each)}

        def batch(self, split: str, rows: Any) -> Batch:
            return Batch({}, len(each) - 1 - rows, 0)

        def losses(self, model: Any, batch: Batch) -> tuple[Any, Any]:
            return None, paddle.to_tensor(np.array(each, np.float32)[batch.rows])

        def shown(self, outputs: Any, batch: Batch, i: int) -> dict[str, Any]:
            return {"text": f"{batch.rows[i]}{text}"}

    run = SimpleNamespace(
        task=Scripted(),
        context=SimpleNamespace(settings=SimpleNamespace(training=SimpleNamespace(batch_size=7))),
        model=paddle.nn.Linear(1, 1),
        control=SimpleNamespace(read=lambda: Control(leave=asked)),
        caster=SimpleNamespace(forward=nullcontext, weights=nullcontext),
    )
    return worst._worst(run)  # type: ignore[arg-type]


def test_nan_comes_first_then_infinity_then_the_greatest() -> None:
    rows = _found([0.5, math.inf, 2.0, math.nan, 0.0, 2.0, 1e30, math.nan, 1.0])
    assert [row["row"] for row in rows] == [4, 8, 2, 7, 3, 6, 9, 1, 5]
    assert math.isnan(rows[0]["loss"]) and rows[2]["loss"] == math.inf and rows[3]["text"] == "6t"


def test_of_many_rows_it_is_exactly_the_greatest() -> None:
    losses = np.random.default_rng(1).permutation(1000).astype(float).tolist()
    rows = _found(losses)
    assert [row["loss"] for row in rows] == [float(loss) for loss in range(999, 999 - worst.MOST_ROWS, -1)]
    assert [losses[row["row"] - 1] for row in rows] == [row["loss"] for row in rows]


def test_long_texts_are_cut_and_all_together_stay_small() -> None:
    rows = _found([1.0] * 200, text="字" * 1000)
    assert len(rows) == worst.MOST_ROWS and {len(row["text"]) for row in rows} == {worst.MOST_CHARACTERS}
    assert len(json.dumps(rows, ensure_ascii=False).encode()) < worst.MOST_BYTES
    assert _found([1.0], text="\ud83d")[0]["text"] == "0?"


def test_a_cancel_ends_the_search() -> None:
    assert _found([1.0] * 20, asked=Request.CANCEL) is Request.CANCEL
