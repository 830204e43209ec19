"""What clipping and loss scaling do for an LSTM on sequences with heavy tails: `make bench-lstm`.

Made-up transactions (workers/recipes/sequences/sample.py: log-normal amounts, a Pareto spike in one of ten points, tail
index 1), LSTM 32, 40 time steps, 150 steps. A run has succeeded if nothing in it was NaN at the end and its mean absolute
error on dev is below 0.9 times that of always saying the median. Each seed has its own data, weights and order, the same in all arms.

The plain arms are a bare loop over the trainer's own parts (model, batches, emulated fp16, Paddle's scaler, clipping) that
protects only from what its arm names; the last two are the trainer's own loop. fp16 is emulated: outputs of layers, and
gradients through them, are rounded to it; see docs/precision.md.

    make bench-lstm                                          all, about 20 minutes on a quiet core; writes docs/benchmark-lstm.md
    SEEDS=5 LAST_SEEDS=5 ONLY=plain,both make bench-lstm     some of it, printed only
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle

from workers.contract.messages import AttemptSpec, DatasetRef
from workers.contract.states import EndReason
from workers.recipes import registry
from workers.recipes.sequences.sample import transactions
from workers.run_folder import RunFolder
from workers.trainer import gradients
from workers.trainer.loop import Run, train
from workers.trainer.ranks import Ranks
from workers.trainer.sampler import reseed
from workers.trainer.spool import Events
from workers.trainer.start import start
from workers.trainer.task import Context, TrainingFailed

STEPS, EVERY, TRAIN, DEV, TAIL = 150, 10, 2048, 512, 1.0
SUCCESS = 0.9
RERUNS = 3


@dataclass
class Result:
    mae: float
    target: float
    steps: int | None  # until the target was reached first
    seconds: float  # of training, without evaluations
    attempts: int = 1

    @property
    def nan(self) -> bool:
        return not math.isfinite(self.mae)

    @property
    def success(self) -> bool:
        return self.mae < self.target


def settings(seed: int, **groups: dict[str, Any]) -> dict[str, Any]:
    """Raw values, SGD at 0.03, cosine: where stability is in question."""
    base: dict[str, dict[str, Any]] = {
        "data": {"normalisation": "none"},
        "model": {"hidden_size": 32, "open_forget_gate": False, "loss": "squared"},
        "training": {"batch_size": 64, "max_steps": STEPS, "epochs": 100, "seed": seed},
        "optimizer": {"kind": "sgd", "learning_rate": 0.03, "momentum": 0.0, "weight_decay": 0.0},
        "schedule": {"decay": "cosine", "warmup_steps": 0},
        "clipping": {"mode": "none", "max_norm": None},
        "precision": {"mode": "fp16"},
        "checkpoints": {"every_steps": 10 * STEPS, "evaluate_every_steps": EVERY},
        "early_stopping": {"patience": None},
        "limits": {"loss_limit": None},
        "monitoring": {"group_norms_every": None},
    }
    return {group: base.get(group, {}) | groups.get(group, {}) for group in base.keys() | groups.keys()}


def preset(seed: int, *, harder: int = 0) -> dict[str, Any]:
    """The recipe's preset, over the same model and number of steps; `harder`: how often it has failed."""
    values = registry.recipe("sequences").preset("recurrent").over({})  # type: ignore[union-attr]
    kept = {"training": {"batch_size": 64, "max_steps": STEPS, "epochs": 100, "seed": seed}}
    merged = settings(seed)
    for group, of_group in values.items():
        merged[group] = merged.get(group, {}) | of_group | kept.get(group, {})
    merged["early_stopping"]["patience"] = None  # all arms take as many steps
    merged["limits"]["loss_limit"] = 1e4
    merged["optimizer"]["learning_rate"] *= 0.5**harder
    if harder:
        merged["clipping"]["max_norm"] = 1.0
    return merged


# --- a run -----------------------------------------------------------------------------------


def write(folder: Path, seed: int) -> None:
    values, targets = transactions(TRAIN + DEV, seed, tail=TAIL)
    folder.mkdir()
    for split, rows in (("train", range(TRAIN)), ("dev", range(TRAIN, TRAIN + DEV))):
        with (folder / f"{split}.jsonl").open("w") as file:
            for i in rows:
                features = {"amount": values[i, :, 0].tolist(), "gap": values[i, :, 1].tolist()}
                file.write(json.dumps({"id": str(i), "features": features, "target": float(targets[i])}) + "\n")


