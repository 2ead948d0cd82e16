"""Push consumers while their broker is away, and after it returns without its state."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, PushConsumer, StoredMessage
from tests.conftest import BrokerFactory
from tests.group_tools import WAIT_SECONDS, until

NEVER_PERSISTED = {"background.services:CHECKPOINT_S": 3_600}


def test_offsets_lost_by_a_killed_broker_are_committed_again_without_new_messages(broker: BrokerFactory) -> None:
    running = broker(settings=NEVER_PERSISTED)
    seen: list[StoredMessage] = []
    with Producer(running.address) as producer, Consumer(running.address) as reader:
        for _ in range(10):
            producer.send(Message("orders", b"..."), queue=0)
        with PushConsumer(running.address, "g", "orders", seen.append, start="first", commit_interval=0.05) as consumer:
            until(lambda: reader.committed("g", "orders").get(0) == 10, "the commit")
            consumer.pause()  # or else the responses to pulls would make it commit after a while
            running.kill()
            broker("--listen", running.address, store=running.store, settings=NEVER_PERSISTED)
            until(lambda: reader.committed("g", "orders").get(0) == 10, "the commit after the broker was killed")
    assert len(seen) == 10


@pytest.mark.parametrize("member", [None, "m-1"])
def test_a_broadcasting_member_misses_nothing_that_was_sent_before_it_came_back(
    broker: BrokerFactory, member: str | None
) -> None:
    running = broker()
    with Admin(running.address) as admin:
        admin.create_topic("orders", queues=1)
    seen: list[bytes] = []
    with PushConsumer(
        running.address, "g", "orders", lambda message: seen.append(message.body), mode="broadcasting", member=member
    ):
        with Producer(running.address) as producer:
            producer.send(Message("orders", b"first"))
        until(lambda: seen == [b"first"], "the first message")
        running.kill()
        elsewhere = broker(store=running.store)
        with Producer(elsewhere.address) as producer:
            producer.send_bulk("orders", [b"second", b"third"])
        elsewhere.kill()
        broker("--listen", running.address, store=running.store)
        until(lambda: seen == [b"first", b"second", b"third"], "the messages of the time without the member")


def test_close_lets_a_listener_finish_although_the_broker_is_away(broker: BrokerFactory) -> None:
    running = broker()
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    handled: list[StoredMessage] = []

    def listener(message: StoredMessage) -> None:
        begun.set()
        assert go_on.wait(WAIT_SECONDS)
        handled.append(message)

    with Producer(running.address) as producer:
        producer.send(Message("orders", b"..."))
    consumer = PushConsumer(running.address, "g", "orders", listener, start="first").start()
    assert begun.wait(WAIT_SECONDS)
    running.kill()

    def close() -> None:
        consumer.close(WAIT_SECONDS)
        closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    assert not closed.wait(0.5)
    go_on.set()
    closing.join(WAIT_SECONDS)
    assert closed.is_set()
    assert len(handled) == 1


def test_a_message_that_fails_and_that_retention_took_is_tried_here_and_given_up_in_the_end(
    broker: BrokerFactory,
) -> None:
    running = broker(
        settings={
            "retention.file_reserved_hours": 0,
            "background.services:RETENTION_CHECK_S": 0.05,
            "retention.delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
        }
    )
    gone = threading.Event()
    tries: list[int] = []

    def fail(message: StoredMessage) -> None:
        if message.body == b"gone":
            gone.wait(60)
            tries.append(message.reconsume_times)
            raise ValueError("no")

    options: dict[str, Any] = {"start": "first", "retry_times_max": 2, "suspend": 0.01, "workers": 2}
    with Producer(running.address) as producer, Consumer(running.address) as plain:
        producer.send(Message("orders", b"gone"), queue=0)
        with PushConsumer(running.address, "g", "orders", fail, **options) as consumer:
            while plain.min_offset("orders") == 0:
                producer.send(Message("orders", bytes(400_000)), queue=0)
            gone.set()
            until(lambda: consumer.health().skipped == 1)
            assert consumer.health().error is None
    assert tries == [0, 0, 0]
