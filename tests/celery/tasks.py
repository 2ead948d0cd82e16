"""The tasks of the tests: an application as users write it. Workers import it in Celery's environment.

Each run of a task adds a line to the file ``RUNS``.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject

import flintmq.client.celery  # noqa: F401 - makes flintmq:// known

WORK_SECONDS = 0.02
FOLDER = Path(os.environ["FOLDER"])
app = Celery("tests", broker=os.environ["BROKER"], backend=f"db+sqlite:///{FOLDER / 'results.sqlite'}")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"queues": 8},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_lost_wait=0.5,
    worker_prefetch_multiplier=1,
)


def note(what: str) -> int:
    """Add a line to the file of runs; return how many such lines there are now."""
    path = FOLDER / "runs"
    with path.open("a") as file:
        file.write(f"{what}\n")
    return path.read_text().splitlines().count(what)


@app.task(ignore_result=True)
def work(number: int) -> None:
    """Take some time, and note that it ran."""
    time.sleep(WORK_SECONDS)
    note(f"work {number}")


@app.task
def add(left: int, right: int) -> int:
    return left + right


@app.task
def total(numbers: list[int]) -> int:
    """Return the sum of what a chord's header has returned."""
    return sum(numbers)


@app.task(ignore_result=True)
def refuse() -> None:
    note("refuse")
    raise Reject("no account", requeue=False)


@app.task(ignore_result=True)
def hesitate() -> None:
    """Be put back into the queue once."""
    if note("hesitate") == 1:
        raise Reject("not yet", requeue=True)


@app.task(ignore_result=True)
def crash() -> None:
    """Kill the process of the pool that runs it, once."""
    if note("crash") == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, ignore_result=True, max_retries=3)
def again(self: Any) -> None:
    """Fail and be retried by Celery, once."""
    if note("again") == 1:
        raise self.retry(countdown=1)