def begin(folder: Path, data: Path, chosen: dict[str, Any]) -> Run:
    run_folder = RunFolder(folder)
    run_folder.make()
    run_folder.dataset.symlink_to(data)
    recipe = registry.recipe("sequences")
    spec = AttemptSpec(
        attempt="0" * 32, job=1, number=1, name="bench", recipe="sequences", settings=chosen, devices=[0],
        dataset=DatasetRef(id=1, name="transactions", key="k", content_hash="h", splits={}, labels=[]),
    )  # fmt: skip
    context = Context(run_folder, spec, recipe.settings.model_validate(chosen), 0, lambda name, detail: None)
    return start(context, Ranks("cpu"), Events(run_folder.events(0)))


def mae(run: Run) -> float:
    task, rows = run.task, np.arange(run.task.rows["dev"])
    run.model.eval()
    with paddle.no_grad(), run.caster.forward():
        batch = task.batch("dev", rows)
        outputs, losses = task.losses(run.model, batch)
    run.model.train()
    return float(task.metrics(task.tally(outputs, losses, batch))["mae"])


def bare(run: Run, *, scaling: bool) -> Result:
    """The usual few lines: no step is left out unless the scaler leaves it out."""
    task, optimizer, scaler, sampler, progress = run.task, run.optimizer, run.scaler, run.sampler, run.progress
    target = SUCCESS * task.baselines["median"]
    reached, seconds, last = None, 0.0, math.nan
    scaled = scaling and scaler.value is not None
    for step in range(1, STEPS + 1):
        began = time.perf_counter()
        reseed(run.context.settings.training.seed, step, 0)
        batch = task.batch("train", sampler.take(progress.at))
        progress.at = sampler.after(progress.at)
        with run.caster.forward():
            _, losses = task.losses(run.model, batch)
            loss = losses.mean()
        (scaler.scale(loss) if scaled else loss).backward()
        if scaled:
            scaler.unscale_(optimizer)
        grads = gradients.of(run.parameters)
        norms = gradients.norms(grads, paddle.concat(gradients.squares(grads)).numpy())
        run.clipper.clip(grads, norms)
        optimizer.set_lr(run.schedule.rate(step - 1))
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.clear_grad()
        seconds += time.perf_counter() - began
        if step % EVERY == 0:
            last = mae(run)
            if reached is None and last < target:
                reached = step
            if not math.isfinite(last) and not scaled:
                break  # NaN in the weights stays
    return Result(last, target, reached, seconds)


def ours(run: Run) -> tuple[Result, EndReason | None]:
    """The trainer's own loop; the failure with which it ended, if it did."""
    target = SUCCESS * run.task.baselines["median"]
    failure = None
    try:
        train(run)
    except TrainingFailed as failed:
        failure = failed.reason
    folder = run.context.folder
    lines = [json.loads(line) for line in folder.events(0).read_bytes().splitlines()]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    records = [json.loads(line) for line in folder.steps(0).read_bytes().splitlines()]
    values = [float(line["metrics"]["mae"]) for line in evaluations]
    reached = next((line["step"] for line, value in zip(evaluations, values, strict=True) if value < target), None)
    last = values[-1] if values and failure is None else math.nan
    return Result(last, target, reached, sum(record["step_ms"] for record in records) / 1e3), failure


# --- arms ------------------------------------------------------------------------------------

