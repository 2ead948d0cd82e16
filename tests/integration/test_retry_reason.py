"""The reason of a failure, from the listener's exception to the dead letter: with both push consumers."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from flintmq.client import Admin, GiveUp, Message, Producer, StoredMessage
from tests.client_drivers import Clients
from tests.group_tools import Seen, until


def send(address: str, topic: str, count: int = 1) -> None:
    with Producer(address) as producer, Admin(address) as admin:
        admin.create_topic(topic, queues=1)
        producer.send_many([Message(topic, b"%d" % number, keys=f"o-{number}") for number in range(count)])


def test_a_listeners_error_comes_with_the_next_attempt_and_the_dead_letter(
    clients: Clients, address: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: StoredMessage) -> None:
        if message.reconsume_times:
            raise KeyError("second")
        raise ValueError("no such account\nbut a second line")

    send(address, topic)
    seen = Seen(fail)
    options: dict[str, Any] = {"start": "first", "delay_level": 1, "retry_times_max": 1, "member": f"{topic}-m"}
    with (
        caplog.at_level(logging.WARNING, "flintmq"),
        clients.PushConsumer(address, topic, topic, seen, **options) as consumer,
        clients.Consumer(address) as plain,
    ):
        until(lambda: consumer.health().dead == 1)
        (dead,) = plain.pull(f"%DLQ%{topic}")
    first, second = seen.messages
    assert first.retry_reason is None
    assert (second.retry_reason, second.retry_member) == ("ValueError: no such account", f"{topic}-m")
    assert (dead.retry_reason, dead.retry_member) == ("KeyError: 'second'", f"{topic}-m")
    assert not dead.user_properties, "what the broker noted is not the sender's"
    said = [record for record in caplog.records if record.name.startswith("flintmq.client.groups.push")]
    assert all(f"group {topic}" in record.getMessage() for record in said)
    failures = [record.getMessage() for record in said if first.message_id in record.getMessage()]
    assert any("ValueError" in text and "try 1" in text for text in failures)
    assert any("KeyError" in text and "try 2" in text for text in failures)
    assert any(f"%DLQ%{topic}" in text and "key o-0" in text for text in failures)


def test_a_consumer_that_may_not_say_why_keeps_it_to_itself(clients: Clients, address: str, topic: str) -> None:
    def fail(message: StoredMessage) -> None:
        raise GiveUp("personal data")

    send(address, topic)
    with (
        clients.PushConsumer(address, topic, topic, Seen(fail), start="first", retry_reason=False) as consumer,
        clients.Consumer(address) as plain,
    ):
        until(lambda: consumer.health().dead == 1)
        (dead,) = plain.pull(f"%DLQ%{topic}")
    assert dead.retry_reason is None
    assert b"personal data" not in bytes(dead.record)


def test_each_message_has_its_own_reason(clients: Clients, address: str, topic: str) -> None:
    def fail(message: StoredMessage) -> None:
        raise GiveUp(f"order {message.body.decode()} is not there")

    send(address, topic, 600)
    with (
        clients.PushConsumer(address, topic, topic, Seen(fail), start="first") as consumer,
        clients.Consumer(address) as plain,
    ):
        until(lambda: consumer.health().dead == 600)
        dead = list(plain.iter(f"%DLQ%{topic}", until="latest"))
    assert {message.body.decode(): message.retry_reason for message in dead} == {
        str(number): f"order {number} is not there" for number in range(600)
    }


def test_the_last_orderly_attempt_carries_the_reason(clients: Clients, address: str, topic: str) -> None:
    def fail(message: StoredMessage) -> None:
        raise ValueError("never")

    send(address, topic)
    options: dict[str, Any] = {"start": "first", "orderly": True, "retry_times_max": 2, "suspend": 0.01}
    with (
        clients.PushConsumer(address, topic, topic, Seen(fail), **options) as consumer,
        clients.Consumer(address) as plain,
    ):
        until(lambda: consumer.health().dead == 1)
        (dead,) = plain.pull(f"%DLQ%{topic}")
    assert dead.retry_reason == "ValueError: never"


def test_a_listener_that_did_not_come_back_is_the_reason(clients: Clients, address: str, topic: str) -> None:
    forever = threading.Event()
    seen = Seen(lambda message: not message.reconsume_times and forever.wait(60))
    send(address, topic)
    options: dict[str, Any] = {"start": "first", "workers": 1, "listener_timeout": 0.3, "delay_level": 1}
    try:
        with clients.PushConsumer(address, topic, topic, seen, **options):
            _, again = seen.wait(2)
    finally:
        forever.set()
    assert again.retry_reason == "the listener did not return within 0.3 s"
