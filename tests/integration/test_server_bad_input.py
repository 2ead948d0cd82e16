"""Requests that a broker cannot serve: a typed error with the reason, nothing written, no other client affected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.protocol import commands
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, PRODUCE, PULL
from flintmq.protocol.errors import (
    CommitIllegal,
    InvalidParameter,
    MessageIllegal,
    MessageNotFound,
    NoPermission,
    OffsetOutOfRange,
    QueueNotExist,
    TopicExistsAlready,
    TopicNotExist,
    UnknownCommand,
)
from flintmq.protocol.frames import RESPONSE, encode_frame
from tests.conftest import BrokerFactory, ConnectionFactory, RawConnection, RunningBroker, rows


@pytest.fixture
def peer(shared_broker: RunningBroker, connect: ConnectionFactory, topic: str) -> Iterator[RawConnection]:
    """A greeted connection, through which the test's topic with one message in queue 0 was created."""
    connection = connect(shared_broker)
    connection.produce(topic, b"first", queue=0).raise_for_error()
    yield connection
    assert connection.produce(topic, b"last", queue=1).code == 0, "the connection still serves"


# ---- commands and kinds ----


def test_an_unknown_command_gets_an_error_and_the_connection_continues(peer: RawConnection) -> None:
    assert peer.call(9999).code == UnknownCommand.code


def test_an_answer_to_a_request_that_was_not_asked_is_ignored(peer: RawConnection) -> None:
    peer.send_bytes(encode_frame(RESPONSE, 0, 7, {}))
    assert peer.call(commands.GET_ALL_TOPIC_CONFIG).code == 0


def test_one_way_frames_are_never_answered(peer: RawConnection, topic: str) -> None:
    before = peer.runtime_info()["one_way_errors"]
    peer.send_one_way(PRODUCE, {"topic": topic, "count": 1, "queue": 0}, rows([b"one way", {}]))
    for fields in ({}, {"topic": "a/b", "count": 1}, {"topic": topic, "count": 9}, {"topic": topic, "count": "1"}):
        peer.send_one_way(PRODUCE, fields, rows([b"bad", {}]))
    peer.send_one_way(PULL, {"topic": topic, "queue": 0, "offset": 0})
    peer.send_one_way(9999)
    assert peer.runtime_info()["one_way_errors"] - before == 6
    peer.produce(topic, b"behind it", queue=0)
    pulled = peer.pull(topic, offset=2)  # at its own offset the acknowledged message is stored
    assert pulled.fields["max_offset"] == 3


# ---- fields ----

BAD_FIELDS: list[tuple[commands.Command, dict[str, Any]]] = [
    (PRODUCE, {}),
    (PRODUCE, {"topic": "orders"}),
    (PRODUCE, {"topic": 5, "count": 1}),
    (PRODUCE, {"topic": "orders", "count": "1"}),
    (PRODUCE, {"topic": "orders", "count": 0}),
    (PRODUCE, {"topic": "orders", "count": True}),
    (PRODUCE, {"topic": "orders", "count": 1.0}),
    (PRODUCE, {"topic": "orders", "count": 2**31}),
    (PRODUCE, {"topic": "orders", "count": 1, "queue": -2}),
    (PRODUCE, {"topic": "orders", "count": 1, "layout": 2}),
    (PRODUCE, {"topic": "orders", "count": 1, "flush": "perhaps"}),
    (PRODUCE, {"topic": "orders", "count": 1, "unique_first": 2**48}),
    (PRODUCE, {"topic": "orders", "count": 1, "born_ms": -1}),
    (PRODUCE, {"topic": "", "count": 1}),
    (PRODUCE, {"topic": "a/b", "count": 1}),
    (PRODUCE, {"topic": "../../etc", "count": 1}),
    (PRODUCE, {"topic": "a b", "count": 1}),
    (PRODUCE, {"topic": "größe", "count": 1}),
    (PRODUCE, {"topic": "a\n", "count": 1}),
    (PRODUCE, {"topic": "t" * 128, "count": 1}),
    (PULL, {"topic": "orders", "queue": 0}),
    (PULL, {"topic": "orders", "queue": "0", "offset": 0}),
    (PULL, {"topic": "orders", "queue": -1, "offset": 0}),
    (PULL, {"topic": "orders", "queue": 0, "offset": -1}),
    (PULL, {"topic": "orders", "queue": 0, "offset": 0, "max_count": 0}),
    (PULL, {"topic": "orders", "queue": 0, "offset": 0, "wait_ms": 600_001}),
    (PULL, {"topic": "orders", "queue": 0, "offset": 0, "tags": "a || || b"}),
    (PULL, {"topic": "orders", "queue": 0, "offset": 0, "filter": "a = 1 OR " * 500}),
    (PULL, {"topic": "orders", "queue": 0, "offset": 0, "filter": 5}),
    (commands.QUERY_BY_KEY, {"topic": "orders", "key": ""}),
    (commands.QUERY_BY_KEY, {"topic": "orders", "key": "k", "max_count": 65}),
    (commands.QUERY_BY_KEY, {"topic": "orders", "key": "k", "begin_ms": 2, "end_ms": 1}),
    (commands.QUERY_BY_KEY, {"topic": "orders", "key": "k", "cursor": "nonsense"}),
    (commands.VIEW_MESSAGE_BY_ID, {"id": ""}),
    (commands.GET_MAX_OFFSET, {"topic": "orders"}),
    (commands.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "orders", "queue": 0}),
    (commands.QUERY_CONSUMER_OFFSET, {"group": "a/b", "topic": "orders"}),
    (commands.UPDATE_CONSUMER_OFFSET, {"group": "g", "topic": "orders", "count": 1}),
    (commands.UPDATE_CONSUMER_OFFSET, {"group": "g" * 121, "topic": "orders", "count": 1}),
    (commands.UPDATE_AND_CREATE_TOPIC, {"topic": "new", "read_queues": 0}),
    (commands.UPDATE_AND_CREATE_TOPIC, {"topic": "new", "perm": 8}),
    (commands.UPDATE_AND_CREATE_TOPIC, {"topic": "new/"}),
    (commands.DELETE_TOPIC_IN_BROKER, {}),
]


