"""Groups of RocketMQ's clients beside FlintMQ's own: never both kinds at once; operators of both see and move both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.client.sync.admin import Admin
from flintmq.protocol.errors import GroupKind, GroupRunning, InvalidParameter
from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import ConnectionFactory
from tests.console_tools import console_of
from tests.group_tools import RawMember, Seen
from tests.metrics_tools import Scrape
from tests.pop_tools import bodies, pop
from tests.remoting_consumer import COMMIT, HOLD, RemotingConsumer, records_of, subscription
from tests.remoting_tools import RemotingBroker, RemotingSocket, json_of


@pytest.fixture
def admin(gateway: RemotingBroker) -> Iterator[Admin]:
    with Admin(gateway.running.address) as admin:
        yield admin


@pytest.fixture
def cli(gateway: RemotingBroker, tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path, gateway.running.address) as cli:
        yield cli


@pytest.fixture
def member(gateway: RemotingBroker, connect: ConnectionFactory, group: str) -> RawMember:
    """Return a member of FlintMQ's own kind that has not joined yet."""
    return RawMember(connect(gateway.running), group, "native-1", start="first", session_timeout_ms=300_000)


@pytest.fixture
def consumer(remote: RemotingSocket, group: str) -> RemotingConsumer:
    """Return a RocketMQ client that has sent no heartbeat yet."""
    return RemotingConsumer(remote, group, "client-1")


# ---- one kind at a time ----


def test_a_member_cannot_join_rocketmqs_clients_until_they_are_gone(
    consumer: RemotingConsumer, member: RawMember, topic: str
) -> None:
    consumer.remote.produce(topic)
    consumer.beat(topic)
    refused = member.beat(topic)
    assert refused.code == GroupKind.code
    assert "1 live RocketMQ clients (client-1)" in refused.fields["message"]
    assert refused.fields["members"] == 1
    # The member continues from the offset that the client committed.
    consumer.commit(topic, 1)
    consumer.leave()
    assert member.beat(topic).code == 0
    assert member.rows[topic, 0][0] == 1


def test_pops_are_refused_until_the_members_are_gone(consumer: RemotingConsumer, member: RawMember, topic: str) -> None:
    remote = consumer.remote
    remote.produce(topic)
    member.beat(topic)
    refused = pop(remote, topic, member.group)
    assert (refused.code, "native-1" in refused.remark) == (codes.NO_PERMISSION, True)
    member.leave()
    assert len(bodies(pop(remote, topic, member.group), topic)) == 1


def test_rocketmqs_clients_wait_until_the_members_are_gone(
    consumer: RemotingConsumer, member: RawMember, topic: str
) -> None:
    consumer.remote.produce(topic)
    member.beat(topic)
    assert consumer.beat(topic).code == codes.SUCCESS
    assert consumer.listed() == ["native-1"], "a client that is not in the list gives up its queues"
    for answer in (
        consumer.pull(topic),
        consumer.pull(topic, offset=1, sysFlag=HOLD),
        consumer.pull(topic, sysFlag=COMMIT, commitOffset=1),
        consumer.commit(topic, 1),
    ):
        assert answer.code == codes.NO_PERMISSION
        assert "(native-1)" in answer.remark
    assert consumer.lock(topic, 0) == []
    member.leave()
    consumer.remote.receive_request(codes.NOTIFY_CONSUMER_IDS_CHANGED)
    assert consumer.listed() == ["client-1"]
    assert consumer.pull(topic).code == codes.SUCCESS
    assert consumer.lock(topic, 0) == [0]


def test_a_held_pull_gets_no_message_after_the_group_has_changed_its_kind(
    consumer: RemotingConsumer, member: RawMember, topic: str
) -> None:
    consumer.remote.produce(topic)
    consumer.beat(topic)
    wanted = consumer.pull_fields(topic, offset=1, sysFlag=HOLD, suspendTimeoutMillis=30_000)
    held = consumer.remote.send(codes.PULL_MESSAGE, wanted)
    consumer.leave()
    assert member.beat(topic).code == 0
    consumer.remote.produce(topic)
    answer = consumer.remote.receive_for(held)
    assert answer.code == codes.NO_PERMISSION
    assert not answer.body
    assert member.pull(topic, 0, 1, wait_ms=5_000).fields["count"] == 1


def test_a_push_consumer_that_meets_rocketmqs_clients_says_why_it_does_not_start(
    consumer: RemotingConsumer, gateway: RemotingBroker, clients: Clients, topic: str, group: str
) -> None:
    consumer.remote.produce(topic, b"m0")
    consumer.beat(topic)
    seen = Seen()
    with pytest.raises(GroupKind, match=r"RocketMQ clients \(client-1\)"):
        clients.PushConsumer(gateway.running.address, group, topic, seen, start="first").start()
    consumer.leave()
    with clients.PushConsumer(gateway.running.address, group, topic, seen, start="first"):
        assert [message.body for message in seen.wait(1)] == [b"m0"]


