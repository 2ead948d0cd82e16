"""Messages that RocketMQ's consumers send back: when they come again, and when they become dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from flintmq.protocol.storage.delivery import dead_letter_topic, retry_topic
from flintmq.protocol.storage.record import Record, offset_id
from tests.remoting_consumer import HOLD, OWN_SUBSCRIPTION, RemotingConsumer, records_of
from tests.remoting_tools import RemotingSocket


@pytest.fixture
def consumer(remote: RemotingSocket, topic: str, group: str) -> RemotingConsumer:
    """Return a live consumer of the group, for whose topic there is one message."""
    remote.produce(topic, b"m0", {"KEYS": "k"})
    found = RemotingConsumer(remote, group, "client-1")
    found.beat(topic, retry_topic(group))
    return found


def first(consumer: RemotingConsumer, topic: str, **fields: Any) -> Record:
    return records_of(consumer.pull(topic, **fields))[0]


def send_back(consumer: RemotingConsumer, record: Record, **fields: Any) -> RemotingFrame:
    wanted = {
        "group": consumer.group,
        "offset": record.physical_offset,
        "delayLevel": 1,
        "originMsgId": "made-up",
        "originTopic": "made-up",
        "maxReconsumeTimes": 16,
        **fields,
    }
    return consumer.remote.call(codes.CONSUMER_SEND_MSG_BACK, wanted)


def redelivered(consumer: RemotingConsumer, offset: int = 0) -> Record:
    """Wait for a message in the group's retry topic."""
    topic = retry_topic(consumer.group)
    return first(consumer, topic, offset=offset, sysFlag=HOLD, suspendTimeoutMillis=30_000)


def dead_letter(consumer: RemotingConsumer) -> Record:
    """Wait for the group's first dead letter."""
    topic, flags = dead_letter_topic(consumer.group), HOLD | OWN_SUBSCRIPTION
    return first(consumer, topic, sysFlag=flags, subscription="*", suspendTimeoutMillis=30_000)


def test_a_message_comes_again_in_the_retry_topic_with_its_first_id_and_topic(
    consumer: RemotingConsumer, topic: str
) -> None:
    sent = first(consumer, topic)
    assert send_back(consumer, sent).code == codes.SUCCESS
    again = redelivered(consumer)
    properties = again.property_map()
    assert (again.body, again.reconsume_times, properties["KEYS"]) == (b"m0", 1, "k")
    assert properties["RETRY_TOPIC"] == topic
    assert properties["ORIGIN_MESSAGE_ID"] == offset_id(sent.store_host, sent.physical_offset)
    assert send_back(consumer, again).code == codes.SUCCESS
    third = redelivered(consumer, offset=1)
    assert (third.reconsume_times, third.property_map()["ORIGIN_MESSAGE_ID"]) == (2, properties["ORIGIN_MESSAGE_ID"])


@pytest.mark.parametrize("fields", [{"delayLevel": -1}, {"delayLevel": -7}, {"maxReconsumeTimes": 0}])
def test_a_message_becomes_a_dead_letter(consumer: RemotingConsumer, topic: str, fields: dict[str, int]) -> None:
    sent = first(consumer, topic)
    assert send_back(consumer, sent, **fields).code == codes.SUCCESS
    record = dead_letter(consumer)
    assert (record.body, record.property_map()["RETRY_TOPIC"]) == (b"m0", topic)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"group": "never-heard"}, codes.SUBSCRIPTION_GROUP_NOT_EXIST, "never-heard"),
        ({"offset": 999_999_999}, codes.SYSTEM_ERROR, "no message at physical offset 999999999"),
        ({"offset": -1}, codes.INVALID_PARAMETER, "must not be negative"),
        ({"offset": "x"}, codes.INVALID_PARAMETER, "offset must be an integer"),
        ({"delayLevel": 2**40}, codes.INVALID_PARAMETER, "delayLevel must be an integer"),
        ({"group": "a.b"}, codes.INVALID_PARAMETER, "characters that are not allowed"),
    ],
)
def test_a_message_that_cannot_be_sent_back(
    consumer: RemotingConsumer, topic: str, fields: dict[str, Any], code: int, words: str
) -> None:
    answer = send_back(consumer, first(consumer, topic), **fields)
    assert answer.code == code
    assert words in answer.remark
