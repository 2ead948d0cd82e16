"""Bounds of groups: rights and members of one group do not reach another; the numbers of groups and offsets are
limited.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest

from flintmq.protocol import commands
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, PHYSICAL_OFFSET_STRUCT
from flintmq.protocol.errors import InvalidParameter, LimitReached
from flintmq.protocol.remoting import codes
from tests.conftest import Answer, BrokerFactory, ConnectionFactory, RawConnection, RunningBroker
from tests.group_tools import RawMember, joined
from tests.metrics_tools import Scrape
from tests.remoting_tools import RemotingBroker
from tests.security_tools import SCRAM, authenticate, set_grants

OF_A = [{"actions": ["consume", "query", "admin"], "group": "a"}, {"actions": ["consume", "query"], "topic": "orders"}]


def commit(peer: RawConnection, group: str, offset: int, topic: str = "orders") -> Answer:
    fields = {"group": group, "topic": topic, "count": 1}
    return peer.call(commands.UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, offset))


def committed(peer: RawConnection, group: str) -> dict[int, int]:
    answer = peer.call(commands.QUERY_CONSUMER_OFFSET, {"group": group, "topic": "orders"}).raise_for_error()
    return dict(CONSUMER_OFFSET_STRUCT.iter_unpack(answer.body))


def known(peer: RawConnection) -> set[str]:
    return {row["group"] for row in msgpack.unpackb(peer.call(commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)}


@pytest.fixture
def guarded(broker: BrokerFactory, tmp_path: Path) -> RunningBroker:
    store = tmp_path / "guarded"
    set_grants(store, {"admin": [{"actions": ["admin"], "broker": True}], "of-a": OF_A})
    return broker(store=store, settings=SCRAM | {"topics.auto_create": True})


class TestANameWithABar:
    """``|`` is allowed in names."""

    @pytest.fixture
    def admin(self, guarded: RunningBroker, connect: ConnectionFactory) -> RawConnection:
        connection = connect(guarded)
        authenticate(connection, "admin")
        connection.call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": "orders", "read_queues": 1, "write_queues": 1})
        connection.produce("orders", *[b"x"] * 10, queue=0).raise_for_error()
        return connection

    @pytest.fixture
    def of_a(self, guarded: RunningBroker, admin: RawConnection, connect: ConnectionFactory) -> RawConnection:
        connection = connect(guarded)
        authenticate(connection, "of-a")
        return connection

    def test_a_member_of_another_group_does_not_move_it(self, admin: RawConnection, of_a: RawConnection) -> None:
        commit(admin, "a|b", 2).raise_for_error()
        member = joined(of_a, "a", "b", "orders", mode="broadcasting")
        member.commit("orders", 0, 10).raise_for_error()
        assert committed(admin, "a|b") == {0: 2}
        assert joined(of_a, "a", "b", "orders", mode="broadcasting").rows["orders", 0][0] == 10

    def test_another_group_is_deleted_without_it(self, admin: RawConnection, of_a: RawConnection) -> None:
        for group in ("a|b", "a|c"):
            commit(admin, group, 2).raise_for_error()
        joined(of_a, "a", "m", "orders").leave()
        of_a.call(commands.DELETE_SUBSCRIPTIONGROUP, {"group": "a"}).raise_for_error()
        assert known(admin) == {"a|b", "a|c"}
        assert [committed(admin, group) for group in ("a|b", "a|c")] == [{0: 2}, {0: 2}]

    def test_the_name_of_a_members_progress_is_no_groups_name(self, of_a: RawConnection, admin: RawConnection) -> None:
        member = joined(of_a, "a", "b", "orders", mode="broadcasting")
        member.commit("orders", 0, 5).raise_for_error()
        for answer in (
            commit(admin, "a:b", 9),
            admin.call(commands.DELETE_SUBSCRIPTIONGROUP, {"group": "a:b"}),
            admin.pull("orders", 0, 0, group="a:b"),
            admin.call(commands.CONSUMER_SEND_MSG_BACK, {"group": "a:b", "count": 0}),
        ):
            assert answer.code == InvalidParameter.code


def test_ever_new_topics_of_messages_are_refused(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    peer = connect(broker(settings={"topics.auto_create_max": 5}))
    answers = [peer.produce(f"t-{number}", b"x") for number in range(20)]
    refused = [answer for answer in answers if answer.code]
    assert {answer.code for answer in refused} == {LimitReached.code}
    assert len(refused) >= 15
    assert "topics.auto_create_max" in refused[0].fields["message"]
    peer.produce("t-0", b"y").raise_for_error()
    peer.call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": "made"}).raise_for_error()
    peer.produce("made", b"z").raise_for_error()


class TestHowManyThereMayBe:
    @pytest.fixture
    def peer(self, broker: BrokerFactory, connect: ConnectionFactory) -> RawConnection:
        settings = {"limits.groups_max": 3, "limits.committed_offsets_max": 5}
        connection = connect(broker(settings=settings))
        for topic in ("orders", "other", "third"):
            fields = {"topic": topic, "read_queues": 1, "write_queues": 1}
            connection.call(commands.UPDATE_AND_CREATE_TOPIC, fields).raise_for_error()
            connection.produce(topic, *[b"x"] * 10, queue=0).raise_for_error()
        return connection

    def test_ever_new_groups_that_commit_are_refused(self, peer: RawConnection) -> None:
        codes = [commit(peer, f"g-{number}", 1).code for number in range(100)]
        assert codes == [0] * 3 + [LimitReached.code] * 97
        assert known(peer) == {"g-0", "g-1", "g-2"}
        commit(peer, "g-1", 2).raise_for_error()
        peer.call(commands.DELETE_SUBSCRIPTIONGROUP, {"group": "g-0"}).raise_for_error()
        commit(peer, "g-99", 1).raise_for_error()

    def test_ever_new_groups_of_any_other_request_are_refused(self, peer: RawConnection) -> None:
        for number in range(3):
            commit(peer, f"g-{number}", 1).raise_for_error()
        (physical_offset,) = PHYSICAL_OFFSET_STRUCT.unpack(peer.produce("orders", b"y", queue=0).body)
        subscription = msgpack.packb([[["orders", "", ""]], []])
        answers = [
            peer.call(commands.HEART_BEAT, {"group": "new", "member": "m"}, subscription),
            peer.call(commands.HEART_BEAT, {"group": "new", "member": "m", "mode": "broadcasting"}, subscription),
            peer.call(
                commands.CONSUMER_SEND_MSG_BACK,
                {"group": "new", "count": 1},
                PHYSICAL_OFFSET_STRUCT.pack(physical_offset),
            ),
            peer.call(commands.INVOKE_BROKER_TO_RESET_OFFSET, {"group": "new", "topic": "orders", "to": "first"}),
        ]
        assert [answer.code for answer in answers] == [LimitReached.code] * 4
        assert "limits.groups_max is 3" in answers[0].fields["message"]
        assert known(peer) == {"g-0", "g-1", "g-2"}
        topics = msgpack.unpackb(peer.call(commands.GET_ALL_TOPIC_CONFIG).body)
        assert not [row for row in topics if "new" in str(row)]

    def test_ever_new_groups_that_send_back_are_refused(self, peer: RawConnection) -> None:
        body = peer.produce("orders", b"y", queue=0).body
        codes = [
            peer.call(commands.CONSUMER_SEND_MSG_BACK, {"group": f"g-{number}", "count": 1}, body).code
            for number in range(10)
        ]
        assert codes == [0] * 3 + [LimitReached.code] * 7
        peer.call(commands.CONSUMER_SEND_MSG_BACK, {"group": "g-0", "count": 1}, body).raise_for_error()

    def test_ever_new_members_that_commit_are_refused(self, peer: RawConnection) -> None:
        codes = []
        for number in range(20):
            member = joined(peer, "all", f"m-{number}", "orders", mode="broadcasting")
            codes.append(member.commit("orders", 0, 1).code)
            member.leave()
        assert codes == [0] * 5 + [LimitReached.code] * 15

    def test_ever_new_topics_of_a_group_are_refused(self, peer: RawConnection) -> None:
        for group in ("g-0", "g-1"):
            commit(peer, group, 1).raise_for_error()
            commit(peer, group, 1, "other").raise_for_error()
        commit(peer, "g-0", 1, "third").raise_for_error()
        refused = commit(peer, "g-1", 1, "third")
        assert refused.code == LimitReached.code
        assert "limits.committed_offsets_max is 5" in refused.fields["message"]
        commit(peer, "g-1", 5).raise_for_error()

    def test_reading_under_ever_new_names_keeps_nothing(self, peer: RawConnection) -> None:
        for number in range(20):
            peer.pull("orders", 0, 0, group=f"g-{number}").raise_for_error()
        assert known(peer) == set()


def subscribe(member: RawMember, chars: int) -> Answer:
    """Let a member join with tags of so many characters."""
    topics = [[f"t-{place}", "x" * 4_000, ""] for place in range(chars // 4_000)]
    return member.connection.call(
        commands.HEART_BEAT,
        {"group": member.group, "member": member.name, **member.fields},
        msgpack.packb([topics, []]),
    )


def test_the_subscriptions_of_all_members_are_bounded_together(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    gateway = RemotingBroker(broker, {"limits.subscription_bytes_max": 256 * 1024})
    members = [RawMember(connect(gateway.running), f"g-{number}", "m") for number in range(3)]
    for member in members[:2]:
        subscribe(member, 100_000).raise_for_error()
    with pytest.raises(LimitReached, match=r"limits\.subscription_bytes_max is 262144"):
        subscribe(members[2], 100_000).raise_for_error()
    with gateway.connect() as remote:
        subscription = {"topic": "t", "subString": "x" * 100_000, "expressionType": "SQL92"}
        row = {"groupName": "theirs", "subscriptionDataSet": [subscription]}
        beat = json.dumps({"clientID": "c", "consumerDataSet": [row]}).encode()
        refused = remote.call(codes.HEART_BEAT, {}, beat)
        assert "limits.subscription_bytes_max" in refused.remark
        subscribe(members[0], 100_000).raise_for_error()  # again: it takes the place of the first
        members[0].leave()
        assert remote.call(codes.HEART_BEAT, {}, beat).code == codes.SUCCESS
        assert remote.call(codes.HEART_BEAT, {}, beat).code == codes.SUCCESS
        assert subscribe(members[0], 100_000).code == LimitReached.code
        leave = {"clientID": "c", "consumerGroup": "theirs"}
        assert remote.call(codes.UNREGISTER_CLIENT, leave).code == codes.SUCCESS
    members[1].leave()
    assert Scrape(gateway.running)("flintmq_subscription_bytes") == 0


def test_the_subscriptions_of_one_connection_are_bounded(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    greedy = connect(running)
    answers = [subscribe(RawMember(greedy, f"g-{number}", "m"), 120_000) for number in range(40)]
    assert {answer.code for answer in answers[:30]} == {0}
    with pytest.raises(InvalidParameter, match="subscriptions of the group members on one connection"):
        answers[-1].raise_for_error()
    subscribe(RawMember(connect(running), "another", "m"), 120_000).raise_for_error()
