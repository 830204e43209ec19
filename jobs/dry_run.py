"""What a dry run tells: the size of gradients and a clip that fits it, skips, memory, time, and what the whole would take.

All of it is computed from the step records, the trainer's plan and what it measured at the end, while it runs and after."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from django.utils.translation import gettext as _

from jobs.models import Attempt, Job, JobEvent
from jobs.steps import read
from workers.contract.records import from_json_number

STEPS = 30
# The first steps allocate memory, choose kernels and warm caches.
SLOW_STEPS = 5
# So many good steps at the end, and the loss scale counts as settled.
SETTLED_STEPS = 10
CLIP_PERCENTILE = 90
# From fewer, such as those before everything turned NaN, nothing is suggested.
LEAST_NORMS = 10
GLOBAL_NORM = "global_norm"
USUAL_CLIPS = (0.5, 1.0, 2.0, 5.0)
# Above this share of clipped steps a lower learning rate is better than clipping.
MUCH_CLIPPED = 0.5
NEARLY_FULL = 0.9
MB = 2**20
WIDTH, BASE = 400, 90  # of the picture; the base line's height

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Norms:
    """Of the gradient before clipping, over all ranks."""

    finite: int
    non_finite: int
    median: float | None
    p90: float | None
    max: float | None
    bars: list[tuple[float, float, int]]  # from, to, steps: equal widths on a logarithmic scale


@dataclass(frozen=True)
class Clip:
    max_norm: float
    share: float  # of the steps with a finite norm, that it would clip
    suggested: bool
    current: bool


@dataclass(frozen=True)
class LossScale:
    first: float
    last: float
    changes: int
    settled: bool


@dataclass(frozen=True)
class RankMemory:
    rank: int
    peak_mb: float
    of_mb: float | None  # the device's; None: not known
    exact: bool  # False: the highest of the steps, which on a GPU does not see what lies between them

    @property
    def peak_bytes(self) -> float:
        return self.peak_mb * MB

    @property
    def of_bytes(self) -> float | None:
        return self.of_mb and self.of_mb * MB

    @property
    def share(self) -> float | None:
        return self.peak_mb / self.of_mb if self.of_mb else None

    @property
    def nearly_full(self) -> bool:
        return self.share is not None and self.share > NEARLY_FULL


@dataclass(frozen=True)
class Whole:
    """What the plan takes, in seconds; an early stop makes it shorter."""

    steps: int
    steps_s: float
    evaluations: int
    evaluation_s: float | None  # of one; None: not measured
    checkpoints: int
    checkpoint_s: float | None
    checkpoint_bytes: int | None

    @property
    def seconds(self) -> float:
        return (
            self.steps_s + self.evaluations * (self.evaluation_s or 0.0) + self.checkpoints * (self.checkpoint_s or 0.0)
        )


@dataclass(frozen=True)
class Result:
    planned: int
    made: int
    warmup: int | None  # steps of it in the plan of the whole
    norms: Norms
    clips: list[Clip]
    clipped: int  # by whatever the settings say
    skipped: int
    skip_reasons: dict[str, int]
    loss_scale: LossScale | None
    memory: list[RankMemory]
    step_ms: float | None  # median, without the first steps
    data_share: float | None
    timed_steps: int
    whole: Whole | None

    @property
    def skip_share(self) -> float | None:
        return self.skipped / self.made if self.made else None

    @property
    def suggested(self) -> float | None:
        return next((clip.max_norm for clip in self.clips if clip.suggested), None)

    @property
    def current(self) -> Clip | None:
        return next((clip for clip in self.clips if clip.current), None)

    @property
    def within_warmup(self) -> bool:
        return self.warmup is not None and 0 < self.made <= self.warmup

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self) | {"skip_share": self.skip_share, "suggested_clip": self.suggested}
        if self.whole is not None:
            found["whole"]["seconds"] = self.whole.seconds
        return found

    def advice(self) -> list[str]:
        """What the numbers ask for, in sentences."""
        said = []
        if self.made and not self.norms.finite:
            said.append(_("Not one gradient was finite: the job would not learn. Lower the rate, or look at the data."))
        if self.norms.finite and self.norms.max == 0:
            said.append(_("Every gradient was 0: nothing would be learnt. Look at weights and labels of the rows."))
        current = self.current
        if current is not None and current.share > MUCH_CLIPPED:
            said.append(
                _(
                    "Clipping at %(norm)g would shorten %(share).0f %% of the steps; about 10 %% is healthy. If it stays so "
                    "after warm-up, lower the learning rate, or clip higher."
                )
                % {"norm": current.max_norm, "share": 100 * current.share}
            )
        if self.loss_scale is not None and not self.loss_scale.settled:
            said.append(
                _(
                    "The loss scale had not settled yet when the dry run ended (%(scale)g). Start it lower, or compute "
                    "in bf16 where the device can."
                )
                % {"scale": self.loss_scale.last}
            )
        if any(rank.nearly_full for rank in self.memory):
            said.append(
                _(
                    "Memory is nearly full: a batch of longer texts may not fit. Lower the batch per rank and raise "
                    "accumulation."
                )
            )
        if self.data_share is not None and self.data_share > 0.2:
            said.append(
                _("%(share).0f %% of the time goes into waiting for data, not into computing.")
                % {"share": 100 * self.data_share}
            )
        return said


def of(job: Job, attempt: Attempt) -> Result | None:
    """None as long as there is nothing to tell."""
    ranks = range(attempt.nodes * attempt.devices_per_node)
    before = attempt.start_from
    steps = {rank: read.records(attempt, rank, after_step=before.step if before else 0, limit=STEPS) for rank in ranks}
    if not attempt.plan or not steps[0]:
        return None
    events = JobEvent.objects.filter(attempt=attempt, kind="measured").values_list("data", flat=True)
    return result(
        steps=steps,
        settings=attempt.settings,
        plan=attempt.plan,
        measured={int(data["rank"]): data for data in events},
        memory_bytes=_memory_of_devices(attempt),
        applied_before=before.applied if before else 0,
    )


def part(job: Job, attempt: Attempt) -> dict[str, Any]:
    """For the page of a job; nothing for one that is no dry run."""
    if not job.dry_run:
        return {}
    found = of(job, attempt)
    return {
        "dry": found,
        "norm_bars": picture(found.norms) if found else [],
        "clip_offered": found.suggested
        if found and "clipping" in attempt.settings and not (found.current and found.current.suggested)
        else None,
    }


def shortened(plan: Mapping[str, Any], applied_before: int) -> dict[str, Any]:
    """The plan of the whole as that of the dry run, for its progress."""
    total = plan.get("total_steps")
    return {**plan, "total_steps": min(total, applied_before + STEPS)} if total else dict(plan)


def picture(norms: Norms) -> list[dict[str, Any]]:
    """Rectangles of the histogram in a picture of WIDTH; under the base line stand the limits."""
    highest = max((count for _low, _high, count in norms.bars), default=0) or 1
    step = WIDTH / max(len(norms.bars), 1)
    return [
        {
            "x": f"{step * i + 2:.1f}",
            "y": f"{BASE - (BASE - 16) * count / highest:.1f}",
            "width": f"{step - 4:.1f}",
            "height": f"{(BASE - 16) * count / highest:.1f}",
            "middle": f"{step * (i + 0.5):.1f}",
            "left": f"{step * i:.1f}",
            "low": low,
            "high": high,
            # Beside the last bar's upper limit there is no room for its lower one.
            "says_low": i == 0 or i < len(norms.bars) - 1,
            "count": count,
        }
        for i, (low, high, count) in enumerate(norms.bars)
    ]


def result(
    *,
    steps: Mapping[int, Records],
    settings: Mapping[str, Any],
    plan: Mapping[str, Any],
    measured: Mapping[int, Mapping[str, Any]],
    memory_bytes: Mapping[int, int],
    applied_before: int = 0,
) -> Result:
    """From the records of each rank, in order; `measured` and `memory_bytes` by rank, where they are known."""
    records = steps[0]
    left = max(int(plan.get("total_steps") or 0) - applied_before, 0)
    found = np.array([record["grad_norm"] for record in records], dtype=float)
    norms = found[np.isfinite(found)]
    kept = records[min(SLOW_STEPS, len(records) // 2) :]
    times = [record["step_ms"] for record in kept]
    step_ms = float(np.median(times)) if times else None
    skips = Counter(str(record["skipped"]) for record in records if record["skipped"])
    return Result(
        planned=min(STEPS, left),
        made=len(records),
        warmup=warmup(settings, plan),
        norms=norms_of(norms, len(found) - len(norms)),
        clips=clips_of(norms, max_norm_of(settings)),
        clipped=sum(bool(record["clipped"]) for record in records),
        skipped=sum(skips.values()),
        skip_reasons=dict(skips),
        loss_scale=_loss_scale(records),
        memory=[_memory(rank, steps[rank], measured.get(rank, {}), memory_bytes.get(rank)) for rank in sorted(steps)],
        step_ms=step_ms,
        data_share=sum(record["data_ms"] for record in kept) / total if (total := sum(times)) else None,
        timed_steps=len(kept),
        whole=_whole(left, step_ms, settings, plan, measured.get(0, {})),
    )


def norms_of(norms: Any, non_finite: int) -> Norms:
    if not len(norms):
        return Norms(0, non_finite, None, None, None, [])
    positive = norms[norms > 0]
    bars: list[tuple[float, float, int]] = []
    if len(positive):
        low, high = math.log2(positive.min()), math.log2(positive.max())
        if high - low < 1e-6:
            low, high = low - 0.5, high + 0.5
        counts, edges = np.histogram(np.log2(positive), bins=8, range=(low, high))
        bars = [(2.0 ** edges[i], 2.0 ** edges[i + 1], int(count)) for i, count in enumerate(counts)]
    median, p90 = np.percentile(norms, [50, CLIP_PERCENTILE])
    return Norms(len(norms), non_finite, float(median), float(p90), float(norms.max()), bars)


def clips_of(norms: Any, current: float | None) -> list[Clip]:
    """The suggestion, the threshold of the settings and the usual ones, each with the share of steps it would clip."""
    if not len(norms):
        return []
    enough = len(norms) >= LEAST_NORMS
    suggested = _rounded_up(float(np.percentile(norms, CLIP_PERCENTILE))) if enough else None
    candidates = {*USUAL_CLIPS, *filter(None, (suggested, current))}
    return [
        Clip(value, float((norms > value).mean()), value == suggested, value == current) for value in sorted(candidates)
    ]


def max_norm_of(settings: Mapping[str, Any]) -> float | None:
    """The threshold of the settings, if they clip the whole gradient at a fixed one."""
    clipping = settings.get("clipping") or {}
    fixed = clipping.get("mode", GLOBAL_NORM) == GLOBAL_NORM
    return clipping.get("max_norm") if fixed else None


def with_clip(settings: Mapping[str, Any], max_norm: float) -> dict[str, Any]:
    """`settings` that clip the whole gradient at `max_norm`."""
    clipping = dict(settings["clipping"], max_norm=max_norm)
    return {**settings, "clipping": clipping | ({"mode": GLOBAL_NORM} if "mode" in clipping else {})}


def _rounded_up(value: float) -> float | None:
    """To two digits: what is suggested should look like the estimate that it is. None for 0."""
    if value <= 0:
        return None
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.6g}")


def warmup(settings: Mapping[str, Any], plan: Mapping[str, Any]) -> int | None:
    """As the trainer's schedule reckons it."""
    schedule = settings.get("schedule")
    if not schedule:
        return None
    steps: int | None = schedule.get("warmup_steps")
    return round((schedule.get("warmup_fraction") or 0) * int(plan.get("total_steps") or 0)) if steps is None else steps


