"""Retry topics of groups and topics whose names meet in ``%RETRY%group_topic``, and messages of stores that have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, GroupConsumer, Message, Producer
from flintmq.protocol.remoting import codes
from tests.cli_tools import Cli
from tests.conftest import ConnectionFactory, RunningBroker
from tests.delivery_tools import FIRST, acknowledge, receive
from tests.group_tools import until
from tests.pop_tools import messages, pop, settle
from tests.remoting_tools import RemotingBroker, RemotingSocket, json_blob

WORK: dict[str, Any] = {"mode": "work", "start": "first"}


def give_back(address: str, group: str, topic: str) -> None:
    """Send a message, take it as the group, and store it for another attempt."""
    with Producer(address) as producer, Admin(address) as admin:
        admin.create_topic(topic, queues=1)
        producer.send(Message(topic, group.encode()))
    with GroupConsumer(address, group, topic, **WORK) as consumer:
        (delivery,) = receive(consumer, 1)
        consumer.pause()
        delivery.retry(1)
        consumer.commit()


def lags(admin: Admin, group: str) -> int:
    return sum(row.lag for row in admin.group(group).queues)


@pytest.fixture
def pairs(topic: str) -> list[tuple[str, str]]:
    return [(topic, f"b_{topic}"), (f"{topic}_b", topic)]


def keep_old(connect: ConnectionFactory, broker: RunningBroker, group: str, topic: str, body: bytes) -> None:
    """Store a message as an earlier release stored one for another attempt."""
    common = f"RETRY_TOPIC\x01{topic}\x021ST_POP_TIME\x011700000000000\x02ORIGIN_MESSAGE_ID\x01A\x02"
    with Admin(broker.address) as admin:
        if f"%RETRY%{group}_{topic}" not in admin.topics():
            admin.create_topic(f"%RETRY%{group}_{topic}", queues=1)
    connect(broker).produce(f"%RETRY%{group}_{topic}", body, queue=0, common=common).raise_for_error()


def test_retries_of_two_groups_whose_names_meet_stay_apart(
    shared_broker: RunningBroker, pairs: list[tuple[str, str]]
) -> None:
    address = shared_broker.address
    plain = f"{pairs[0][0]}_{pairs[0][1]}"
    with Admin(address) as admin:
        for pair in pairs:
            give_back(address, *pair)
        with GroupConsumer(address, plain, pairs[0][1], **FIRST) as consumer:
            (delivery,) = receive(consumer, 1)
            delivery.ack()
            consumer.commit()
            assert consumer.receive(1, timeout=0) == []
        until(lambda: not admin.group(plain).members, "the end of the member")
        until(lambda: all(lags(admin, group) == 1 for group, _ in pairs), "the second attempt of both")
        assert lags(admin, plain) == 0
        admin.delete_group(plain)
    for group, topic in reversed(pairs):
        with GroupConsumer(address, group, topic, **WORK) as consumer:
            (again,) = acknowledge(consumer, 1)
            assert (again.message.body, again.message.reconsume_times) == (group.encode(), 1)
            assert consumer.receive(1, timeout=0) == []


def test_retries_of_earlier_releases_reach_the_groups_that_popped_them(
    shared_broker: RunningBroker, connect: ConnectionFactory, pairs: list[tuple[str, str]]
) -> None:
    address = shared_broker.address
    with Admin(address) as admin:
        for group, topic in pairs:
            admin.create_topic(topic, queues=1)
            keep_old(connect, shared_broker, group, topic, group.encode())
        for group, topic in pairs:
            with GroupConsumer(address, group, topic, **WORK) as consumer:
                (first,) = receive(consumer, 1)
                assert first.message.body == group.encode()
                first.retry(1)
                (again,) = acknowledge(consumer, 1)
                assert (again.message.body, again.message.reconsume_times) == (group.encode(), 1)
                assert consumer.receive(1, timeout=0) == []
            assert f"%RETRY%{group}+{topic}" in admin.topics()
            until(lambda group=group: lags(admin, group) == 0, "the last acknowledgement")


def test_an_old_retry_topic_counts_and_goes_with_its_group(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    address = shared_broker.address
    with Admin(address) as admin:
        give_back(address, topic, topic)
        until(lambda: lags(admin, topic) == 1, "the second attempt")
        keep_old(connect, shared_broker, topic, topic, b"old")
        assert lags(admin, topic) == 2
        assert sum(row.lag for row in admin.consume_stats(topic)) == 2
        with GroupConsumer(address, topic, topic, **WORK) as consumer:
            # Both are the first of their queues, and receipts do not tell these apart.
            both = receive(consumer, 2)
            assert {each.message.body for each in both} == {b"old", topic.encode()}
            for delivery in both:
                delivery.ack()
            consumer.commit()
        until(lambda: not admin.group(topic).kind, "the end of the consumer")
        assert lags(admin, topic) == 0
        admin.delete_group(topic)
        assert not [name for name in admin.topics() if name.startswith(f"%RETRY%{topic}")]


def test_a_waiting_consumer_gets_an_old_retry_that_becomes_due(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic, queues=1)
    with GroupConsumer(shared_broker.address, topic, topic, **WORK) as consumer:
        assert consumer.receive(1, timeout=0) == []
        keep_old(connect, shared_broker, topic, topic, b"due")
        assert acknowledge(consumer, 1)[0].message.body == b"due"


def test_rocketmqs_clients_settle_retries_of_both_names(
    gateway: RemotingBroker, remote: RemotingSocket, connect: ConnectionFactory, topic: str
) -> None:
    group = f"g-{topic}"
    remote.produce(topic, b"new", e=0)
    (lost,) = messages(pop(remote, topic, group, invisibleTime=50), topic)
    (again,) = messages(pop(remote, topic, group, pollTime=20_000), topic)
    assert (again.body, again.handle.split(" ")[4]) == (lost.body, "2")
    for body in (b"old", b"older"):
        keep_old(connect, gateway.running, group, topic, body)
    old, older = messages(pop(remote, topic, group), topic)
    assert [each.handle.split(" ")[4] for each in (old, older)] == ["1", "1"]
    assert settle(remote, old, group).code == codes.SUCCESS
    # A client that does not know the mark acknowledges by the topic that it sees.
    fields = {"consumerGroup": group, "topic": topic, "queueId": again.queue, "offset": again.offset}
    assert remote.call(codes.ACK_MESSAGE, {**fields, "extraInfo": again.handle}).code == codes.SUCCESS
    row = {"c": group, "t": topic, "r": "1", "so": older.offset, "q": older.queue, "b": "AQ==", "rq": 0}
    row |= {"pt": int(older.handle.split(" ")[1]), "it": 60_000}
    assert remote.call(codes.BATCH_ACK_MESSAGE, {}, json_blob({"brokerName": "b", "acks": [row]})).code == codes.SUCCESS
    with Admin(gateway.running.address) as admin:
        assert lags(admin, group) == 0


def test_commands_take_the_name_of_a_retry_topic(shared_broker: RunningBroker, topic: str, tmp_path: Path) -> None:
    give_back(shared_broker.address, topic, topic)
    name = f"%RETRY%{topic}+{topic}"
    with Admin(shared_broker.address) as admin:
        until(lambda: lags(admin, topic) == 1, "the second attempt")
    cli = Cli(tmp_path, shared_broker.address)
    assert cli.run("topic", "status", name).code == 0
    assert [row["body"] for row in cli.run("-o", "json", "pull", name).rows] == [topic]
