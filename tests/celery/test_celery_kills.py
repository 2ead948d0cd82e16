"""Celery on FlintMQ while its workers and the broker are killed."""

from __future__ import annotations

import time

from flintmq.client import Admin
from tests.celery.conftest import CeleryFactory, nothing_is_left
from tests.conftest import BrokerFactory
from tests.group_tools import until

KILLS = 3
TASKS = 130
"""Number of tasks that are sent before each kill."""
ETA_TASKS = 20
ETA_SECONDS = 5


def test_each_task_runs_at_least_once_while_workers_and_the_broker_are_killed(
    broker: BrokerFactory, celery_app: CeleryFactory
) -> None:
    running = broker()
    app = celery_app(running)
    queues = ["-Q", "celery,more", "-c", "2"]
    workers = [app.worker(f"w{number}", *queues) for number in range(3)]
    for worker in workers:
        worker.ready()
    for number in range(KILLS):
        before = app.runs().total()
        app.run("send", str(TASKS * number), str(TASKS * (number + 1)), "celery", "more")
        until(lambda: app.runs().total() > before, "a task ran")  # noqa: B023 - called at once
        workers[number].kill()
        workers.append(app.worker(f"again{number}", *queues))
        if number == 1:
            running.kill()
            running = broker("--listen", running.address, store=running.store)
    wanted = {f"work {number}" for number in range(KILLS * TASKS)}
    until(lambda: wanted <= app.runs().keys(), "each task ran")


def test_a_task_with_an_eta_runs_once_although_all_workers_and_the_broker_restart(
    broker: BrokerFactory, celery_app: CeleryFactory
) -> None:
    running = broker()
    app = celery_app(running)
    workers = [app.worker(f"w{number}", "-c", "1") for number in range(2)]
    for worker in workers:
        worker.ready()
    app.run("send", "0", str(ETA_TASKS), f"countdown={ETA_SECONDS}")
    sent = time.time()
    with Admin(running.address) as admin:
        assert admin.delays().timed == ETA_TASKS  # they wait at the broker, not in a worker
    workers[0].stop()
    workers[1].kill()
    running.stop()
    assert not app.runs(), f"a task ran before its time, or the restart took {time.time() - sent:.1f} s"
    running = broker("--listen", running.address, store=running.store)
    for number in range(2):
        app.worker(f"again{number}", "-c", "1")
    until(lambda: app.runs().total() >= ETA_TASKS, "each task ran")
    with Admin(running.address) as admin:
        until(lambda: nothing_is_left(admin), "everything is settled")
    assert app.runs() == {f"work {number}": 1 for number in range(ETA_TASKS)}