# ---- what operators see ----


def test_operators_see_rocketmqs_clients_as_members(
    consumer: RemotingConsumer, gateway: RemotingBroker, admin: Admin, cli: Cli, topic: str, group: str
) -> None:
    for _ in range(3):
        consumer.remote.produce(topic)
    consumer.beat(subscription(topic, "a || b"), subscription(f"{topic}-sql", "x > 1", "SQL92"))
    consumer.commit(topic, 1)
    consumer.pull(topic, offset=1, sysFlag=4, subscription="*")
    consumer.lock(topic, 3)
    (info,) = [each for each in admin.groups() if each.group == group]
    assert (info.kind, info.mode, info.state, info.members) == ("remoting", "clustering", "stable", 1)
    assert list(info.topics) == [topic, f"{topic}-sql"]
    found = admin.group(group)
    (row,) = found.members
    assert (row.member, row.client, row.orderly, row.queues) == ("client-1", "RocketMQ OTHER 479 client-1", True, 1)
    assert [list(each) for each in row.subscriptions] == [[topic, "a || b", ""], [f"{topic}-sql", "", "x > 1"]]
    (queue,) = [each for each in found.queues if (each.topic, each.queue) == (topic, 0)]
    assert (queue.member, queue.committed, queue.lag, queue.in_flight) == ("client-1", 1, 2, 2)
    scrape = Scrape(gateway.running)
    assert scrape("flintmq_group_members", group=group) == 1
    assert scrape("flintmq_group_in_flight_messages", group=group, topic=topic) == 2
    assert scrape("flintmq_remoting_connections") >= 1
    assert scrape("flintmq_remoting_consumers", state="sharing") >= 1
    listed = cli.run("-o", "json", "group", "list", group).rows
    assert [(each["kind"], each["members"], each["lag"]) for each in listed] == [("remoting", 1, 2)]
    shown = cli.run("-o", "table", "group", "status", group).out
    assert "client-1" in shown
    assert "remoting" in shown
    assert "RocketMQ OTHER 479 client-1" in cli.run("-o", "json", "connections").out
    with console_of(gateway.running) as client:
        assert "RocketMQ clients" in client.get(f"/groups?q={group}").text
        assert "client-1" in client.get(f"/groups/{group}").text


def test_operators_see_clients_that_wait(
    consumer: RemotingConsumer, member: RawMember, gateway: RemotingBroker, cli: Cli, topic: str, group: str
) -> None:
    consumer.remote.produce(topic)
    member.beat(topic)
    consumer.beat(topic)
    status = cli.run("-o", "table", "group", "status", group)
    assert "1 RocketMQ client of the group wait until these members are gone: client-1" in status.err
    (row,) = cli.run("-o", "json", "group", "status", group).rows
    assert (row["kind"], row["waiting"], [each["member"] for each in row["members"]]) == (
        "native",
        ["client-1"],
        ["native-1"],
    )
    assert Scrape(gateway.running)("flintmq_remoting_consumers", state="waiting") == 1
    assert "RocketMQ client client-1 waits" in gateway.running.log
    with console_of(gateway.running) as client:
        assert "1 RocketMQ client of this group waits" in " ".join(client.get(f"/groups/{group}").text.split())


def test_held_pulls_of_rocketmqs_clients_are_counted(
    consumer: RemotingConsumer, gateway: RemotingBroker, topic: str
) -> None:
    consumer.remote.produce(topic)
    consumer.beat(topic)
    before = Scrape(gateway.running)("flintmq_remoting_held_pulls")
    held = consumer.remote.send(codes.PULL_MESSAGE, consumer.pull_fields(topic, offset=1, sysFlag=HOLD))
    consumer.listed()  # a request after it, so the pull is held now
    assert Scrape(gateway.running)("flintmq_remoting_held_pulls") == before + 1
    consumer.remote.produce(topic)
    assert consumer.remote.receive_for(held).code == codes.SUCCESS


# ---- what operators change ----


def test_a_live_group_is_not_deleted(consumer: RemotingConsumer, admin: Admin, topic: str, group: str) -> None:
    consumer.beat(topic)
    with pytest.raises(GroupRunning, match="client-1"):
        admin.delete_group(group)
    consumer.model = "BROADCASTING"
    consumer.beat(topic)
    with pytest.raises(InvalidParameter, match="1 live member;"):
        admin.delete_group(group)
    consumer.leave()
    admin.delete_group(group)
    assert group not in [each.group for each in admin.groups()]


