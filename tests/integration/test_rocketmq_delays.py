"""Delayed, timed and retried messages of a store that RocketMQ and FlintMQ open in turn: each is delivered once.

Optional, see ``test_rocketmq_accepts``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from tests.conftest import BrokerFactory, RunningBroker
from tests.integration.rocketmq.harness import ROCKETMQ_SETTINGS, RocketMQ, class_path

pytestmark = [pytest.mark.long(seconds=75), pytest.mark.java, pytest.mark.timeout(600)]

TOPIC = "orders"
SIZES = {
    "store.commitlog_file_bytes": ROCKETMQ_SETTINGS["mappedFileSizeCommitLog"],
    "store.consumequeue_file_bytes": ROCKETMQ_SETTINGS["mappedFileSizeConsumeQueue"],
    "store.index_slots": ROCKETMQ_SETTINGS["maxHashSlotNum"],
    "store.index_entries": ROCKETMQ_SETTINGS["maxIndexNum"],
}
PATIENCE_S = 120


class Turns:
    """A store, and the broker that has it open."""

    def __init__(self, store: Path, flint: Callable[[], RunningBroker], rocketmq: Callable[[], RocketMQ]) -> None:
        self.store = store
        self._flint = flint
        self._rocketmq = rocketmq

    def flint(self) -> Flint:
        """Open the store in FlintMQ."""
        return Flint(self._flint())

    def rocketmq(self) -> RocketMQ:
        """Open the store in RocketMQ."""
        return self._rocketmq()


class Flint:
    """A FlintMQ broker and the operations of the tests."""

    def __init__(self, running: RunningBroker) -> None:
        self.running = running

    def create(self, topic: str) -> None:
        """Create a topic of one queue."""
        with Admin(self.running.address) as admin:
            admin.create_topic(topic, queues=1)

    def send(self, body: str, **how: Any) -> None:
        """Send a message to the broker."""
        with Producer(self.running.address) as producer:
            producer.send(Message(TOPIC, body.encode(), keys=body, **how), queue=0)

    def bodies(self, topic: str = TOPIC) -> Counter[str]:
        """Return how often each body is in queue 0."""
        found: Counter[str] = Counter()
        offset = 0
        with Consumer(self.running.address) as consumer:
            while messages := consumer.pull(topic, 0, offset).messages:
                found.update(message.body.decode() for message in messages)
                offset += len(messages)
        return found

    def wait_for(self, *bodies: str, topic: str = TOPIC) -> Counter[str]:
        """Wait until these messages are delivered; return how often each is."""
        return wait_for(lambda: self.bodies(topic), *bodies)

    def pulse(self, name: str) -> Counter[str]:
        """Wait until a message of each level that is used and a timed one have come; how often each message is there.
        By then all is that was due before."""
        self.send(f"{name}-timed", delay=timedelta(seconds=2))
        self.send(f"{name}-level-1", delay_level=1)
        self.send(f"{name}-level-2", delay_level=2)
        return self.wait_for(f"{name}-timed", f"{name}-level-1", f"{name}-level-2")


def wait_for(look: Callable[[], Counter[str]], *bodies: str) -> Counter[str]:
    """Wait until ``look`` finds these bodies; return all that it finds."""
    deadline = time.monotonic() + PATIENCE_S
    while not set(bodies) <= set(found := look()):
        assert time.monotonic() < deadline, f"{bodies} did not come; {found} did"
        time.sleep(0.1)
    return found


def in_rocketmq(running: RocketMQ, topic: str = TOPIC) -> Counter[str]:
    """Return how often each message is in the topic, by its key; the tests use each body also as key."""
    _, messages = running.read(topic=topic, tags="*")
    return Counter(message["properties"]["KEYS"] for message in messages)


def found_in_rocketmq(running: RocketMQ, key: str) -> Counter[str]:
    """Return the messages that RocketMQ's index has for a key, by their keys."""
    found = running.call("find", topic=TOPIC, key=key)["found"]
    return Counter(message["properties"]["KEYS"] for message in found)


def to_rocketmq(running: RocketMQ, body: str, **how: Any) -> dict[str, Any]:
    """Send a message to RocketMQ."""
    return running.call("send", topic=TOPIC, body=body, keys=body, **how)


