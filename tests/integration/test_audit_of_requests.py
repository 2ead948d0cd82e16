"""The audit log has each change of an administrator and each refused one: a walk over both protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.broker.remoting import registry as remoting
from flintmq.protocol import commands
from flintmq.protocol.auth.permissions import ADMIN
from flintmq.protocol.remoting import codes
from tests.conftest import ConnectionFactory
from tests.remoting_keys import ADMIN_GRANT, SignedSocket, remoting_broker_with_users
from tests.remoting_tools import RemotingBroker, json_blob
from tests.security_tools import authenticate

TOPIC, GROUP, DEAD_LETTERS = "audited", "audited-group", "%DLQ%audited-group"
GRANTS: dict[str, list[dict[str, Any]]] = {"ops": [ADMIN_GRANT], "guest": [{"actions": ["publish"], "topic": "other"}]}
NAMES = {
    **dict.fromkeys(("topic",), TOPIC),
    **dict.fromkeys(("group", "consumerGroup", "groupName", "srcGroup", "destGroup", "producerGroup"), GROUP),
    "brokerName": "flintmq",
}
OF_MEMBERS = {commands.REPLICATE, commands.REPORT_POSITION}
"""Commands of the members of a replica set among themselves: they need an administrator's right, and no person sends
them."""
BY_BODY = {
    codes.UPDATE_AND_CREATE_TOPIC_LIST: {
        "topicConfigList": [{"topicName": "listed", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]
    },
    codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "made", "consumeEnable": True},
    codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": "listed"}]},
    codes.SET_MESSAGE_REQUEST_MODE: {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 2},
}
"""Bodies of the requests whose handler checks the rights, because the names are in the body."""
QUEUES = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
CHANGES: list[tuple[int, dict[str, Any], bytes, str, str]] = [
    (codes.UPDATE_AND_CREATE_TOPIC, {"topic": "made", **QUEUES}, b"", "UPDATE_AND_CREATE_TOPIC", "topic made"),
    (codes.UPDATE_AND_CREATE_TOPIC_LIST, {}, b"", "UPDATE_AND_CREATE_TOPIC", "topic listed"),
    (codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b"", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "group made"),
    (
        codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {},
        b"",
        "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST",
        "group listed",
    ),
    (codes.SET_MESSAGE_REQUEST_MODE, {}, b"", "SET_MESSAGE_REQUEST_MODE", f"group {GROUP}, topic {TOPIC}"),
    (
        codes.CLONE_GROUP_OFFSET,
        {"srcGroup": GROUP, "destGroup": "copy", "topic": TOPIC},
        b"",
        "CLONE_GROUP_OFFSET",
        f"group copy, topic {TOPIC}",
    ),
    (
        codes.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": GROUP, "topic": TOPIC, "timestamp": -1, "isForce": True},
        b"",
        "INVOKE_BROKER_TO_RESET_OFFSET",
        f"group {GROUP}, topic {TOPIC}",
    ),
    (
        codes.UPDATE_BROKER_CONFIG,
        {},
        b"fileReservedTime=71",
        "UPDATE_BROKER_CONFIG",
        "setting retention.file_reserved_hours",
    ),
    (
        codes.WIPE_WRITE_PERM_OF_BROKER,
        {"brokerName": "flintmq"},
        b"",
        "WIPE_WRITE_PERM_OF_BROKER",
        "the routes of flintmq",
    ),
    (
        codes.ADD_WRITE_PERM_OF_BROKER,
        {"brokerName": "flintmq"},
        b"",
        "ADD_WRITE_PERM_OF_BROKER",
        "the routes of flintmq",
    ),
    (codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "copy"}, b"", "DELETE_SUBSCRIPTIONGROUP", "group copy"),
    (codes.DELETE_TOPIC_IN_BROKER, {"topic": "made"}, b"", "DELETE_TOPIC_IN_BROKER", "topic made"),
]
"""Changes through the gateway: the request, and the action and the object of its line."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingBroker]:
    """A broker with users, a topic, and a group that has read from it."""
    with remoting_broker_with_users(tmp_path_factory.mktemp("audit"), GRANTS) as broker:
        with SignedSocket(broker.address, "ops") as ops:
            for topic in (TOPIC, "other"):
                assert ops.produce(topic).code == codes.SUCCESS
            ops.heart_beat("once", consumers=({"groupName": GROUP},))
            commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 1}
            assert ops.call(codes.UPDATE_CONSUMER_OFFSET, commit).code == codes.SUCCESS
            gone = {"clientID": "once", "consumerGroup": GROUP}
            assert ops.call(codes.UNREGISTER_CLIENT, gone).code == codes.SUCCESS
        yield broker


