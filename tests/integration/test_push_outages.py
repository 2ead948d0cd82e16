"""What a push consumer does while its broker is away, and when it comes back having forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from flintmq.client import Consumer, Message, Producer, PushConsumer, StoredMessage
from tests.conftest import BrokerFactory

WAIT_SECONDS = 30.0
NEVER_PERSISTED = {"flush.checkpoint_interval_ms": 3_600_000}


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {WAIT_SECONDS:.0f} s"
        time.sleep(0.01)


def test_progress_that_a_killed_broker_forgot_is_told_again_although_nothing_new_comes(broker: BrokerFactory) -> None:
    running = broker(settings=NEVER_PERSISTED)
    seen: list[StoredMessage] = []
    with Producer(running.address) as producer, Consumer(running.address) as reader:
        for _ in range(10):
            producer.send(Message("orders", b"..."), queue=0)
        with PushConsumer(running.address, "g", "orders", seen.append, start="first", commit_interval=0.05) as consumer:
            until(lambda: reader.committed("g", "orders").get(0) == 10, "the commit")
            consumer.pause()  # or the answers to pulls would have it committed after a while
            running.kill()
            broker("--listen", running.address, store=running.store, settings=NEVER_PERSISTED)
            until(lambda: reader.committed("g", "orders").get(0) == 10, "the commit after the broker was killed")
    assert len(seen) == 10


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