def _loss_scale(records: Records) -> LossScale | None:
    scales = [record["loss_scale"] for record in records if record["loss_scale"] is not None]
    if not scales:
        return None
    changes = sum(one != other for one, other in pairwise(scales))
    newest = records[-SETTLED_STEPS:]
    settled = len(newest) == SETTLED_STEPS and not any(record["found_inf"] for record in newest)
    return LossScale(scales[0], scales[-1], changes, settled)


def _memory(rank: int, records: Records, measured: Mapping[str, Any], memory_bytes: int | None) -> RankMemory:
    peak = from_json_number(measured.get("peak_mb"))
    seen = max((record["mem_mb"] for record in records), default=0.0)
    of_mb = memory_bytes / MB if memory_bytes else None
    return RankMemory(rank, max(seen, peak or 0.0), of_mb, exact=peak is not None)


def _whole(
    steps: int,
    step_ms: float | None,
    settings: Mapping[str, Any],
    plan: Mapping[str, Any],
    measured: Mapping[str, Any],
) -> Whole | None:
    if step_ms is None or not steps:
        return None
    keeping = settings.get("checkpoints") or {}
    every, per_epoch = keeping.get("evaluate_every_steps"), plan.get("steps_per_epoch")
    return Whole(
        steps=steps,
        steps_s=steps * step_ms / 1e3,
        evaluations=_times(steps, every or per_epoch),
        evaluation_s=measured.get("evaluation_s"),
        checkpoints=_times(steps, keeping.get("every_steps")),
        checkpoint_s=measured.get("checkpoint_s"),
        checkpoint_bytes=measured.get("checkpoint_bytes"),
    )


def _times(steps: int, every: int | None) -> int:
    """How often something comes that comes every so many steps, and at the end."""
    return math.ceil(steps / every) if every else 0


def _memory_of_devices(attempt: Attempt) -> dict[int, int]:
    """By rank, from the newest placement of each node."""
    found: dict[int, int] = {}
    for placement in attempt.placements.select_related("host").order_by("pk"):
        known = {
            device["index"]: int(device.get("memory_bytes") or 0)
            for device in placement.host.devices
            if device["kind"] == placement.device_kind
        }
        for i, index in enumerate(placement.devices):
            found[placement.node * attempt.devices_per_node + i] = known.get(index, 0)
    return found
