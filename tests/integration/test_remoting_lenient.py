"""The gateway takes every form of a value that RocketMQ's decoder takes, in each field of each body and header.

RocketMQ reads a body with fastjson into a class: a field's type says which values it converts. ``BODIES`` has each
class that a client sends, with the type of each field; ``forms`` makes the forms of a type. Clients in other languages
than Java send such forms: those in C++ enumerations as numbers and numbers as texts.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from flintmq.protocol.remoting.fastjson import decode
from tests.remoting_tools import RemotingBroker, RemotingSocket, send_fields

TOPIC, GROUP, CLIENT = "4711", "17", "99"
"""Names that are numbers, so that a number can stand for them."""
TEXT, INTEGER, FLAG, OBJECTS, OBJECT, TEXTS = "text", "integer", "flag", "objects", "object", "texts"
CONSUME_TYPE = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODEL = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
FILTER_TYPE = ("SINGLE_TAG", "MULTI_TAG")
REQUEST_MODE = ("PULL", "POP")
POLICY = ("EXPONENTIAL", "CUSTOMIZED")


class Field(NamedTuple):
    """A field with its type, the value that the body below has, and whether RocketMQ's answer is the same without."""

    name: str
    kind: Any
    value: Any
    optional: bool = True


SUBSCRIPTION = [
    Field("topic", TEXT, TOPIC, optional=False),
    Field("subString", TEXT, "5", optional=False),
    Field("subVersion", INTEGER, 7, optional=False),
    Field("expressionType", TEXT, "TAG"),
    Field("classFilterMode", FLAG, False),
]
TOPIC_CONFIG = [
    Field("topicName", TEXT, "815", optional=False),
    Field("readQueueNums", INTEGER, 2, optional=False),
    Field("writeQueueNums", INTEGER, 2, optional=False),
    Field("perm", INTEGER, 6, optional=False),
    Field("topicFilterType", FILTER_TYPE, "SINGLE_TAG"),
    Field("topicSysFlag", INTEGER, 0),
    Field("order", FLAG, True, optional=False),
    Field("attributes", TEXTS, {"+message.type": "FIFO"}, optional=False),
]
GROUP_CONFIG = [
    Field("groupName", TEXT, "42", optional=False),
    Field("consumeEnable", FLAG, True),
    Field("consumeFromMinEnable", FLAG, True),
    Field("consumeBroadcastEnable", FLAG, True),
    Field("consumeMessageOrderly", FLAG, False),
    Field("retryQueueNums", INTEGER, 1),
    Field("retryMaxTimes", INTEGER, 16),
    Field("groupRetryPolicy", OBJECT, [Field("type", POLICY, "CUSTOMIZED")]),
    Field("brokerId", INTEGER, 0),
    Field("whichBrokerWhenConsumeSlowly", INTEGER, 1),
    Field("notifyConsumerIdsChangedEnable", FLAG, True),
    Field("groupSysFlag", INTEGER, 0),
    Field("consumeTimeoutMinute", INTEGER, 15),
    Field("attributes", TEXTS, {}),
]
QUEUE = [
    Field("topic", TEXT, TOPIC, optional=False),
    Field("brokerName", TEXT, "3"),
    Field("queueId", INTEGER, 0, optional=False),
]
LOCKS = [
    Field("consumerGroup", TEXT, GROUP, optional=False),
    Field("clientId", TEXT, CLIENT, optional=False),
    Field("onlyThisBroker", FLAG, False),
    Field("mqSet", OBJECTS, QUEUE, optional=False),
]
ACK = [
    Field("c", TEXT, GROUP, optional=False),
    Field("t", TEXT, TOPIC, optional=False),
    Field("r", TEXT, "0", optional=False),
    Field("so", INTEGER, 0, optional=False),
    Field("q", INTEGER, 0, optional=False),
    Field("rq", INTEGER, 0),
    Field("pt", INTEGER, 1, optional=False),
    Field("it", INTEGER, 1000),
    Field("b", TEXT, base64.b64encode(b"\1").decode(), optional=False),
]
BODIES: dict[str, tuple[int, list[Field], int, dict[str, Any]]] = {
    "HeartbeatData": (
        codes.HEART_BEAT,
        [
            Field("clientID", TEXT, CLIENT, optional=False),
            Field("heartbeatFingerprint", INTEGER, 0),
            Field("withoutSub", FLAG, False),
            Field("producerDataSet", OBJECTS, [Field("groupName", TEXT, "18", optional=False)]),
            Field(
                "consumerDataSet",
                OBJECTS,
                [
                    Field("groupName", TEXT, GROUP, optional=False),
                    Field("consumeType", CONSUME_TYPE, "CONSUME_PASSIVELY", optional=False),
                    Field("messageModel", MESSAGE_MODEL, "CLUSTERING", optional=False),
                    Field("consumeFromWhere", CONSUME_FROM, "CONSUME_FROM_FIRST_OFFSET", optional=False),
                    Field("unitMode", FLAG, False),
                    Field("subscriptionDataSet", OBJECTS, SUBSCRIPTION, optional=False),
                ],
                optional=False,
            ),
        ],
        codes.GET_CONSUMER_CONNECTION_LIST,
        {"consumerGroup": GROUP},
    ),
    "LockBatchRequestBody": (codes.LOCK_BATCH_MQ, LOCKS, 0, {}),
    "UnlockBatchRequestBody": (codes.UNLOCK_BATCH_MQ, LOCKS, 0, {}),
    "CheckClientRequestBody": (
        codes.CHECK_CLIENT_CONFIG,
        [
            Field("clientId", TEXT, CLIENT),
            Field("group", TEXT, GROUP),
            Field("namespace", TEXT, "1"),
            Field("subscriptionData", OBJECT, SUBSCRIPTION),
        ],
        0,
        {},
    ),
    "QueryAssignmentRequestBody": (
        codes.QUERY_ASSIGNMENT,
        [
            Field("topic", TEXT, TOPIC, optional=False),
            Field("consumerGroup", TEXT, GROUP, optional=False),
            Field("clientId", TEXT, CLIENT, optional=False),
            Field("strategyName", TEXT, "AVG"),
            Field("messageModel", MESSAGE_MODEL, "CLUSTERING"),
        ],
        0,
        {},
    ),
    "SetMessageRequestModeRequestBody": (
        codes.SET_MESSAGE_REQUEST_MODE,
        [
            Field("topic", TEXT, TOPIC, optional=False),
            Field("consumerGroup", TEXT, GROUP, optional=False),
            Field("mode", REQUEST_MODE, "PULL", optional=False),
            Field("popShareQueueNum", INTEGER, 0),
        ],
        codes.GET_MESSAGE_REQUEST_MODE,
        {},
    ),
    "BatchAckMessageRequestBody": (
        codes.BATCH_ACK_MESSAGE,
        [Field("brokerName", TEXT, "3"), Field("acks", OBJECTS, ACK, optional=False)],
        0,
        {},
    ),
    "CreateTopicListRequestBody": (
        codes.UPDATE_AND_CREATE_TOPIC_LIST,
        [Field("topicConfigList", OBJECTS, TOPIC_CONFIG, optional=False)],
        codes.GET_TOPIC_CONFIG,
        {"topic": "815"},
    ),
    "SubscriptionGroupConfig": (
        codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        GROUP_CONFIG,
        codes.GET_SUBSCRIPTIONGROUP_CONFIG,
        {"group": "42"},
    ),
    "SubscriptionGroupList": (
        codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        [Field("groupConfigList", OBJECTS, GROUP_CONFIG, optional=False)],
        codes.GET_SUBSCRIPTIONGROUP_CONFIG,
        {"group": "42"},
    ),
}
"""By RocketMQ's class: the request with it as its body, its fields, and a request that shows what it has done."""


