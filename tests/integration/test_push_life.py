"""A PushConsumer's end, a broker that restarts under it, and a fork."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    ClientClosed,
    ClientFailed,
    ForkedClient,
    ListenerTimeout,
    Message,
    Producer,
    PushConsumer,
    StoredMessage,
)
from flintmq.client.groups.push import requests
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory
from tests.group_tools import Seen, numbered, until


class TestLife:
    def test_close_waits_for_running_listeners_and_commits(self, clients: Clients, address: str, topic: str) -> None:
        go_on, began = threading.Event(), threading.Event()

        def listener(message: StoredMessage) -> None:
            began.set()
            go_on.wait(60)

        with clients.Producer(address) as producer, clients.Consumer(address) as plain:
            producer.send(Message(topic, b"x"), queue=0)
            consumer = clients.PushConsumer(address, topic, topic, listener, start="first").start()
            began.wait(60)
            timer = threading.Timer(0.2, go_on.set)
            timer.start()
            consumer.close()
            assert go_on.is_set()
            assert plain.committed(topic, topic)[0] == 1
        consumer.close()
        with pytest.raises(ClientClosed):
            consumer.commit()

    def test_a_listener_may_close_its_consumer(self, address: str, topic: str) -> None:
        def listener(message: StoredMessage) -> None:
            consumer.close()

        with Producer(address) as producer, Admin(address) as admin:
            producer.send(Message(topic, b"x"))
            consumer = PushConsumer(address, topic, topic, listener, start="first").start()
            assert consumer.wait(60)
            assert not admin.group(topic).members
            assert sum(queue.lag for queue in admin.group(topic).queues) == 0

    def test_close_does_not_wait_for_a_message_that_was_to_be_tried_again(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        seen = Seen(lambda message: 1 // 0)
        with clients.Producer(address) as producer:
            producer.send(Message(topic, b"x"))
            options: dict[str, Any] = {"start": "first", "orderly": True, "suspend": 3600}
            with clients.PushConsumer(address, topic, topic, seen, **options) as consumer:
                seen.wait(1)
                until(lambda: consumer.health().failed == 1)
            with clients.PushConsumer(address, topic, topic, Seen(seen.messages.append), **options):
                until(lambda: len(seen.messages) == 2)

    def test_close_reports_a_listener_that_does_not_return(self, clients: Clients, address: str, topic: str) -> None:
        go_on, began = threading.Event(), threading.Event()

        def listener(message: StoredMessage) -> None:
            began.set()
            go_on.wait(60)

        with clients.Producer(address) as producer, clients.Admin(address) as admin:
            producer.send(Message(topic, b"x"), queue=0)
            consumer = clients.PushConsumer(address, topic, topic, listener, start="first").start()
            began.wait(60)
            with pytest.raises(ListenerTimeout, match="redelivered to other members"):
                consumer.close(timeout=0.1)
            assert not admin.group(topic).members
            go_on.set()
            seen = Seen()
            with clients.PushConsumer(address, topic, topic, seen, start="first"):
                seen.wait(1)

    def test_a_broker_that_starts_again_is_found_again_and_nothing_is_lost(
        self, clients: Clients, broker: BrokerFactory
    ) -> None:
        running = broker()
        port = running.port
        seen = Seen()
        with clients.Producer(running.address) as producer:
            producer.send_many(numbered("orders", 50))
        with clients.PushConsumer(running.address, "g", "orders", seen, start="first") as consumer:
            seen.wait(50)
            running.kill()
            again = broker("--listen", f"127.0.0.1:{port}", store=running.store)
            with clients.Producer(again.address) as producer:
                producer.send_many([Message("orders", b"after%d" % n) for n in range(50)])
            until(lambda: sum(body.startswith(b"after") for body in seen.bodies) >= 50)
            assert consumer.health().error is None
        assert {body for body in seen.bodies if body.startswith(b"after")} == {b"after%d" % n for n in range(50)}

    def test_an_engine_that_dies_is_never_silent(
        self, clients: Clients, address: str, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: Any) -> None:
            raise ZeroDivisionError("nobody thought of this")

        consumer = clients.PushConsumer(address, topic, topic, Seen(), session_timeout=1).start()
        monkeypatch.setattr(requests, "heart_beat", fail)
        with pytest.raises(ClientFailed, match="nobody thought of this") as failed:
            consumer.wait()
        health = consumer.health()
        assert (health.alive, health.error) == (False, failed.value.cause)
        with pytest.raises(ClientFailed):
            consumer.commit()
        with pytest.raises(ClientFailed):
            consumer.close()


class TestThreads:
    def test_consumers_share_the_thread_that_talks_to_the_broker_and_have_none_while_idle(
        self, address: str, topic: str
    ) -> None:
        before = set(threading.enumerate())
        with contextlib.ExitStack() as members:
            for number in range(20):
                members.enter_context(PushConsumer(address, f"{topic}-{number}", topic, Seen()))
            started = set(threading.enumerate()) - before
            assert {thread.name for thread in started} <= {"flintmq-io"}
        until(lambda: not set(threading.enumerate()) - before, "the end of the thread, which has no members left")

    def test_a_listener_runs_in_as_many_threads_as_there_are_messages_at_most_workers(
        self, address: str, topic: str
    ) -> None:
        go_on = threading.Event()
        names: list[str] = []

        def listener(message: StoredMessage) -> None:
            names.append(threading.current_thread().name)
            go_on.wait(60)

        with (
            Producer(address) as producer,
            PushConsumer(address, topic, topic, listener, start="first", workers=3) as consumer,
        ):
            producer.send(Message(topic, b"x"))
            until(lambda: len(names) == 1, "the first message")
            producer.send_many(numbered(topic, 20))
            until(lambda: len(names) == 3 and consumer.health().pending_messages == 21, "the second and the third")
            go_on.set()
            until(lambda: consumer.health().consumed == 21)
        assert set(names) == {f"flintmq-listener-{topic}"}


def test_a_fork_does_not_take_the_consumer_along(address: str, topic: str) -> None:
    with PushConsumer(address, topic, topic, Seen()) as consumer:
        child = os.fork()
        if not child:
            try:
                consumer.pause()
            except ForkedClient:
                with PushConsumer(address, f"{topic}-child", topic, Seen()) as own:
                    os._exit(0 if own.health().joined else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert consumer.health().alive
