"""Administration of RocketMQ's tools, its name server's answers, and its queries, request by request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from flintmq.protocol.remoting.fastjson import ObjectMap, decode
from tests.conftest import Brokers
from tests.remoting_tools import RemotingBroker, RemotingSocket, decode_records, json_blob

TOPIC_FIELDS = {
    "defaultTopic": "TBW102",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingBroker]:
    brokers = Brokers(tmp_path_factory.mktemp("remoting-admin"))
    yield RemotingBroker(brokers.start)
    brokers.stop_all()


@pytest.fixture
def tool(broker: RemotingBroker) -> Iterator[RemotingSocket]:
    with broker.connect() as connection:
        yield connection


def succeeded(answer: RemotingFrame) -> Any:
    """Return the decoded body of an answer that must be a success."""
    assert answer.code == codes.SUCCESS, answer.remark
    return decode(answer.body) if len(answer.body) else None


def make_topic(tool: RemotingSocket, topic: str, **fields: Any) -> None:
    succeeded(tool.call(codes.UPDATE_AND_CREATE_TOPIC, {"topic": topic, **TOPIC_FIELDS, **fields}))


@pytest.mark.parametrize(
    "topic", ["TBW102", "DefaultCluster", "flintmq", "SELF_TEST_TOPIC", "DefaultCluster_REPLY_TOPIC", "made-1"]
)
def test_a_topic_has_a_route_in_standard_json_without_blanks(tool: RemotingSocket, topic: str) -> None:
    make_topic(tool, "made-1")
    answer = tool.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True})
    route = json.loads(bytes(answer.body))
    host, port = tool._socket.getpeername()
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": f"{host}:{port}"}
    assert route["queueDatas"][0]["brokerName"] == "flintmq"
    assert b" " not in bytes(answer.body)


def test_an_unknown_topic_has_no_route(tool: RemotingSocket) -> None:
    assert tool.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"}).code == codes.TOPIC_NOT_EXIST


def test_the_name_server_lists_cluster_brokers_and_topics(tool: RemotingSocket) -> None:
    make_topic(tool, "listed")
    cluster = succeeded(tool.call(codes.GET_BROKER_CLUSTER_INFO))
    assert cluster["clusterAddrTable"] == {"DefaultCluster": ["flintmq"]}
    assert "listed" in succeeded(tool.call(codes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))["topicList"]
    assert "listed" in succeeded(tool.call(codes.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}))["topicList"]
    assert succeeded(tool.call(codes.GET_TOPICS_BY_CLUSTER, {"cluster": "other"}))["topicList"] == []
    assert succeeded(tool.call(codes.GET_SYSTEM_TOPIC_LIST_FROM_NS))["topicList"] == ["DefaultCluster", "flintmq"]
    group = succeeded(
        tool.call(codes.GET_BROKER_MEMBER_GROUP, {"clusterName": "DefaultCluster", "brokerName": "flintmq"})
    )
    assert list(group["brokerMemberGroup"]["brokerAddrs"]) == ["0"]
    assert tool.call(codes.GET_KV_CONFIG, {"namespace": "n", "key": "k"}).code == codes.QUERY_NOT_FOUND
    assert tool.call(codes.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"}).code == codes.SUCCESS
    assert b"listenPort=" in bytes(tool.call(codes.GET_NAMESRV_CONFIG).body)


def test_write_permission_is_wiped_from_routes_and_comes_back(tool: RemotingSocket) -> None:
    make_topic(tool, "wiped")

    def perm() -> int:
        return int(succeeded(tool.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "wiped"}))["queueDatas"][0]["perm"])

    answer = tool.call(codes.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "flintmq"})
    assert int(answer.fields["wipeTopicCount"]) > 1
    assert perm() == 4
    assert tool.call(codes.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "other"}).fields["addTopicCount"] == "0"
    assert perm() == 4
    tool.call(codes.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "flintmq"})
    assert perm() == 6


def test_a_topic_keeps_its_message_type_until_that_is_removed(tool: RemotingSocket) -> None:
    make_topic(tool, "typed", attributes="+message.type=DELAY")
    assert succeeded(tool.call(codes.GET_TOPIC_CONFIG, {"topic": "typed"}))["attributes"] == {"message.type": "DELAY"}
    make_topic(tool, "typed", readQueueNums=6, writeQueueNums=6)
    row = succeeded(tool.call(codes.GET_TOPIC_CONFIG, {"topic": "typed"}))
    assert (row["attributes"], row["readQueueNums"]) == ({"message.type": "DELAY"}, 6)
    make_topic(tool, "typed", readQueueNums=6, writeQueueNums=6, attributes="-message.type")
    assert succeeded(tool.call(codes.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]["typed"]["attributes"] == {}


def test_topics_are_made_in_a_list_and_deleted_more_than_once(tool: RemotingSocket) -> None:
    rows = [{"topicName": f"several-{n}", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for n in range(3)]
    succeeded(tool.call(codes.UPDATE_AND_CREATE_TOPIC_LIST, {}, json_blob({"topicConfigList": rows})))
    stats = succeeded(tool.call(codes.GET_TOPIC_STATS_INFO, {"topic": "several-2"}))
    assert isinstance(stats["offsetTable"], ObjectMap)
    assert len(stats["offsetTable"]) == 2
    for _ in range(2):
        succeeded(tool.call(codes.DELETE_TOPIC_IN_BROKER, {"topic": "several-2"}))
    assert tool.call(codes.GET_TOPIC_STATS_INFO, {"topic": "several-2"}).code == codes.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("code", "fields", "body", "result"),
    [
        (codes.UPDATE_AND_CREATE_TOPIC, {"topic": "bad name", **TOPIC_FIELDS}, b"", 29),
        (codes.UPDATE_AND_CREATE_TOPIC, {"topic": "t", **TOPIC_FIELDS, "readQueueNums": 0}, b"", 29),
        (codes.UPDATE_AND_CREATE_TOPIC, {"topic": "t", **TOPIC_FIELDS, "perm": 9}, b"", 29),
        (codes.UPDATE_AND_CREATE_TOPIC, {"topic": "t", **TOPIC_FIELDS, "attributes": "+queue.type=BatchCQ"}, b"", 29),
        (codes.UPDATE_AND_CREATE_TOPIC, {"topic": "t", **TOPIC_FIELDS, "attributes": "+message.type=X"}, b"", 29),
        (codes.UPDATE_AND_CREATE_TOPIC, {"topic": "TBW102", **TOPIC_FIELDS}, b"", 16),
        (codes.UPDATE_AND_CREATE_TOPIC, {"topic": "t"}, b"", 29),
        (codes.UPDATE_AND_CREATE_TOPIC_LIST, {}, b'{"topicConfigList":[1]}', 29),
        (codes.UPDATE_AND_CREATE_TOPIC_LIST, {}, b"{", 29),
        (codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b"[" * 1000, 29),
        (codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"a b"}', 29),
        (codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g","retryMaxTimes":"x"}', 29),
        (codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g","consumeEnable":"perhaps"}', 29),
        (codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g","attributes":{"+a":"b"}}', 29),
        (
            codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            {},
            b'{"groupName":"g","groupRetryPolicy":{"type":"EXPONENTIAL"}}',
            29,
        ),
        (codes.UPDATE_BROKER_CONFIG, {}, b"storePathRootDir=/etc", 16),
        (codes.UPDATE_BROKER_CONFIG, {}, b"rocketmqHome=-c $@|sh . echo id;", 16),
        (codes.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime", 29),
        (codes.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=often", 29),
        (codes.UPDATE_BROKER_CONFIG, {}, b"", 29),
        (codes.VIEW_MESSAGE_BY_ID, {"offset": "x"}, b"", 29),
        (codes.VIEW_MESSAGE_BY_ID, {"offset": -1}, b"", 1),
        (codes.VIEW_MESSAGE_BY_ID, {"offset": 2**62}, b"", 1),
        (codes.QUERY_MESSAGE, {"topic": "absent", "key": "k", "maxNum": 1}, b"", 17),
        (codes.QUERY_MESSAGE, {"topic": "absent", "key": "", "maxNum": 1}, b"", 29),
        (codes.QUERY_CONSUME_QUEUE, {"topic": "absent", "queueId": 0, "index": 0, "count": 1}, b"", 17),
        (codes.CLONE_GROUP_OFFSET, {"srcGroup": "a", "destGroup": "b", "topic": "absent"}, b"", 17),
        (codes.CLONE_GROUP_OFFSET, {"srcGroup": "a", "destGroup": "CID_RMQ_SYS_x"}, b"", 16),
        (codes.QUERY_CONSUME_TIME_SPAN, {"topic": "absent", "group": "g"}, b"", 17),
        (codes.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "absent"}, b"", 1),
        (codes.REGISTER_BROKER, {}, b"", 3),
        (3001, {}, b"", 3),
        (9999, {}, b"", 3),
    ],
)
def test_bad_input_is_refused_with_words(
    tool: RemotingSocket, code: int, fields: dict[str, Any], body: bytes, result: int
) -> None:
    answer = tool.call(code, fields, body)
    assert (answer.code, bool(answer.remark)) == (result, True), answer.remark
    assert "t" not in succeeded(tool.call(codes.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]


def test_groups_are_made_changed_shown_and_deleted(tool: RemotingSocket) -> None:
    row = {"groupName": "billing", "retryMaxTimes": 3, "consumeMessageOrderly": True}
    succeeded(tool.call(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json_blob(row)))
    found = succeeded(tool.call(codes.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "billing"}))
    assert (found["retryMaxTimes"], found["consumeMessageOrderly"], found["retryQueueNums"]) == (3, True, 1)
    table = succeeded(tool.call(codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))["subscriptionGroupTable"]
    assert table["billing"] == found
    succeeded(tool.call(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing"}))
    succeeded(tool.call(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing"}))
    table = succeeded(tool.call(codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))["subscriptionGroupTable"]
    assert "billing" not in table


def test_a_message_is_found_by_offset_key_and_unique_key(tool: RemotingSocket) -> None:
    make_topic(tool, "found")
    unique = "7F00000100002A139A551D7F9B3C0001"
    stored = tool.produce("found", b"here", {"KEYS": "k1 k2", "UNIQ_KEY": unique})
    physical_offset = int(stored.fields["msgId"][-16:], 16)
    by_offset = tool.call(codes.VIEW_MESSAGE_BY_ID, {"offset": physical_offset, "topic": ""})
    assert [record.body for record in decode_records(bytes(by_offset.body))] == [b"here"]
    assert tool.call(codes.VIEW_MESSAGE_BY_ID, {"offset": physical_offset + 1, "topic": ""}).code == codes.SYSTEM_ERROR
    whole = {"topic": "found", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    for fields in ({"key": "k2"}, {"key": unique, "_UNIQUE_KEY_QUERY": True}):
        answer = tool.call(codes.QUERY_MESSAGE, whole | fields)
        assert [record.body for record in decode_records(bytes(answer.body))] == [b"here"]
        assert int(answer.fields["indexLastUpdatePhyoffset"]) >= physical_offset
        assert int(answer.fields["indexLastUpdateTimestamp"]) > 0
    for fields in ({"key": "k3"}, {"key": "k1", "endTimestamp": 1}, {"key": "k1", "maxNum": 0}):
        assert tool.call(codes.QUERY_MESSAGE, whole | fields).code == codes.QUERY_NOT_FOUND
    units = succeeded(tool.call(codes.QUERY_CONSUME_QUEUE, {"topic": "found", "queueId": 0, "index": 0, "count": 10}))
    assert (units["minQueueIndex"], units["maxQueueIndex"]) == (0, 1)
    assert units["queueData"][0]["physicOffset"] == physical_offset


def test_progress_is_copied_and_shown_in_time(tool: RemotingSocket) -> None:
    make_topic(tool, "read", readQueueNums=1, writeQueueNums=1)
    for number in range(3):
        tool.produce("read", b"%d" % number)
    succeeded(tool.call(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json_blob({"groupName": "readers"})))
    commit = {"consumerGroup": "readers", "topic": "read", "queueId": 0, "commitOffset": 2}
    succeeded(tool.call(codes.UPDATE_CONSUMER_OFFSET, commit))
    succeeded(tool.call(codes.CLONE_GROUP_OFFSET, {"srcGroup": "readers", "destGroup": "copies", "topic": "read"}))
    asked = {"consumerGroup": "copies", "topic": "read", "queueId": 0}
    assert tool.call(codes.QUERY_CONSUMER_OFFSET, asked).fields["offset"] == "2"
    spans = succeeded(tool.call(codes.QUERY_CONSUME_TIME_SPAN, {"topic": "read", "group": "copies"}))
    [span] = spans["consumeTimeSpanSet"]
    assert span["minTimeStamp"] <= span["consumeTimeStamp"] <= span["maxTimeStamp"]
    assert span["delayTime"] >= 0
    assert succeeded(tool.call(codes.QUERY_TOPICS_BY_CONSUMER, {"group": "copies"}))["topicList"] == ["read"]
    stats = succeeded(tool.call(codes.GET_BROKER_CONSUME_STATS, {"isOrder": False}))
    of_copies = next(row["copies"] for row in stats["consumeStatsList"] if "copies" in row)
    assert of_copies[0]["offsetTable"][0][1]["brokerOffset"] == 3
    assert succeeded(tool.call(codes.GET_ALL_CONSUMER_OFFSET))["offsetTable"]["read@copies"] == {"0": 2}


def test_a_refused_copy_of_progress_copies_nothing(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    try:
        with RemotingBroker(brokers.start, {"limits.committed_offsets_max": 3}).connect() as tool:
            succeeded(tool.call(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json_blob({"groupName": "readers"})))
            for topic in ("one", "two"):
                make_topic(tool, topic, readQueueNums=1, writeQueueNums=1)
                tool.produce(topic, b"x")
                commit = {"consumerGroup": "readers", "topic": topic, "queueId": 0, "commitOffset": 1}
                succeeded(tool.call(codes.UPDATE_CONSUMER_OFFSET, commit))
            refused = tool.call(codes.CLONE_GROUP_OFFSET, {"srcGroup": "readers", "destGroup": "copies"})
            assert "copies cannot commit 2 more queues of 2 topics" in refused.remark
            offsets = succeeded(tool.call(codes.GET_ALL_CONSUMER_OFFSET))["offsetTable"]
            assert offsets == {"one@readers": {"0": 1}, "two@readers": {"0": 1}}
    finally:
        brokers.stop_all()


def test_figures_and_settings_have_rocketmqs_names(tool: RemotingSocket) -> None:
    table = succeeded(tool.call(codes.GET_BROKER_RUNTIME_INFO))["table"]
    assert {"brokerVersionDesc", "putTps", "getTransferredTps", "msgPutTotalTodayNow"} <= table.keys()
    assert len(table["putTps"].split(" ")) == 3
    assert all(isinstance(value, str) for value in table.values())
    succeeded(tool.call(codes.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=48\ndeleteWhen=05\n"))
    answer = tool.call(codes.GET_BROKER_CONFIG)
    lines = bytes(answer.body).decode().splitlines()
    assert {"fileReservedTime=48", "deleteWhen=05", "brokerName=flintmq", "brokerId=0"} <= set(lines)
    assert json.loads(answer.fields["version"])["counter"] >= 1
    make_topic(tool, "counted")
    tool.produce("counted")
    figures = succeeded(tool.call(codes.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "counted"}))
    assert figures["statsMinute"]["sum"] == 1
    assert succeeded(tool.call(codes.GET_BROKER_HA_STATUS))["master"] is True


def test_sends_and_a_groups_reads_have_the_figures_that_rocketmqs_exporter_asks_for(tool: RemotingSocket) -> None:
    make_topic(tool, "read-by-a-group")
    before = succeeded(tool.call(codes.GET_BROKER_RUNTIME_INFO))["table"]
    missing = tool.call(codes.CONSUMER_SEND_MSG_BACK, {"group": "none", "offset": 1, "delayLevel": 1})
    assert missing.code != codes.SUCCESS
    sent = [tool.produce("read-by-a-group", b"x" * 1000) for _ in range(3)]
    assert {answer.code for answer in sent} == {codes.SUCCESS}
    after = succeeded(tool.call(codes.GET_BROKER_RUNTIME_INFO))["table"]
    assert put_times(after) == put_times(before) + 3
    assert after["putMessageFailedTimes"] == before["putMessageFailedTimes"], "a refused request is not a failed send"
    grown = int(after["putMessageSizeTotal"]) - int(before["putMessageSizeTotal"])
    assert 3 * 1000 < grown == int(after["commitLogMaxOffset"]) - int(before["commitLogMaxOffset"])
    wanted = {"statsName": "GROUP_GET_NUMS", "statsKey": "read-by-a-group@test-consumers"}
    assert tool.call(codes.VIEW_BROKER_STATS_DATA, wanted).code == codes.SYSTEM_ERROR
    read = [record for queue in range(4) for record in tool.pull("read-by-a-group", queue)]
    assert len(read) == 3
    assert succeeded(tool.call(codes.VIEW_BROKER_STATS_DATA, wanted))["statsMinute"]["sum"] == 3
    sizes = succeeded(tool.call(codes.VIEW_BROKER_STATS_DATA, wanted | {"statsName": "GROUP_GET_SIZE"}))
    assert 3 * 1000 < sizes["statsMinute"]["sum"] <= grown + 3 * 4


def put_times(table: dict[str, str]) -> int:
    """Return the number of sends in the buckets of their times."""
    buckets = table["putMessageDistributeTime"].split(" ")
    assert [bucket.partition(":")[0] for bucket in (buckets[0], buckets[-1])] == ["[<=0ms]", "[10s~]"]
    assert len(buckets) == 13
    return sum(int(bucket.partition(":")[2]) for bucket in buckets)


def test_live_producers_and_subscriptions_are_shown(tool: RemotingSocket) -> None:
    subscription = {"topic": "wanted", "subString": "a || b", "expressionType": "TAG", "subVersion": 7}
    consumer = {
        "groupName": "wanting",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    tool.heart_beat("client-1", ("producing",), (consumer,))
    [row] = succeeded(tool.call(codes.GET_ALL_PRODUCER_INFO))["data"]["producing"]
    host, port = tool.local_address
    assert (row["clientId"], row["remoteIP"]) == ("client-1", f"/{host}:{port}")
    asked = {"group": "wanting", "topic": "wanted"}
    found = succeeded(tool.call(codes.QUERY_SUBSCRIPTION_BY_CONSUMER, asked))
    assert found["subscriptionData"]["subString"] == "a || b"
    none = succeeded(tool.call(codes.QUERY_SUBSCRIPTION_BY_CONSUMER, asked | {"topic": "other"}))
    assert "subscriptionData" not in none


def test_changes_are_in_the_audit_log(broker: RemotingBroker, tool: RemotingSocket) -> None:
    make_topic(tool, "audited")
    host, port = tool.local_address
    lines = [line for line in broker.running.log.splitlines() if "topic audited" in line]
    assert lines
    assert f"{host}:{port}" in lines[0]
