"""The Celery side of a GPU host: one queue, and three tasks that start something and let go of it."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery, signals
from kombu import Queue

from workers import embedded_redis
from workers.config import Config
from workers.contract.datasets import CHECK_TASK, CheckSpec
from workers.contract.messages import START_TASK, AttemptSpec, host_queue
from workers.contract.trials import TRY_TASK, TrialSpec
from workers.datasets.task import Checks
from workers.supervisor import processes
from workers.supervisor.start import start_attempt
from workers.trials.task import Trials
from workers.watch import HostThreads

logger = logging.getLogger(__name__)

config = Config.from_environment()

app = Celery("workers")
app.conf.update(
    broker_url=embedded_redis.broker_url(config.redis_url),
    task_queues=[Queue(host_queue(config.host_name))],
    task_default_queue=host_queue(config.host_name),
    # Acknowledged before it runs, never held: nothing is delivered a second time hours later, and a
    # message that is lost with Redis is sent again by the controller.
    task_acks_late=False,
    task_ignore_result=True,
    result_backend=None,
    worker_prefetch_multiplier=1,
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"socket_keepalive": True, "socket_connect_timeout": 5, "health_check_interval": 10},
    worker_hijack_root_logger=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)

_checks = Checks(config)
_trials = Trials(config)
_threads: HostThreads | None = None


@app.task(name=START_TASK)  # type: ignore[untyped-decorator]
def start(spec: dict[str, Any]) -> None:
    """Start the supervisor of one attempt on this host. Twice is harmless: it claims its placement on disk."""
    checked = AttemptSpec.model_validate(spec)
    start_attempt(checked, config)
    logger.info("attempt %s of job %s: supervisor started", checked.attempt, checked.job)


@app.task(name=CHECK_TASK)  # type: ignore[untyped-decorator]
def check_dataset(spec: dict[str, Any]) -> None:
    """Check a dataset in a thread and a process of its own. Twice is harmless: each try is claimed in the storage."""
    _checks.start(CheckSpec.model_validate(spec))


@app.task(name=TRY_TASK)  # type: ignore[untyped-decorator]
def try_model(spec: dict[str, Any]) -> None:
    """Ask an exported model, in a thread and a process of its own. Twice is harmless: each try is claimed in the storage."""
    _trials.start(TrialSpec.model_validate(spec))


# Before the broker is reached: dead supervisors are looked after while Redis is away, too.
@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _worker_init(**_: Any) -> None:
    global _threads
    processes.hide_environment()
    try:
        _threads = HostThreads(config)
    except ValueError as error:
        # Celery only logs what a signal's receiver raises, and a worker without heartbeat is of no use.
        raise SystemExit(str(error)) from None
    _threads.start()


@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _worker_shutdown(**_: Any) -> None:
    if _threads is not None:
        _threads.stop()