def forms(field: Field) -> list[Any]:
    """Return the forms in which fastjson takes the field's value."""
    value, nulls = field.value, [None, "", "null"] if field.optional else []
    if field.kind is TEXT:
        return [int(value)] if value.isdigit() else [None] if field.optional else []
    if field.kind is INTEGER:
        return [str(value), f"+{value}", float(value), value + 0.5, *([bool(value)] if value in (0, 1) else []), *nulls]
    if field.kind is FLAG:
        return [*([1, "1", "true", "True", "TRUE", "Y", "T"] if value else [0, "0", "false", "FALSE", "N", 2]), *nulls]
    if field.kind is OBJECTS:
        return [{each.name: plain(each) for each in field.value}, *nulls]
    if field.kind in (OBJECT, TEXTS):
        return nulls
    number = field.kind.index(value)
    return [number, str(number), float(number), value.lower(), *(["UNHEARD_OF", *nulls] if field.optional else [])]


def plain(field: Field) -> Any:
    """Return the field's value in the form of Java's clients."""
    if field.kind is OBJECT:
        return {each.name: plain(each) for each in field.value}
    return [{each.name: plain(each) for each in field.value}] if field.kind is OBJECTS else field.value


def variants(fields: list[Field], body: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each variant of a body in which one field has another form, or an object has a field that no one knows."""
    yield f"{path}.unheardOf", {**body, "unheardOf": [{"a": None, "b": 1.5}]}
    for field in fields:
        if field.optional:
            yield f"{path} without {field.name}", {name: each for name, each in body.items() if name != field.name}
        for form in forms(field):
            yield f"{path}.{field.name} = {form!r}", {**body, field.name: form}
        if field.kind is OBJECT:
            for where, inner in variants(field.value, body[field.name], f"{path}.{field.name}"):
                yield where, {**body, field.name: inner}
        if field.kind is OBJECTS:
            for where, inner in variants(field.value, body[field.name][0], f"{path}.{field.name}"):
                yield where, {**body, field.name: [inner]}


def call_raw(remote: RemotingSocket, header: dict[str, Any], body: bytes = b"") -> RemotingFrame:
    """Send a header as it is and return the response."""
    blob = json.dumps(header).encode()
    remote.send_bytes(struct.pack(">II", 4 + len(blob) + len(body), len(blob)) + blob + body)
    return remote.receive_for(int(header["opaque"]))


@pytest.fixture
def remote(gateway: RemotingBroker) -> Iterator[RemotingSocket]:
    """Return a client's connection, with the topic and the member of the table."""
    with gateway.connect() as remote:
        fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        assert remote.call(codes.UPDATE_AND_CREATE_TOPIC, fields).code == codes.SUCCESS
        _, heartbeat, _, _ = BODIES["HeartbeatData"]
        beat(remote, {each.name: plain(each) for each in heartbeat})
        yield remote


def beat(remote: RemotingSocket, body: dict[str, Any]) -> None:
    assert remote.call(codes.HEART_BEAT, {}, json.dumps(body).encode()).code == codes.SUCCESS


@pytest.mark.parametrize("name", BODIES)
def test_each_field_of_a_body_is_taken_in_every_form_that_rocketmq_takes(remote: RemotingSocket, name: str) -> None:
    code, fields, show, shown = BODIES[name]

    def effect(body: Any) -> tuple[int, Any, Any]:
        answer = remote.call(code, {}, json.dumps(body).encode())
        state = decode(bytes(remote.call(show, shown).body)) if show else None
        return answer.code, answer.remark if answer.code else bytes(answer.body), state

    body = {each.name: plain(each) for each in fields}
    expected = effect(body)
    assert expected[0] == (codes.SUCCESS if name != "BatchAckMessageRequestBody" else codes.NO_MESSAGE), expected
    found = {where: effect(each) for where, each in variants(fields, body, name)}
    assert {where: each for where, each in found.items() if each != expected} == {}


@pytest.mark.parametrize(
    "text",
    [
        "{'clientID':'9\\'9',\"producerDataSet\":[{'groupName':\"18\"},],}",
        '{clientID:"9\'9","heartbeatFingerprint":+5,"producerDataSet":[]}',
        '{"clientID":"9\'9","clientID":"9\'9","withoutSub":false,"$ref":"$"}',
    ],
)
def test_a_body_may_be_written_as_fastjson_reads_it(remote: RemotingSocket, text: str) -> None:
    assert remote.call(codes.HEART_BEAT, {}, text.encode()).code == codes.SUCCESS


WRONG: dict[Any, list[Any]] = {
    INTEGER: ["x", " 5 ", 2**63, [], "5x"],
    FLAG: ["yes", "on", [], {}],
    CONSUME_TYPE: [3, -1, [], {}, True],
    OBJECTS: ["x", 7, [1], True],
}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind in WRONG for value in WRONG[kind]])
def test_what_rocketmq_does_not_take_is_refused_with_the_field(remote: RemotingSocket, kind: Any, value: Any) -> None:
    member = {"groupName": GROUP, "subscriptionDataSet": []}
    name = {INTEGER: "heartbeatFingerprint", FLAG: "withoutSub", OBJECTS: "producerDataSet"}.get(kind, "consumeType")
    body: dict[str, Any] = {"clientID": CLIENT, "consumerDataSet": [member]}
    (member if kind is CONSUME_TYPE else body)[name] = value
    answer = remote.call(codes.HEART_BEAT, {}, json.dumps(body).encode())
    assert answer.code == codes.INVALID_PARAMETER
    assert name in answer.remark


