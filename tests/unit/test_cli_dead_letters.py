"""Resending dead letters: the contents are kept, the properties added on the way are not."""

from __future__ import annotations

import pytest

from flintmq.client import InvalidMessage, StoredMessage
from flintmq.client.operator.dead_letters import DeadQueue, Target, own_properties
from flintmq.protocol.errors import MessageNotFound
from flintmq.protocol.storage.record import Record, encode_properties

SENT = {"colour": "red", "WAIT": "true"}
NOTED = {
    "DELAY": "0",
    "TIMER_DELIVER_MS": "1",
    "TIMER_DELAY_SEC": "1",
    "TIMER_DELAY_MS": "1",
    "TIMER_OUT_MS": "1",
    "REAL_TOPIC": "%RETRY%g",
    "REAL_QID": "0",
    "RETRY_TOPIC": "orders",
    "ORIGIN_MESSAGE_ID": "00" * 16,
    "TRAN_MSG": "true",
    "PGROUP": "p",
    "__transactionId__": "x",
    "TRANSACTION_CHECK_TIMES": "2",
    "__CRC32#": "1",
    "INNER_NUM": "1",
    "INNER_MULTI_QUEUE_OFFSET": "1",
    "RECONSUME_TIME": "3",
    "MAX_RECONSUME_TIMES": "16",
}
MAX = 512 * 1024
OWN = {"KEYS": "a b", "TAGS": "t", "__SHARDINGKEY": "s", "UNIQ_KEY": "7F0000010F8C2DCA0A6B92885F0000AA"}


def dead(**properties: str) -> StoredMessage:
    """Return a dead letter of group g with these properties."""
    record = Record(topic=b"%DLQ%g", body=b"body", properties=encode_properties(properties), queue_offset=7)
    blob = record.encode()
    return StoredMessage(len(blob), 0, blob, "")


def test_a_message_is_resent_with_its_contents_as_a_plain_message() -> None:
    message = Target().message(dead(**SENT, **NOTED, **OWN), MAX)
    assert (message.topic, message.body, message.keys, message.tags) == ("orders", b"body", ("a", "b"), "t")
    assert message.sharding_key == "s"
    assert message.properties == SENT | {"DLQ_ORIGIN_MESSAGE_ID": OWN["UNIQ_KEY"]}
    assert own_properties(dead(**SENT, **NOTED, **OWN)) == SENT


def test_a_message_that_was_a_dead_letter_before_keeps_its_first_id() -> None:
    again = dead(**NOTED, **OWN, DLQ_ORIGIN_MESSAGE_ID="FIRST")
    assert Target().message(again, MAX).properties == {"DLQ_ORIGIN_MESSAGE_ID": "FIRST"}


def test_a_message_goes_to_its_original_topic_or_to_a_given_one() -> None:
    letter = dead(**NOTED)
    assert Target(topic="aside").message(letter, MAX).topic == "aside"
    to_group = Target(to_group="g").message(letter, MAX)
    assert (to_group.topic, to_group.properties["RETRY_TOPIC"]) == ("%RETRY%g", "orders")
    with pytest.raises(InvalidMessage, match="does not record its original topic"):
        Target().message(dead(**SENT), MAX)


def test_offsets_without_stored_messages_are_refused() -> None:
    queue = DeadQueue("g", 0, min_offset=5, next_offset=7, end=10)
    for first, end in ((0, 6), (9, 20), (5, 10)):
        queue.check_has(first, end)
    for first, end in ((0, 5), (10, 11)):
        with pytest.raises(MessageNotFound, match="the queue keeps 5 to 9"):
            queue.check_has(first, end)
    assert queue.waiting == 3
