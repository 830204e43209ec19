"""What clipping and loss scaling do for an LSTM on sequences with heavy tails: `make bench-lstm`.

Made-up transactions: 2048 training sequences of 40 time steps, log-normal amounts, a Pareto spike in one of ten points (tail
index 1, times 3), and the hours between them; the target is the mean of the last five amounts. LSTM 32, batches of 64, 150 steps,
raw values, SGD at 0.03 with a cosine schedule, unless the arm says otherwise. A run has succeeded if nothing in it was NaN at the
end and its mean absolute error on dev is below 0.9 times that of always saying the median of the training targets. Each seed has
its own data, weights and order, the same in all arms.

The arms that are not Evenkeel's are a bare loop over the trainer's own parts (model, batches, emulated fp16, Paddle's scaler,
clipping) that protects only from what its arm names; the others are the trainer's own loop. fp16 is emulated: outputs of layers,
and gradients through them, are rounded to it ([precision.md](precision.md)). The preset was chosen on other seeds than these:
without its linear path, rates of 0.003, 0.005 and 0.01 fail on the same three of 1001 to 1100; the path's eight time steps
and the rate of its weights were tried on those seeds only. A run of the preset that no rule has ended is not run once more
for the arm with re-runs: it would be the same.

    make bench-lstm                                all, about 12 minutes on two quiet cores; writes docs/benchmark-lstm.md
    SEEDS=5 LAST_SEEDS=5 ONLY=plain,both make bench-lstm    some of it, printed only
    FIRST_SEED=2001 ONLY=preset make bench-lstm    on seeds that nothing was chosen on, printed only

Results of single runs stay in CACHE (a folder below the system's temporary one), so that what was interrupted goes on, and an arm
can be added without the others; FRESH=1 begins anew.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle

from workers.contract.messages import AttemptSpec, DatasetRef
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
SPIKES = {
    "": 3.0,
    "large": 10.0,
}  # how large the spikes are: in the setting of the first table, and in that of the second
SUCCESS = 0.9
RERUNS = 3
GOAL, PLAIN = 0.98, 0.30
VERSION = 3  # of what an arm does: raised when results of before no longer count


@dataclass
class Result:
    mae: float
    target: float
    reached: (
        int | None
    )  # the step after which the target was first found to be reached, those of earlier attempts included
    seconds: float  # of processor time, of training without evaluations, all attempts
    steps: int  # that were taken in that time
    attempts: int = 1
    ended: str | None = None  # why the last attempt ended before its time, if it did

    @property
    def nan(self) -> bool:
        return not math.isfinite(self.mae) and self.ended is None

    @property
    def diverged(self) -> bool:
        return math.isfinite(self.mae) and self.ended is None and self.mae > self.target / SUCCESS

    @property
    def share(self) -> float:
        """Of the median's error; infinite if there is none, or a rule ended the run."""
        return SUCCESS * self.mae / self.target if self.ended is None and math.isfinite(self.mae) else math.inf

    @property
    def success(self) -> bool:
        return self.ended is None and self.mae < self.target


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


def preset(seed: int, *, harder: int = 0, path: bool = True) -> dict[str, Any]:
    """The recipe's preset, over the same model and number of steps; `harder`: how often it has failed; not `path`: without its
    linear path."""
    values = registry.recipe("sequences").preset("recurrent").over({})  # type: ignore[union-attr]
    kept = {"training": {"batch_size": 64, "max_steps": STEPS, "epochs": 100, "seed": seed}}
    merged = settings(seed)
    for group, of_group in values.items():
        merged[group] = merged.get(group, {}) | of_group | kept.get(group, {})
    merged["early_stopping"]["patience"] = None  # all arms take as many steps
    merged["limits"]["loss_limit"] = 1e4
    merged["optimizer"]["learning_rate"] *= 0.5**harder
    if not path:
        merged["model"]["linear_steps"] = 0
    if harder:
        merged["clipping"]["max_norm"] = 1.0
    return merged