def in_ms(seconds: float) -> int:
    return int((time.time() + seconds) * 1000)


@pytest.fixture(scope="module")
def classes() -> str:
    return class_path()


@pytest.fixture
def turns(classes: str, broker: BrokerFactory, tmp_path: Path) -> Iterator[Turns]:
    store = tmp_path / "store"
    started: list[RocketMQ] = []

    def rocketmq() -> RocketMQ:
        started.append(RocketMQ(classes, tmp_path / f"rocketmq-{len(started)}", "BrokerDriver", store, {}))
        started[-1].wait_opened()
        return started[-1]

    yield Turns(store, lambda: broker(store=store, settings=SIZES), rocketmq)
    for running in started:
        running.kill()


def test_timed_messages_come_once_over_clean_stops(turns: Turns) -> None:
    flint = turns.flint()
    flint.create(TOPIC)
    soon = datetime.now(UTC) + timedelta(seconds=20)
    flint.send("an-hour", delay=timedelta(hours=1))
    for body in ("a", "b", "c"):
        flint.send(f"{body}-by-RocketMQ", deliver_at=soon)
    flint.send("later-by-RocketMQ", deliver_at=soon + timedelta(seconds=2))
    flint.send("by-FlintMQ", delay=timedelta(seconds=1))
    flint.send("three-days", delay=timedelta(days=3))
    flint.send("by-FlintMQ-too", delay=timedelta(seconds=1))
    flint.wait_for("by-FlintMQ", "by-FlintMQ-too")
    assert flint.running.stop() == 0

    running = turns.rocketmq()
    to_rocketmq(running, "another-hour", deliver_ms=in_ms(3600))
    to_rocketmq(running, "its-own", deliver_ms=in_ms(2))
    expected = ["by-FlintMQ", "by-FlintMQ-too", "its-own", "later-by-RocketMQ"]
    expected += [f"{body}-by-RocketMQ" for body in ("a", "b", "c")]
    assert wait_for(lambda: in_rocketmq(running), *expected) == Counter(expected)
    to_rocketmq(running, "soon", deliver_ms=in_ms(15))
    running.close()

    flint = turns.flint()
    flint.pulse("back")
    back = flint.wait_for("soon")
    assert set(back.values()) == {1}
    assert flint.running.stop() == 0

    running = turns.rocketmq()
    to_rocketmq(running, "again", deliver_ms=in_ms(2))
    found = wait_for(lambda: in_rocketmq(running), "again")
    assert found == Counter([*back, "again"])
    running.close()

    flint = turns.flint()
    assert set(flint.pulse("end").values()) == {1}
    with Admin(flint.running.address) as admin:
        assert sum(row.messages for _, row in admin.delays().hours) == 3


def test_messages_delivered_by_rocketmq_before_its_kill_come_once(turns: Turns) -> None:
    """RocketMQ saves its progress every 10 s, so it had not saved any yet."""
    flint = turns.flint()
    flint.create(TOPIC)
    assert flint.running.stop() == 0
    running = turns.rocketmq()
    sent = {body: to_rocketmq(running, body)["unique_key"] for body in ("work-1", "work-2", "work-3")}
    for body, unique_key in sent.items():
        wait_for(lambda: found_in_rocketmq(running, body), body)  # noqa: B023 - called at once
        running.call("send_back", topic=TOPIC, id=unique_key, group="workers", delay_level=1)
    for body in ("a", "b", "c"):
        to_rocketmq(running, f"level-1-{body}", delay_level=1)
    to_rocketmq(running, "level-2", delay_level=2)
    wait_for(lambda: in_rocketmq(running), "level-1-a", "level-1-b", "level-1-c")
    retried = wait_for(lambda: in_rocketmq(running, "%RETRY%workers"), "work-1", "work-2", "work-3")
    assert set(retried.values()) == {1}
    running.kill()
    assert not (turns.store / "config" / "delayOffset.json").exists()

    flint = turns.flint()
    found = flint.pulse("after-the-kill")
    assert set(flint.wait_for("level-2").values()) == set(found.values()) == {1}
    assert flint.bodies("%RETRY%workers") == Counter(["work-1", "work-2", "work-3"])
