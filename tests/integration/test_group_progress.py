"""Consumer groups over the wire: commits, an operator's commands, and queues of which retention deleted a part."""

from __future__ import annotations

import json
from typing import Any

import msgpack

from flintmq.protocol import commands
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT
from flintmq.protocol.errors import (
    CommitIllegal,
    EpochFenced,
    GroupNotExist,
    GroupRunning,
    InvalidParameter,
    MemberUnknown,
    OffsetOutOfRange,
    QueueNotExist,
)
from flintmq.protocol.storage.record import decode_record
from tests.conftest import BrokerFactory, ConnectionFactory, RawConnection
from tests.group_tools import Members, RawMember
from tests.store_tools import split_answer


def test_progress_only_grows_and_never_beyond_the_log(filled: str, member: Members, peer: RawConnection) -> None:
    first = member("a", start="first")
    first.beat(filled)
    assert first.commit(filled, 0, 2).code == 0
    assert first.commit(filled, 0, 1).code == 0
    beyond = first.commit(filled, 0, 4)
    assert (beyond.code, beyond.fields["max_offset"]) == (CommitIllegal.code, 3)
    assert first.commit(filled, 7, 0).code == QueueNotExist.code
    asked = peer.call(commands.QUERY_CONSUMER_OFFSET, {"group": first.group, "topic": filled, "queue": 0})
    assert asked.body == CONSUMER_OFFSET_STRUCT.pack(0, 2)


def test_a_commit_counts_for_the_queues_that_the_member_holds_and_names_the_others(
    filled: str, member: Members, peer: RawConnection
) -> None:
    first, second = member("a", start="first"), member("b", start="first")
    first.beat(filled)
    second.beat(filled)
    first.beat()
    first.beat(owned=[(filled, queue) for queue in first.queues])
    second.beat()
    assert sorted(first.queues + second.queues) == [0, 1, 2, 3]
    fields = {"group": first.group, "topic": filled, "count": 4, "member": "a", "epoch": first.epoch}
    body = b"".join(CONSUMER_OFFSET_STRUCT.pack(queue, 2) for queue in range(4))
    refused = peer.call(commands.UPDATE_CONSUMER_OFFSET, fields, body)
    assert (refused.code, list(refused.fields["refused"])) == (EpochFenced.code, second.queues)
    asked = peer.call(commands.QUERY_CONSUMER_OFFSET, {"group": first.group, "topic": filled})
    committed = dict(CONSUMER_OFFSET_STRUCT.iter_unpack(asked.body))
    assert committed == dict.fromkeys(first.queues, 2) | dict.fromkeys(second.queues, 0)


def test_while_a_group_runs_no_other_client_commits_for_it(filled: str, member: Members, peer: RawConnection) -> None:
    first = member("a", start="first")
    first.beat(filled)
    fields = {"group": first.group, "topic": filled, "count": 1}
    refused = peer.call(commands.UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, 3))
    assert refused.code == GroupRunning.code
    stranger = {**fields, "member": "b", "epoch": first.epoch}
    refused = peer.call(commands.UPDATE_CONSUMER_OFFSET, stranger, CONSUMER_OFFSET_STRUCT.pack(0, 3))
    assert refused.code == MemberUnknown.code


def reset(peer: RawConnection, group: str, topic: str, **fields: Any) -> Any:
    body = b"".join(CONSUMER_OFFSET_STRUCT.pack(*entry) for entry in fields.pop("offsets", ()))
    count = len(body) // CONSUMER_OFFSET_STRUCT.size
    wanted = {"group": group, "topic": topic, "count": count, **fields}
    return peer.call(commands.INVOKE_BROKER_TO_RESET_OFFSET, wanted, body)


def test_a_running_group_is_reset_only_by_force_and_starts_again(
    filled: str, member: Members, peer: RawConnection
) -> None:
    first = member("a", start="first")
    first.beat(filled)
    first.commit(filled, 0, 3).raise_for_error()
    refused = reset(peer, first.group, filled, to="first")
    assert refused.code == GroupRunning.code
    done = reset(peer, first.group, filled, to="first", queue=0, force=True)
    assert done.body == CONSUMER_OFFSET_STRUCT.pack(0, 0)
    assert first.commit(filled, 0, 3).code == EpochFenced.code, "what ran before the reset does not undo it"
    first.connection.wait_until_told()
    before = first.rows[filled, 0][1]
    first.beat()
    assert first.rows[filled, 0][0] == 0
    assert first.rows[filled, 0][1] > before
    assert first.commit(filled, 0, 1).code == 0