def test_a_field_that_does_not_fit_is_named_and_nothing_is_written(peer: RawConnection, topic: str) -> None:
    before = peer.runtime_info()
    for command, fields in BAD_FIELDS:
        if fields.get("topic") == "orders":
            fields = {**fields, "topic": topic}
        answer = peer.call(command, fields, rows([b"x", {}]))
        assert answer.code == InvalidParameter.code, (command.name, fields, answer.fields)
        assert len(answer.fields["message"]) > 10
    after = peer.runtime_info()
    assert after["write_offset"] == before["write_offset"]
    assert after["topics"] == before["topics"]


def test_a_long_wrong_value_does_not_come_back_whole(peer: RawConnection) -> None:
    answer = peer.pull("\N{PILE OF POO}" * 12_000)
    assert answer.code == TopicNotExist.code
    assert len(answer.fields["message"]) <= 4000


BAD_MESSAGES: dict[str, tuple[dict[str, Any], bytes]] = {
    "an empty body": ({"count": 1}, b""),
    "count says more": ({"count": 2}, rows([b"x", {}])),
    "count says far more": ({"count": 2**31 - 1}, rows([b"x", {}])),
    "count says less": ({"count": 1}, rows([b"x", {}], [b"y", {}])),
    "ends in a message": ({"count": 2}, rows([b"x", {}], [b"y" * 100, {}])[:-50]),
    "bytes behind": ({"count": 1}, rows([b"x", {}]) + b"\x00"),
    "no msgpack": ({"count": 1}, b"\xc1" * 8),
    "a message that is not an array": ({"count": 1}, rows({"body": b"x"})),
    "a body that is a string": ({"count": 1}, rows(["x", {}])),
    "properties that are not a map": ({"count": 1}, rows([b"x", []])),
    "a property that is not a string": ({"count": 1}, rows([b"x", {"a": 1}])),
    "a property that is bad UTF-8": ({"count": 1}, b"\x92\xc4\x01x\x81\xa1a\xa1\xff"),
    "an empty property": ({"count": 1}, rows([b"x", {"a": ""}])),
    "a property without a name": ({"count": 1}, rows([b"x", {"": "a"}])),
    "a separator in a property": ({"count": 1}, rows([b"x", {"a": "b\x01c"}])),
    "another separator in a name": ({"count": 1}, rows([b"x", {"a\x02": "b"}])),
    "a property that harms readers": ({"count": 1}, rows([b"x", {"INNER_NUM": "x"}])),
    "another one": ({"count": 1}, rows([b"x", {"REAL_TOPIC": "x"}])),
    "a delay that is not a number": ({"count": 1}, rows([b"x", {"DELAY": "x"}])),
    "a flag that is not an integer": ({"count": 1}, rows([b"x", {}, "0"])),
    "five items": ({"count": 1}, rows([b"x", {}, 0, 0, 0])),
    "a body above the limit": ({"count": 1}, rows([bytes(512 * 1024), {}])),
    "properties above the limit": ({"count": 1}, rows([b"x", {"a": "b" * 32_767}])),
    "nesting": ({"count": 1}, b"\x91" * 5000),
    "an array of four billion": ({"count": 1}, b"\xdd\xff\xff\xff\xff"),
    "columns: one": ({"count": 1, "layout": 1}, rows([b"x"])),
    "columns: different counts": ({"count": 2, "layout": 1}, rows([b"x", b"y"], ["k"])),
    "columns: a key that is an integer": ({"count": 1, "layout": 1}, rows([b"x"], [5])),
    "columns: a body that is a string": ({"count": 1, "layout": 1}, rows(["x"], [None])),
    "columns: bytes behind": ({"count": 1, "layout": 1}, rows([b"x"], [None], 5)),
    "common: an empty value": ({"count": 1, "common": "a\x01\x02"}, rows([b"x", {}])),
    "common: what harms readers": ({"count": 1, "common": "INNER_BASE\x011\x02"}, rows([b"x", {}])),
    "common: no separator": ({"count": 1, "common": "abc"}, rows([b"x", {}])),
    "a prefix that is not hex": ({"count": 1, "unique_prefix": "x" * 20}, rows([b"x", {}])),
    "a prefix that is short": ({"count": 1, "unique_prefix": "A" * 18}, rows([b"x", {}])),
}


