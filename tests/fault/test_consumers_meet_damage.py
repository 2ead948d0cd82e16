"""Consumers whose next message is damaged, in a part of the log that no start has looked at."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.broker.tools.repair import examine, repair
from flintmq.client import BrokerFailure, Consumer, Message, Producer, PushConsumer
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