def test_an_empty_group_is_reset_to_any_offset_that_the_queues_hold(filled: str, peer: RawConnection) -> None:
    def offsets(answer: Any) -> dict[int, int]:
        return dict(CONSUMER_OFFSET_STRUCT.iter_unpack(answer.raise_for_error().body))

    group = f"idle-{filled}"
    assert offsets(reset(peer, group, filled, to="last")) == dict.fromkeys(range(4), 3)
    assert offsets(reset(peer, group, filled, to="first")) == dict.fromkeys(range(4), 0)
    assert offsets(reset(peer, group, filled, to="time", timestamp_ms=2**50)) == dict.fromkeys(range(4), 3)
    assert offsets(reset(peer, group, filled, to="offset", offsets=[(1, 2)])) == {1: 2}
    assert reset(peer, group, filled, to="offset", offsets=[(1, 4)]).code == CommitIllegal.code
    assert reset(peer, group, filled, to="offset", offsets=[(4, 0)]).code == QueueNotExist.code
    assert reset(peer, group, filled, to="offset").code == InvalidParameter.code
    assert reset(peer, group, filled, to="noon").code == InvalidParameter.code


def test_a_group_is_shown_and_deleted_when_it_is_empty(filled: str, member: Members, peer: RawConnection) -> None:
    first = member("a", start="first")
    first.beat(filled)
    first.pull(filled, 1, 0, max_count=2).raise_for_error()
    first.commit(filled, 1, 1).raise_for_error()
    shown = msgpack.unpackb(peer.call(commands.GET_CONSUMER_CONNECTION_LIST, {"group": first.group}).body)
    assert [each["member"] for each in shown["members"]] == ["a"]
    (own,) = [row for row in shown["queues"] if row[:2] == [filled, 1]]
    assert own[:8] == [filled, 1, "a", 1, 2, 0, 3, True]
    assert own[8] > 0  # when the next message was stored
    listed = msgpack.unpackb(peer.call(commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    mine = next(row for row in listed if row["group"] == first.group)
    assert (mine["state"], mine["members"], mine["topics"]) == ("stable", 1, [filled])
    assert peer.call(commands.DELETE_SUBSCRIPTIONGROUP, {"group": first.group}).code == GroupRunning.code
    first.connection.call(commands.UNREGISTER_CLIENT, {"group": first.group, "member": "a"}).raise_for_error()
    peer.call(commands.DELETE_SUBSCRIPTIONGROUP, {"group": first.group}).raise_for_error()
    assert peer.call(commands.GET_CONSUMER_CONNECTION_LIST, {"group": first.group}).code == GroupNotExist.code
    assert peer.call(commands.DELETE_SUBSCRIPTIONGROUP, {"group": first.group}).code == GroupNotExist.code


# ---- messages deleted by retention ----


def test_a_group_at_expired_messages_is_moved_forward_with_an_event(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker(
        settings={
            "retention.file_reserved_hours": 0,
            "background.services:RETENTION_CHECK_S": 0.05,
            "retention.delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
        }
    )
    peer = connect(running)
    first = RawMember(connect(running), "g", "a", start="first")
    peer.produce("orders", bytes(400_000), queue=0).raise_for_error()
    first.beat("orders")
    while peer.call(commands.GET_MIN_OFFSET, {"topic": "orders", "queue": 0}).fields["offset"] == 0:
        peer.produce("orders", bytes(400_000), queue=0).raise_for_error()
    moved = first.pull("orders", 0, 0)
    assert moved.code == OffsetOutOfRange.code
    committed = peer.call(commands.QUERY_CONSUMER_OFFSET, {"group": "g", "topic": "orders", "queue": 0})
    ((_, next_offset),) = CONSUMER_OFFSET_STRUCT.iter_unpack(committed.body)
    assert next_offset >= moved.fields["min_offset"] > 0
    first.pull("orders", 0, 0)
    answer = peer.pull("OFFSET_MOVED_EVENT", 0, 0, wait_ms=10_000)
    events = [json.loads(decode_record(blob).body) for blob in split_answer(answer.body, answer.fields["count"])]
    assert events[0] == {
        "consumerGroup": "g",
        "messageQueue": {"brokerName": "flintmq", "queueId": 0, "topic": "orders"},
        "offsetNew": moved.fields["min_offset"],
        "offsetRequest": 0,
    }
    fetched = first.pull("orders", 0, next_offset)
    while fetched.code == OffsetOutOfRange.code:  # retention deletes more
        fetched = first.pull("orders", 0, fetched.fields["min_offset"])
    assert fetched.code == 0
