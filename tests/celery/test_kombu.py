"""The transport as kombu's users see it. Each case is a program in Celery's environment."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from flintmq.client import Consumer
from tests.celery.conftest import CeleryFactory
from tests.conftest import BrokerFactory
from tests.security_tools import PASSWORD, SCRAM, set_user
from tests.tls_tools import Authority

PROGRAMS = [
    "queues",
    "members",
    "deleted",
    "purged_before_the_first_worker",
    "prefetch",
    "unacknowledged",
    "cancelled",
    "exchanges",
    "broadcast",
    "followed",
    "replies",
    "refusals",
    "strange_shapes",
    "passwords",
    "forks",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_does_what_it_says(broker: BrokerFactory, celery_app: CeleryFactory, program: str) -> None:
    running = broker(settings={"topics.auto_create": False})  # as of a broker that other machines reach
    celery_app(running).run(program, script="kombu_programs.py")


def test_a_broker_with_users_and_tls_is_reached(
    broker: BrokerFactory, celery_app: CeleryFactory, tmp_path: Path
) -> None:
    set_user(tmp_path / "store", "ops")
    authority = Authority(tmp_path)
    settings = SCRAM | authority.issue().broker_settings
    running = broker(store=tmp_path / "store", settings=settings)
    app = celery_app(running, user=f"ops:{quote(PASSWORD)}")
    app.run("secured", authority.path, script="kombu_programs.py")


def test_a_program_sends_on_after_the_broker_was_killed(broker: BrokerFactory, celery_app: CeleryFactory) -> None:
    running = broker()
    with celery_app(running).start("hundred", "kombu_programs.py") as program:
        assert program.stdout is not None
        sent = [next(program.stdout) for _ in range(20)]
        running.kill()
        running = broker("--listen", running.address, store=running.store)
        sent += program.stdout
        assert program.wait(60) == 0
    assert len(sent) == 100
    with Consumer(running.address) as consumer:
        stored = [json.loads(message.body)["body"] for message in consumer.iter("jobs%2Ev1", until="latest")]
    assert sorted(map(int, stored)) == list(range(100))