# --- a run -----------------------------------------------------------------------------------


def write(folder: Path, seed: int, size: float = SPIKES[""]) -> None:
    values, targets = transactions(TRAIN + DEV, seed, tail=TAIL, size=size)
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
    reached, seconds, last, step = None, 0.0, math.nan, 0
    scaled = scaling and scaler.value is not None
    for step in range(1, STEPS + 1):
        began = time.process_time()
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
        norms = gradients.norms(grads, paddle.concat(gradients.squares(grads)).tolist())
        run.clipper.clip(grads, norms)
        optimizer.set_lr(run.schedule.rate(step - 1))
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.clear_grad()
        seconds += time.process_time() - began
        if step % EVERY == 0:
            last = mae(run)
            if reached is None and last < target:
                reached = step
            if not math.isfinite(last) and not scaled:
                break  # NaN in the weights stays
    return Result(last, target, reached, seconds, step)


def ours(run: Run) -> Result:
    """The trainer's own loop."""
    target = SUCCESS * run.task.baselines["median"]
    spent = _Clock(run)
    ended = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            train(run)
    except TrainingFailed as failed:
        ended = str(failed.reason)
    lines = [json.loads(line) for line in run.context.folder.events(0).read_bytes().splitlines()]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    values = [float(line["metrics"]["mae"]) for line in evaluations]
    reached = next((line["step"] for line, value in zip(evaluations, values, strict=True) if value < target), None)
    return Result(values[-1] if values else math.inf, target, reached, spent.seconds, run.progress.step, ended=ended)


class _Clock:
    """Processor time of the steps of the trainer's loop: from where it takes rows to where the record is written."""

    def __init__(self, run: Run) -> None:
        self.seconds = self._began = 0.0
        take, record = run.sampler.take, run.steps.record

        def taking(at: Any) -> Any:
            self._began = time.process_time()
            return take(at)

        def recording(line: dict[str, Any]) -> None:
            record(line)
            self.seconds += time.process_time() - self._began

        run.sampler.take, run.steps.record = taking, recording  # type: ignore[method-assign]


# --- arms ------------------------------------------------------------------------------------

