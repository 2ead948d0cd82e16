"""Users of the gateway cannot act with another's signature, as its client, or for its group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.protocol.remoting import codes, fastjson
from flintmq.protocol.remoting.command import RemotingFrame
from tests.remoting_consumer import RemotingConsumer
from tests.remoting_keys import ADMIN_GRANT, SignedSocket, remoting_broker_with_users
from tests.remoting_tools import RemotingBroker, RemotingSocket, json_blob, send_fields

TOPIC, REPLY_TOPIC = "orders", "DefaultCluster_REPLY_TOPIC"
INNER = "CLIENT_INNER_PRODUCER"
"""Producer group that every client of RocketMQ names."""
GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [ADMIN_GRANT],
    "guest": [],
    "shop": [
        {"actions": ["publish", "consume"], "topic": TOPIC},
        {"actions": ["publish", "consume", "query"], "group": "shop"},
        {"actions": ["admin"], "group": "shop-copy"},
    ],
    "rival": [
        {"actions": ["publish", "consume"], "topic": TOPIC},
        {"actions": ["publish"], "topic": REPLY_TOPIC},
        {"actions": ["publish", "consume"], "group": "shop"},
        {"actions": ["publish", "consume"], "group": "rival"},
    ],
    "sender": [{"actions": ["publish", "consume"], "topic": TOPIC}, {"actions": ["consume"], "group": "readers"}],
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingBroker]:
    """A broker with users, which asks about transactions soon and often."""
    settings = {
        "transactions.timeout_ms": 300,
        "transactions.check_interval_ms": 300,
        "transactions.check_times_max": 1_000,
    }
    with remoting_broker_with_users(tmp_path_factory.mktemp("users"), GRANTS, settings) as broker:
        with SignedSocket(broker.address, "ops") as ops:
            assert ops.produce(TOPIC).code == codes.SUCCESS
        yield broker


def heart_beat(remote: RemotingSocket, client_id: str, *producers: str) -> RemotingFrame:
    rows = [{"groupName": each} for each in producers]
    body = {"clientID": client_id, "producerDataSet": rows, "consumerDataSet": []}
    return remote.call(codes.HEART_BEAT, {}, json_blob(body))


def unregister(remote: RemotingSocket, client_id: str, **groups: str) -> RemotingFrame:
    return remote.call(codes.UNREGISTER_CLIENT, {"clientID": client_id, **groups})


def producers_of(broker: RemotingBroker, group: str) -> list[str]:
    with SignedSocket(broker.address, "ops") as ops:
        answer = ops.call(codes.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group})
    if answer.code != codes.SUCCESS:
        return []
    return sorted(row["clientId"] for row in fastjson.decode(bytes(answer.body))["connectionSet"])


# ---- requests that the broker passes on ----


@pytest.mark.parametrize("code", [codes.GET_CONSUMER_RUNNING_INFO, codes.CONSUME_MESSAGE_DIRECTLY])
def test_a_client_gets_nothing_of_another_users_signature(broker: RemotingBroker, code: int) -> None:
    with SignedSocket(broker.address, "shop") as shop, SignedSocket(broker.address, "ops") as ops:
        assert RemotingConsumer(shop, "shop", "victim").beat(TOPIC).code == codes.SUCCESS
        stored = shop.produce(TOPIC, b"order")
        asked = {
            "consumerGroup": "shop",
            "clientId": "victim",
            "topic": TOPIC,
            "msgId": stored.fields["msgId"],
            "jstackEnable": False,
            "SecurityToken": "token",
            "accountNumber": "of the administrator",
        }
        number = ops.send(code, asked)
        request = shop.receive_request(code)
        shop.respond(request)
        assert ops.receive_for(number).code == codes.SUCCESS
    defined = {"consumerGroup", "clientId", "jstackEnable"}
    if code == codes.CONSUME_MESSAGE_DIRECTLY:
        defined = {"consumerGroup", "clientId", "topic", "msgId", "brokerName", "topicSysFlag", "groupSysFlag"}
    assert request.fields.keys() == defined


def test_a_reply_carries_nothing_of_its_senders_signature(broker: RemotingBroker) -> None:
    with SignedSocket(broker.address, "shop") as asker, SignedSocket(broker.address, "rival") as replier:
        assert heart_beat(asker, "asker", "shop").code == codes.SUCCESS
        number = replier.send(codes.SEND_REPLY_MESSAGE_V2, send_fields(REPLY_TOPIC, {"REPLY_TO_CLIENT": "asker"}), b"r")
        pushed = asker.receive_request(codes.PUSH_REPLY_MESSAGE_TO_CLIENT)
        asker.respond(pushed)
        assert replier.receive_for(number).code == codes.SUCCESS
    assert not {"AccessKey", "Signature", "SecurityToken"} & pushed.fields.keys()


# ---- producer groups ----


def test_only_a_user_with_the_right_joins_a_producer_group(broker: RemotingBroker) -> None:
    with SignedSocket(broker.address, "shop") as shop, SignedSocket(broker.address, "sender") as sender:
        refused = heart_beat(sender, "sender-1", "shop")
        assert refused.code == codes.NO_PERMISSION
        assert "flintmq user grant sender --producer-group shop" in refused.remark
        assert heart_beat(shop, "shop-1", "shop").code == codes.SUCCESS
        marks = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "7F00000104D2A1B2C3D4000000000001"}
        assert shop.produce(TOPIC, b"half", marks, a="shop", f=4).code == codes.SUCCESS
        # The members of a group are asked in turn.
        for _ in range(6):
            shop.receive_request(codes.CHECK_TRANSACTION_STATE)
        assert sender.produce(TOPIC).code == codes.SUCCESS
        assert not sender.requests
        assert producers_of(broker, "shop") == ["shop-1"]
        ended = unregister(sender, "shop-1", producerGroup="shop")
        assert ended.code == codes.NO_PERMISSION
        assert producers_of(broker, "shop") == ["shop-1"]


def test_a_consumer_lives_on_without_the_right_on_the_producer_groups_it_names(broker: RemotingBroker) -> None:
    """Every client of RocketMQ names a producer group of its own kind, and a shared instance those of its producers."""
    with SignedSocket(broker.address, "sender") as sender:
        consumer = RemotingConsumer(sender, "readers", "reader-1")
        for name, remark in ((INNER, ""), ("shop", "--producer-group shop")):
            answer = consumer.beat(TOPIC, producerDataSet=[{"groupName": name}])
            assert answer.code == codes.SUCCESS, answer.remark
            assert remark in answer.remark
            assert producers_of(broker, name) == []
        assert heart_beat(sender, "reader-1", INNER).code == codes.SUCCESS
        assert unregister(sender, "reader-1", producerGroup=INNER, consumerGroup="readers").code == codes.SUCCESS


def test_a_producer_is_asked_no_more_once_it_has_lost_the_right(broker: RemotingBroker) -> None:
    marks = {"TRAN_MSG": "true", "PGROUP": "rival", "UNIQ_KEY": "7F00000104D2A1B2C3D4000000000002"}
    with SignedSocket(broker.address, "rival") as rival, SignedSocket(broker.address, "ops") as ops:
        assert heart_beat(rival, "rival-1", "rival").code == codes.SUCCESS
        # The same connection, from now on of a user without the right.
        rival.key = "key-of-sender"
        assert rival.produce(TOPIC).code == codes.SUCCESS
        assert heart_beat(ops, "ops-1", "rival").code == codes.SUCCESS
        assert ops.produce(TOPIC, b"half", marks, a="rival", f=4).code == codes.SUCCESS
        for _ in range(4):
            ops.receive_request(codes.CHECK_TRANSACTION_STATE)
        assert rival.produce(TOPIC).code == codes.SUCCESS
        assert not rival.requests


# ---- ids of clients ----


def test_the_id_of_a_live_client_belongs_to_its_user(broker: RemotingBroker) -> None:
    queue = {"topic": TOPIC, "brokerName": "flintmq", "queueId": 0}
    locked = json_blob({"consumerGroup": "shop", "clientId": "mine", "mqSet": [queue]})
    with SignedSocket(broker.address, "rival") as rival:
        with SignedSocket(broker.address, "shop") as shop:
            assert RemotingConsumer(shop, "shop", "mine").beat(TOPIC).code == codes.SUCCESS
            assert heart_beat(shop, "mine", "shop").code == codes.SUCCESS
            assert b'"queueId":0' in bytes(shop.call(codes.LOCK_BATCH_MQ, {}, locked).body)
            # Of all these, the user has the right on the group.
            refused = [
                heart_beat(rival, "mine", "rival"),
                heart_beat(rival, "mine", "shop"),
                RemotingConsumer(rival, "rival", "mine").beat(TOPIC),
                RemotingConsumer(rival, "shop", "mine").beat(TOPIC),
                unregister(rival, "mine", producerGroup="shop"),
                unregister(rival, "mine", consumerGroup="shop"),
                rival.call(codes.LOCK_BATCH_MQ, {}, locked),
                rival.call(codes.UNLOCK_BATCH_MQ, {}, locked),
            ]
            assert {answer.code for answer in refused} == {codes.NO_PERMISSION}
            assert all("belongs to a live client of another user" in answer.remark for answer in refused)
            assert producers_of(broker, "shop") == ["mine"]
            assert producers_of(broker, "rival") == []
            # Replies and questions still go to the client that was there first.
            properties = {"REPLY_TO_CLIENT": "mine", "CORRELATION_ID": "c"}
            number = rival.send(codes.SEND_REPLY_MESSAGE_V2, send_fields(REPLY_TOPIC, properties), b"for mine")
            pushed = shop.receive_request(codes.PUSH_REPLY_MESSAGE_TO_CLIENT)
            assert bytes(pushed.body) == b"for mine"
            shop.respond(pushed)
            assert rival.receive_for(number).code == codes.SUCCESS
            # The same user may come over another connection, such as after a loss that the broker has not noticed.
            with SignedSocket(broker.address, "shop") as again:
                assert heart_beat(again, "mine", "shop").code == codes.SUCCESS
                assert unregister(again, "mine", producerGroup="shop", consumerGroup="shop").code == codes.SUCCESS
            assert heart_beat(rival, "mine", "rival").code == codes.SUCCESS
            assert heart_beat(shop, "mine", "shop").code == codes.NO_PERMISSION
        assert unregister(rival, "mine", producerGroup="rival").code == codes.SUCCESS


def test_the_id_of_a_client_is_free_once_its_connection_is_gone(broker: RemotingBroker) -> None:
    with SignedSocket(broker.address, "rival") as rival:
        with SignedSocket(broker.address, "shop") as shop:
            assert heart_beat(shop, "brief", "shop").code == codes.SUCCESS
            assert RemotingConsumer(shop, "shop", "brief").beat(TOPIC).code == codes.SUCCESS
            assert heart_beat(rival, "brief", "rival").code == codes.NO_PERMISSION
        while heart_beat(rival, "brief", "rival").code == codes.NO_PERMISSION:
            assert rival.produce(TOPIC).code == codes.SUCCESS


# ---- what a user may not know ----


@pytest.mark.parametrize("is_open", [True, False], ids=["open routes", "closed routes"])
def test_a_route_does_not_tell_whether_a_topic_exists(tmp_path: Path, is_open: bool) -> None:
    with remoting_broker_with_users(tmp_path, GRANTS, {"remoting.open_routes": is_open}) as broker:
        with SignedSocket(broker.address, "ops") as ops:
            assert ops.produce("hidden", d=3).code == codes.SUCCESS
            assert ops.produce(TOPIC, d=3).code == codes.SUCCESS
            for user, topic in (("ops", "hidden"), ("shop", TOPIC)):
                with SignedSocket(broker.address, user) as remote:
                    route = fastjson.decode(bytes(remote.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body))
                    assert route["queueDatas"][0]["writeQueueNums"] == 3
        with SignedSocket(broker.address, "guest") as guest:
            answers = [guest.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": name}) for name in ("hidden", "missing")]
            assert len({(answer.code, answer.remark, bytes(answer.body)) for answer in answers}) == 1
            # The refusal of what it sends there tells its program the reason, also the same for both.
            assert {guest.produce(name).code for name in ("hidden", "missing")} == {codes.NO_PERMISSION}


def test_locks_do_not_tell_whether_a_topic_exists(broker: RemotingBroker) -> None:
    with SignedSocket(broker.address, "ops") as ops, SignedSocket(broker.address, "shop") as shop:
        assert ops.produce("hidden").code == codes.SUCCESS
        assert RemotingConsumer(shop, "shop", "locker").beat(TOPIC).code == codes.SUCCESS
        for name in ("hidden", "missing"):
            queues = [{"topic": name, "brokerName": "flintmq", "queueId": 0}]
            body = json_blob({"consumerGroup": "shop", "clientId": "locker", "mqSet": queues})
            assert shop.call(codes.LOCK_BATCH_MQ, {}, body).code == codes.NO_PERMISSION
        unregister(shop, "locker", consumerGroup="shop")


def test_nothing_tells_the_topics_and_the_progress_of_others(broker: RemotingBroker) -> None:
    with SignedSocket(broker.address, "ops") as ops, SignedSocket(broker.address, "shop") as shop:
        for topic in ("hidden", TOPIC):
            assert ops.produce(topic).code == codes.SUCCESS
        # A group of others in a topic of the user's, and a group of the user's with a topic of others.
        for group, topic in (("secret-group", TOPIC), ("shop", "hidden"), ("shop", TOPIC)):
            assert RemotingConsumer(ops, group, f"ops-{group}").beat(topic).code == codes.SUCCESS
            assert RemotingConsumer(ops, group, f"ops-{group}").commit(topic, 1).code == codes.SUCCESS
        shop_only = {"topic": TOPIC, "filterGroups": "shop", "compareGroup": ""}
        assert bytes(shop.call(codes.QUERY_CORRECTION_OFFSET, shop_only).body) == b'{"correctionOffsets":{}}'
        assert b"0:1" in bytes(ops.call(codes.QUERY_CORRECTION_OFFSET, shop_only).body)
        compared = shop.call(codes.QUERY_CORRECTION_OFFSET, {**shop_only, "compareGroup": "secret-group"})
        assert compared.code == codes.NO_PERMISSION
        assert RemotingConsumer(ops, "shop", "ops-shop").beat("hidden", TOPIC).code == codes.SUCCESS
        listed = shop.call(codes.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "shop"})
        assert (b"hidden" in bytes(listed.body), TOPIC.encode() in bytes(listed.body)) == (False, True)
        copied = shop.call(codes.CLONE_GROUP_OFFSET, {"srcGroup": "shop", "destGroup": "shop-copy", "topic": ""})
        assert copied.code == codes.NO_PERMISSION
        assert "hidden" not in copied.remark
        known = ops.call(codes.QUERY_TOPICS_BY_CONSUMER, {"group": "shop-copy"})
        assert b"hidden" not in bytes(known.body)