@pytest.mark.parametrize("by", ["flintmq", "mqadmin"])
def test_a_reset_of_a_live_group_is_told_to_the_next_pull_of_each_queue(
    consumer: RemotingConsumer, admin: Admin, cli: Cli, topic: str, group: str, by: str
) -> None:
    for _ in range(3):
        consumer.remote.produce(topic)
    consumer.beat(topic)
    consumer.commit(topic, 3)
    held = consumer.remote.send(
        codes.PULL_MESSAGE, consumer.pull_fields(topic, offset=3, sysFlag=HOLD, suspendTimeoutMillis=30_000)
    )
    if by == "flintmq":
        with pytest.raises(GroupRunning, match="client-1"):
            admin.reset_offsets(group, topic, {0: 1})
        assert cli.run("group", "reset", group, topic, "--to", "0=1", "--force").code == 0
    else:
        wanted = {"group": group, "topic": topic, "queueId": 0, "offset": 1, "timestamp": -1, "isForce": True}
        with_broker = json_of(consumer.remote.call(codes.INVOKE_BROKER_TO_RESET_OFFSET, wanted))["offsetTable"]
        assert with_broker == [({"brokerName": "flintmq", "queueId": 0, "topic": topic}, 1)]
    answer = consumer.remote.receive_for(held)
    assert (answer.code, answer.remark) == (codes.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert answer.fields["nextBeginOffset"] == "1"
    assert [record.queue_offset for record in records_of(consumer.pull(topic, offset=1))] == [1, 2]


def test_what_clients_commit_before_they_notice_a_reset_is_ignored(
    consumer: RemotingConsumer, admin: Admin, topic: str, group: str
) -> None:
    for _ in range(3):
        consumer.remote.produce(topic)
    consumer.beat(topic)
    consumer.commit(topic, 2)
    admin.reset_offsets(group, topic, {0: 0}, force=True)
    ignored = consumer.commit(topic, 3)
    assert (ignored.code, ignored.remark) == (codes.SUCCESS, "Offset has been previously reset")
    assert consumer.committed(topic).fields == {"offset": "0"}
    answer = consumer.pull(topic, offset=3, sysFlag=COMMIT, commitOffset=3)
    assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
    assert consumer.committed(topic).fields == {"offset": "0"}
    consumer.commit(topic, 1)
    assert consumer.committed(topic).fields == {"offset": "1"}


def test_resets_by_time_and_to_the_end_and_those_that_are_refused(
    consumer: RemotingConsumer, topic: str, group: str
) -> None:
    for _ in range(2):
        consumer.remote.produce(topic)
    consumer.beat(topic)

    def reset(**fields: Any) -> RemotingFrame:
        wanted = {"group": group, "topic": topic, "timestamp": -1, "isForce": False, **fields}
        return consumer.remote.call(codes.INVOKE_BROKER_TO_RESET_OFFSET, wanted)

    def offsets(answer: RemotingFrame) -> dict[int, int]:
        return {queue["queueId"]: offset for queue, offset in json_of(answer)["offsetTable"]}

    assert offsets(reset(timestamp=0)) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert offsets(reset()) == {0: 2, 1: 0, 2: 0, 3: 0}
    assert offsets(reset(queueId=0, offset=-1, timestamp=0)) == {0: 0}
    assert reset(topic="none").code == codes.TOPIC_NOT_EXIST
    assert reset(group="none").code == codes.SUBSCRIPTION_GROUP_NOT_EXIST
    assert reset(queueId=7).code == codes.INVALID_PARAMETER
    beyond = reset(queueId=0, offset=9)
    assert (beyond.code, "must be in [0, 2]" in beyond.remark) == (codes.SYSTEM_ERROR, True)


# ---- what RocketMQ's tools ask ----


def test_the_clients_of_a_group_of_either_kind(
    consumer: RemotingConsumer, member: RawMember, topic: str, group: str
) -> None:
    def ask() -> RemotingFrame:
        return consumer.remote.call(codes.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})

    assert ask().code == codes.CONSUMER_NOT_ONLINE
    consumer.beat(subscription(topic, "a || b", version=7))
    host, port = consumer.remote.local_address
    found = json_of(ask())
    assert found["connectionSet"] == [
        {"clientAddr": f"{host}:{port}", "clientId": "client-1", "language": "OTHER", "version": 479}
    ]
    assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert found["subscriptionTable"][topic] == {
        "classFilterMode": False,
        "codeSet": [97, 98],
        "expressionType": "TAG",
        "subString": "a || b",
        "subVersion": 7,
        "tagsSet": ["a", "b"],
        "topic": topic,
    }
    consumer.leave()
    consumer.remote.produce(topic)
    member.beat(topic)
    native = json_of(ask())
    assert [(row["clientId"], row["language"]) for row in native["connectionSet"]] == [("native-1", "PYTHON")]
    assert sorted(native["subscriptionTable"]) == [f"%RETRY%{group}", topic]


