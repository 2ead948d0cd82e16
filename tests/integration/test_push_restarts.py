"""Push consumers whose broker is stopped in order and started again, and whose connection breaks while they send."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, PushConsumer, StoredMessage, TryLater
from flintmq.client.aio.connection import Connection
from flintmq.client.core.rpc.operation import Operation
from flintmq.protocol import commands
from flintmq.protocol.commands import Command
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory
from tests.group_tools import WAIT_SECONDS, Seen, until

RESTARTS = 5
QUEUES = 4


class Member:
    """A push consumer that records the bodies it has handled; its listener waits while ``let_through`` is clear."""

    def __init__(self, clients: Clients, address: str, group: str, **options: Any) -> None:
        self.group = group
        self.let_through = threading.Event()
        self.let_through.set()
        self.seen = Seen(lambda _: self.let_through.wait(WAIT_SECONDS))
        self.consumer = clients.PushConsumer(
            address, group, group, self.seen, start="first", commit_interval=0.05, **options
        )

    def wait_for(self, bodies: set[bytes]) -> None:
        """Wait until each body was handled, once or more often."""
        until(lambda: bodies <= set(self.seen.bodies), f"handling the rest by group {self.group}")


def test_every_message_is_handled_after_any_number_of_broker_restarts(clients: Clients, broker: BrokerFactory) -> None:
    """Idle members wait in held pulls, busy ones have a stream of messages, full ones have no room for another pull."""
    running = broker()
    groups = ("idle", "busy", "full")
    with Admin(running.address) as admin:
        for group in groups:
            admin.create_topic(group, queues=QUEUES)
    idle = Member(clients, running.address, "idle")
    busy = Member(clients, running.address, "busy")
    full = Member(clients, running.address, "full", prefetch_messages=2 * QUEUES, workers=2)
    members = {"idle": idle, "busy": busy, "full": full}
    with (
        idle.consumer,
        busy.consumer,
        full.consumer,
        Producer(running.address, delivery_timeout=WAIT_SECONDS) as producer,
    ):
        sent: dict[str, set[bytes]] = {group: set() for group in groups}
        for restart in range(RESTARTS):
            send(producer, sent, "full", f"{restart} before", 10)
            full.let_through.clear()
            streaming = threading.Thread(target=send, args=(producer, sent, "busy", f"{restart} stream", 50))
            streaming.start()
            assert running.stop() == 0
            running = broker("--listen", running.address, store=running.store)
            streaming.join()
            full.let_through.set()
            for group, member in members.items():
                send(producer, sent, group, f"{restart} after", 1)
                member.wait_for(sent[group])
            for member in members.values():
                health = member.consumer.health()
                assert (health.alive, health.error) == (True, None)
                assert health.trouble is None
        with Admin(running.address) as admin:
            for group in groups:
                until(partial(has_no_lag, admin, group), "the commit")


def has_no_lag(admin: Admin, group: str) -> bool:
    return not any(queue.lag for queue in admin.group(group).queues)


def send(producer: Producer, sent: dict[str, set[bytes]], topic: str, what: str, count: int) -> None:
    """Send ``count`` messages to each queue."""
    for number in range(count):
        for queue in range(QUEUES):
            body = f"{what} {queue} {number}".encode()
            producer.send(Message(topic, body), queue=queue)
            sent[topic].add(body)


class Breaking:
    """Breaks the connection once, just before the first request of ``command`` is sent on it, by a simulated system
    error.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self.broken = threading.Event()
        self.armed = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make all connections of this process watch for the request."""
        request = Connection.request

        def breaking(connection: Connection, operation: Operation[Any]) -> int:
            if self.armed and operation.command is self.command and not self.broken.is_set():
                self.broken.set()
                assert connection._transport is not None
                connection._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            return request(connection, operation)

        monkeypatch.setattr(Connection, "request", breaking)


@pytest.mark.parametrize(
    "command", [commands.PULL, commands.UPDATE_CONSUMER_OFFSET, commands.HEART_BEAT, commands.CONSUMER_SEND_MSG_BACK]
)
def test_messages_pending_at_a_connection_loss_are_sent_on_the_next_connection(
    monkeypatch: pytest.MonkeyPatch, broker: BrokerFactory, command: Command
) -> None:
    running = broker()
    breaking = Breaking(command)
    breaking.install(monkeypatch)
    tried: list[bytes] = []

    def listener(message: StoredMessage) -> None:
        tried.append(message.body)
        if message.body == b"fails" and tried.count(b"fails") == 1:
            raise TryLater(1)

    with Producer(running.address) as producer, Consumer(running.address) as reader, Admin(running.address) as admin:
        admin.create_topic("orders", queues=QUEUES)
        with PushConsumer(
            running.address, "g", "orders", listener, start="first", commit_interval=0.05, session_timeout=1.0
        ) as consumer:
            for queue in range(QUEUES):
                producer.send(Message("orders", b"before"), queue=queue)
            until(lambda: reader.committed("g", "orders") == dict.fromkeys(range(QUEUES), 1), "the first commit")
            breaking.armed = True
            producer.send(Message("orders", b"fails"), queue=0)
            assert breaking.broken.wait(WAIT_SECONDS)
            for queue in range(QUEUES):
                producer.send(Message("orders", b"after"), queue=queue)
            until(lambda: tried.count(b"fails") >= 2, "the second try")
            until(lambda: tried.count(b"after") >= QUEUES, "what came after")
            until(lambda: reader.committed("g", "orders") == {0: 3, 1: 2, 2: 2, 3: 2}, "the last commit")
            assert consumer.health().alive


def test_a_member_that_cannot_say_good_bye_has_left_all_the_same(
    monkeypatch: pytest.MonkeyPatch, broker: BrokerFactory
) -> None:
    running = broker()
    breaking = Breaking(commands.UNREGISTER_CLIENT)
    breaking.install(monkeypatch)
    breaking.armed = True
    consumer = PushConsumer(running.address, "g", "orders", Seen(), session_timeout=1.0).start()
    consumer.close(WAIT_SECONDS)
    assert breaking.broken.is_set()
    with Admin(running.address) as admin:
        until(lambda: not admin.group("g").members, "the end of its session")
