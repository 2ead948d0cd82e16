"""Pulls and offsets of RocketMQ's clients: every result code, its remark and the offset to continue from."""

from __future__ import annotations

import time
from typing import Any

import pytest

from flintmq.broker.background.held_pulls import TIMER_RESOLUTION_S
from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from tests.conftest import BrokerFactory
from tests.remoting_consumer import COMMIT, HOLD, OWN_SUBSCRIPTION, RemotingConsumer, records_of, subscription
from tests.remoting_tools import RemotingBroker, RemotingSocket


@pytest.fixture
def consumer(remote: RemotingSocket, topic: str) -> RemotingConsumer:
    """Yield a live consumer of a group of its own, which subscribes to all messages of the test's topic."""
    found = RemotingConsumer(remote, f"g-{topic}", "client-1")
    assert found.beat(topic).code == codes.SUCCESS
    return found


def fill(remote: RemotingSocket, topic: str, count: int, **properties: str) -> None:
    for number in range(count):
        answer = remote.produce(topic, f"m{number}".encode(), {"TAGS": "ab"[number % 2], **properties})
        assert answer.code == codes.SUCCESS, answer.remark


def shown(answer: RemotingFrame) -> tuple[int, str, int]:
    return answer.code, answer.remark, int(answer.fields["nextBeginOffset"])


def test_messages_are_found_and_the_fields_name_the_ends_of_the_queue(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 3)
    answer = consumer.pull(topic, offset=1)
    assert shown(answer) == (codes.SUCCESS, "FOUND", 3)
    assert [record.body for record in records_of(answer)] == [b"m1", b"m2"]
    rest = ("suggestWhichBrokerId", "minOffset", "maxOffset", "topicSysFlag", "groupSysFlag")
    assert [answer.fields[name] for name in rest] == ["0", "0", "3", "0", "0"]


@pytest.mark.parametrize(
    ("count", "offset", "expected"),
    [
        (2, 2, (codes.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 2)),
        (0, 0, (codes.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 0)),
        (2, 3, (codes.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 2)),
        (2, -1, (codes.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0)),
        (0, 5, (codes.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0)),
    ],
)
def test_an_offset_without_messages(
    consumer: RemotingConsumer, topic: str, count: int, offset: int, expected: tuple[int, str, int]
) -> None:
    fill(consumer.remote, topic, max(count, 1))  # creates the topic; queue 1 stays empty
    assert shown(consumer.pull(topic, queue=0 if count else 1, offset=offset)) == expected


def test_a_pull_that_no_message_matches_passes_over_them(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 3)
    assert consumer.beat(subscription(topic, "none || other")).code == codes.SUCCESS
    assert shown(consumer.pull(topic)) == (codes.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", 3)


def test_a_held_pull_is_answered_by_a_new_message_or_at_its_end(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 1)
    wanted = consumer.pull_fields(topic, offset=1, sysFlag=HOLD, suspendTimeoutMillis=30_000)
    held = consumer.remote.send(codes.PULL_MESSAGE, wanted)
    fill(consumer.remote, topic, 1)
    answer = consumer.remote.receive_for(held)
    assert shown(answer) == (codes.SUCCESS, "FOUND", 2)
    assert [record.queue_offset for record in records_of(answer)] == [1]
    began = time.monotonic()
    late = consumer.pull(topic, offset=2, sysFlag=HOLD, suspendTimeoutMillis=300)
    assert shown(late) == (codes.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 2)
    assert time.monotonic() - began >= 0.3 - TIMER_RESOLUTION_S


def test_tags_come_from_the_heartbeat_or_from_the_pull(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 4)
    assert consumer.beat(subscription(topic, "a")).code == codes.SUCCESS
    assert [record.body for record in records_of(consumer.pull(topic))] == [b"m0", b"m2"]
    own = consumer.pull(topic, sysFlag=OWN_SUBSCRIPTION, subscription="b", expressionType="TAG")
    assert [record.body for record in records_of(own)] == [b"m1", b"m3"]
    both = consumer.pull(topic, sysFlag=OWN_SUBSCRIPTION, subscription="a|| b", expressionType="TAG")
    assert len(records_of(both)) == 4


def test_sql92_selects_by_properties(consumer: RemotingConsumer, topic: str) -> None:
    for colour in ("red", "blue"):
        fill(consumer.remote, topic, 1, colour=colour)
    assert consumer.beat(subscription(topic, "colour = 'blue'", "SQL92")).code == codes.SUCCESS
    assert [record.property_map()["colour"] for record in records_of(consumer.pull(topic))] == ["blue"]
    wanted: dict[str, Any] = {
        "sysFlag": OWN_SUBSCRIPTION,
        "subscription": "TAGS = 'a' and colour <> 'blue'",
        "expressionType": "SQL92",
    }
    assert [record.property_map()["colour"] for record in records_of(consumer.pull(topic, **wanted))] == ["red"]


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": "none"}, codes.TOPIC_NOT_EXIST, "topic none does not exist"),
        ({"queueId": 4}, codes.INVALID_PARAMETER, "has no queue 4 to read; it has 4"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, codes.NO_PERMISSION, "not delivered yet"),
        ({"consumerGroup": "CID_RMQ_SYS_x"}, codes.NO_PERMISSION, "reserved for the broker"),
        ({"consumerGroup": "a.b"}, codes.INVALID_PARAMETER, "characters that are not allowed"),
        ({"consumerGroup": "unheard"}, codes.SUBSCRIPTION_NOT_EXIST, "no heartbeat of group unheard"),
        ({"subVersion": 2}, codes.SUBSCRIPTION_NOT_LATEST, "has version 1"),
        (
            {"sysFlag": OWN_SUBSCRIPTION, "subscription": "a =", "expressionType": "SQL92"},
            codes.SUBSCRIPTION_PARSE_FAILED,
            "column",
        ),
        (
            {"sysFlag": OWN_SUBSCRIPTION, "subscription": "a", "expressionType": "LUA"},
            codes.SUBSCRIPTION_PARSE_FAILED,
            "'LUA'",
        ),
        ({"sysFlag": 8}, codes.INVALID_PARAMETER, "filter classes are not supported"),
        ({"queueOffset": "x"}, codes.INVALID_PARAMETER, "queueOffset must be an integer"),
        ({"queueId": -1}, codes.INVALID_PARAMETER, "queueId must be an integer"),
    ],
)
def test_a_pull_that_is_refused_says_why(
    consumer: RemotingConsumer, topic: str, fields: dict[str, Any], code: int, words: str
) -> None:
    fill(consumer.remote, topic, 1)
    answer = consumer.remote.call(codes.PULL_MESSAGE, {**consumer.pull_fields(topic), **fields})
    assert answer.code == code, answer.remark
    assert words in answer.remark


