"""Every recipe: killed eight times, resumed eight times, and still the run that nobody disturbed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workers.recipes.examples import EXAMPLES
from tests.workers.trainer.conftest import Attempt, Ranks, Zygote, make_attempt
from tests.workers.trainer.test_resume import digest, facts
from workers.contract import records
from workers.recipes.registry import RECIPES

WORLD = 2
OPTIONS: dict[str, Any] = {
    "training": {"batch_size": 3, "max_steps": 110, "epochs": 100},
    "precision": {"mode": "fp16"},
    "loss_scaling": {"init_scale": 2.0**24, "growth_interval": 7, "hysteresis": 2},
    "limits": {"skip_limit": 60},
    "clipping": {"mode": "zclip", "adaptive_warmup": 5},
    "spikes": {"action": "skip", "window": 16, "active_after": 8, "sigmas": 3.0},
    "checkpoints": {"every_steps": 4, "evaluate_every_steps": 10, "keep": 2},
}
PLACES = ["outside", "outside", "outside", "record", "evaluation", "file", "manifest", "named"]


def test_every_recipe_has_an_example() -> None:
    assert {name for name, recipe in RECIPES.items() if recipe.trainer == ("-m", "workers.trainer")} == EXAMPLES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", EXAMPLES)
def test_killed_eight_times_a_run_ends_bit_for_bit_as_the_undisturbed_one(
    tmp_path: Path, zygote: Zygote, recipe: str
) -> None:
    example = EXAMPLES[recipe]
    example.write(tmp_path / "data")
    averaged = {**example.settings["optimizer"], "ema_memory": 0.9, "layer_decay": 0.9}
    options = {**OPTIONS, **example.chance, "optimizer": averaged}

    def attempt(name: str, **more: Any) -> Attempt:
        return make_attempt(tmp_path / name, tmp_path / "data", recipe=recipe, world=WORLD, **more, **options)

    undisturbed = Ranks(zygote, attempt("undisturbed"), {}, export=False).wait()
    assert undisturbed.outcome()["end_reason"] == "completed", undisturbed.log()

    draw = random.Random(f"eight times {recipe}")
    places = draw.sample(PLACES, len(PLACES))
    lives: list[Attempt] = []
    checkpoint: Path | None = None
    for number, place in enumerate(places):
        life = attempt(f"life-{number}", start_from=checkpoint)
        _until_death(zygote, life, place, draw, _step(checkpoint))
        lives.append(life)
        # What the next attempt starts from: the newest that has its name, of this attempt or of an earlier one.
        checkpoint = next(iter(reversed(life.checkpoints())), checkpoint)
    last = Ranks(zygote, attempt("last", start_from=checkpoint), {}, export=False).wait()
    assert last.outcome()["end_reason"] == "completed", last.log()
    lives.append(last)

    # Of a step that was made more than once, the last time counts; all the others were like it.
    starts = [_start(life) for life in lives]
    assert starts[-1] > 0 and sorted(starts) == starts
    for rank in range(WORLD):
        whole = facts(undisturbed, rank)
        counted = []
        for life, start, next_start in zip(lives, starts, [*starts[1:], len(whole)], strict=True):
            _all_but_the_last_line_are_whole(life.folder.steps(rank))
            made = facts(life, rank)
            assert made == whole[start : start + len(made)]
            counted += made[: next_start - start]
        assert counted == whole
        assert [record["step"] for record in undisturbed.steps(rank)] == list(range(1, len(whole) + 1))
    assert any(record["skipped"] for record in undisturbed.steps())
    # Weights, moments, averages, the best weights; counters, scaler, clipping and what is normal for a spike.
    assert digest(last) == digest(undisturbed)
    assert last.state() == undisturbed.state()
    best = [[e["step"] for e in life.events("evaluation") if e["best"]] for life in (undisturbed, *lives)]
    assert set(best[0]) == set().union(*best[1:])


def _until_death(zygote: Zygote, life: Attempt, place: str, draw: random.Random, start: int) -> None:
    rank = draw.randrange(WORLD) if place in ("record", "evaluation") else 0
    at = {
        "outside": lambda: draw.randint(1, 9),
        "record": lambda: start + draw.randint(1, 9),
        "evaluation": lambda: 1,
    }.get(place, lambda: draw.randint(1, 2))()
    (life.folder.path / "death").write_text(json.dumps({"place": place, "rank": rank, "at": at}))
    ranks = Ranks(zygote, life, {}, module="tests.workers.recipes.dying")
    if place == "outside":
        ranks.until_step(at, timeout_s=60)
    else:
        zygote.ask({"wait": ranks.pids[rank]})
    # The supervisor ends the others.
    assert ranks.kill().exit_codes[rank] == -9, (place, life.log(rank))


def _start(life: Attempt) -> int:
    return _step(life.folder.start if life.folder.start.exists() else None)


def _step(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(json.loads((checkpoint / "state.json").read_text())["step"])


def _all_but_the_last_line_are_whole(path: Path) -> None:
    content = path.read_bytes() if path.exists() else b""
    decode: Callable[[bytes], dict[str, Any]] = records.decode
    assert all(decode(line) for line in content.split(b"\n")[:-1])
