"""Messages that RocketMQ's consumers send again by themselves, and delayed and timed messages of producers."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from tests.remoting_tools import RemotingBroker, RemotingSocket

KEY = "7F00000104D2A1B2C3D4000000000001"


def _group_of(gateway: RemotingBroker, group: str) -> None:
    """Let the group exist, as a consumer's heartbeat does."""
    with gateway.connect() as consumer:
        consumer.heart_beat("c", (), ({"groupName": group, "subscriptionDataSet": []},))


@pytest.mark.parametrize(
    ("fields", "dead"),
    [
        ({"j": 1, "l": 3}, False),
        ({"j": 3, "l": 3}, False),
        ({"j": 4, "l": 3}, True),
        ({"j": 1, "l": 0}, True),
        ({"j": 16}, False),
        ({"j": 17}, True),
    ],
)
def test_a_message_goes_to_the_retry_topic_until_its_attempts_are_used_up(
    gateway: RemotingBroker, group: str, fields: dict[str, Any], dead: bool
) -> None:
    _group_of(gateway, group)
    with gateway.connect() as remote:
        answer = remote.produce(f"%RETRY%{group}", b"again", {"UNIQ_KEY": KEY, "RETRY_TOPIC": "t"}, **fields)
        assert answer.code == codes.SUCCESS, answer.remark
        (record,) = remote.pull(f"%DLQ%{group}" if dead else f"%RETRY%{group}")
    assert (record.body, record.reconsume_times) == (b"again", fields["j"])
    properties = record.property_map()
    assert (properties["RETRY_TOPIC"], properties["UNIQ_KEY"]) == ("t", KEY)
    assert properties.get("DELAY") == ("0" if dead else None)


def test_each_attempt_of_one_message_is_stored_though_its_key_is_the_same(gateway: RemotingBroker, group: str) -> None:
    _group_of(gateway, group)
    for attempt in (1, 2):
        with gateway.connect() as remote:
            remote.produce(f"%RETRY%{group}", b"again", {"UNIQ_KEY": KEY}, j=attempt)
    with gateway.connect() as remote:
        assert [record.reconsume_times for record in remote.pull(f"%RETRY%{group}")] == [1, 2]


def test_a_retried_message_of_a_transaction_is_no_half_message(gateway: RemotingBroker, group: str) -> None:
    _group_of(gateway, group)
    properties = {"UNIQ_KEY": KEY, "TRAN_MSG": "true", "PGROUP": "p", "DELAY": "1", "REAL_TOPIC": "x"}
    with gateway.connect() as remote:
        assert remote.produce(f"%RETRY%{group}", b"again", properties, j=1).code == codes.SUCCESS
        (record,) = remote.pull(f"%RETRY%{group}", wait_ms=10_000)
    assert (record.body, record.reconsume_times) == (b"again", 1)


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "1"},
        {"TIMER_DELAY_SEC": "1"},
        {"TIMER_DELAY_MS": "900"},
        {"TIMER_DELIVER_MS": "in a second"},
        {"DELAY": "1", "TIMER_DELAY_SEC": "3600"},
        {"TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "3600000"},
    ],
    ids=["level", "seconds", "milliseconds", "time", "a level excludes a time", "seconds come first"],
)
def test_a_delayed_message_arrives_later(remote: RemotingSocket, topic: str, properties: dict[str, str]) -> None:
    if "TIMER_DELIVER_MS" in properties:
        properties = {"TIMER_DELIVER_MS": str(int(time.time() * 1000) + 1_000)}
    sent_at = time.time()
    answer = remote.produce(topic, b"later", {"UNIQ_KEY": KEY, **properties}, j=2)
    assert (answer.code, answer.fields["queueId"]) == (codes.SUCCESS, "0")
    assert ("recallHandle" in answer.fields) == ("DELAY" not in properties)
    assert remote.pull(topic) == []
    (record,) = remote.pull(topic, wait_ms=10_000)
    assert time.time() > sent_at + 0.8
    assert (record.body, record.reconsume_times, record.property_map()["UNIQ_KEY"]) == (b"later", 2, KEY)


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "0"},
        {"DELAY": "-1"},
        {"TIMER_DELIVER_MS": "1000"},
        {"TIMER_DELIVER_MS": "-5"},
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_MS": "-1"},
    ],
)
def test_a_time_that_has_passed_means_now(remote: RemotingSocket, topic: str, properties: dict[str, str]) -> None:
    answer = remote.produce(topic, b"now", properties)
    assert answer.code == codes.SUCCESS
    assert "recallHandle" not in answer.fields
    (record,) = remote.pull(topic)
    assert record.body == b"now"
    assert properties.items() <= record.property_map().items(), "the message keeps it"


def test_the_handle_of_a_timed_message_names_it(remote: RemotingSocket, topic: str) -> None:
    deliver_ms = (int(time.time()) + 3_600) * 1_000 + 250
    answer = remote.produce(topic, properties={"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": str(deliver_ms)})
    handle = base64.urlsafe_b64decode(answer.fields["recallHandle"]).decode()
    assert handle.split(" ") == ["v1", topic, handle.split(" ")[2], str(deliver_ms - 250 + 1), KEY]