def test_a_topic_of_the_group_that_no_heartbeat_names(consumer: RemotingConsumer, topic: str) -> None:
    other = f"{topic}-other"
    fill(consumer.remote, other, 1)
    answer = consumer.pull(other)
    assert answer.code == codes.SUBSCRIPTION_NOT_EXIST
    assert f"names topic {other}" in answer.remark


def test_a_condition_of_a_heartbeat_that_does_not_parse_is_refused_by_its_pulls(
    consumer: RemotingConsumer, topic: str
) -> None:
    fill(consumer.remote, topic, 1)
    assert consumer.beat(subscription(topic, "a >", "SQL92")).code == codes.SUCCESS
    assert consumer.pull(topic).code == codes.SUBSCRIPTION_PARSE_FAILED


# ---- offsets ----


def test_a_pull_commits_the_offset_that_it_carries(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 3)
    assert consumer.pull(topic, offset=2, sysFlag=COMMIT, commitOffset=2).code == codes.SUCCESS
    assert consumer.committed(topic).fields == {"offset": "2"}
    # A refused pull must not leave an offset of a queue that does not exist.
    assert consumer.pull(topic, queue=9, sysFlag=COMMIT, commitOffset=2).code == codes.INVALID_PARAMETER
    assert consumer.committed(topic, setZeroIfNotFound=False).fields == {"offset": "2"}


def test_a_commit_moves_backwards_too_and_beyond_the_end(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 3)
    for offset in (3, 1, 7):
        assert consumer.commit(topic, offset).code == codes.SUCCESS
        assert consumer.committed(topic).fields == {"offset": str(offset)}
    assert shown(consumer.pull(topic, offset=7)) == (codes.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3)


def test_a_commit_for_an_unknown_group_topic_or_queue_is_refused(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 1)
    assert consumer.commit("none", 1).code == codes.TOPIC_NOT_EXIST
    assert consumer.commit(topic, 1, queue=4).code == codes.INVALID_PARAMETER
    stranger = RemotingConsumer(consumer.remote, "never-heard", "client-1")
    assert stranger.commit(topic, 1).code == codes.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_client_may_pull_with_its_own_subscription_and_commit_before_its_first_heartbeat(
    remote: RemotingSocket, topic: str
) -> None:
    fill(remote, topic, 2)
    unheard = RemotingConsumer(remote, f"g-{topic}", "client-1")
    assert unheard.pull(topic, sysFlag=OWN_SUBSCRIPTION, subscription="*").code == codes.SUCCESS
    assert unheard.commit(topic, 2).code == codes.SUCCESS
    assert unheard.committed(topic).fields == {"offset": "2"}


