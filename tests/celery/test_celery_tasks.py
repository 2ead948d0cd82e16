"""Celery on FlintMQ: what its workers do with tasks."""

from __future__ import annotations

from flintmq.client import Admin, Consumer
from tests.celery.conftest import CeleryFactory
from tests.conftest import BrokerFactory
from tests.group_tools import until


def test_chains_groups_and_chords_run_and_workers_answer(broker: BrokerFactory, celery_app: CeleryFactory) -> None:
    app = celery_app(broker())
    worker = app.worker("one", "-c", "2").ready()
    app.run("canvas")
    app.run("control")
    app.run("events")
    worker.stop()


def test_a_failed_task_is_tried_again_or_is_a_dead_letter(broker: BrokerFactory, celery_app: CeleryFactory) -> None:
    running = broker()
    app = celery_app(running)
    worker = app.worker("one", "-c", "1").ready()
    app.run("send_failing")
    wanted = {"refuse": 1, "hesitate": 2, "crash": 2, "again": 2}
    until(lambda: app.runs() == wanted, "every task ran")
    worker.stop()
    with Consumer(running.address) as consumer, Admin(running.address) as admin:
        (dead,) = consumer.iter("%DLQ%celery", until="latest")
        assert (dead.tags, dead.retry_reason) == ("tasks.refuse", "rejected")
        (found,) = consumer.query("celery", key=dead.keys[0])  # a task is found by its id
        assert found.tags == "tasks.refuse"
        assert sum(row.lag for row in admin.consume_stats("celery", uncommitted=True)) == 0
