"""Celery on FlintMQ: what its workers do with tasks."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from flintmq.client import Admin, Consumer
from tests.celery.conftest import CeleryFactory, nothing_is_left
from tests.conftest import BrokerFactory
from tests.group_tools import until
from tests.permission_cases import on
from tests.security_tools import PASSWORD, SCRAM, set_grants

EXCHANGES = ("celery%2Epidbox%2Eexchange", "reply%2Ecelery%2Epidbox%2Eexchange", "celeryev%2Eexchange")
QUEUES = ("celery", "more")
GRANTS = [
    *(on("topic", name, "publish", "consume", "admin") for name in QUEUES + EXCHANGES),
    *(on("group", name, "consume", "admin") for name in QUEUES),
]
"""Grants that the tutorial lists."""


def test_tasks_run_and_workers_answer_with_no_more_rights_than_the_tutorial_lists(
    tmp_path: Path, broker: BrokerFactory, celery_app: CeleryFactory
) -> None:
    set_grants(tmp_path / "store", {"shop": GRANTS})
    app = celery_app(broker(store=tmp_path / "store", settings=SCRAM), user=f"shop:{quote(PASSWORD)}")
    worker = app.worker("one", "-c", "2").ready()
    app.run("everything")
    worker.stop()
    assert "NO_PERMISSION" not in worker.log


def test_a_failed_task_is_tried_again_or_is_a_dead_letter(broker: BrokerFactory, celery_app: CeleryFactory) -> None:
    running = broker()
    app = celery_app(running)
    app.worker("one", "-c", "1").ready()
    app.run("send_failing")
    wanted = {"refuse": 1, "hesitate": 2, "crash": 2, "again": 2}
    until(lambda: app.runs() == wanted, "every task ran")
    with Consumer(running.address) as consumer, Admin(running.address) as admin:
        until(lambda: nothing_is_left(admin), "everything is settled")
        (dead,) = consumer.iter("%DLQ%celery", until="latest")
        assert (dead.tags, dead.retry_reason) == ("tasks.refuse", "rejected")
        (found,) = consumer.query("celery", key=dead.keys[0])  # a task is found by its id
        assert found.tags == "tasks.refuse"
    assert app.runs() == wanted


def test_a_worker_outlives_whatever_arrives(broker: BrokerFactory, celery_app: CeleryFactory) -> None:
    running = broker()
    app = celery_app(running)
    worker = app.worker("one", "-c", "1").ready()
    app.run("strange_tasks", script="kombu_programs.py")
    until(lambda: "work 0" in app.runs(), "the task after the strange ones")
    with Admin(running.address) as admin:
        until(lambda: nothing_is_left(admin), "everything is settled")
    worker.stop()