def test_a_new_group_of_a_young_topic_begins_with_its_first_message(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 2)
    assert consumer.committed(topic).fields == {"offset": "0"}
    refused = consumer.committed(topic, setZeroIfNotFound=False)
    assert (refused.code, refused.remark) == (
        codes.QUERY_NOT_FOUND,
        "Not found, do not set to zero, maybe this group boot first",
    )
    assert consumer.committed(topic, queue=1).code == codes.QUERY_NOT_FOUND, "the queue is empty"


def test_offsets_by_time_are_found_from_both_sides(remote: RemotingSocket, topic: str) -> None:
    def ask(timestamp_ms: int, boundary: str) -> int:
        wanted = {"topic": topic, "queueId": 0, "timestamp": timestamp_ms, "boundaryType": boundary}
        return int(remote.call(codes.SEARCH_OFFSET_BY_TIMESTAMP, wanted).fields["offset"])

    fill(remote, topic, 2)
    reader = RemotingConsumer(remote, f"g-{topic}", "client-1")
    reader.beat(topic)
    while True:  # until the clock has moved on, so that the third message is later
        fill(remote, topic, 1)
        stored = [record.store_timestamp for record in records_of(reader.pull(topic))]
        if stored[-1] > stored[1]:
            break
    first, last, end = stored[0], stored[-1], len(stored)
    at_first, at_last = stored.count(first), stored.index(last)
    assert [ask(first - 1, "LOWER"), ask(first, "LOWER"), ask(last, "LOWER"), ask(last + 1, "LOWER")] == [
        0,
        0,
        at_last,
        end,
    ]
    assert [ask(first - 1, "UPPER"), ask(first, "UPPER"), ask(last, "UPPER"), ask(last + 1, "UPPER")] == [
        0,
        at_first - 1,
        end - 1,
        end - 1,
    ]
    refused = remote.call(
        codes.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": topic, "queueId": 0, "timestamp": 1, "boundaryType": "X"}
    )
    assert refused.code == codes.INVALID_PARAMETER


def test_the_ends_of_a_queue(remote: RemotingSocket, topic: str) -> None:
    fill(remote, topic, 2)
    wanted = {"topic": topic, "queueId": 0}
    assert remote.call(codes.GET_MAX_OFFSET, wanted).fields == {"offset": "2"}
    assert remote.call(codes.GET_MIN_OFFSET, wanted).fields == {"offset": "0"}
    stored = int(remote.call(codes.GET_EARLIEST_MSG_STORETIME, wanted).fields["timestamp"])
    assert 0 <= time.time() * 1000 - stored < 60_000
    empty = remote.call(codes.GET_EARLIEST_MSG_STORETIME, {**wanted, "queueId": 1})
    assert empty.fields == {"timestamp": "-1"}


def test_the_smallest_committed_offset_of_all_groups(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 5)
    other = RemotingConsumer(consumer.remote, f"h-{topic}", "client-1")
    other.beat(topic)
    consumer.commit(topic, 4)
    other.commit(topic, 2)

    def ask(**fields: str) -> bytes:
        return bytes(consumer.remote.call(codes.QUERY_CORRECTION_OFFSET, {"topic": topic, **fields}).body)

    assert ask() == b'{"correctionOffsets":{0:2}}'
    assert ask(filterGroups=other.group) == b'{"correctionOffsets":{0:4}}'
    assert ask(filterGroups=other.group, compareGroup=other.group) == b'{"correctionOffsets":{0:9223372036854775807}}'


def test_after_a_restart_pulls_wait_for_a_heartbeat_and_offsets_are_kept(broker: BrokerFactory, topic: str) -> None:
    gateway = RemotingBroker(broker)
    with gateway.connect() as remote:
        consumer = RemotingConsumer(remote, "g", "client-1")
        consumer.beat(topic)
        fill(remote, topic, 2)
        consumer.commit(topic, 1)
    store = gateway.running.store
    gateway.running.stop()
    again = RemotingBroker(broker, store=store)
    with again.connect() as remote:
        consumer = RemotingConsumer(remote, "g", "client-1")
        assert consumer.pull(topic).code == codes.SUBSCRIPTION_NOT_EXIST
        assert consumer.committed(topic).fields == {"offset": "1"}
        consumer.beat(topic)
        assert [record.body for record in records_of(consumer.pull(topic, offset=1))] == [b"m1"]


def test_a_pull_returns_as_many_messages_as_rocketmqs_at_most(consumer: RemotingConsumer, topic: str) -> None:
    fill(consumer.remote, topic, 33)
    answer = consumer.pull(topic, maxMsgNums=50)
    assert (len(records_of(answer)), answer.fields["nextBeginOffset"]) == (32, "32")
