"""Messages that RocketMQ's clients send again: by themselves after a lost answer, and on purpose."""

from __future__ import annotations

import base64
import time

import pytest

from flintmq.protocol.remoting import codes
from tests.conftest import BrokerFactory
from tests.remoting_tools import RemotingBroker, RemotingSocket, batch_body, send_fields

KEY = "7F00000104D2A1B2C3D4000000000001"


def _stored(gateway: RemotingBroker, topic: str) -> list[bytes]:
    with gateway.connect() as remote:
        return [record.body for record in remote.pull(topic)]


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_message_whose_answer_was_lost_is_stored_once(broker: BrokerFactory, topic: str, flush: str) -> None:
    gateway = RemotingBroker(broker, {"flush.policy": flush})
    with gateway.connect() as remote:
        first = remote.produce(topic, b"before")
    with gateway.connect() as remote:
        remote.send(codes.SEND_MESSAGE_V2, send_fields(topic, {"UNIQ_KEY": KEY}), b"body")
        # The answer is never read. The broker has handled the send when it answers the next one.
        remote.produce(topic, b"after")
    with gateway.connect() as remote:
        again = remote.produce(topic, b"body", {"UNIQ_KEY": KEY})
    assert (again.code, again.fields["queueOffset"], again.fields["transactionId"]) == (codes.SUCCESS, "1", KEY)
    assert again.fields["msgId"] > first.fields["msgId"]
    assert _stored(gateway, topic) == [b"before", b"body", b"after"]


def test_a_message_is_stored_once_though_the_broker_was_killed_in_between(broker: BrokerFactory, topic: str) -> None:
    gateway = RemotingBroker(broker)
    with gateway.connect() as remote:
        first = remote.produce(topic, b"body", {"UNIQ_KEY": KEY})
    gateway.running.kill()
    gateway = RemotingBroker(broker, store=gateway.running.store)
    with gateway.connect() as remote:
        again = remote.produce(topic, b"body", {"UNIQ_KEY": KEY})
    assert again.fields["queueOffset"] == first.fields["queueOffset"]
    assert _stored(gateway, topic) == [b"body"]


def test_a_program_that_sends_one_message_twice_gets_two(remote: RemotingSocket, topic: str) -> None:
    offsets = [remote.produce(topic, b"body", {"UNIQ_KEY": KEY}).fields["queueOffset"] for _ in range(3)]
    assert offsets == ["0", "1", "2"]
    assert len(remote.pull(topic)) == 3


def test_a_message_with_another_body_is_another_message(gateway: RemotingBroker, topic: str) -> None:
    for body in (b"one", b"two"):
        with gateway.connect() as remote:
            assert remote.produce(topic, body, {"UNIQ_KEY": KEY}).code == codes.SUCCESS
    assert _stored(gateway, topic) == [b"one", b"two"]


@pytest.mark.parametrize("key", [KEY.lower(), KEY[:-1], KEY + "0", "x" * 32, "order-1"])
def test_keys_of_another_form_are_not_compared(gateway: RemotingBroker, topic: str, key: str) -> None:
    for _ in range(2):
        with gateway.connect() as remote:
            assert remote.produce(topic, b"body", {"UNIQ_KEY": key}).code == codes.SUCCESS
    assert _stored(gateway, topic) == [b"body"] * 2


def test_the_same_key_in_another_topic_is_another_message(gateway: RemotingBroker, topic: str) -> None:
    for name in (topic, f"{topic}-other"):
        with gateway.connect() as remote:
            assert remote.produce(name, b"body", {"UNIQ_KEY": KEY}).fields["queueOffset"] == "0"


def test_batches_are_not_compared(gateway: RemotingBroker, topic: str) -> None:
    for _ in range(2):
        with gateway.connect() as remote:
            fields = send_fields(topic, {}, m=True)
            answer = remote.call(codes.SEND_BATCH_MESSAGE, fields, batch_body((b"body", {"UNIQ_KEY": KEY})))
            assert answer.code == codes.SUCCESS
    assert _stored(gateway, topic) == [b"body"] * 2


def test_a_timed_message_is_stored_once_and_keeps_its_handle(broker: BrokerFactory, topic: str) -> None:
    gateway = RemotingBroker(broker)
    deliver_ms = int(time.time() * 1000) + 3_600_000
    answers = []
    for _ in range(2):
        with gateway.connect() as remote:
            answers.append(remote.produce(topic, b"body", {"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": str(deliver_ms)}))
    first, again = (answer.fields for answer in answers)
    assert first == again
    assert base64.urlsafe_b64decode(first["recallHandle"]).split()[:2] == [b"v1", topic.encode()]