CLIP = {"mode": "global_norm", "max_norm": 5.0}
FLOAT32 = {"mode": "float32"}
SCALED = {"data": {"normalisation": "zscore"}, "precision": FLOAT32}
ADAM = {"optimizer": {"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.0}, "precision": FLOAT32}
Begin = Callable[[dict[str, Any]], Run]


def _bare(name: str, *, scaling: bool = False, **groups: dict[str, Any]) -> tuple[str, Callable[[Begin, int], Result]]:
    return name, lambda begin, seed: bare(begin(settings(seed, **groups)), scaling=scaling)


def _with_reruns(begin: Begin, seed: int) -> Result:
    total, attempts = 0.0, 0
    while True:
        result, failure = ours(begin(preset(seed, harder=attempts)))
        attempts, total = attempts + 1, total + result.seconds
        if failure is None or attempts > RERUNS:
            return Result(result.mae, result.target, result.steps, total, attempts)


ARMS: dict[str, tuple[str, Callable[[Begin, int], Result]]] = {
    "plain32": _bare("plain, float32", precision=FLOAT32),
    "clip32": _bare("clipping at 5, float32", precision=FLOAT32, clipping=CLIP),
    "plain": _bare("plain, fp16"),
    "clip": _bare("clipping only, fp16", clipping=CLIP),
    "scaling": _bare("loss scaling only, fp16", scaling=True),
    "both": _bare("clipping and loss scaling, fp16", scaling=True, clipping=CLIP),
    "normalised": _bare("normalised values, plain, float32", **SCALED),
    "normalised-clip": _bare("normalised values, clipping at 5, float32", clipping=CLIP, **SCALED),
    "adam": _bare("AdamW at 0.01, plain, float32", **ADAM),
    "adam-clip": _bare("AdamW at 0.01, clipping at 5, float32", clipping=CLIP, **ADAM),
    "preset": ("Evenkeel, preset Recurrent, fp16", lambda begin, seed: ours(begin(preset(seed)))[0]),
    "reruns": ("the same, and again with half the rate if it failed", _with_reruns),
}
LAST = ("preset", "reruns")


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a rate."""
    z, rate = 1.96, hits / count
    middle, half = rate + z * z / (2 * count), z * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return max(0.0, (middle - half) / (1 + z * z / count)), min(1.0, (middle + half) / (1 + z * z / count))


def line(title: str, results: list[Result]) -> str:
    count, hits = len(results), sum(result.success for result in results)
    low, high = wilson(hits, count)
    nan = sum(result.nan for result in results)
    diverged = sum(not result.nan and result.mae > result.target / SUCCESS for result in results)
    # Over all seeds: who never reaches the target counts as infinitely slow.
    steps = statistics.median(math.inf if r.steps is None else r.steps for r in results)
    per_step = statistics.median(r.seconds for r in results) / STEPS
    never = "more than half never" if math.isinf(steps) else f"{steps:g} ({steps * per_step:.1f} s)"
    attempts = sum(result.attempts for result in results)
    return (
        f"| {title} | {hits}/{count} | {100 * hits / count:.0f} % ({100 * low:.0f}–{100 * high:.0f}) | {nan} | {diverged} "
        f"| {never} | {attempts - count} |"
    )


HEAD = (
    "| arm | success | rate (95 %) | NaN | worse than the median | median steps to the target, all seeds | re-runs |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def picture(all_results: dict[str, list[Result]]) -> str:
    """Bars of the rates, with their intervals."""
    parts = []
    for i, (name, results) in enumerate(all_results.items()):
        y, hits = 24 * i, sum(result.success for result in results)
        low, high = wilson(hits, len(results))
        parts.append(
            f'<text x="330" y="{y + 15}" text-anchor="end">{ARMS[name][0]}</text>'
            f'<rect x="340" y="{y + 3}" width="{300 * hits / len(results):.1f}" height="16" fill="#14647f"/>'
            f'<path d="M{340 + 300 * low:.1f} {y + 11}H{340 + 300 * high:.1f}" stroke="#d07a00" stroke-width="2"/>'
            f'<text x="650" y="{y + 15}">{100 * hits / len(results):.0f} %</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {24 * len(parts) + 4}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def document(all_results: dict[str, list[Result]]) -> str:
    rows = "\n".join(line(ARMS[name][0], results) for name, results in all_results.items())
    about = (__doc__ or "").split("\n\n")
    return (
        "# Clipping and loss scaling for an LSTM on heavy tails\n\nMade by `make bench-lstm`; no number here is typed by hand.\n\n"
        + "\n\n".join(about[1:3])
        + "\n\n![Share of runs that succeeded](pictures/lstm.svg)\n\n"
        + "\n".join(HEAD)
        + f"\n{rows}\n\n"
        "Medians are over all seeds: a run that never reaches the target counts as infinitely slow, so that no arm looks "
        "fast because its slow runs have failed.\n"
    )


def main() -> None:
    seeds, last_seeds = int(os.environ.get("SEEDS", "50")), int(os.environ.get("LAST_SEEDS", "200"))
    only = [name for name in os.environ.get("ONLY", "").split(",") if name] or list(ARMS)
    paddle.set_device("cpu")
    print("\n".join(HEAD), flush=True)
    all_results: dict[str, list[Result]] = {}
    for name in only:
        title, run_arm = ARMS[name]
        results = all_results.setdefault(name, [])
        for seed in range(1, (last_seeds if name in LAST else seeds) + 1):
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                root, numbers = Path(folder), iter(range(100))
                write(root / "data", seed)
                results.append(
                    run_arm(lambda chosen, r=root, n=numbers: begin(r / str(next(n)), r / "data", chosen), seed)  # type: ignore[misc]
                )
        print(line(title, results), flush=True)
    if "SEEDS" not in os.environ and "LAST_SEEDS" not in os.environ and "ONLY" not in os.environ:
        docs = Path(__file__).parent.parent / "docs"
        (docs / "benchmark-lstm.md").write_text(document(all_results), encoding="utf-8")
        (docs / "pictures" / "lstm.svg").write_text(picture(all_results), encoding="utf-8")


if __name__ == "__main__":
    main()