def test_a_frame_with_one_bad_message_is_refused_whole_and_nothing_is_written(peer: RawConnection, topic: str) -> None:
    before = peer.runtime_info()
    for name, (fields, body) in BAD_MESSAGES.items():
        answer = peer.call(PRODUCE, {"topic": topic, "queue": 0, **fields}, body)
        assert answer.code == MessageIllegal.code, (name, answer.fields)
        assert len(answer.fields["message"]) > 10, name
    after = peer.runtime_info()
    assert after["write_offset"] == before["write_offset"]
    assert after["produced_messages"] == before["produced_messages"]
    assert peer.pull(topic).fields["max_offset"] == 1


def test_one_bad_message_refuses_the_whole_frame(peer: RawConnection, topic: str) -> None:
    good = [[f"good {number}".encode(), {"KEYS": f"k{number}"}] for number in range(100)]
    answer = peer.call(PRODUCE, {"topic": topic, "queue": 0, "count": 101}, rows(*good, [b"bad", {"KEYS": ""}]))
    assert answer.code == MessageIllegal.code
    assert answer.fields["message_index"] == 100
    assert peer.pull(topic).fields["max_offset"] == 1


def test_a_produce_frame_above_its_limit_is_refused_with_the_limit(peer: RawConnection, topic: str) -> None:
    answer = peer.call(PRODUCE, {"topic": topic, "count": 20}, rows(*[[bytes(60_000), {}]] * 20))
    assert answer.code == MessageIllegal.code
    assert answer.fields["produce_frame_bytes_max"] == 1024 * 1024


def test_a_frame_of_too_many_messages_is_refused_with_the_limit(peer: RawConnection, topic: str) -> None:
    answer = peer.call(PRODUCE, {"topic": topic, "queue": 0, "count": 16_385}, rows([b"", {}]) * 16_385)
    assert answer.code == MessageIllegal.code
    assert answer.fields["produce_messages_max"] == 16_384
    assert "the maximum is 16384; split it" in answer.fields["message"]
    whole = peer.call(PRODUCE, {"topic": topic, "queue": 0, "count": 16_384}, rows([b"", {}]) * 16_384)
    assert whole.code == 0


# ---- topics and queues ----


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (PULL, {"queue": 0, "offset": 0}),
        (commands.QUERY_BY_KEY, {"key": "k"}),
        (commands.GET_MAX_OFFSET, {"queue": 0}),
        (commands.GET_MIN_OFFSET, {"queue": 0}),
        (commands.GET_EARLIEST_MSG_STORETIME, {"queue": 0}),
        (commands.SEARCH_OFFSET_BY_TIMESTAMP, {"queue": 0, "timestamp_ms": 0}),
        (commands.GET_TOPIC_STATS_INFO, {}),
        (commands.DELETE_TOPIC_IN_BROKER, {}),
        (commands.QUERY_CONSUMER_OFFSET, {"group": "g"}),
        (commands.UPDATE_CONSUMER_OFFSET, {"group": "g", "count": 1}),
        (commands.VIEW_MESSAGE_BY_ID, {"id": "A" * 32}),
    ],
    ids=lambda value: value.name if isinstance(value, commands.Command) else "",
)
def test_an_unknown_topic_is_named(
    shared_broker: RunningBroker, connect: ConnectionFactory, command: Any, fields: dict[str, Any]
) -> None:
    answer = connect(shared_broker).call(command, {"topic": "nowhere", **fields}, CONSUMER_OFFSET_STRUCT.pack(0, 0))
    assert answer.code == TopicNotExist.code
    assert "nowhere" in answer.fields["message"]


