"""Messages that are sent back: RocketMQ's rules for their topic, level, count and properties."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flintmq.broker.delivery.redelivery import Redelivered, RetryPolicy, redelivered
from flintmq.protocol.storage.delivery import dead_letter_topic
from flintmq.protocol.storage.layout import PRODUCED_PROPERTIES_BYTES_MAX, SysFlag
from flintmq.protocol.storage.record import Record, encode_properties, offset_id
from tests.store_tools import BORN_HOST, HOST


def stored(reconsume_times: int = 0, **properties: str) -> Record:
    return Record(
        topic=b"orders",
        body=b"x",
        properties=encode_properties({"KEYS": "k", **properties}),
        queue_id=3,
        queue_offset=7,
        physical_offset=4711,
        flag=5,
        sys_flag=SysFlag.COMPRESSED | SysFlag.TRANSACTION_COMMIT,
        born_timestamp=1,
        born_host=BORN_HOST,
        store_host=HOST,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=9,
    )


def send_back(record: Record, level: int = 0, times_max: int = 16, reason: str = "", member: str = "") -> Redelivered:
    return redelivered(record, "g", RetryPolicy(level, member=member), times_max, reason)


def test_the_first_retry_waits_at_level_3_and_remembers_its_origin() -> None:
    back = send_back(stored())
    record, properties = back.record, back.record.property_map()
    assert not back.dead
    assert (record.topic, record.queue_id, record.reconsume_times) == (b"SCHEDULE_TOPIC_XXXX", 2, 1)
    assert properties == {
        "KEYS": "k",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": offset_id(HOST, 4711),
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }
    assert (record.body, record.flag, record.sys_flag, record.born_timestamp) == (b"x", 5, SysFlag.COMPRESSED, 1)
    assert record.prepared_transaction_offset == 0


@pytest.mark.parametrize(("tried", "asked", "level"), [(1, 0, 4), (14, 0, 17), (15, 0, 18), (40, 0, 18), (5, 2, 2)])
def test_each_time_it_waits_longer_unless_a_level_is_asked_for(tried: int, asked: int, level: int) -> None:
    back = send_back(stored(tried), asked, 100)
    assert back.record.property_map()["DELAY"] == str(level)
    assert back.record.queue_id == level - 1


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_the_first_topic_and_id_stay_after_any_number_of_retries(topic: str) -> None:
    retried = stored(4, RETRY_TOPIC="payments", ORIGIN_MESSAGE_ID="FIRST", DELAY="6")
    properties = send_back(replace(retried, topic=topic.encode())).record.property_map()
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("payments", "FIRST")


@pytest.mark.parametrize("level", [0, -1])
def test_properties_of_a_producer_do_not_set_a_messages_origin(level: int) -> None:
    chosen = stored(RETRY_TOPIC="payments", ORIGIN_MESSAGE_ID="FIRST", RETRY_REASON="none", RETRY_MEMBER="nobody")
    properties = send_back(chosen, level).record.property_map()
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("orders", offset_id(HOST, 4711))
    assert not properties.keys() & {"RETRY_REASON", "RETRY_MEMBER"}


@pytest.mark.parametrize(
    ("tried", "level", "most", "dead"),
    [(15, 0, 16, False), (16, 0, 16, True), (0, -1, 16, True), (0, 0, 0, True), (0, 5, 1, False)],
)
def test_a_message_becomes_a_dead_letter_after_the_last_attempt_or_on_request(
    tried: int, level: int, most: int, dead: bool
) -> None:
    back = send_back(stored(tried), level, most)
    assert back.dead == dead
    if dead:
        assert (back.record.topic.decode(), back.record.queue_id) == (dead_letter_topic("g"), 0)
        assert back.record.property_map()["DELAY"] == "0"
        assert back.record.reconsume_times == tried + 1


def test_a_checksum_of_the_record_before_is_dropped() -> None:
    record = stored()
    record.properties += b"__CRC32#\x010123456789\x02"
    assert "__CRC32#" not in send_back(record).record.property_map()


def test_the_newest_attempt_sets_or_removes_the_reason() -> None:
    first = send_back(stored(), 0, 16, "ValueError: no such account", "host@1").record
    properties = first.property_map()
    assert (properties["RETRY_REASON"], properties["RETRY_MEMBER"]) == ("ValueError: no such account", "host@1")
    second = send_back(first, 0, 16, "TimeoutError", "host@2").record
    properties = second.property_map()
    assert (properties["RETRY_REASON"], properties["RETRY_MEMBER"]) == ("TimeoutError", "host@2")
    assert not {"RETRY_REASON", "RETRY_MEMBER"} & send_back(second, -1, 16).record.property_map().keys()


def test_a_reason_is_one_line_that_cannot_end_its_property() -> None:
    back = send_back(stored(), 0, 16, "a\x02RETRY_TOPIC\x01elsewhere\x02\nb\u2028c", "m\x02KEYS\x01x\x02")
    properties = back.record.property_map()
    assert properties["RETRY_REASON"] == "a RETRY_TOPIC elsewhere  b c"
    assert (properties["RETRY_TOPIC"], properties["KEYS"]) == ("orders", "k")


@pytest.mark.parametrize("others", [31_000, *range(31_560, 31_620), 31_720, 32_500])
def test_a_reason_that_does_not_fit_beside_the_other_properties_is_cut_or_dropped(others: int) -> None:
    """The other properties have at most 31,743 bytes when produced, which leaves the broker 1,024 for its own."""
    record = stored(x="y" * others)
    without = len(send_back(record).record.properties)
    back = send_back(record, 0, 16, "äöü€ 12345", "")
    cut = back.record.property_map().get("RETRY_REASON", "")
    assert "äöü€ 12345".startswith(cut)
    room = PRODUCED_PROPERTIES_BYTES_MAX - without - len("RETRY_REASON") - 2
    whole = len("äöü€ 12345".encode())
    assert len(cut.encode()) == whole if room >= whole else max(0, room - 2) <= len(cut.encode()) <= max(0, room)
    assert len(back.record.properties) <= max(PRODUCED_PROPERTIES_BYTES_MAX, without)
