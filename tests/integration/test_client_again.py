"""A stored message that is sent again: with everything that its sender set, and nothing that the broker added."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, PushConsumer, StoredMessage, TryLater
from flintmq.client.groups.push.outcome import GiveUp
from tests.group_tools import until

if TYPE_CHECKING:
    from tests.conftest import RunningBroker


def only(address: str, topic: str) -> StoredMessage:
    """Return the only message of a topic."""
    with Consumer(address) as consumer:
        (message,) = consumer.iter(topic, until="latest")
        return message


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"plain"),
        Message("t", b"ab" * 9000, keys=["o-1", "o-2"], tags="eu", properties={"source": "web"}, sharding_key="c-7"),
        Message("t", b"later", properties={"a": "b"}, delay=timedelta(milliseconds=1)),
    ],
)
def test_a_resent_message_equals_the_sent_one(shared_broker: RunningBroker, topic: str, message: Message) -> None:
    address, other = shared_broker.address, f"{topic}-other"
    sent = Message(
        topic,
        message.body,
        keys=message.keys,
        tags=message.tags,
        properties=message.properties,
        sharding_key=message.sharding_key,
        delay=message.delay,
    )
    with Producer(address) as producer, Admin(address) as admin:
        producer.send(sent)
        until(lambda: sum(queue.max_offset for queue in admin.topic_stats(topic)) == 1)
        again = Message.again(only(address, topic))
        assert (again.topic, again.body, again.keys, again.tags) == (topic, sent.body, sent.keys, sent.tags)
        assert (again.properties, again.sharding_key, again.delay) == (sent.properties, sent.sharding_key, None)
        producer.send(Message.again(only(address, topic), other))
    copy, original = only(address, other), only(address, topic)
    assert (copy.body, copy.keys, copy.tags) == (original.body, original.keys, original.tags)
    assert copy.user_properties == original.user_properties == dict(message.properties)
    assert copy.message_id != original.message_id


def test_a_dead_letter_is_resent_without_the_notes_of_its_attempts(shared_broker: RunningBroker, topic: str) -> None:
    address = shared_broker.address

    def fail(message: StoredMessage) -> None:
        raise GiveUp("no such account") if message.reconsume_times else TryLater(1)

    with Producer(address) as producer:
        producer.send(Message(topic, b"x", keys="o-1", properties={"source": "web"}))
        with PushConsumer(address, topic, topic, fail, start="first") as consumer:
            until(lambda: consumer.health().dead == 1)
        dead = only(address, f"%DLQ%{topic}")
        assert dead.properties["RETRY_TOPIC"] == topic
        producer.send(Message.again(dead, f"{topic}-again"))
    again = only(address, f"{topic}-again")
    assert (again.body, again.keys, dict(again.user_properties)) == (b"x", ("o-1",), {"source": "web"})
    assert set(again.properties) == {"KEYS", "UNIQ_KEY", "source"}
    assert again.reconsume_times == 0