AT = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
LONG = dict(
    zip(
        "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties "
        "reconsumeTimes unitMode batch".split(),
        send_fields(TOPIC, {}).values(),
        strict=True,
    )
)
HANDLE = "0 1 1000 0 0 3 0 0"
HEADERS: dict[str, tuple[int, dict[str, Any]]] = {
    "SendMessageRequestHeader": (codes.SEND_MESSAGE, LONG),
    "SendMessageRequestHeaderV2": (codes.SEND_MESSAGE_V2, send_fields(TOPIC, {})),
    "PullMessageRequestHeader": (
        codes.PULL_MESSAGE,
        {**AT, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0}
        | {"subscription": "5", "subVersion": 7, "expressionType": "TAG", "maxMsgBytes": 1000, "requestSource": 0},
    ),
    "QueryConsumerOffsetRequestHeader": (codes.QUERY_CONSUMER_OFFSET, {**AT, "setZeroIfNotFound": True}),
    "UpdateConsumerOffsetRequestHeader": (codes.UPDATE_CONSUMER_OFFSET, {**AT, "commitOffset": 0}),
    "GetMaxOffsetRequestHeader": (codes.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0, "committed": True}),
    "GetMinOffsetRequestHeader": (codes.GET_MIN_OFFSET, {"topic": TOPIC, "queueId": 0}),
    "GetEarliestMsgStoretimeRequestHeader": (codes.GET_EARLIEST_MSG_STORETIME, {"topic": TOPIC, "queueId": 0}),
    "SearchOffsetRequestHeader": (
        codes.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": TOPIC, "queueId": 0, "timestamp": 0, "boundaryType": "lower"},
    ),
    "ConsumerSendMsgBackRequestHeader": (
        codes.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": "18000", "delayLevel": 0, "originMsgId": "1", "originTopic": TOPIC}
        | {"unitMode": False, "maxReconsumeTimes": 16},
    ),
    "EndTransactionRequestHeader": (
        codes.END_TRANSACTION,
        {"topic": TOPIC, "producerGroup": "18", "tranStateTableOffset": 0, "commitLogOffset": 0}
        | {"commitOrRollback": 0, "fromTransactionCheck": False, "msgId": "1", "transactionId": "1"},
    ),
    "UnregisterClientRequestHeader": (codes.UNREGISTER_CLIENT, {"clientID": "1", "producerGroup": "18"}),
    "GetConsumerListByGroupRequestHeader": (codes.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}),
    "PopMessageRequestHeader": (
        codes.POP_MESSAGE,
        {**AT, "consumerGroup": "19", "maxMsgNums": 1, "invisibleTime": 1000, "pollTime": 0, "bornTime": 0}
        | {"initMode": 1, "exp": "*", "expType": "TAG", "order": False},
    ),
    "AckMessageRequestHeader": (codes.ACK_MESSAGE, {**AT, "extraInfo": HANDLE, "offset": 0}),
    "ChangeInvisibleTimeRequestHeader": (
        codes.CHANGE_MESSAGE_INVISIBLETIME,
        {**AT, "extraInfo": HANDLE, "offset": 0, "invisibleTime": 1000},
    ),
    "NotificationRequestHeader": (
        codes.NOTIFICATION,
        {**AT, "consumerGroup": "19", "pollTime": 0, "bornTime": 0, "order": False},
    ),
    "CreateTopicRequestHeader": (
        codes.UPDATE_AND_CREATE_TOPIC,
        {"topic": "816", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "force": False},
    ),
    "QueryMessageRequestHeader": (
        codes.QUERY_MESSAGE,
        {"topic": TOPIC, "key": "1", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1, "_UNIQUE_KEY_QUERY": False},
    ),
    "QueryConsumeQueueRequestHeader": (
        codes.QUERY_CONSUME_QUEUE,
        {"topic": TOPIC, "queueId": 0, "index": 0, "count": 1, "consumerGroup": GROUP},
    ),
    "ViewMessageRequestHeader": (codes.VIEW_MESSAGE_BY_ID, {"offset": 0, "topic": TOPIC}),
    "ResetOffsetRequestHeader": (
        codes.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": TOPIC, "group": GROUP, "timestamp": 0, "isForce": True, "queueId": 0, "offset": 0},
    ),
    "CloneGroupOffsetRequestHeader": (
        codes.CLONE_GROUP_OFFSET,
        {"srcGroup": "1001", "destGroup": "1002", "topic": TOPIC, "offline": False},
    ),
    "GetConsumeStatsRequestHeader": (codes.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC}),
}
"""By RocketMQ's class: a request, and the extension fields of the class with their types."""


