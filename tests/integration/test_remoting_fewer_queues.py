"""A topic that RocketMQ's tools give fewer queues: the others keep their messages and their offsets, out of reach, and
are there again when it grows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, PushConsumer, QueueNotExist, TopicExistsAlready
from flintmq.protocol.remoting import codes
from flintmq.protocol.storage.record import parse_offset_id
from tests.conftest import BrokerFactory
from tests.group_tools import Seen, until
from tests.metrics_tools import Scrape
from tests.remoting_tools import RemotingBroker, RemotingSocket, json_blob

FAST: dict[str, Any] = {"start": "first", "session_timeout": 1.0, "commit_interval": 0.05}


def set_queues(client: RemotingSocket, topic: str, count: int, **fields: Any) -> None:
    """Let the topic have ``count`` queues."""
    wanted = {"topic": topic, "readQueueNums": count, "writeQueueNums": count, "perm": 6, "topicSysFlag": 0, **fields}
    answer = client.call(codes.UPDATE_AND_CREATE_TOPIC, {**wanted, "topicFilterType": "SINGLE_TAG", "order": False})
    assert answer.code == codes.SUCCESS, answer.remark


def offsets(client: RemotingSocket, topic: str, queue: int, **fields: Any) -> Mapping[str, str]:
    """Return the fields of an answer with the maximum offset of a queue."""
    answer = client.call(codes.GET_MAX_OFFSET, {"topic": topic, "queueId": queue, **fields})
    assert answer.code == codes.SUCCESS, answer.remark
    return answer.fields


def held(consumer: PushConsumer) -> list[int]:
    return sorted(queue for _, queue in consumer.health().queues)


def test_surplus_queues_are_out_of_reach_and_come_back_with_messages_and_offsets_also_after_kill_9(
    broker: BrokerFactory, topic: str, group: str
) -> None:
    gateway = RemotingBroker(broker)
    with gateway.connect() as client:
        set_queues(client, topic, 4)
        client.heart_beat("c", (), ({"groupName": group, "subscriptionDataSet": []},))
        for queue in range(4):
            for number in range(2):
                assert client.produce(topic, b"%d.%d" % (queue, number), e=queue).code == codes.SUCCESS
        commit = {"consumerGroup": group, "topic": topic, "queueId": 3, "commitOffset": 1}
        assert client.call(codes.UPDATE_CONSUMER_OFFSET, commit).code == codes.SUCCESS
        assert len(client.pull(topic, 3)) == 2  # all is dispatched now
        lag = ("flintmq_group_lag_messages", {"group": group, "topic": topic})
        assert Scrape(gateway.running)(lag[0], **lag[1]) == 3 * 2 + 1
        set_queues(client, topic, 2)
        assert Scrape(gateway.running)(lag[0], **lag[1]) == 2 * 2, "nobody can read the rest"
        beyond = client.produce(topic, e=2)
        assert (beyond.code, "has no queue 2" in beyond.remark) == (codes.INVALID_PARAMETER, True)
        assert client.call(codes.GET_MAX_OFFSET, {"topic": topic, "queueId": 2}).code == codes.INVALID_PARAMETER
        # A client that has not seen the change yet may still say what it has consumed.
        assert client.call(codes.UPDATE_CONSUMER_OFFSET, {**commit, "commitOffset": 2}).code == codes.SUCCESS
        assert client.call(codes.UPDATE_CONSUMER_OFFSET, {**commit, "queueId": 4}).code == codes.INVALID_PARAMETER
    assert gateway.running.stop() == 0  # the offsets are on disk
    gateway = RemotingBroker(broker, store=gateway.running.store)
    gateway.running.kill()
    gateway = RemotingBroker(broker, store=gateway.running.store)
    with gateway.connect() as client:
        stats = client.call(codes.GET_TOPIC_STATS_INFO, {"topic": topic})
        assert bytes(stats.body).count(b'"queueId"') == 2
        set_queues(client, topic, 3)
        assert [record.body for record in client.pull(topic, 2)] == [b"2.0", b"2.1"]
        set_queues(client, topic, 4)
        assert client.produce(topic, b"3.2", e=3).fields["queueOffset"] == "2"
        assert [record.body for record in client.pull(topic, 3)] == [b"3.0", b"3.1", b"3.2"]
        asked = {"consumerGroup": group, "topic": topic, "queueId": 3}
        assert client.call(codes.QUERY_CONSUMER_OFFSET, asked).fields["offset"] == "2"
    assert gateway.running.stop() == 0


def test_a_list_of_topics_may_have_fewer_queues_too(gateway: RemotingBroker, topic: str) -> None:
    with gateway.connect() as client:
        set_queues(client, topic, 4)
        row = {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 2, "perm": 6}
        blob = json_blob({"topicConfigList": [row]})
        assert client.call(codes.UPDATE_AND_CREATE_TOPIC_LIST, {}, blob).code == codes.SUCCESS
        assert offsets(client, topic, 1)["offset"] == "0"
        assert client.call(codes.GET_MAX_OFFSET, {"topic": topic, "queueId": 2}).code == codes.INVALID_PARAMETER


def test_timed_messages_for_a_surplus_queue_are_parked_and_commits_refused_until_it_is_back(
    gateway: RemotingBroker, topic: str
) -> None:
    with gateway.connect() as client:
        set_queues(client, topic, 2)
        assert client.produce(topic, b"first", e=1).code == codes.SUCCESS
        due = {"TIMER_DELIVER_MS": str(int(time.time() * 1000) + 1_500)}
        assert client.produce(topic, b"timed", due, e=1).code == codes.SUCCESS
        assert client.produce(topic, b"beside", due, e=0).code == codes.SUCCESS
        marks = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "7F00000104D2A1B2C3D40000000000AA"}
        half = client.produce(topic, b"half", marks, a="p", f=4, e=1)
        set_queues(client, topic, 1)
        parsed = parse_offset_id(half.fields["msgId"])
        assert parsed is not None
        end = {
            "producerGroup": "p",
            "tranStateTableOffset": half.fields["queueOffset"],
            "commitLogOffset": parsed[1],
            "commitOrRollback": 8,
            "msgId": half.fields["transactionId"],
        }
        refused = client.call(codes.END_TRANSACTION, end)
        assert refused.code != codes.SUCCESS
        assert "no longer has a queue 1" in refused.remark
        with Admin(gateway.running.address) as admin:
            parked = admin.delays().parked
            assert [record.body for record in client.pull(topic, wait_ms=20_000)] == [b"beside"]
            until(lambda: admin.delays().parked == parked + 1, "parking")
        set_queues(client, topic, 2)
        assert client.call(codes.END_TRANSACTION, end).code == codes.SUCCESS
        assert [record.body for record in client.pull(topic, 1)] == [b"first", b"half"]


def test_a_group_of_flintmqs_clients_lets_go_of_surplus_queues_and_takes_them_again(
    gateway: RemotingBroker, topic: str, group: str
) -> None:
    seen, address = Seen(), gateway.running.address
    with gateway.connect() as client, Producer(address) as producer, Admin(address) as admin:
        set_queues(client, topic, 4)
        with PushConsumer(address, group, topic, seen, **FAST) as consumer:
            for queue in range(4):
                producer.send(Message(topic, b"%d" % queue), queue=queue)
            seen.wait(4)
            set_queues(client, topic, 2)
            until(lambda: held(consumer) == [0, 1], "letting go of two queues")
            with pytest.raises(QueueNotExist):
                producer.send(Message(topic, b"nowhere"), queue=3)
            for _ in range(4):
                producer.send(Message(topic, b"anywhere"))
            seen.wait(8)
            assert {each.queue for each in admin.group(group).queues if each.topic == topic} == {0, 1}
            set_queues(client, topic, 4)
            until(lambda: held(consumer) == [0, 1, 2, 3], "taking them again")
            producer.send(Message(topic, b"again"), queue=3)
            seen.wait(9)
        assert seen.bodies.count(b"3") == 1, "its offset was committed"


def test_a_held_pull_of_a_surplus_queue_ends_and_flintmqs_own_tools_stay_strict(
    gateway: RemotingBroker, topic: str
) -> None:
    address = gateway.running.address
    with gateway.connect() as client, Consumer(address) as consumer, Admin(address) as admin:
        set_queues(client, topic, 2)
        waiting = client.send(codes.PULL_MESSAGE, held_pull(topic, 1))
        with gateway.connect() as tool:
            set_queues(tool, topic, 1)
        ended = client.receive_for(waiting)
        assert (ended.code, "has queues 0 to 0, not 1" in ended.remark) == (codes.INVALID_PARAMETER, True)
        with pytest.raises(QueueNotExist):
            consumer.pull(topic, 1, 0)
        admin.create_topic(topic, queues=2)
        assert consumer.pull(topic, 1, 0).bodies() == []
        with pytest.raises(TopicExistsAlready, match="not removed: their messages would be out of reach"):
            admin.create_topic(topic, queues=1)


def held_pull(topic: str, queue: int) -> dict[str, Any]:
    return {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": queue,
        "queueOffset": 0,
        "maxMsgNums": 1,
        "sysFlag": 6,
        "commitOffset": 0,
        "suspendTimeoutMillis": 20_000,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
