"""Failures in orderly mode while the member does other things: it leaves, its queue moves, it gives up."""

from __future__ import annotations

import threading
from typing import Any

from flintmq.client import GiveUp, Message, StoredMessage
from tests.client_drivers import Clients
from tests.group_tools import WAIT_SECONDS, Seen, until

LONG_SECONDS = 300.0
"""Longer than any test may take."""


def send(clients: Clients, address: str, topic: str, *bodies: bytes, queue: int = 0) -> None:
    with clients.Producer(address) as producer:
        producer.send_many([Message(topic, body) for body in bodies], queue=queue)


def send_together(clients: Clients, address: str, topic: str, seen: Seen, *bodies: bytes) -> None:
    """Send once the member knows that its listener is quick, because it then hands out several messages at a time."""
    warm_up = 30
    for number in range(warm_up):
        send(clients, address, topic, b"warm-up")
        seen.wait(number + 1)
    send(clients, address, topic, *bodies)


def without_warm_up(seen: Seen) -> list[bytes]:
    return [body for body in seen.bodies if body != b"warm-up"]


def always_fails(message: StoredMessage) -> None:
    raise ValueError(f"{message.body!r} again")


def test_a_member_leaves_at_once_although_a_failed_message_waits_to_be_tried_again(
    clients: Clients, address: str, topic: str
) -> None:
    send(clients, address, topic, b"0")
    seen = Seen(always_fails)
    consumer = clients.PushConsumer(address, topic, topic, seen, start="first", orderly=True, suspend=LONG_SECONDS)
    with consumer:
        until(lambda: consumer.health().failed == 1)
    with clients.Admin(address) as admin:
        assert admin.group(topic).members == []


def test_a_queue_moves_at_once_although_a_failed_message_waits_to_be_tried_again(
    clients: Clients, address: str, topic: str
) -> None:
    for queue in range(4):
        send(clients, address, topic, b"%d" % queue, queue=queue)
    failing, other = Seen(always_fails), Seen()
    options: dict[str, Any] = {"start": "first", "orderly": True, "suspend": LONG_SECONDS}
    with clients.PushConsumer(address, topic, topic, failing, **options) as first:
        until(lambda: first.health().failed == 4)
        with clients.PushConsumer(address, topic, topic, other, **options):
            assert len(other.wait(2)) == 2


def test_messages_handled_before_a_failure_are_not_redelivered_if_the_member_leaves(
    clients: Clients, address: str, topic: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail_when_told(message: StoredMessage) -> None:
        if message.body == b"3":
            begun.set()
            assert go_on.wait(WAIT_SECONDS)
            raise ValueError("once more")

    first, second = Seen(fail_when_told), Seen()
    consumer = clients.PushConsumer(address, topic, topic, first, start="first", orderly=True, suspend=LONG_SECONDS)
    with consumer:
        send_together(clients, address, topic, first, *[b"%d" % number for number in range(6)])
        assert begun.wait(WAIT_SECONDS)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        until(lambda: consumer.health().giving_up > 0)
        go_on.set()
        closing.join(WAIT_SECONDS)
    with clients.PushConsumer(address, topic, topic, second, start="first", orderly=True):
        second.wait(3)
    assert without_warm_up(first) == [b"0", b"1", b"2", b"3"]
    assert second.bodies == [b"3", b"4", b"5"]


def test_an_abandoned_message_becomes_a_dead_letter_even_if_a_later_one_fails(
    clients: Clients, address: str, topic: str
) -> None:
    failed: list[bytes] = []

    def give_up_one_and_fail_with_another(message: StoredMessage) -> None:
        if message.body == b"1":
            raise GiveUp
        if message.body == b"3" and not failed:
            failed.append(message.body)
            raise ValueError("once more")

    seen = Seen(give_up_one_and_fail_with_another)
    with clients.PushConsumer(address, topic, topic, seen, start="first", orderly=True, suspend=0.01) as consumer:
        send_together(clients, address, topic, seen, *[b"%d" % number for number in range(5)])
        until(lambda: b"4" in seen.bodies and consumer.health().dead == 1)
    with clients.Consumer(address) as plain:
        assert plain.pull(f"%DLQ%{topic}").bodies() == [b"1"]
    assert without_warm_up(seen) == [b"0", b"1", b"2", b"3", b"3", b"4"]