CLIP = {"mode": "global_norm", "max_norm": 5.0}
FLOAT32 = {"mode": "float32"}
SCALED = {"data": {"normalisation": "zscore"}, "precision": FLOAT32}
ADAM = {"optimizer": {"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.0}, "precision": FLOAT32}
Begin = Callable[[dict[str, Any]], Run]


def _bare(name: str, *, scaling: bool = False, **groups: dict[str, Any]) -> tuple[str, Callable[[Begin, int], Result]]:
    return name, lambda begin, seed: bare(begin(settings(seed, **groups)), scaling=scaling)


def _again(begin: Begin, settings_of: Callable[[int], dict[str, Any]]) -> Result:
    """Attempt after attempt until one is not ended by a rule; `settings_of` how many have failed."""
    seconds, steps = 0.0, 0
    for failed in range(RERUNS + 1):
        result = ours(begin(settings_of(failed)))
        result.attempts = failed + 1
        if result.reached is not None:
            result.reached += steps
        seconds, steps = seconds + result.seconds, steps + result.steps
        result.seconds, result.steps = seconds, steps
        if result.ended is None:
            break
    return result


def _unprotected(seed: int, failed: int) -> dict[str, Any]:
    """Of the plain arm, with the limits that every job has; as rule L1 has it after that: half the rate, warm-up, clipping."""
    if not failed:
        return settings(seed, limits={})
    return settings(
        seed,
        optimizer={"learning_rate": 0.03 * 0.5**failed},
        schedule={"warmup_steps": STEPS // 20},
        clipping={"mode": "global_norm", "max_norm": 5.0},
        limits={"loss_limit": None},
    )


ARMS: dict[str, tuple[str, Callable[[Begin, int], Result]]] = {
    "plain32": _bare("plain, float32", precision=FLOAT32),
    "clip32": _bare("clipping at 5, float32", precision=FLOAT32, clipping=CLIP),
    "plain": _bare("plain, fp16"),
    "clip": _bare("clipping only, fp16", clipping=CLIP),
    "scaling": _bare("loss scaling only, fp16", scaling=True),
    "both": _bare("clipping and loss scaling, fp16", scaling=True, clipping=CLIP),
    "normalised": _bare("z-scored values, plain, float32", **SCALED),
    "normalised-clip": _bare("z-scored values, clipping at 5, float32", clipping=CLIP, **SCALED),
    "adam": _bare("AdamW at 0.01, plain, float32", **ADAM),
    "adam-clip": _bare("AdamW at 0.01, clipping at 5, float32", clipping=CLIP, **ADAM),
    "rescued": (
        "Evenkeel without clipping, re-runs with it, fp16",
        lambda begin, seed: _again(begin, lambda failed: _unprotected(seed, failed)),
    ),
    "no-path": (
        "preset Recurrent without its linear path, fp16",
        lambda begin, seed: ours(begin(preset(seed, path=False))),
    ),
    "preset": ("Evenkeel, preset Recurrent, fp16", lambda begin, seed: ours(begin(preset(seed)))),
    "reruns": (
        "preset Recurrent, re-runs with half the rate, fp16",
        lambda begin, seed: _again(begin, lambda failed: preset(seed, harder=failed)),
    ),
}
LAST = ("no-path", "preset", "reruns")
# In the second table; the goal is one of the first.
ARMS_OF_LARGE = ("plain", "clip32", "both", "no-path", "preset")
Results = dict[tuple[str, str], dict[int, Result]]  # (spikes, arm) -> seed -> result


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a rate."""
    z, rate = 1.96, hits / count
    middle, half = rate + z * z / (2 * count), z * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return max(0.0, (middle - half) / (1 + z * z / count)), min(1.0, (middle + half) / (1 + z * z / count))


def rate(results: list[Result]) -> str:
    hits = sum(result.success for result in results)
    low, high = wilson(hits, len(results))
    return f"{100 * hits / len(results):.3g} % ({100 * low:.0f}–{100 * high:.0f})"


def steps_to_target(results: list[Result]) -> float:
    """Median over all seeds: who never reaches the target counts as infinitely slow."""
    return statistics.median(math.inf if result.reached is None else result.reached for result in results)


def line(title: str, results: list[Result]) -> str:
    steps = steps_to_target(results)
    per_step = statistics.median(result.seconds / max(1, result.steps) for result in results)
    reached = "more than half never" if math.isinf(steps) else f"{steps:g} ({steps * per_step:.2f} s)"
    hits, nan = sum(result.success for result in results), sum(result.nan for result in results)
    diverged, ended = sum(result.diverged for result in results), sum(result.ended is not None for result in results)
    again = sum(result.attempts - 1 for result in results)
    share = statistics.median(result.share for result in results)
    error = f"{share:.2f}" if math.isfinite(share) else "–"
    return f"| {title} | {hits}/{len(results)} | {rate(results)} | {error} | {nan} | {diverged} | {ended} | {reached} | {again} |"


HEAD = (
    "| arm | success | rate (95 %) | error, median's = 1 | NaN | worse than the median | ended by a rule | median steps to the target, all seeds | re-runs |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
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


def _apart(one: list[Result], other: list[Result]) -> bool:
    """Whether the intervals of the two rates do not overlap."""
    a, b = (wilson(sum(result.success for result in results), len(results)) for results in (one, other))
    return a[1] < b[0] or b[1] < a[0]


def _contrast(what: str, plain: list[Result], clipped: list[Result]) -> str:
    said = "clipping makes a difference" if _apart(plain, clipped) else "clipping shows no contrast"
    return f"- {what}: {said}: {rate(plain)} without, {rate(clipped)} with it."


def _speed(plain: list[Result], other: list[Result], what: str) -> str:
    before, after = steps_to_target(plain), steps_to_target(other)
    if math.isinf(after):
        return f"{what} more than half of the runs never reach the target"
    if math.isinf(before):
        return f"{what} the median run reaches the target in {after:g} steps, where more than half of the plain runs never do"
    return f"{what} the median run reaches the target in {after:g} steps, the plain one in {before:g} ({100 * (after / before - 1):+.0f} %)"


def three_largest(seed: int) -> float:
    """Share of three dev rows in the error of always saying the median."""
    _, targets = transactions(TRAIN + DEV, seed, tail=TAIL, size=SPIKES[""])
    errors = np.sort(np.abs(targets[TRAIN:] - np.median(targets[:TRAIN])))
    return float(errors[-3:].sum() / errors.sum())


def _missed(results: list[Result]) -> str:
    """Why those of seeds 1, 2, … failed that did."""
    ends = [SUCCESS * result.mae / result.target for result in results if not result.success]
    if not ends:
        return "None of its runs failed."
    shares: dict[bool, list[float]] = {True: [], False: []}
    for seed, result in enumerate(results, 1):
        shares[result.success].append(100 * three_largest(seed))
    failed, succeeded = min(shares[False]), max(shares[True], default=0.0)
    whom = "Its run that failed" if len(ends) == 1 else f"Its {len(ends)} runs that failed"
    said = (
        f"{whom} ended at {_to(min(ends), max(ends))} times the median's error, where {SUCCESS:g} counts as success. "
    )
    if failed > succeeded:
        return said + (
            f"In their dev rows three targets of {DEV} make up at least {failed:.0f} % of that error; "
            f"in those of the runs that succeeded at most {succeeded:.0f} %."
        )
    return said + (
        f"It is not that few targets made up most of that error: three of {DEV} dev rows have {_to(failed, max(shares[False]), 0)} % "
        f"of it there, and up to {succeeded:.0f} % in runs that succeeded."
    )


def _to(least: float, most: float, digits: int = 2) -> str:
    one, other = f"{least:.{digits}f}", f"{most:.{digits}f}"
    return one if one == other else f"{one} to {other}"


def _path(without: list[Result], with_it: list[Result]) -> str:
    """What the preset's linear path does, on the seeds that both have."""
    both = [of[: min(len(without), len(with_it))] for of in (without, with_it)]
    hits = [sum(result.success for result in of) for of in both]
    shares = [statistics.median(result.share for result in of) for of in both]
    steps = [steps_to_target(of) for of in both]
    return (
        f"{hits[0]} of {len(both[0])} succeed without and {hits[1]} with it, the median run ends at {shares[0]:.2f} and {shares[1]:.2f} "
        f"times the median's error, and has reached the target in {steps[0]:g} and {steps[1]:g} steps"
    )


def truth(found: dict[str, list[Result]], large: dict[str, list[Result]]) -> str:
    """What the article says, and what is so here; every word that depends on a number is chosen by it."""
    plain, plain32, clip32, both = (found[name] for name in ("plain", "plain32", "clip32", "both"))
    best, again = found["preset"], found["reruns"]
    hits = sum(result.success for result in again) / len(again)
    low = sum(result.success for result in plain) / len(plain) < PLAIN
    goal = f"at least {100 * GOAL:.0f} % where plain training is under {100 * PLAIN:.0f} %"
    nan = {name: sum(result.nan for result in found[name]) for name in ("plain", "clip", "scaling", "both")}
    bad = {name: sum(result.diverged for result in found[name]) for name in ("plain", "clip", "scaling", "both")}
    again_count = sum(result.attempts - 1 for result in again)
    if again_count:
        reruns = f"Of the preset's runs {sum(r.attempts > 1 for r in again)} were ended by a rule and run again, {again_count} times in all."
    else:
        reruns = (
            "No run of the preset was ended by a rule, so that none was run again: with it, re-runs have nothing to do."
        )
    rescued = found["rescued"]
    ended = sum(result.attempts > 1 for result in rescued)
    return "\n".join(
        [
            "The article says that clipping and loss scaling bring such trainings from under 30 % to 98 % success, and "
            "make them 40 % faster. Here:",
            "",
            f"- In fp16, plain training succeeds in {rate(plain)} of the runs, clipping and loss scaling together in "
            f"{rate(both)}, the preset Recurrent in {rate(best)}, with re-runs in {rate(again)}. Goal, {goal}: "
            f"{'met' if hits >= GOAL and low else 'MISSED'}. {_missed(best)}",
            f"- It takes no fp16: in float32, {rate(plain32)} succeed without and {rate(clip32)} with clipping.",
            f"- What each removes. NaN at the end: {nan['plain']} plain, {nan['clip']} with clipping only, "
            f"{nan['scaling']} with loss scaling only, {nan['both']} with both. Worse than the median: {bad['plain']}, "
            f"{bad['clip']}, {bad['scaling']} and {bad['both']}.",
            f"- Faster: {_speed(plain32, clip32, 'in float32 with clipping')}; {_speed(plain, both, 'in fp16 with both')}. "
            "The preset, which has another optimizer and warms up: "
            f"{_speed(plain, best, 'with it')}.",
            "- What the preset owes to its linear path, and what to the rest, on the same seeds: "
            f"{_path(found['no-path'], best)}; with larger spikes "
            f"{_path(large['no-path'], large['preset'])}.",
            f"- {reruns} Without clipping, a rule (loss above its limit, steps skipped one after the other) ended {ended} of "
            f"{len(rescued)} runs; with re-runs {rate(rescued)} succeed.",
            _contrast("With z-scored values", found["normalised"], found["normalised-clip"]),
            _contrast("With AdamW at 0.01", found["adam"], found["adam-clip"]),
            "- All this holds for one setting, chosen so that plain training fails: raw values with heavy tails, SGD, a rate near "
            f"what the task bears. Spikes of {SPIKES['large'] / SPIKES['']:.1f} times the size, in the second table: plain "
            f"{rate(large['plain'])}, both {rate(large['both'])}, preset {rate(large['preset'])}.",
        ]
    )


def document(results: Results) -> str:
    first, large = ({arm: of for (spikes, arm), of in ordered(results).items() if spikes == which} for which in SPIKES)
    rows, rows_of_large = ("\n".join(line(ARMS[name][0], of) for name, of in part.items()) for part in (first, large))
    about = (__doc__ or "").split("\n\n")
    head = "\n".join(HEAD)
    return f"""# Clipping and loss scaling for an LSTM on heavy tails

Made by `make bench-lstm`; no number in the tables or below them is typed by hand.

{about[1]}

{about[2]}

![Share of runs that succeeded](pictures/lstm.svg)

{head}
{rows}

Medians are over all seeds: a run that never reaches the target counts as infinitely slow, so that no arm looks fast because its
slow runs have failed. Seconds are of processor time; evaluations, every {EVERY} steps, are not counted.

## What is true of it

{truth(first, large)}

## Larger spikes

The same, with spikes of {SPIKES["large"]:g} instead of {SPIKES[""]:g}.

{head}
{rows_of_large}
"""


# --- running -----------------------------------------------------------------------------------


def ordered(results: Results) -> dict[tuple[str, str], list[Result]]:
    """In the order of the arms, by seed."""
    keys = [(spikes, arm) for spikes in SPIKES for arm in ARMS if (spikes, arm) in results]
    return {key: [result for _, result in sorted(results[key].items())] for key in keys}


def run_seed(task: tuple[int, list[tuple[str, str]]]) -> list[tuple[str, str, int, Result]]:
    """Some arms with one seed, whose data they share."""
    seed, arms = task
    done = []
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder, contextlib.redirect_stdout(io.StringIO()):
        root, numbers = Path(folder), iter(range(1000))
        firsts: dict[str, Result] = {}  # of the preset
        for spikes, arm in arms:
            data = root / f"data{spikes}"
            if not data.exists():
                write(data, seed, SPIKES[spikes])

            def begun(chosen: dict[str, Any], data: Path = data) -> Run:
                return begin(root / str(next(numbers)), data, chosen)

            first = firsts.get(spikes) if arm == "reruns" else None
            result = first if first and first.ended is None else ARMS[arm][1](begun, seed)
            if arm == "preset":
                firsts[spikes] = result
            done.append((spikes, arm, seed, result))
    return done


def cached(folder: Path) -> Results:
    results: Results = {}
    for path in folder.glob("*.jsonl"):
        for text in path.read_text().splitlines():
            row = json.loads(text)
            key, seed = (row.pop("spikes"), row.pop("arm")), row.pop("seed")
            results.setdefault(key, {})[seed] = Result(**row)
    return results


def main() -> None:
    seeds, last_seeds = int(os.environ.get("SEEDS", "50")), int(os.environ.get("LAST_SEEDS", "200"))
    first_seed = int(os.environ.get("FIRST_SEED", "1"))
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    folder = Path(os.environ.get("CACHE", Path(tempfile.gettempdir()) / "evenkeel-bench-lstm")) / f"v{VERSION}"
    if os.environ.get("FRESH"):
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    paddle.set_device("cpu")

    wanted = {("", arm): last_seeds if arm in LAST else seeds for arm in ARMS} | {
        ("large", arm): seeds for arm in ARMS_OF_LARGE
    }
    wanted = {key: count for key, count in wanted.items() if not only or key[1] in only}
    results = cached(folder)
    tasks = []
    for seed in range(first_seed, first_seed + max(wanted.values())):
        arms = [key for key, count in wanted.items() if seed < first_seed + count and seed not in results.get(key, {})]
        if arms:
            tasks.append((seed, arms))
    # Forked after the import of Paddle, which takes longer than a run.
    pool = multiprocessing.get_context("fork").Pool(int(os.environ.get("JOBS", os.cpu_count() or 1)))
    with (folder / f"{os.getpid()}.jsonl").open("a") as file:
        for number, done in enumerate(pool.imap_unordered(run_seed, tasks), 1):
            for spikes, arm, seed, result in done:
                file.write(json.dumps({"spikes": spikes, "arm": arm, "seed": seed, **asdict(result)}) + "\n")
                results.setdefault((spikes, arm), {})[seed] = result
            file.flush()
            if number % 10 == 0:
                print(f"{number} of {len(tasks)} seeds", flush=True)
    pool.close()
    pool.join()

    results = {
        key: {seed: results[key][seed] for seed in range(first_seed, first_seed + count)}
        for key, count in wanted.items()
    }
    print("\n".join(HEAD))
    for (spikes, arm), of_arm in ordered(results).items():
        title = f"{ARMS[arm][0]}; spikes of {SPIKES[spikes]:g}" if spikes else ARMS[arm][0]
        print(line(title, of_arm))
    if not {"SEEDS", "LAST_SEEDS", "FIRST_SEED", "ONLY"} & os.environ.keys():
        docs = Path(__file__).parent.parent / "docs"
        first = {arm: of for (spikes, arm), of in ordered(results).items() if not spikes}
        (docs / "benchmark-lstm.md").write_text(document(results), encoding="utf-8")
        (docs / "pictures").mkdir(exist_ok=True)
        (docs / "pictures" / "lstm.svg").write_text(picture(first), encoding="utf-8")


if __name__ == "__main__":
    main()