def test_an_unknown_queue_is_refused(peer: RawConnection, topic: str) -> None:
    for command, fields in (
        (PULL, {"offset": 0}),
        (commands.GET_MAX_OFFSET, {}),
        (commands.GET_MIN_OFFSET, {}),
        (commands.GET_EARLIEST_MSG_STORETIME, {}),
        (commands.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp_ms": 0}),
        (PRODUCE, {"count": 1}),
    ):
        answer = peer.call(command, {"topic": topic, "queue": 4, **fields}, rows([b"x", {}]))
        assert answer.code == QueueNotExist.code, command.name
        assert "4" in answer.fields["message"]
    assert peer.produce(f"{topic}-fresh", b"x", queue=4).code == QueueNotExist.code
    assert peer.pull(f"{topic}-fresh").code == TopicNotExist.code


def test_an_offset_outside_of_the_queue_is_refused_with_both_ends(peer: RawConnection, topic: str) -> None:
    with pytest.raises(OffsetOutOfRange) as refused:
        peer.pull(topic, offset=2).raise_for_error()
    assert (refused.value.min_offset, refused.value.max_offset) == (0, 1)
    assert peer.pull(topic, offset=2**63 - 1, wait_ms=10_000).code == OffsetOutOfRange.code


@pytest.mark.parametrize(
    "system_topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_anything", "TBW102"]
)
def test_the_broker_s_own_topics_are_not_for_users(peer: RawConnection, system_topic: str) -> None:
    assert peer.produce(system_topic, b"x").code == NoPermission.code
    assert peer.call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": system_topic}).code == NoPermission.code
    assert peer.call(commands.DELETE_TOPIC_IN_BROKER, {"topic": system_topic}).code == NoPermission.code


def test_a_topic_keeps_its_queues(peer: RawConnection, topic: str) -> None:
    answer = peer.call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": topic, "read_queues": 3, "write_queues": 3})
    assert answer.code == TopicExistsAlready.code
    more = {"topic": topic, "read_queues": 6, "write_queues": 6}
    assert peer.call(commands.UPDATE_AND_CREATE_TOPIC, more).code == 0
    assert peer.produce(topic, b"x", queue=5).code == 0


def test_permissions_of_a_topic_hold(peer: RawConnection, topic: str) -> None:
    assert peer.call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": f"{topic}-readonly", "perm": 4}).code == 0
    assert peer.produce(f"{topic}-readonly", b"x").code == NoPermission.code
    assert peer.pull(f"{topic}-readonly").code != NoPermission.code
    assert peer.call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": f"{topic}-writeonly", "perm": 2}).code == 0
    assert peer.produce(f"{topic}-writeonly", b"x").code == 0
    assert peer.pull(f"{topic}-writeonly").code == NoPermission.code


def test_without_auto_create_an_unknown_topic_is_refused(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    connection = connect(broker(settings={"topics.auto_create": False}))
    assert connection.produce("orders", b"x").code == TopicNotExist.code
    assert connection.call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": "orders"}).code == 0
    assert connection.produce("orders", b"x").code == 0


# ---- consumer offsets, ids ----


def test_commits_that_cannot_be_right_are_refused_whole(peer: RawConnection, topic: str) -> None:
    def commit(*entries: tuple[int, int], count: int | None = None) -> int:
        body = b"".join(CONSUMER_OFFSET_STRUCT.pack(*entry) for entry in entries)
        fields = {"group": "g", "topic": topic, "count": len(entries) if count is None else count}
        return int(peer.call(commands.UPDATE_CONSUMER_OFFSET, fields, body).code)

    assert commit((0, 1), (4, 0)) == QueueNotExist.code
    assert commit((0, 1), (-1, 0)) == QueueNotExist.code
    assert commit((0, 1), (1, 99)) == CommitIllegal.code
    assert commit((0, -1)) == InvalidParameter.code
    assert commit((0, 1), count=2) == InvalidParameter.code
    asked = peer.call(commands.QUERY_CONSUMER_OFFSET, {"group": "g", "topic": topic})
    assert asked.fields["count"] == 0
    assert commit((0, 1)) == 0
    asked = peer.call(commands.QUERY_CONSUMER_OFFSET, {"group": "g", "topic": topic})
    assert asked.body == CONSUMER_OFFSET_STRUCT.pack(0, 1)


@pytest.mark.parametrize(
    "message_id", ["A" * 32, "0" * 31 + "1", "7F00000100002A9F0000000000000001", "F" * 56, "x", " " * 32]
)
def test_an_id_that_nothing_has_is_not_found(peer: RawConnection, message_id: str) -> None:
    assert peer.call(commands.VIEW_MESSAGE_BY_ID, {"id": message_id}).code == MessageNotFound.code