def lines_of(broker: RemotingBroker, user: str) -> list[dict[str, Any]]:
    """Return the lines about requests of a user."""
    text = (broker.running.store.parent / "audit.log").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line.get("user") == user]


def administrative() -> list[int]:
    """Return the codes of RocketMQ's requests that need an administrator's right."""
    by_rule = [
        code
        for code, _, rule in remoting.ROWS
        if any(need.actions == (ADMIN,) for need in rule({**NAMES, "topic": "t"}))
    ]
    return [*by_rule, *BY_BODY]


def test_each_refused_request_of_rocketmqs_tools_is_recorded(broker: RemotingBroker) -> None:
    names = {code: name for name, code in vars(codes).items() if name.isupper() and type(code) is int}
    wanted = administrative()
    assert len(wanted) > 15
    missing = []
    with SignedSocket(broker.address, "guest") as guest:
        for code in wanted:
            before = len(lines_of(broker, "guest"))
            refused = guest.call(code, NAMES, json_blob(BY_BODY[code]) if code in BY_BODY else b"")
            assert refused.code == codes.NO_PERMISSION, (code, refused.remark)
            lines = lines_of(broker, "guest")[before:]
            if [(line["action"], line["outcome"]) for line in lines] != [(names[code], "NO_PERMISSION")]:
                missing.append((code, lines))
    assert not missing


def test_each_change_by_rocketmqs_tools_is_recorded(broker: RemotingBroker) -> None:
    missing = []
    with SignedSocket(broker.address, "ops") as ops:
        for code, fields, body, action, target in CHANGES:
            before = len(lines_of(broker, "ops"))
            done = ops.call(code, fields, json_blob(BY_BODY[code]) if code in BY_BODY else body)
            assert done.code == codes.SUCCESS, (code, done.remark)
            lines = [(line["action"], line["object"], line["outcome"]) for line in lines_of(broker, "ops")[before:]]
            if (action, target, "done") not in lines:
                missing.append((code, lines))
    assert not missing


def test_each_refused_command_of_an_administrator_is_recorded(
    broker: RemotingBroker, connect: ConnectionFactory
) -> None:
    fields: dict[str, Any] = {"group": GROUP, "topic": TOPIC, "transaction_id": "t", "parked": True, "drop": "stage"}
    wanted = [
        command
        for command in commands.COMMANDS.values()
        if any(need.actions == (ADMIN,) for need in command.rule(fields))
    ]
    wanted = [command for command in wanted if command not in OF_MEMBERS]
    # An operator ends a parked transaction, and purges dead letters, by commands that programs send, too.
    wanted += [commands.END_TRANSACTION, commands.UPDATE_CONSUMER_OFFSET]
    assert len(wanted) > 10
    missing = []
    guest = authenticate(connect(broker.running), "guest")
    for command in wanted:
        before = len(lines_of(broker, "guest"))
        named = fields | ({"topic": DEAD_LETTERS} if command is commands.UPDATE_CONSUMER_OFFSET else {})
        assert guest.call(command, named).code != codes.SUCCESS
        lines = [(line["action"], line["outcome"]) for line in lines_of(broker, "guest")[before:]]
        if lines != [(command.name, "NO_PERMISSION")]:
            missing.append((command.name, lines))
    assert not missing


def test_stages_dropped_by_hand_are_recorded(broker: RemotingBroker, connect: ConnectionFactory) -> None:
    ops = authenticate(connect(broker.running), "ops")
    ops.call(commands.ABORT_PREPARED, {"drop": "job-7"}).raise_for_error()
    [line] = [line for line in lines_of(broker, "ops") if line["action"] == "ABORT_PREPARED"]
    assert (line["object"], line["before"], line["outcome"]) == ("drop job-7", {"stages": 0}, "done")
