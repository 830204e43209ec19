"""What the trainer's statistics cost: `make bench-trainer`.

Evenkeel's own loop, with all it measures and records in every step, against a bare Paddle loop of the same model, batches,
clipping, loss scaling, schedule and exchange between ranks; against that loop with eight scalars a step written by VisualDL's LogWriter;
and against PaddleNLP's Trainer, which logs every step to VisualDL.

All loops live in one process per rank and take turns, in blocks of some steps, in an order that is shuffled and then reversed;
ranks are started by Paddle's launcher and average over Gloo. A difference is the median of the differences between the blocks
of one round, with a 95 % interval by bootstrap. fp16 is emulated, by the same code in all loops.

    make bench-trainer                              all, about 25 minutes on two quiet cores; writes docs/benchmark-trainer.md
    SECONDS_EACH=6 ONLY=lstm WORLDS=1 make bench-trainer    some of it, printed only
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

LONG_MS, MOST_SHARE, MOST_MS, MOST_MEMORY = 100.0, 0.01, 0.2, 0.02
BLOCK_MS = 200.0
# What differs by 1 % of a step needs more steps to be told apart, and long ones take longer.
SECONDS = {"ernie": 200.0, "ernie-short": 60.0, "lstm": 60.0}
MEMORY_STEPS = {"ernie": 25, "ernie-short": 60, "lstm": 150}
ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "benchmark-trainer.md"
NEVER = 1_000_000
COMMON: dict[str, dict[str, Any]] = {
    # No evaluation and no checkpoint: they are not part of a step.
    "training": {"epochs": 1000, "max_steps": 20_000, "seed": 1},
    "checkpoints": {"every_steps": NEVER, "evaluate_every_steps": NEVER},
    "early_stopping": {"patience": None},
}
ERNIE: dict[str, dict[str, Any]] = {
    "data": {"max_length": 64},
    "model": {"source": "scratch", "hidden_size": 128, "layers": 2, "heads": 4, "vocabulary_size": 6000},
    "optimizer": {"learning_rate": 1e-3},
    "clipping": {"max_norm": 4.0},
}
MODELS: dict[str, tuple[str, str, dict[str, dict[str, Any]]]] = {
    "ernie": ("ERNIE 2 × 128, batch 32", "text_classification", ERNIE | {"training": {"batch_size": 32}}),
    "ernie-short": ("ERNIE 2 × 128, batch 4", "text_classification", ERNIE | {"training": {"batch_size": 4}}),
    "lstm": (
        "LSTM 32, 40 time steps, batch 64",
        "sequences",
        {"model": {"hidden_size": 32, "loss": "huber"}, "training": {"batch_size": 64}},
    ),
}
ARMS = {
    "evenkeel": "Evenkeel",
    "bare": "bare Paddle loop",
    "visualdl": "the same with VisualDL, eight scalars",
    "paddlenlp": "PaddleNLP's Trainer",
}


@dataclass
class Case:
    model: str
    mode: str
    world: int
    found: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, dict[str, Any]] = field(default_factory=dict)  # by arm

    @property
    def title(self) -> str:
        ranks = "one rank" if self.world == 1 else f"{self.world} ranks"
        return f"{MODELS[self.model][0]}, {self.mode}, {ranks}"

    @property
    def settings(self) -> dict[str, Any]:
        own = MODELS[self.model][2] | {"precision": {"mode": self.mode}}
        return {group: COMMON.get(group, {}) | own.get(group, {}) for group in COMMON | own}

    @property
    def seconds(self) -> float:
        return float(os.environ.get("SECONDS_EACH", SECONDS[self.model]))

    @property
    def arms(self) -> list[str]:
        # On CPU PaddleNLP's Trainer fails as soon as it is told to use fp16.
        return [arm for arm in ARMS if arm != "paddlenlp" or self.mode == "float32"]


# --- running -----------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    holders = [socket.socket() for _ in range(count)]
    for holder in holders:
        holder.bind(("127.0.0.1", 0))
    ports = [int(holder.getsockname()[1]) for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def run(cases: list[Case], world: int, folder: Path) -> None:
    """All cases of so many ranks, in one start of Paddle's launcher."""
    plan: list[dict[str, Any]] = []
    places: list[tuple[Path, Case, str | None]] = []

    def add(case: Case, what: str, arms: list[str], **more: Any) -> None:
        ports = free_ports(world + 1)
        out = folder / f"{world}-{len(plan)}.json"
        plan.append(
            {
                "what": what, "title": case.title, "recipe": MODELS[case.model][1], "settings": case.settings, "arms": arms,
                "master": f"127.0.0.1:{ports[0]}", "endpoints": [f"127.0.0.1:{port}" for port in ports[1:]],
                "out": str(out), **more,
            }
        )  # fmt: skip
        places.append((out, case, arms[0] if what == "memory" else None))

    for case in cases:
        add(case, "measure", case.arms, seconds=case.seconds, block_ms=BLOCK_MS)
        if case.mode == "float32":
            for arm in ("evenkeel", "bare"):
                add(case, "memory", [arm], steps=MEMORY_STEPS[case.model])
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [
        sys.executable, "-W", "ignore", "-m", "paddle.distributed.launch", f"--nproc_per_node={world}",
        f"--log_dir={folder / f'log-{world}'}", str(Path(__file__).with_name("trainer_arms.py")),
    ]  # fmt: skip
    environment = os.environ | {
        "BENCH_PLAN": str(folder / "plan.json"),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    launcher = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    said = 0
    try:
        while said < len(places):
            out, case, arm = places[said]
            if out.exists():
                found = json.loads(out.read_text())
                if arm is None:
                    case.found = found
                    print(f"{case.title}: {sentence(case)}", flush=True)
                else:
                    case.memory[arm] = found
                said += 1
            elif launcher.poll() is not None and not out.exists():
                log = (folder / f"log-{world}" / "workerlog.0").read_text()[-3000:]
                raise SystemExit(f"{log}\nthe ranks have ended before “{case.title}” was done")
            else:
                time.sleep(0.5)
    finally:
        if said < len(places):
            launcher.terminate()
        launcher.wait()


# --- what comes of it --------------------------------------------------------------------------


def interval(values: Any) -> tuple[float, float, float]:
    """Median, and 95 % interval of it by bootstrap."""
    values = np.asarray(values)
    draw = np.random.default_rng(1).integers(0, len(values), (4000, len(values)))
    low, high = np.percentile(np.median(values[draw], axis=1), [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)


@dataclass
class Difference:
    """Evenkeel's step less another's."""

    ms: tuple[float, float, float]
    share: tuple[float, float, float]

    @classmethod
    def to(cls, case: Case, arm: str) -> Difference:
        ours, theirs = (np.array(case.found["blocks"][name]) for name in ("evenkeel", arm))
        return cls(interval(ours - theirs), interval(ours / theirs - 1))


def step_ms(case: Case, arm: str) -> float:
    return statistics.median(case.found["blocks"][arm])


def verdict(case: Case) -> tuple[str, bool]:
    """Of the cost against the bare loop."""
    difference = Difference.to(case, "bare")
    if step_ms(case, "bare") >= LONG_MS:
        goal, (middle, _, high), most = "≤ 1 %", difference.share, MOST_SHARE
    else:
        goal, (middle, _, high), most = "≤ 0.2 ms", difference.ms, MOST_MS
    if high <= most:
        return f"{goal}: met", True
    return (f"{goal}: met, interval reaches over it", True) if middle <= most else (f"{goal}: MISSED", False)


def told(met: bool) -> str:
    return "met" if met else "MISSED"


def waits(case: Case) -> tuple[int, int]:
    return case.found["waits"]["evenkeel"], case.found["waits"]["bare"]


def faster(case: Case, arm: str) -> str:
    _, low, high = Difference.to(case, arm).ms
    return "yes" if high < 0 else "NO" if low > 0 else "cannot be told"


def sentence(case: Case) -> str:
    middle, low, high = Difference.to(case, "bare").ms
    times = ", ".join(f"{arm} {step_ms(case, arm):.2f} ms" for arm in case.found["blocks"])
    own, bare = waits(case)
    return (
        f"{times}; {middle:+.3f} ms ({low:+.3f} to {high:+.3f}) over bare, {verdict(case)[0]}; reads {own} and {bare}"
        + "".join(f"; {arm} failed: {error}" for arm, error in case.found["failed"].items())
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def costs(cases: list[Case]) -> str:
    rows = []
    for case in cases:
        difference = Difference.to(case, "bare")
        (ms, low, high), (share, share_low, share_high) = difference.ms, difference.share
        rows.append(
            [
                case.title,
                f"{step_ms(case, 'bare'):.2f}",
                f"{step_ms(case, 'evenkeel'):.2f}",
                f"{ms:+.3f} ({low:+.3f} to {high:+.3f})",
                f"{100 * share:+.2f} % ({100 * share_low:+.2f} to {100 * share_high:+.2f})",
                verdict(case)[0],
            ]
        )
    return table(["case", "bare, ms", "Evenkeel, ms", "difference, ms (95 %)", "the same as a share", "goal"], rows)


def others(cases: list[Case]) -> str:
    rows = []
    for case in cases:
        for arm in ("visualdl", "paddlenlp"):
            if arm in case.found["blocks"]:
                ms, low, high = Difference.to(case, arm).ms
                over = statistics.median(np.array(case.found["blocks"][arm]) - np.array(case.found["blocks"]["bare"]))
                rows.append(
                    [
                        case.title, ARMS[arm], f"{step_ms(case, arm):.2f}", f"{over:+.3f}",
                        f"{ms:+.3f} ({low:+.3f} to {high:+.3f})", faster(case, arm),
                    ]
                )  # fmt: skip
            elif arm in case.found["failed"]:
                rows.append([case.title, ARMS[arm], "–", "–", f"cannot be run: {case.found['failed'][arm]}", "–"])
    return table(
        ["case", "loop", "ms per step", "over the bare loop, ms", "Evenkeel less it, ms (95 %)", "Evenkeel is faster"],
        rows,
    )


def memories(cases: list[Case]) -> tuple[str, bool]:
    rows, all_met = [], True
    for case in cases:
        if not case.memory:
            continue
        ours, bare = (case.memory[arm]["peak_mb"] for arm in ("evenkeel", "bare"))
        grown = [case.memory[arm]["peak_mb"] - case.memory[arm]["before_mb"] for arm in ("evenkeel", "bare")]
        met = ours <= bare * (1 + MOST_MEMORY)
        all_met &= met
        rows.append(
            [
                case.title, f"{bare:.0f}", f"{ours:.0f}", f"{100 * (ours / bare - 1):+.2f} %", f"{grown[1]:.0f}",
                f"{grown[0]:.0f}", told(met),
            ]
        )  # fmt: skip
    head = [
        "case",
        "bare, MiB",
        "Evenkeel, MiB",
        "difference",
        "bare, since the imports",
        "Evenkeel, since the imports",
        "≤ 2 %",
    ]
    return table(head, rows), all_met


def reads(cases: list[Case]) -> tuple[str, bool]:
    rows, all_met = [], True
    for case in cases:
        own, bare = waits(case)
        all_met &= own <= bare + 1
        counts = case.found["waits"]
        rows.append([case.title, *(str(counts.get(arm, "–")) for arm in ARMS), told(own <= bare + 1)])
    return table(["case", *ARMS.values(), "at most one more than bare"], rows), all_met


def parts(case: Case) -> str:
    ours, bare = case.found["parts"]["evenkeel"], case.found["parts"]["bare"]
    rows = []
    for part in sorted(ours.keys() | bare.keys(), key=lambda part: -max(ours.get(part, 0), bare.get(part, 0))):
        mine, theirs = ours.get(part, 0.0), bare.get(part, 0.0)
        rows.append([part, f"{mine:.0f}", f"{theirs:.0f}", f"{mine - theirs:+.0f}"])
    rows.append(
        [
            "all",
            f"{sum(ours.values()):.0f}",
            f"{sum(bare.values()):.0f}",
            f"{sum(ours.values()) - sum(bare.values()):+.0f}",
        ]
    )
    return table(["part of a step", "Evenkeel, µs", "bare, µs", "difference"], rows)


def environment() -> str:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or [platform.machine()]
    packages = ", ".join(f"{name} {version(name)}" for name in ("paddlepaddle", "paddlenlp", "visualdl", "numpy"))
    return f"{os.cpu_count()} cores ({names[0].strip()}), Python {platform.python_version()}, {packages}"


def document(cases: list[Case], seconds: float, loads: list[float]) -> tuple[str, bool]:
    about = (__doc__ or "").split("\n\n")
    memory_table, memory_met = memories(cases)
    reads_table, reads_met = reads(cases)
    cost_met = all(verdict(case)[1] for case in cases)
    beaten = [faster(case, arm) for case in cases for arm in ("visualdl", "paddlenlp") if arm in case.found["blocks"]]
    untold = beaten.count("cannot be told")
    than_others = told("NO" not in beaten)
    if untold and "NO" not in beaten:
        than_others = f"cannot be told in {untold} of {len(beaten)} comparisons, met in the others"
    goals = [
        ("at most 1 % of a step of 100 ms or longer, 0.2 ms of a shorter one", told(cost_met)),
        ("faster than the loop that writes eight scalars with VisualDL, and than PaddleNLP's Trainer", than_others),
        ("peak memory within 2 % of the bare loop's", told(memory_met)),
        ("at most one read from the device more than the bare loop", told(reads_met)),
    ]
    blocks = [f"{case.found['rounds']} rounds of {case.found['steps']} steps" for case in cases]
    busy = (
        ""
        if max(loads) <= 1.5 * (os.cpu_count() or 1)
        else " **It was busy with other work, so that times say little.**"
    )
    profiled = [case for case in cases if case.mode == "fp16" or case.model == "ernie"]
    text = f"""# What the trainer's statistics cost

Made by `make bench-trainer`; no number here is typed by hand.

{about[1]}

{about[2]}

- Machine: {environment()}; load {min(loads):.1f} to {max(loads):.1f}.{busy}
- Took {seconds / 60:.0f} minutes. Blocks: {"; ".join(dict.fromkeys(blocks))}.

{chr(10).join(f"- Goal, {goal}: {how}." for goal, how in goals)}

## Against the bare loop

{costs(cases)}

A difference below zero is no mistake: Paddle's own clipping multiplies every gradient in every step, also with 1; ours measures
the norm in the same way, and touches gradients only in steps that are clipped.

## Against what else writes per step

Evenkeel's record has 23 fields. The norm that VisualDL is given comes from a clipping class that keeps it, which costs nothing;
what usually is called for one, `clip_grad_norm_`, is slower. PaddleNLP's Trainer logs loss, rate and speed, and no norm; it is
given batches that are made already, in the place of its data loader, and on CPU it fails as soon as it is told to use fp16.
“Cannot be told” means that the interval includes 0.

{others(cases)}

## Memory

The peak of a process that runs one of the loops alone (VmHWM), both with the same imports.

{memory_table}

## Reads from the device

Calls of `numpy()`, `item()`, `tolist()`, `float()`, `int()` and `bool()` on tensors per step, those of the loss scaler included. On a
GPU each would wait until the device has caught up. The bare loop reads nothing but what Paddle's scaler reads and, with several
ranks, what they tell each other.

{reads_table}

## Where the time goes

With a clock around every part, in steps of their own after the blocks; the clock itself takes about 1 µs per call. “Norms” are
those of each parameter, “reads” the one read of them and of the loss; “the rest” is the loop itself, with the sum of the loss,
its weights, and the clock.

"""
    text += "\n\n".join(f"### {case.title}\n\n{parts(case)}" for case in profiled) + "\n"
    return text, all(how == told(True) for _, how in goals)


def main() -> int:
    began, loads = time.monotonic(), [os.getloadavg()[0]]
    only = [name for name in os.environ.get("ONLY", "").split(",") if name] or list(MODELS)
    worlds = [int(world) for world in os.environ.get("WORLDS", "1,2").split(",")]
    modes = os.environ.get("MODES", "float32,fp16").split(",")
    cases: list[Case] = []
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as folder:
        for world in worlds:
            of_world = [Case(model, mode, world) for model in only for mode in modes]
            run(of_world, world, Path(folder))
            cases += of_world
            loads += [case.found["load"] for case in of_world]
    text, met = document(cases, time.monotonic() - began, loads)
    if {"SECONDS_EACH", "ONLY", "WORLDS", "MODES"} & os.environ.keys():
        print(f"\n{text}")
    else:
        DOCUMENT.write_text(text, encoding="utf-8")
        print(f"\nWritten to {DOCUMENT.relative_to(ROOT)}; goals: {'met' if met else 'MISSED'}.")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
