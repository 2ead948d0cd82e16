"""Permissions of RocketMQ's clients: every request, signed by a user without rights and by users with some."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.client import Admin
from flintmq.protocol.remoting import codes
from flintmq.protocol.storage.record import encode_host, offset_id
from tests.remoting_keys import ADMIN_GRANT, SignedSocket, remoting_broker_with_users
from tests.remoting_tools import RemotingBroker, json_blob
from tests.security_tools import PASSWORD

TOPIC, GROUP, CLIENT, SECRET_BODY = "hidden-topic", "hidden-group", "hidden-client", b"hidden body"
GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [ADMIN_GRANT],
    "guest": [],
    "other": [
        {"actions": ["publish", "consume", "query"], "topic": "other"},
        {"actions": ["consume"], "group": "other"},
    ],
}
KNOWN = sorted({number for name, number in vars(codes).items() if name.isupper() and type(number) is int})
ROUTES = {codes.GET_ROUTEINFO_BY_TOPIC, codes.GET_BROKER_CLUSTER_INFO}
NAMES = {
    **dict.fromkeys(("topic", "b"), TOPIC),
    **dict.fromkeys(("group", "consumerGroup", "groupName", "srcGroup", "destGroup", "producerGroup", "a"), GROUP),
    **dict.fromkeys(("clientId", "clientID"), CLIENT),
    **dict.fromkeys(("queueId", "e", "offset", "queueOffset", "commitOffset", "timestamp", "index", "delayLevel"), 0),
    **dict.fromkeys(("maxMsgNums", "maxNum", "count", "readQueueNums", "writeQueueNums", "d"), 1),
    "key": "hidden-key",
    "beginTimestamp": 0,
    "endTimestamp": 2**62,
    "sysFlag": 4,
    "subscription": "*",
    "perm": 6,
    "defaultTopic": "TBW102",
    "c": "TBW102",
    "topicFilterType": "SINGLE_TAG",
    "order": False,
    "isForce": True,
    "tranStateTableOffset": 0,
    "commitLogOffset": 0,
    "commitOrRollback": 8,
    "invisibleTime": 60_000,
    "pollTime": 0,
    "bornTime": 0,
    "initMode": 0,
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": TOPIC,
    "cluster": "DefaultCluster",
    "isOrder": False,
    "brokerName": "flintmq",
    "f": 0,
    "g": 1,
    "h": 0,
    "i": "",
    "offline": True,
}
QUEUE = {"topic": TOPIC, "brokerName": "flintmq", "queueId": 0}
BODIES: tuple[Any, ...] = (
    b"",
    {"clientId": CLIENT, "consumerGroup": GROUP, "mqSet": [QUEUE]},
    {"topicConfigList": [{"topicName": TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 4}]},
    {"groupName": GROUP, "consumeEnable": False},
    {"groupConfigList": [{"groupName": GROUP, "consumeEnable": False}]},
    {"topic": TOPIC, "consumerGroup": GROUP, "clientId": CLIENT, "mode": "POP", "messageModel": "CLUSTERING"},
    {
        "clientID": CLIENT,
        "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": [{"topic": TOPIC, "subString": "*"}]}],
    },
    {
        "brokerName": "flintmq",
        "acks": [{"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "q": 0, "pt": 1, "it": 1, "b": "AQ=="}],
    },
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingBroker]:
    """A broker with a topic and a group that only its administrator may see."""
    with (
        remoting_broker_with_users(tmp_path_factory.mktemp("users"), GRANTS) as gateway,
        SignedSocket(gateway.address, "ops") as ops,
    ):
        assert ops.produce(TOPIC, SECRET_BODY, {"KEYS": "hidden-key"}).code == codes.SUCCESS
        assert ops.produce("other").code == codes.SUCCESS
        ops.heart_beat(
            CLIENT, consumers=({"groupName": GROUP, "subscriptionDataSet": [{"topic": TOPIC, "subString": "*"}]},)
        )
        commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 1}
        assert ops.call(codes.UPDATE_CONSUMER_OFFSET, commit).code == codes.SUCCESS
        yield gateway


def state_of(gateway: RemotingBroker) -> list[Any]:
    """Return what no request of others may change."""
    with SignedSocket(gateway.address, "ops") as ops:
        asked: list[tuple[int, dict[str, Any]]] = [
            (codes.GET_TOPIC_CONFIG, {"topic": TOPIC}),
            (codes.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}),
            (codes.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0}),
            (codes.QUERY_CONSUMER_OFFSET, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}),
            (codes.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}),
            (codes.GET_MESSAGE_REQUEST_MODE, {}),
        ]
        return [(answer.code, answer.fields, bytes(answer.body)) for answer in itertools.starmap(ops.call, asked)]


def test_a_user_without_rights_sees_and_changes_nothing(gateway: RemotingBroker) -> None:
    before = state_of(gateway)
    leaks = []
    with SignedSocket(gateway.address, "guest") as guest:
        for code, body in itertools.product(KNOWN, BODIES):
            answer = guest.call(code, NAMES, body if type(body) is bytes else json_blob(body))
            shown = bytes(answer.body) + repr(answer.fields).encode()
            named = [each for each in (TOPIC, GROUP, CLIENT) if each.encode() in shown]
            if code not in ROUTES and (named or SECRET_BODY in shown):
                leaks.append((code, answer.code, shown[:200]))
    assert not leaks
    assert state_of(gateway) == before


def test_a_message_of_another_topic_is_not_shown_by_its_offset(gateway: RemotingBroker) -> None:
    """The topic that a request names is that of the caller's choice; the message's own counts."""
    with SignedSocket(gateway.address, "other") as other:
        for topic in ({"topic": "other"}, {"topic": TOPIC}, {}):
            answer = other.call(codes.VIEW_MESSAGE_BY_ID, {"offset": 0, **topic})
            assert answer.code != codes.SUCCESS, topic
            assert SECRET_BODY not in bytes(answer.body)
        sent_back = {"offset": 0, "group": "other", "delayLevel": 1, "originTopic": "other", "maxReconsumeTimes": 16}
        sent_back["originMsgId"] = offset_id(encode_host("127.0.0.1", 1), 0)
        assert other.call(codes.CONSUMER_SEND_MSG_BACK, sent_back).code != codes.SUCCESS


def test_lists_show_what_the_user_has_any_right_on(gateway: RemotingBroker) -> None:
    with SignedSocket(gateway.address, "other") as other:
        for code in (codes.GET_ALL_TOPIC_CONFIG, codes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER):
            shown = bytes(other.call(code).body)
            assert b'"other"' in shown
            assert TOPIC.encode() not in shown


def test_a_refused_request_names_the_command_that_grants_it(gateway: RemotingBroker) -> None:
    with SignedSocket(gateway.address, "guest") as guest:
        for code, command in (
            (codes.SEND_MESSAGE_V2, f"flintmq user grant guest --publish {TOPIC}"),
            (codes.PULL_MESSAGE, f"flintmq user grant guest --group {GROUP}"),
            (codes.DELETE_TOPIC_IN_BROKER, f"flintmq user grant guest --manage {TOPIC}"),
            (codes.DELETE_SUBSCRIPTIONGROUP, f"flintmq user grant guest --manage-group {GROUP}"),
            (codes.UPDATE_BROKER_CONFIG, "flintmq user grant guest --admin"),
            (codes.GET_BROKER_RUNTIME_INFO, "flintmq user grant guest --query-broker"),
        ):
            answer = guest.call(code, NAMES, b"fileReservedTime=1")
            assert answer.code == codes.NO_PERMISSION
            assert command in answer.remark


def test_users_of_both_protocols_are_the_same(gateway: RemotingBroker) -> None:
    with (
        Admin(gateway.running.address, user="ops", password=PASSWORD) as admin,
        SignedSocket(gateway.address, "guest") as guest,
    ):
        assert guest.produce("other").code == codes.NO_PERMISSION
        granted = next(each.grants for each in admin.users() if each.user == "other")
        admin.change_user("guest", grant=granted)
        assert guest.produce("other").code == codes.SUCCESS
        admin.change_user("guest", revoke=None)
        assert guest.produce("other").code == codes.NO_PERMISSION
