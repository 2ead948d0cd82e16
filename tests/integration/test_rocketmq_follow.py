"""FlintMQ follows a running RocketMQ as its slave, byte for byte, and takes over.

Optional, see ``test_rocketmq_accepts``.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from tests.conftest import BrokerFactory
from tests.group_tools import until
from tests.integration.rocketmq.harness import RocketMQ, class_path
from tests.integration.test_rocketmq_delays import SIZES
from tests.migration_tools import following, log_content, until_equal
from tests.processes import free_port
from tests.tools_runs import Ended, tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

TOPIC = "orders"
GROUP = "billing"
OPTIONS = [word for name, value in SIZES.items() for word in ("--set", f"{name}={value}")]
Masters = Callable[..., RocketMQ]


@pytest.fixture(scope="module")
def classes() -> str:
    return class_path()


@pytest.fixture
def master(classes: str, tmp_path: Path) -> Iterator[Masters]:
    """Start RocketMQ masters on the store ``tmp_path / "master"``."""
    started: list[RocketMQ] = []

    def start(**settings: Any) -> RocketMQ:
        home = tmp_path / f"rocketmq-{len(started)}"
        settings = {"haListenPort": free_port(), **settings}
        started.append(RocketMQ(classes, home, "BrokerDriver", tmp_path / "master", settings))
        started[-1].wait_opened()
        return started[-1]

    yield start
    for running in started:
        running.kill()


def send(master: RocketMQ, first: int, count: int, size: int = 10) -> None:
    """Send messages whose keys are their numbers, with about ``size`` bytes each, also after compression."""
    bodies = random.Random(first)
    for number in range(first, first + count):
        master.call("send", topic=TOPIC, body=bodies.randbytes(size).hex(), keys=f"key-{number}", tags="t")


def follow(master: RocketMQ, tmp_path: Path) -> Any:
    """Run a follower of ``master`` on the store ``tmp_path / "store"``."""
    return following(master.opened["address"], tmp_path / "store", SIZES, tmp_path / "follower.log")


def promote(tmp_path: Path, *options: str) -> Ended:
    return tool("promote", "--store", tmp_path / "store", *OPTIONS, *options)


def keys_in(address: str, topic: str = TOPIC) -> Counter[str]:
    """Return how often each key is in a topic of a FlintMQ broker."""
    found: Counter[str] = Counter()
    with Admin(address) as admin, Consumer(address) as consumer:
        for queue in (row.queue for row in admin.topic_stats(topic)):
            offset = 0
            while messages := consumer.pull(topic, queue, offset).messages:
                found.update(key for message in messages for key in message.keys)
                offset += len(messages)
    return found


def test_a_follower_takes_over_every_message_once(master: Masters, broker: BrokerFactory, tmp_path: Path) -> None:
    rocketmq = master()
    store = tmp_path / "store"
    send(rocketmq, 0, 20)
    rocketmq.call("send", topic=TOPIC, body="later", keys="an-hour", tags="t", delay_level=17)
    with follow(rocketmq, tmp_path) as running:
        until_equal(tmp_path / "master", store)
        send(rocketmq, 20, 20, size=300_000)  # into further files
        running.stop(signal.SIGKILL)
    send(rocketmq, 40, 20)
    rocketmq.call("commit", group=GROUP, topic=TOPIC, queue=0, offset=3)
    with follow(rocketmq, tmp_path) as running:
        send(rocketmq, 60, 20)
        until_equal(tmp_path / "master", store)
        offsets = store / "config" / "consumerOffset.json"
        until(lambda: offsets.exists() and f"{TOPIC}@{GROUP}" in offsets.read_text(), "the commit came")
        assert running.stop() == 0
    refused = tool("serve", "--store", store, *OPTIONS)
    assert (refused.code, "follows the RocketMQ master" in refused.errors) == (1, True), refused
    refused = promote(tmp_path)
    assert (refused.code, "still takes messages" in refused.errors) == (2, True), refused
    rocketmq.close()
    assert log_content(store) == log_content(tmp_path / "master")
    promoted = promote(tmp_path)
    assert promoted.code == 0, promoted
    assert "cannot be reached" in promoted.output[0]
    assert tool("verify", store).code == 0
    flint = broker(store=store, settings=SIZES)
    assert keys_in(flint.address) == Counter(f"key-{number}" for number in range(80))
    with Consumer(flint.address) as consumer:
        assert [each.keys for each in consumer.query(TOPIC, "key-33")] == [("key-33",)]
    assert table_of(store, "consumerOffset.json")["offsetTable"][f"{TOPIC}@{GROUP}"] == {"0": 3}
    with Producer(flint.address) as producer:
        producer.send(Message(TOPIC, b"first of FlintMQ", keys="key-80"), queue=0)
    assert keys_in(flint.address)["key-80"] == 1


def table_of(store: Path, name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((store / "config" / name).read_text())
    return table
