"""Start messages to hosts: after the commit, and again until the supervisor has said that it has the attempt."""

from __future__ import annotations

import logging
from datetime import timedelta

from celery import Celery
from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from jobs import dry_run
from jobs.models import Attempt, Cursor, Placement
from workers import embedded_redis
from workers.contract.datasets import CHECK_TASK, CheckSpec
from workers.contract.messages import (
    START_TASK,
    AttemptSpec,
    CheckpointRef,
    DatasetRef,
    Kind,
    host_queue,
    supervisor_rank,
)
from workers.contract.states import Status
from workers.contract.trials import TRY_TASK, TrialSpec

logger = logging.getLogger(__name__)

AGAIN_S = 10.0
# Where the launchers of several nodes meet: a port of node 0, from a range below the ephemeral ones.
FIRST_PORT, PORTS = 20_000, 10_000


class Sender:
    """Sends only: the web side runs no Celery task and keeps no result."""

    def __init__(self) -> None:
        self._celery = Celery("evenkeel")
        self._celery.conf.update(
            broker_url=embedded_redis.broker_url(settings.REDIS_URL),
            task_ignore_result=True,
            result_backend=None,
            broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 5, "max_retries": 0},
        )

    def close(self) -> None:
        self._celery.close()

    def check(self, spec: CheckSpec, host: str) -> None:
        self._celery.send_task(
            CHECK_TASK, args=[spec.model_dump(mode="json")], queue=host_queue(host), retry=False, ignore_result=True
        )

    def trial(self, spec: TrialSpec, host: str) -> None:
        self._celery.send_task(
            TRY_TASK, args=[spec.model_dump(mode="json")], queue=host_queue(host), retry=False, ignore_result=True
        )

    def run(self) -> None:
        again = timezone.now() - timedelta(seconds=AGAIN_S)
        waiting = (
            Placement.objects.unclaimed()
            .filter(Q(sent_at__isnull=True) | Q(sent_at__lt=again))
            .filter(attempt__status=Status.STARTING.value, host__online=True)
            .select_related("attempt__job__dataset", "attempt__start_from", "host")
        )
        for placement in waiting:
            # Written before it is sent: a placement without a time can have been started nowhere.
            now = timezone.now()
            mine = Placement.objects.filter(pk=placement.pk, sent_at=placement.sent_at, released_at__isnull=True)
            if mine.update(sent_at=now) != 1:
                continue
            spec = spec_of(placement)
            self._celery.send_task(
                START_TASK,
                args=[spec.model_dump(mode="json")],
                queue=host_queue(placement.host.name),
                retry=False,
                ignore_result=True,
            )
            logger.info("Attempt %s: start message sent to %s.", placement.attempt, placement.host.name)


def spec_of(placement: Placement) -> AttemptSpec:
    attempt = placement.attempt
    job, dataset, start = attempt.job, attempt.job.dataset, attempt.start_from
    report = Cursor.objects.filter(
        attempt=attempt, rank=supervisor_rank(placement.node), kind=Kind.REPORT.value
    ).first()
    return AttemptSpec(
        attempt=attempt.uid,
        job=job.pk,
        number=attempt.number,
        name=job.name,
        recipe=job.recipe,
        settings=attempt.settings,
        dataset=None
        if dataset is None
        else DatasetRef(
            id=dataset.pk,
            name=dataset.name,
            key=dataset.key,
            content_hash=dataset.content_hash,
            splits=dataset.splits,
            labels=dataset.labels,
        ),
        model_key=attempt.model_key or None,
        start_from=None if start is None else CheckpointRef(key=start.key, step=start.step, applied=start.applied),
        node=placement.node,
        nodes=attempt.nodes,
        placement=placement.pk,
        report_offset=report.offset if report else 0,
        master=_master(attempt),
        device_kind=placement.device_kind,
        devices=placement.devices,
        lease_s=settings.LEASE_S,
        grace_s=settings.GRACE_S,
        dry_run_steps=dry_run.STEPS if job.dry_run else None,
        time_limit_s=attempt.time_limit_set_s,
    )


def _master(attempt: Attempt) -> str | None:
    if attempt.nodes == 1:
        return None
    first = attempt.placements.holding().select_related("host").get(node=0)
    return f"{first.host.address}:{FIRST_PORT + attempt.pk % PORTS}"
