"""Sends of RocketMQ's clients at the level of the protocol: every check, its code, and what is stored."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import BINARY_HEADER, JSON_HEADER, RemotingFrame
from tests.conftest import BrokerFactory
from tests.remoting_tools import RemotingBroker, RemotingSocket, batch_body, properties_text, send_fields

KEY = "7F00000104D2A1B2C3D4000000000001"


@pytest.mark.parametrize("header_type", [JSON_HEADER, BINARY_HEADER])
def test_a_message_is_stored_and_its_place_is_told(gateway: RemotingBroker, topic: str, header_type: int) -> None:
    with gateway.connect(header_type) as remote:
        answer = remote.produce(topic, b"body", {"KEYS": "k", "TAGS": "eu", "UNIQ_KEY": KEY}, h=7)
        assert answer.code == codes.SUCCESS
        (record,) = remote.pull(topic)
    assert {name: answer.fields[name] for name in ("queueId", "queueOffset", "transactionId")} == {
        "queueId": "0",
        "queueOffset": "0",
        "transactionId": KEY,
    }
    assert answer.fields["msgId"] == f"{record.store_host.hex().upper()}{record.physical_offset:016X}"
    assert (answer.fields["MSG_REGION"], answer.fields["TRACE_ON"]) == ("DefaultRegion", "true")
    assert (record.body, record.flag, record.reconsume_times) == (b"body", 7, 0)
    assert record.property_map() == {
        "KEYS": "k",
        "TAGS": "eu",
        "UNIQ_KEY": KEY,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    assert record.born_timestamp == 1_700_000_000_000


def test_long_names_of_fields_mean_the_same(remote: RemotingSocket, topic: str) -> None:
    fields = {
        "producerGroup": "g",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 2,
        "sysFlag": 0,
        "bornTimestamp": 5,
        "flag": 9,
        "properties": properties_text({"KEYS": "k"}),
        "reconsumeTimes": 3,
        "unitMode": False,
        "batch": False,
    }
    answer = remote.call(codes.SEND_MESSAGE, fields, b"old")
    assert (answer.code, answer.fields["queueId"]) == (codes.SUCCESS, "2")
    (record,) = remote.pull(topic, 2)
    assert (record.body, record.born_timestamp, record.flag, record.reconsume_times) == (b"old", 5, 9, 3)


def test_properties_without_name_or_value_and_those_of_brokers_are_dropped(remote: RemotingSocket, topic: str) -> None:
    sent = "TAGS\x01\x02\x01v\x02alone\x02POP_CK\x011 2\x02INNER_MULTI_QUEUE_OFFSET\x010\x02REAL_TOPIC\x01t\x02A\x01b"
    assert remote.produce(topic, i=sent).code == codes.SUCCESS
    properties = remote.pull(topic)[0].property_map()
    assert len(properties.pop("UNIQ_KEY")) == 32
    assert {name for name in properties if name not in ("MSG_REGION", "TRACE_ON", "CLUSTER")} == {"A"}


def test_stamps_of_an_earlier_broker_are_replaced(remote: RemotingSocket, topic: str) -> None:
    remote.produce(topic, properties={"CLUSTER": "other", "TRACE_ON": "false"})
    (record,) = remote.pull(topic)
    assert record.properties.count(b"CLUSTER\x01") == 1
    assert record.property_map()["CLUSTER"] == "DefaultCluster"


@pytest.mark.parametrize(
    ("name", "idle", "asking"),
    [
        ("DELAY", "0", "18"),
        ("DELAY", "-1", "+1"),
        ("DELAY", "0", "soon"),
        ("TIMER_DELAY_MS", "0", "600000"),
        ("TIMER_DELAY_SEC", "0", "600"),
        ("TIMER_DELIVER_MS", "0", "9999999999999999"),
        ("TRAN_MSG", "false", "true"),
        ("CORRELATION_ID", "", "c"),
    ],
)
def test_a_property_means_the_same_after_sends_in_which_it_meant_nothing(
    gateway: RemotingBroker, topic: str, name: str, idle: str, asking: str
) -> None:
    """The broker handles the next one of similar sends quickly, and must not take a delay for none."""

    def send(remote: RemotingSocket, number: int, value: str) -> RemotingFrame:
        properties = {"UNIQ_KEY": f"{'AB' * 10}{number:012X}", "WAIT": "true", name: value}
        return remote.produce(topic, b"%d" % number, properties)

    with gateway.connect() as fresh, gateway.connect() as kept:
        assert [send(kept, number, idle).code for number in range(3)] == 3 * [codes.SUCCESS]
        alone, after = send(fresh, 10, asking), send(kept, 11, asking)
        assert alone.code == after.code
        assert alone.fields.keys() == after.fields.keys()
        stored = {int(each.body): each.property_map() for each in kept.pull(topic)}
        assert (10 in stored) == (11 in stored)
        assert stored.get(10, {}).keys() == stored.get(11, {}).keys()


@pytest.mark.parametrize("sys_flag", [0x1, 0x101, 0x201, 0x301])
def test_compressed_bodies_are_stored_as_they_are(remote: RemotingSocket, topic: str, sys_flag: int) -> None:
    remote.produce(topic, b"\x00compressed", f=sys_flag | 0x4 | 0x10)
    (record,) = remote.pull(topic)
    assert (record.body, record.sys_flag) == (b"\x00compressed", sys_flag)


def test_queue_minus_one_lets_the_broker_choose(remote: RemotingSocket, topic: str) -> None:
    queues = [remote.produce(topic, e=-1).fields["queueId"] for _ in range(8)]
    assert sorted(queues) == sorted(["0", "1", "2", "3"] * 2)


def test_a_one_way_send_is_stored_and_not_answered(remote: RemotingSocket, topic: str) -> None:
    remote.produce(topic, b"first")
    for code, body in ((codes.SEND_MESSAGE_V2, b"one way"), (codes.SEND_BATCH_MESSAGE, batch_body((b"batch", {})))):
        fields = send_fields(topic, {}, m=code == codes.SEND_BATCH_MESSAGE)
        remote.send(code, fields, body, one_way=True)
    remote.send(codes.SEND_MESSAGE_V2, send_fields(topic, {}, e=99), b"refused", one_way=True)
    last = remote.produce(topic, b"last")
    assert last.fields["queueOffset"] == "3"
    assert [record.body for record in remote.pull(topic)] == [b"first", b"one way", b"batch", b"last"]


# ---- batches ----


def test_a_batch_is_stored_with_the_properties_of_each_message(remote: RemotingSocket, topic: str) -> None:
    body = batch_body((b"0", {"KEYS": "a", "UNIQ_KEY": KEY}), (b"", {"TAGS": "t"}), (b"2", {}), flag=5)
    answer = remote.call(codes.SEND_BATCH_MESSAGE, send_fields(topic, {"UNIQ_KEY": "of the batch"}, m=True, j=1), body)
    assert answer.code == codes.SUCCESS, answer.remark
    records = remote.pull(topic)
    host = records[0].store_host.hex().upper()
    assert answer.fields["msgId"].split(",") == [f"{host}{record.physical_offset:016X}" for record in records]
    assert (answer.fields["queueOffset"], answer.fields["transactionId"]) == ("0", "of the batch")
    assert [record.body for record in records] == [b"0", b"", b"2"]
    assert {record.flag for record in records} == {5}
    assert {record.reconsume_times for record in records} == {1}
    properties = [record.property_map() for record in records]
    assert [each.get("KEYS", each.get("TAGS")) for each in properties] == ["a", "t", None]
    keys = [each["UNIQ_KEY"] for each in properties]
    assert keys[0] == KEY
    assert len(set(keys)) == 3
    assert {each["CLUSTER"] for each in properties} == {"DefaultCluster"}


def _cut_size(body: bytes) -> bytes:
    return struct.pack(">i", len(body) - 1) + body[4:]


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({}, lambda body: b""),
        ({}, lambda body: body[:-1]),
        ({}, lambda body: body + b"\0"),
        ({}, _cut_size),
        ({}, lambda body: b"\xff" * 4 + body[4:]),
        ({}, lambda body: body[:16] + b"\x7f\xff\xff\xff" + body[20:]),
        ({"f": 0x301}, lambda body: body),
        ({"b": "%RETRY%group"}, lambda body: body),
    ],
    ids=["empty", "cut", "more", "size too small", "negative size", "body too long", "compressed as a whole", "retry"],
)
def test_a_batch_that_is_damaged_or_cannot_be_is_refused(
    remote: RemotingSocket, topic: str, fields: dict[str, Any], change: Any
) -> None:
    remote.produce(topic)
    body = batch_body((b"0", {"KEYS": "a"}))
    answer = remote.call(codes.SEND_BATCH_MESSAGE, send_fields(topic, {}, **{"m": True, **fields}), change(body))
    assert answer.code == codes.MESSAGE_ILLEGAL
    assert answer.remark
    assert len(remote.pull(topic)) == 1


@pytest.mark.parametrize(
    "properties", [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "3"}, {"TRAN_MSG": "true"}, {"A": "b\x01c"}]
)
def test_a_batch_cannot_hold_messages_that_go_elsewhere(
    remote: RemotingSocket, topic: str, properties: dict[str, str]
) -> None:
    body = batch_body((b"0", {"KEYS": "a"}), (b"1", properties))
    answer = remote.call(codes.SEND_BATCH_MESSAGE, send_fields(topic, {}, m=True), body)
    assert answer.code == codes.MESSAGE_ILLEGAL
    assert "message 1" in answer.remark


# ---- checks ----


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", codes.INVALID_PARAMETER),
        ("x" * 128, codes.INVALID_PARAMETER),
        ("with.dot", codes.INVALID_PARAMETER),
        ("with blank", codes.INVALID_PARAMETER),
        ("SCHEDULE_TOPIC_XXXX", codes.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", codes.NO_PERMISSION),
        ("SELF_TEST_TOPIC", codes.NO_PERMISSION),
        ("rmq_sys_wheel_timer", codes.NO_PERMISSION),
        ("%RETRY%no-such-group", codes.SUBSCRIPTION_GROUP_NOT_EXIST),
        ("%RETRY%", codes.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_a_topic_that_cannot_be_written_is_refused_with_rocketmqs_code(
    remote: RemotingSocket, name: str, code: int
) -> None:
    answer = remote.produce(name)
    assert answer.code == code
    assert answer.remark


@pytest.mark.parametrize("name", ["BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"])
def test_topics_of_rocketmqs_own_tools_are_created(remote: RemotingSocket, name: str) -> None:
    assert remote.produce(name).code == codes.SUCCESS


@pytest.mark.parametrize(
    ("fields", "queues"), [({}, 4), ({"d": 2}, 2), ({"d": 100}, 8), ({"d": 1}, 1), ({"d": 100, "e": 7}, 8)]
)
def test_a_topic_is_created_with_the_queues_that_the_producer_asks_for(
    remote: RemotingSocket, topic: str, fields: dict[str, Any], queues: int
) -> None:
    assert remote.produce(topic, **fields).code == codes.SUCCESS
    assert remote.produce(topic, e=queues - 1).code == codes.SUCCESS
    beyond = remote.produce(topic, e=queues)
    assert beyond.code == codes.INVALID_PARAMETER
    assert topic in beyond.remark


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"c": "unknown"}, codes.TOPIC_NOT_EXIST),
        ({"c": ""}, codes.TOPIC_NOT_EXIST),
        ({"d": 0}, codes.INVALID_PARAMETER),
        ({"d": -1}, codes.INVALID_PARAMETER),
        ({"d": 2, "e": 2}, codes.INVALID_PARAMETER),
    ],
)
def test_a_topic_is_not_created_otherwise(
    remote: RemotingSocket, topic: str, fields: dict[str, Any], code: int
) -> None:
    assert remote.produce(topic, **fields).code == code
    assert remote.produce(topic, c="").code == codes.TOPIC_NOT_EXIST


def test_a_broker_that_creates_no_topics_says_so(broker: BrokerFactory, topic: str) -> None:
    with RemotingBroker(broker, {"topics.auto_create": False}).connect() as remote:
        answer = remote.produce(topic)
    assert answer.code == codes.TOPIC_NOT_EXIST
    assert answer.remark.startswith(f"topic[{topic}] not exist, apply first please!")


@pytest.mark.parametrize("missing", ["a", "b", "e"])
def test_a_send_without_a_field_is_refused(remote: RemotingSocket, topic: str, missing: str) -> None:
    fields = send_fields(topic, {})
    del fields[missing]
    answer = remote.call(codes.SEND_MESSAGE_V2, fields, b"body")
    assert answer.code == codes.INVALID_PARAMETER
    assert missing in answer.remark


@pytest.mark.parametrize("field", ["d", "e", "f", "g", "h", "j", "l"])
@pytest.mark.parametrize("value", ["x", "1.5", "99999999999999999999", "0x1", "１"])
def test_a_number_that_is_none_is_refused(remote: RemotingSocket, topic: str, field: str, value: str) -> None:
    answer = remote.call(codes.SEND_MESSAGE_V2, {**send_fields(topic, {}), field: value}, b"body")
    assert answer.code == codes.INVALID_PARAMETER


@pytest.mark.parametrize(
    "properties",
    [
        {"A": "x" * 33_000},
        {"A": "語" * 32_769},
        {"A": "b\x01c"},
        {"DELAY": "soon"},
        {"TIMER_DELIVER_MS": "soon"},
        {"TIMER_DELAY_SEC": "1.5"},
        {"TIMER_DELAY_SEC": "999999999"},
    ],
    ids=["too long", "too long in characters", "separator", "level", "time", "fraction", "too far"],
)
def test_properties_that_cannot_be_stored_are_refused(
    remote: RemotingSocket, topic: str, properties: dict[str, str]
) -> None:
    remote.produce(topic)
    answer = remote.produce(topic, properties=properties)
    assert answer.code == codes.MESSAGE_ILLEGAL
    assert answer.remark
    assert len(remote.pull(topic)) == 1


def test_a_message_that_is_too_large_is_refused_and_the_connection_stays(remote: RemotingSocket, topic: str) -> None:
    answer = remote.produce(topic, bytes(600_000))
    assert answer.code == codes.MESSAGE_ILLEGAL
    assert "store.message_bytes_max" in answer.remark
    answer = remote.produce(topic, bytes(1_100_000))
    assert answer.code == codes.MESSAGE_ILLEGAL
    assert "limits.produce_frame_bytes_max" in answer.remark
    assert remote.produce(topic, bytes(500_000)).code == codes.SUCCESS


def test_messages_of_four_mebibytes_are_stored_if_the_settings_allow_them(broker: BrokerFactory, topic: str) -> None:
    settings = {
        "store.message_bytes_max": 5 << 20,
        "limits.produce_frame_bytes_max": 5 << 20,
        "limits.frame_bytes_max": 16 << 20,
        "store.commitlog_file_bytes": 16 << 20,
    }
    with RemotingBroker(broker, settings).connect() as remote:
        assert remote.produce(topic, bytes(4 << 20)).code == codes.SUCCESS
        assert len(remote.pull(topic)[0].body) == 4 << 20
        assert remote.produce(topic, bytes(6 << 20)).code == codes.MESSAGE_ILLEGAL
