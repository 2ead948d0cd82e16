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
from tests.integration.test_rocketmq_delays import SIZES, in_ms, in_rocketmq, to_rocketmq, wait_for
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
    """Send messages whose keys are their numbers, with about ``size`` bytes each, even after compression."""
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
    refused = tool("serve", "--store", store, "--set", "server.listen=127.0.0.1:0", *OPTIONS)
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


@pytest.mark.long(seconds=20)
def test_a_synchronous_master_counts_the_follower(master: Masters, tmp_path: Path) -> None:
    rocketmq = master(brokerRole="SYNC_MASTER", inSyncReplicas=2, slaveTimeout=500)
    assert status_of(rocketmq, "alone") != "SEND_OK"
    with follow(rocketmq, tmp_path):
        until_equal(tmp_path / "master", tmp_path / "store")
        assert [status_of(rocketmq, f"followed {number}") for number in range(20)] == ["SEND_OK"] * 20
        assert log_content(tmp_path / "store") == log_content(tmp_path / "master")


def status_of(master: RocketMQ, body: str) -> str:
    """Send a message; return the status that RocketMQ's producer gets."""
    status: str = master.call("send", topic=TOPIC, body=body, keys=body, tags="t")["status"]
    return status


@pytest.mark.long(seconds=20)
def test_delayed_and_timed_messages_are_delivered_once(master: Masters, broker: BrokerFactory, tmp_path: Path) -> None:
    rocketmq = master()
    store = tmp_path / "store"
    to_rocketmq(rocketmq, "timed", deliver_ms=in_ms(2))
    to_rocketmq(rocketmq, "level", delay_level=1)
    to_rocketmq(rocketmq, "in-an-hour", deliver_ms=in_ms(3600))
    wait_for(lambda: in_rocketmq(rocketmq), "timed", "level")
    delivered_ms = in_ms(0)
    with follow(rocketmq, tmp_path) as running:
        until(lambda: timer_check_ms(store) > delivered_ms, "the timers' progress came")
        to_rocketmq(rocketmq, "timed-later", deliver_ms=in_ms(20))
        to_rocketmq(rocketmq, "level-later", delay_level=4)
        until_equal(tmp_path / "master", store)
        assert running.stop() == 0
    rocketmq.close()
    assert promote(tmp_path).code == 0
    flint = broker(store=store, settings=SIZES)
    expected = Counter(["timed", "level", "timed-later", "level-later"])
    assert wait_for(lambda: keys_in(flint.address), *expected) == expected


def timer_check_ms(store: Path) -> int:
    """Return the time up to which ``config/timercheck`` says that timed messages are delivered; 0 without the file."""
    path = store / "config" / "timercheck"
    return int.from_bytes(path.read_bytes()[:8], "big") if path.exists() else 0


@pytest.mark.long(seconds=20)
def test_a_master_without_its_oldest_files_is_followed_from_where_its_log_begins(
    master: Masters, tmp_path: Path
) -> None:
    rocketmq = master()
    send(rocketmq, 0, 30, size=300_000)
    rocketmq.close()
    first, second, *_ = sorted((tmp_path / "master" / "commitlog").iterdir())
    first.unlink()
    rocketmq = master()
    store = tmp_path / "store"
    with follow(rocketmq, tmp_path) as running:
        until_equal(tmp_path / "master", store)
        send(rocketmq, 30, 5)
        until_equal(tmp_path / "master", store)
        assert running.stop() == 0
    assert min(path.name for path in (store / "commitlog").iterdir()) == second.name
    assert tool("verify", store).code == 0


@pytest.mark.long(seconds=20)
def test_a_master_that_is_killed_and_starts_again_is_followed_on(master: Masters, tmp_path: Path) -> None:
    rocketmq = master()
    with follow(rocketmq, tmp_path) as running:
        running.wait_for("the log continues at 0")  # there is no message yet
        send(rocketmq, 0, 30, size=300_000)
        until_equal(tmp_path / "master", tmp_path / "store")
        rocketmq.kill()
    rocketmq = master()
    with follow(rocketmq, tmp_path) as running:  # at once: it refuses requests in its first second
        send(rocketmq, 30, 5)
        until_equal(tmp_path / "master", tmp_path / "store")
        assert running.stop() == 0
    assert tool("verify", tmp_path / "store").code == 0
