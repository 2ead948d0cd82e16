"""Consumer groups over the wire: joining, and queues that change hands."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from flintmq.protocol import commands
from flintmq.protocol.errors import (
    EpochFenced,
    FilterIllegal,
    GroupNotExist,
    InvalidParameter,
    MemberNameTaken,
    MemberUnknown,
    NoPermission,
    SubscriptionIllegal,
)
from flintmq.protocol.storage.record import decode_record
from tests.conftest import BrokerFactory, ConnectionFactory, RawConnection
from tests.group_tools import Members, RawMember
from tests.store_tools import split_answer

# ---- joining ----


def test_the_first_member_gets_every_queue_from_its_start_rule(filled: str, member: Members) -> None:
    first = member("a", start="first")
    first.beat(filled)
    assert {queue: row[0] for queue, row in first.rows.items() if queue[0] == filled} == {
        (filled, n): 0 for n in range(4)
    }


def test_a_group_with_start_last_begins_at_the_end_and_keeps_that_offset(filled: str, member: Members) -> None:
    first = member("a")
    first.beat(filled)
    assert {row[0] for row in first.rows.values()} == {3}
    first.connection.produce(filled, b"3", queue=0)
    first.connection.call(commands.UNREGISTER_CLIENT, {"group": first.group, "member": "a"}).raise_for_error()
    second = member("b")
    second.beat(filled)
    assert second.rows[filled, 0][0] == 3, "a message sent while no member was there is not lost"


def test_with_time_a_group_begins_at_that_store_time(filled: str, member: Members, peer: RawConnection) -> None:
    record = decode_record(split_answer(peer.pull(filled, 0, 1).body, 2)[0])
    first = member("a", start="time", start_ms=record.store_timestamp)
    first.beat(filled)
    assert first.rows[filled, 0][0] <= 1
    later = member("a", start="time", start_ms=record.store_timestamp + 60_000)
    later.group += "-later"
    later.beat(filled)
    assert later.rows == {}  # it begins when the broker has that time


def test_a_topic_made_after_it_was_asked_for_is_read_from_its_first_message(
    topic: str, member: Members, peer: RawConnection
) -> None:
    first = member("a")
    first.beat(topic)
    assert first.rows == {}
    peer.produce(topic, b"x", queue=2).raise_for_error()
    first.connection.wait_until_told()
    first.beat()
    assert {queue: row[0] for queue, row in first.rows.items()} == {(topic, n): 0 for n in range(4)}


def test_queues_that_are_added_are_read_from_their_first_message(
    filled: str, member: Members, peer: RawConnection
) -> None:
    first = member("a")
    first.beat(filled)
    peer.call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": filled, "read_queues": 6, "write_queues": 6})
    peer.produce(filled, b"x", queue=5).raise_for_error()
    first.connection.wait_until_told()
    first.beat()
    assert first.rows[filled, 5][0] == 0
    assert first.rows[filled, 0][0] == 3


def test_two_live_members_of_one_name_are_one_too_many(filled: str, member: Members) -> None:
    first, second = member("same"), member("same")
    first.beat(filled)
    refused = second.beat(filled)
    assert refused.code == MemberNameTaken.code
    assert "live member 'same'" in refused.fields["message"]
    assert first.beat().code == 0
    assert first.queues == [0, 1, 2, 3]


def test_a_name_is_free_again_when_its_connection_is_gone_and_the_one_before_is_fenced(
    filled: str, member: Members
) -> None:
    first, second = member("same"), member("same")
    first.beat(filled)
    first.connection.close()
    second.beat(filled)
    while second.epoch == 0:  # the broker may notice the end of the connection a little later
        second.beat(filled)
    assert second.queues == [0, 1, 2, 3]
    zombie = member("same")
    zombie.epoch = first.epoch
    fenced = zombie.beat()
    assert fenced.code == EpochFenced.code
    assert zombie.commit(filled, 0, 1).code == EpochFenced.code
    assert zombie.pull(filled, 0, 3).code == EpochFenced.code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"mode": "both"}, InvalidParameter.code),
        ({"start": "middle"}, InvalidParameter.code),
        ({"kind": "spectator"}, InvalidParameter.code),
        ({"session_timeout_ms": 10}, InvalidParameter.code),
        ({"member": ""}, InvalidParameter.code),
        ({"group": "no/slash"}, InvalidParameter.code),
    ],
)
def test_an_invalid_heartbeat_is_refused_and_no_member_joins(
    filled: str, member: Members, fields: dict[str, Any], code: int
) -> None:
    first = member("a")
    assert first.beat(filled, **fields).code == code
    asked = first.connection.call(commands.GET_CONSUMER_CONNECTION_LIST, {"group": first.group})
    assert asked.code == GroupNotExist.code


@pytest.mark.parametrize(
    ("subscriptions", "code"),
    [
        ([["t/x", "", ""]], InvalidParameter.code),
        ([["t", "a || ", ""]], InvalidParameter.code),
        ([["t", "", "a >"]], FilterIllegal.code),
        ([["t", "", ""], ["t", "a", ""]], InvalidParameter.code),
        ([["RMQ_SYS_TRANS_HALF_TOPIC", "", ""]], NoPermission.code),
        ([["SCHEDULE_TOPIC_XXXX", "", ""]], NoPermission.code),
        (["t"], InvalidParameter.code),
        ({"t": ""}, InvalidParameter.code),
        ([[f"t{n}", "", ""] for n in range(1001)], InvalidParameter.code),
        ([["t", "a" * 4_097, ""]], InvalidParameter.code),
        ([[f"t{n}", "a" * 4_000, ""] for n in range(33)], InvalidParameter.code),
        ([["t", 1, ""]], InvalidParameter.code),
        ([["t", "", []]], InvalidParameter.code),
    ],
)
def test_a_subscription_that_cannot_be_is_refused(
    peer: RawConnection, group: str, subscriptions: Any, code: int
) -> None:
    body = msgpack.packb([subscriptions, []])
    assert peer.call(commands.HEART_BEAT, {"group": group, "member": "a"}, body).code == code
    assert peer.call(commands.HEART_BEAT, {"group": group, "member": "a"}, b"\xc1").code == InvalidParameter.code


@pytest.mark.parametrize("queue", [float("inf"), float("nan"), 1.0, -1, 2**64 - 1, True, None, "0", [], {}])
def test_a_member_that_claims_an_unknown_queue_is_refused(peer: RawConnection, group: str, queue: Any) -> None:
    body = msgpack.packb([[["t", "", ""]], [["t", queue]]])
    refused = peer.call(commands.HEART_BEAT, {"group": group, "member": "a"}, body)
    assert refused.code == InvalidParameter.code
    assert "the body is not msgpack [[[topic, tags, filter]" in refused.fields["message"]


@pytest.mark.parametrize("wrong", [b"", b"\x90", b"\x92\x90", b"\x92\x90\x90\x00", b"\x92\x90\xdd\xff\xff\xff\xff"])
def test_a_heartbeat_with_less_or_more_than_its_body_is_refused(peer: RawConnection, group: str, wrong: bytes) -> None:
    assert peer.call(commands.HEART_BEAT, {"group": group, "member": "a"}, wrong).code == InvalidParameter.code


def test_members_with_different_subscriptions_cannot_share_a_group(filled: str, member: Members) -> None:
    first, second = member("a"), member("b")
    first.beat(filled)
    body = msgpack.packb([[[filled, "eu", ""]], []])
    refused = second.connection.call(commands.HEART_BEAT, {"group": second.group, "member": "b"}, body)
    assert refused.code == SubscriptionIllegal.code
    assert "'a'" in refused.fields["message"]
    assert second.beat(filled, mode="broadcasting").code == SubscriptionIllegal.code
    assert second.beat(filled).code == 0


# ---- queues change hands ----


def test_a_queue_is_given_up_before_the_next_member_gets_it(filled: str, member: Members) -> None:
    first, second = member("a", start="first"), member("b", start="first")
    first.beat(filled)
    second.beat(filled)
    assert second.queues == []
    assert first.connection.wait_until_told().code == commands.NOTIFY_CONSUMER_IDS_CHANGED.code
    had = list(first.rows)
    first.beat(owned=had)
    kept = first.queues
    assert len(kept) == 2
    given = [n for n in range(4) if n not in kept]
    second.beat()
    assert second.queues == [], "the first one still has messages of them"
    assert first.commit(filled, given[0], 2).code == 0, "and may say how far it came"
    first.beat(owned=[(filled, n) for n in kept])
    second.connection.wait_until_told()
    second.beat()
    assert second.queues == given
    assert second.rows[filled, given[0]][0] == 2
    assert first.commit(filled, given[0], 3).code == EpochFenced.code
    assert first.pull(filled, given[0], 0).code == EpochFenced.code
    assert second.pull(filled, given[0], 2).code == 0


def test_a_member_that_leaves_is_replaced_at_once(filled: str, member: Members) -> None:
    first, second = member("a"), member("b")
    first.beat(filled)
    second.beat(filled)
    left = {"group": first.group, "member": "a", "epoch": first.epoch}
    first.connection.call(commands.UNREGISTER_CLIENT, left).raise_for_error()
    second.connection.wait_until_told()
    second.beat()
    assert second.queues == [0, 1, 2, 3]
    assert first.beat().code == MemberUnknown.code
    assert first.connection.call(commands.UNREGISTER_CLIENT, left).code == MemberUnknown.code


def test_a_silent_member_is_replaced_within_its_timeout(filled: str, member: Members) -> None:
    first, second = member("a", session_timeout_ms=1_000), member("b", session_timeout_ms=60_000)
    first.beat(filled)
    second.beat(filled)
    second.connection.wait_until_told()
    second.beat()
    assert second.queues == [0, 1, 2, 3]
    assert first.commit(filled, 0, 3).code == MemberUnknown.code


def test_a_pull_that_waits_is_refused_when_its_queue_is_gone(filled: str, member: Members, peer: RawConnection) -> None:
    first, second = member("a"), member("b")
    first.beat(filled)
    second.beat(filled)
    first.beat()
    given = [n for n in range(4) if n not in first.queues]
    wanted = {"topic": filled, "queue": given[0], "offset": 3, "wait_ms": 60_000}
    waiting = first.connection.send(
        commands.PULL, {**wanted, "group": first.group, "member": "a", "epoch": first.epoch}
    )
    first.beat(owned=[(filled, n) for n in first.queues])
    peer.produce(filled, b"new", queue=given[0]).raise_for_error()
    assert first.connection.receive_for(waiting).code == EpochFenced.code


def test_broadcasting_gives_every_member_every_queue_and_a_progress_of_its_own(filled: str, member: Members) -> None:
    first, second = member("a", mode="broadcasting", start="first"), member("b", mode="broadcasting", start="first")
    first.beat(filled)
    second.beat(filled)
    assert first.queues == second.queues == [0, 1, 2, 3]
    assert first.commit(filled, 0, 2).code == 0
    again = member("a", mode="broadcasting", start="first")
    first.connection.call(commands.UNREGISTER_CLIENT, {"group": first.group, "member": "a"}).raise_for_error()
    again.beat(filled)
    assert again.rows[filled, 0][0] == 2
    assert second.rows[filled, 0][0] == 0


# ---- start of the broker ----


@pytest.mark.parametrize("crash", [False, True])
def test_members_keep_their_queues_after_a_restart_of_the_broker(
    broker: BrokerFactory, connect: ConnectionFactory, crash: bool
) -> None:
    running = broker()
    members = [RawMember(connect(running), "g", name, start="first") for name in "ab"]
    connect(running).produce("orders", b"0", b"1", queue=3).raise_for_error()
    for _ in range(3):
        for each in members:
            each.beat("orders")
    held = [each.queues for each in members]
    assert sorted(held[0] + held[1]) == [0, 1, 2, 3]
    if crash:
        running.kill()
    else:
        members[0].commit("orders", held[0][0], 0)
        running.stop()
    again = broker(store=running.store)
    for each in reversed(members):
        each.connection = connect(again)
        assert each.beat("orders").code == MemberUnknown.code
        each.epoch = 0
        each.beat("orders").raise_for_error()
    assert [each.queues for each in members] == held


@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_one_connection_carries_a_hundred_members_and_again_as_many_as_leave(
    peer: RawConnection, group: str, kind: str
) -> None:
    body = msgpack.packb([[["t", "", ""]], []])

    def join(number: int) -> int:
        fields = {"group": f"{group}-{number}", "member": "m", "kind": kind}
        return peer.call(commands.HEART_BEAT, fields, body if kind == "consumer" else b"").code

    assert {join(number) for number in range(100)} == {0}
    assert join(100) == InvalidParameter.code
    assert kind == "consumer" or join(5) == 0, "who is there stays"
    asked = peer.call(commands.GET_CONSUMER_CONNECTION_LIST, {"group": f"{group}-100"})
    assert asked.code == GroupNotExist.code
    for _ in range(3):
        leaving = {"group": f"{group}-7", "member": "m", "kind": kind}
        peer.call(commands.UNREGISTER_CLIENT, leaving).raise_for_error()
        assert join(7) == 0
    assert join(100) == InvalidParameter.code