def header_forms(value: Any) -> list[Any]:
    """Return the forms of a value of an extension field: texts are the form of Java's clients, JSON's types others'."""
    if isinstance(value, bool):
        return [value, str(value), str(value).upper()]
    if isinstance(value, int):
        return [value, f"+{value}"]
    return [int(value)] if value.isdigit() else [value]


@pytest.mark.parametrize("name", HEADERS)
def test_each_field_of_a_header_is_taken_in_every_form_that_rocketmq_takes(remote: RemotingSocket, name: str) -> None:
    code, fields = HEADERS[name]
    numbers = iter(range(1_000, 2_000))

    def answered(fields: dict[str, Any], **members: Any) -> tuple[int, str]:
        answer = call_raw(remote, {"code": code, "opaque": next(numbers), "flag": 0, "extFields": fields, **members})
        return answer.code, answer.remark if answer.code else ""

    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in fields.items()}
    expected = answered(texts)
    assert expected[0] not in (codes.INVALID_PARAMETER, codes.REQUEST_CODE_NOT_SUPPORTED), expected
    found = {
        f"{key} = {form!r}": answered({**texts, key: form}) for key in fields for form in header_forms(fields[key])
    }
    found["another field"] = answered({**texts, "unheardOf": {"a": [1]}})
    for language in ("CPP", "cpp", 1, "1", None, "UNHEARD_OF", 99):
        found[f"language {language!r}"] = answered(texts, language=language, version="399", remark=7, unheardOf=[])
    found["numbers as texts"] = answered(texts, code=str(code), opaque=str(next(numbers)), flag="0")
    assert {where: each for where, each in found.items() if each != expected} == {}
