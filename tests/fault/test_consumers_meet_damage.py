"""Consumers whose next message is damaged, in a part of the log that no start has looked at."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.broker.tools.repair import examine, repair
from flintmq.client import (
    BrokerFailure,
    Consumer,
    CorruptMessage,
    Message,
    Producer,
    PushConsumer,
    StoredMessage,
)
from tests.conftest import BrokerFactory, RunningBroker
from tests.group_tools import Seen, until
from tests.store_tools import overwrite

UNCHECKED = {"store.verify_at_start_bytes": 0}
DAMAGED, MESSAGES = 7, 20


@pytest.fixture
def damaged(broker: BrokerFactory) -> RunningBroker:
    """A broker whose topic `orders` has a damaged message in queue 0, and none in queue 1."""
    running = broker(settings=UNCHECKED)
    with Producer(running.address) as producer:
        sent = [producer.send(Message("orders", b"%d" % number), queue=0) for number in range(MESSAGES)]
        for number in range(MESSAGES):
            producer.send(Message("orders", b"other %d" % number), queue=1)
    assert running.stop() == 0
    overwrite(running.store / "commitlog" / f"{0:020d}", sent[DAMAGED].physical_offset, bytes(60))
    return broker("--listen", running.address, store=running.store, settings=UNCHECKED)


def repaired(broker: BrokerFactory, running: RunningBroker) -> RunningBroker:
    assert running.stop() == 0
    found = examine(running.store, lambda *_: None)
    repair(running.store, found, lambda *_: None)
    return broker("--listen", running.address, store=running.store)


EXPECTED = [b"%d" % number for number in range(MESSAGES) if number != DAMAGED]


def test_an_iteration_ends_with_an_error_that_names_message_and_remedy(
    damaged: RunningBroker, broker: BrokerFactory
) -> None:
    def read() -> None:
        bodies.extend(message.body for message in consumer.iter("orders", until="latest") if message.queue == 0)

    with Consumer(damaged.address) as consumer:
        bodies: list[bytes] = []
        with pytest.raises(BrokerFailure, match=rf"message {DAMAGED} of queue 0.*repair --apply.*offset {DAMAGED + 1}"):
            read()
        repaired(broker, damaged)
        bodies.clear()
        read()
        assert bodies == EXPECTED


@pytest.mark.parametrize("options", [{}, {"batch": 4}, {"orderly": True}], ids=["each", "batch", "orderly"])
def test_a_push_consumer_shows_the_queue_handles_the_others_and_goes_on_after_the_repair(
    damaged: RunningBroker, broker: BrokerFactory, options: dict[str, Any]
) -> None:
    seen = Seen()
    with PushConsumer(damaged.address, "g", "orders", seen, start="first", **options) as consumer:
        seen.wait(MESSAGES + DAMAGED)
        until(lambda: bool(consumer.health().refused), "the refusal")
        health = consumer.health()
        assert health.alive
        assert list(health.refused) == [("orders", 0)]
        error = health.refused["orders", 0]
        assert isinstance(error, BrokerFailure)
        assert f"message {DAMAGED} of queue 0" in str(error)
        again = repaired(broker, damaged)
        until(lambda: set(EXPECTED) <= set(seen.bodies), "the messages behind the hole")
        until(lambda: not consumer.health().refused, "the end of the refusal")
        with Consumer(again.address) as reader:
            until(lambda: reader.committed("g", "orders").get(0) == MESSAGES, "the commit")


def test_a_body_with_a_wrong_checksum_fails_in_the_listener_and_is_given_up_in_the_end(broker: BrokerFactory) -> None:
    running = broker(settings=UNCHECKED)
    with Producer(running.address) as producer:
        for number in range(10):
            producer.send(Message("orders", b"body %d" % number), queue=0)
    assert running.stop() == 0
    log = running.store / "commitlog" / f"{0:020d}"
    overwrite(log, log.read_bytes().index(b"body 5"), b"X")
    again = broker("--listen", running.address, store=running.store, settings=UNCHECKED)
    bodies: list[bytes] = []
    errors: list[str] = []

    def listener(message: StoredMessage) -> None:
        try:
            bodies.append(bytes(message.body))
        except CorruptMessage as error:
            errors.append(str(error))
            raise

    with PushConsumer(again.address, "g", "orders", listener, start="first", retry_times_max=1) as consumer:
        until(lambda: consumer.health().skipped == 1, "the end of its tries")
    assert bodies == [b"body %d" % number for number in range(10) if number != 5]
    assert all("offset 5 of queue 0 of topic 'orders'" in error for error in errors)
    assert len(errors) == 2