def test_the_producers_of_a_group(remote: RemotingSocket, group: str) -> None:
    wanted = {"producerGroup": group}
    assert remote.call(codes.GET_PRODUCER_CONNECTION_LIST, wanted).code == codes.SYSTEM_ERROR
    remote.heart_beat("p1", producers=(group,))
    (row,) = json_of(remote.call(codes.GET_PRODUCER_CONNECTION_LIST, wanted))["connectionSet"]
    assert (row["clientId"], row["language"], row["version"]) == ("p1", "OTHER", 479)


def test_the_progress_of_a_group_and_the_groups_of_a_topic(consumer: RemotingConsumer, topic: str, group: str) -> None:
    for _ in range(3):
        consumer.remote.produce(topic)
    consumer.beat(topic)
    consumer.pull(topic)
    consumer.commit(topic, 2)
    wanted = {"consumerGroup": group}
    table = json_of(consumer.remote.call(codes.GET_CONSUME_STATS, wanted))["offsetTable"]
    rows = {(queue["topic"], queue["queueId"]): row for queue, row in table}
    assert len(rows) == 5, "four queues of the topic, and the retry topic's"
    row = rows[topic, 0]
    assert (row["brokerOffset"], row["consumerOffset"], row["pullOffset"]) == (3, 2, 3)
    (second,) = [record for record in records_of(consumer.pull(topic)) if record.queue_offset == 1]
    assert row["lastTimestamp"] == second.store_timestamp
    only = json_of(consumer.remote.call(codes.GET_CONSUME_STATS, {**wanted, "topic": topic}))["offsetTable"]
    assert len(only) == 4
    assert json_of(consumer.remote.call(codes.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})) == {"groupList": [group]}


def test_a_client_answers_through_the_broker(gateway: RemotingBroker, topic: str, group: str) -> None:
    with gateway.connect() as tool, gateway.connect() as remote:
        sent = tool.produce(topic, b"once more")
        consumer = RemotingConsumer(remote, group, "client-1")
        consumer.beat(topic)
        wanted = {"consumerGroup": group, "clientId": "client-1"}
        number = tool.send(codes.GET_CONSUMER_RUNNING_INFO, {**wanted, "jstackEnable": True})
        asked = remote.receive_request(codes.GET_CONSUMER_RUNNING_INFO)
        assert asked.fields == {**wanted, "jstackEnable": "true"}
        remote.respond(asked, remark="fine")
        assert tool.receive_for(number).remark == "fine"
        number = tool.send(codes.CONSUME_MESSAGE_DIRECTLY, {**wanted, "topic": topic, "msgId": sent.fields["msgId"]})
        asked = remote.receive_request(codes.CONSUME_MESSAGE_DIRECTLY)
        assert [record.body for record in records_of(asked)] == [b"once more"]
        assert asked.fields["brokerName"] == "flintmq"
        remote.respond(asked, codes.SYSTEM_ERROR, "no")
        refused = tool.receive_for(number)
        assert (refused.code, refused.remark) == (codes.SYSTEM_ERROR, "no")


def test_a_client_that_is_gone_or_has_no_such_message_cannot_answer(
    gateway: RemotingBroker, topic: str, group: str
) -> None:
    with gateway.connect() as tool, gateway.connect() as remote:
        wanted = {"consumerGroup": group, "clientId": "client-1", "jstackEnable": False}
        absent = tool.call(codes.GET_CONSUMER_RUNNING_INFO, wanted)
        assert (absent.code, "not online" in absent.remark) == (codes.SYSTEM_ERROR, True)
        RemotingConsumer(remote, group, "client-1").beat(topic)
        unknown = tool.call(codes.CONSUME_MESSAGE_DIRECTLY, {**wanted, "topic": topic, "msgId": "F" * 32})
        assert (unknown.code, "no message with id" in unknown.remark) == (codes.SYSTEM_ERROR, True)
        number = tool.send(codes.GET_CONSUMER_RUNNING_INFO, wanted)
        remote.receive_request(codes.GET_CONSUMER_RUNNING_INFO)
        remote.close()
        lost = tool.receive_for(number)
        assert (lost.code, "was lost before it answered" in lost.remark) == (codes.SYSTEM_ERROR, True)
