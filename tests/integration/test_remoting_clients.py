"""Heartbeats of RocketMQ's clients, the list of a group's clients, locks, and who is told of changes."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from flintmq.protocol.storage.delivery import retry_topic
from tests.remoting_consumer import RemotingConsumer, records_of, subscription
from tests.remoting_tools import RemotingBroker, RemotingSocket, json_blob, json_of


def test_a_heartbeat_makes_its_client_listed_and_its_group_known(remote: RemotingSocket, topic: str) -> None:
    group = f"g-{topic}"
    consumer = RemotingConsumer(remote, group, "c1")
    assert consumer.listed() == []
    answer = consumer.beat(topic)
    assert (answer.fields["IS_SUPPORT_HEART_BEAT_V2"], answer.fields["IS_SUB_CHANGE"]) == ("true", "true")
    assert consumer.listed() == ["c1"]
    route = json_of(remote.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": retry_topic(group)}))
    assert [(row["readQueueNums"], row["perm"]) for row in route["queueDatas"]] == [(1, 6)]
    assert consumer.leave().code == codes.SUCCESS
    assert consumer.listed() == []


def test_everyone_is_told_when_a_client_joins_leaves_or_changes_its_topics(gateway: RemotingBroker, topic: str) -> None:
    group = f"g-{topic}"
    with gateway.connect() as first, gateway.connect() as second:
        one, two = RemotingConsumer(first, group, "c1"), RemotingConsumer(second, group, "c2")
        one.beat(topic)
        first.receive_request(codes.NOTIFY_CONSUMER_IDS_CHANGED)
        two.beat(topic)
        told = first.receive_request(codes.NOTIFY_CONSUMER_IDS_CHANGED)
        assert told.fields == {"consumerGroup": group}
        two.beat(topic, f"{topic}-2")
        first.receive_request(codes.NOTIFY_CONSUMER_IDS_CHANGED)
        # An expression is not a change of the topics.
        two.beat(subscription(topic, "a", version=2), f"{topic}-2")
        assert one.listed() == ["c1", "c2"]
        assert not first.requests
        second.close()
        first.receive_request(codes.NOTIFY_CONSUMER_IDS_CHANGED)
        assert one.listed() == ["c1"]


def test_a_client_that_comes_again_on_another_connection_keeps_its_place(gateway: RemotingBroker, topic: str) -> None:
    group = f"g-{topic}"
    with gateway.connect() as first, gateway.connect() as second:
        old, new = RemotingConsumer(first, group, "c1"), RemotingConsumer(second, group, "c1")
        old.beat(topic)
        RemotingConsumer(first, group, "c2").beat(topic)
        new.beat(topic)
        first.close()
        second.receive_request(codes.NOTIFY_CONSUMER_IDS_CHANGED)  # c2 is gone with the connection
        assert new.listed() == ["c1"]


def test_a_client_of_version_two_leaves_out_subscriptions_that_have_not_changed(
    gateway: RemotingBroker, topic: str
) -> None:
    with gateway.connect() as remote:
        consumer = RemotingConsumer(remote, f"g-{topic}", "c1")
        remote.produce(topic)

        def changed(*subscriptions: str, **fields: Any) -> str:
            return str(consumer.beat(*subscriptions, **fields).fields["IS_SUB_CHANGE"])

        assert changed(heartbeatFingerprint=7, withoutSub=True) == "true", "the broker does not know the client"
        assert consumer.pull(topic).code == codes.SUBSCRIPTION_NOT_EXIST
        assert changed(topic, heartbeatFingerprint=7) == "false"
        assert changed(heartbeatFingerprint=7, withoutSub=True) == "false"
        assert consumer.pull(topic).code == codes.SUCCESS
        assert changed(heartbeatFingerprint=8, withoutSub=True) == "true"
        assert consumer.pull(topic).code == codes.SUCCESS, "the old subscriptions stay"


def test_clients_with_different_subscriptions_each_get_what_they_asked_for(gateway: RemotingBroker, topic: str) -> None:
    with gateway.connect() as first, gateway.connect() as second:
        one, two = RemotingConsumer(first, f"g-{topic}", "c1"), RemotingConsumer(second, f"g-{topic}", "c2")
        first.produce(topic, b"a", {"TAGS": "a"})
        one.beat(subscription(topic, "a", version=1))
        two.beat(subscription(topic, "b", version=2))
        assert one.pull(topic).code == codes.SUCCESS
        assert two.pull(topic).code == codes.PULL_RETRY_IMMEDIATELY


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not UTF-8"),
        (b"[1]", "must be a JSON object"),
        (b"{}", "clientID must be a string, got nothing"),
        (b'{"clientID":""}', "1 to 255 printable characters"),
        (b'{"clientID":"c","producerDataSet":7}', "producerDataSet must be a list"),
        (b'{"clientID":"c","producerDataSet":[1]}', "producerDataSet[0] must be a JSON object"),
        (b'{"clientID":"c","producerDataSet":[{"groupName":"a b"}]}', "characters that are not allowed"),
        (b'{"clientID":"c","consumerDataSet":[{}]}', "groupName must be a string, got nothing"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}', "topic must be a str"),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","subVersion":"x"}]}]}',
            "subVersion must be an integer",
        ),
        (b'{"clientID":"c","withoutSub":"no"}', "withoutSub must be true or false"),
        (json_blob({"clientID": "c" * 256}), "1 to 255 printable characters"),
        (json_blob({"clientID": "c", "producerDataSet": [{"groupName": "p"}] * 101}), "a list of at most 100 objects"),
        (
            json_blob({"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{}] * 1001}]}),
            "a list of at most 1,000 objects",
        ),
    ],
)
def test_a_heartbeat_that_is_malformed_changes_nothing(remote: RemotingSocket, body: bytes, words: str) -> None:
    answer = remote.call(codes.HEART_BEAT, {}, body)
    assert answer.code == codes.INVALID_PARAMETER, answer.remark
    assert words in answer.remark
    assert RemotingConsumer(remote, "g", "c").listed() == []


def test_a_heartbeat_with_too_long_expressions_is_refused_before_any_group_changes(
    remote: RemotingSocket, topic: str
) -> None:
    first = RemotingConsumer(remote, f"g-{topic}", "c")
    second = RemotingConsumer(remote, f"h-{topic}", "c")
    rows = [subscription(f"t{number}", "x" * 1_000) for number in range(140)]
    body = {"clientID": "c", "consumerDataSet": [first.row(subscription(topic)), second.row(*rows)]}
    answer = remote.call(codes.HEART_BEAT, {}, json_blob(body))
    assert answer.code == codes.INVALID_PARAMETER
    assert "characters together" in answer.remark
    assert first.listed() == []


def test_a_subscription_is_checked_before_its_client_starts(remote: RemotingSocket) -> None:
    def check(expression: str, kind: str) -> RemotingFrame:
        body = {"clientId": "c", "group": "g", "subscriptionData": subscription("t", expression, kind)}
        return remote.call(codes.CHECK_CLIENT_CONFIG, {}, json_blob(body))

    assert check("a || b", "TAG").code == codes.SUCCESS
    assert check("a > 5 and b between 1 and 2", "SQL92").code == codes.SUCCESS
    refused = check("a > and", "SQL92")
    assert refused.code == codes.SUBSCRIPTION_PARSE_FAILED
    assert "column" in refused.remark


# ---- locks ----


def test_a_queue_has_one_holder_until_it_is_released(gateway: RemotingBroker, topic: str) -> None:
    with gateway.connect() as first, gateway.connect() as second:
        one, two = RemotingConsumer(first, f"g-{topic}", "c1"), RemotingConsumer(second, f"g-{topic}", "c2")
        first.produce(topic)
        assert one.lock(topic, 0) == [], "the broker does not know the client yet"
        one.beat(topic)
        two.beat(topic)
        assert one.lock(topic, 0, 1, 9) == [0, 1], "queue 9 does not exist"
        assert two.lock(topic, 0, 1, 2) == [2]
        two.lock(topic, 0, code=codes.UNLOCK_BATCH_MQ)
        assert two.lock(topic, 0) == [], "only the holder releases a queue"
        one.lock(topic, 0, code=codes.UNLOCK_BATCH_MQ)
        assert two.lock(topic, 0, 1) == [0]
        one.leave()
        assert two.lock(topic, 0, 1) == [0, 1], "a client that leaves releases its queues"


def test_a_lost_client_keeps_its_locks_for_a_while(gateway: RemotingBroker, topic: str) -> None:
    with gateway.connect() as first, gateway.connect() as second:
        one, two = RemotingConsumer(first, f"g-{topic}", "c1"), RemotingConsumer(second, f"g-{topic}", "c2")
        first.produce(topic)
        one.beat(topic)
        two.beat(topic)
        assert one.lock(topic, 0) == [0]
        first.close()
        second.receive_request(codes.NOTIFY_CONSUMER_IDS_CHANGED)
        second.receive_request(codes.NOTIFY_CONSUMER_IDS_CHANGED)
        assert two.lock(topic, 0) == [], "it may still process a message of the queue"


# ---- the broker divides ----


def test_the_broker_divides_queues_for_clients_that_ask_it(remote: RemotingSocket, topic: str) -> None:
    group = f"g-{topic}"
    remote.produce(topic)
    for name in ("c1", "c2", "c3"):
        RemotingConsumer(remote, group, name).beat(topic)

    def ask(client_id: str, strategy: str, model: str = "CLUSTERING") -> list[int]:
        body = {
            "topic": topic,
            "consumerGroup": group,
            "clientId": client_id,
            "strategyName": strategy,
            "messageModel": model,
        }
        rows = json_of(remote.call(codes.QUERY_ASSIGNMENT, {}, json_blob(body)))["messageQueueAssignments"]
        assert {row["mode"] for row in rows} <= {"PULL"}
        return [row["messageQueue"]["queueId"] for row in rows]

    assert [ask(name, "AVG") for name in ("c1", "c2", "c3", "c4")] == [[0, 1], [2], [3], []]
    assert [ask(name, "AVG_BY_CIRCLE") for name in ("c1", "c2", "c3")] == [[0, 3], [1], [2]]
    assert ask("c4", "AVG", "BROADCASTING") == [0, 1, 2, 3]
    refused = remote.call(
        codes.QUERY_ASSIGNMENT,
        {},
        json_blob({"topic": topic, "consumerGroup": group, "clientId": "c1", "strategyName": "MACHINE_ROOM"}),
    )
    assert (refused.code, "not by 'MACHINE_ROOM'" in refused.remark) == (codes.INVALID_PARAMETER, True)


def test_push_consumers_are_told_to_pop(remote: RemotingSocket, topic: str) -> None:
    group = f"g-{topic}"
    remote.produce(topic)
    for name in ("c1", "c2", "c3", "c4"):
        RemotingConsumer(remote, group, name).beat(topic)

    def ask(client_id: str) -> list[tuple[str, int]]:
        body = {"topic": topic, "consumerGroup": group, "clientId": client_id, "strategyName": "AVG"}
        rows = json_of(remote.call(codes.QUERY_ASSIGNMENT, {}, json_blob(body)))["messageQueueAssignments"]
        return [(row["mode"], row["messageQueue"]["queueId"]) for row in rows]

    def set_mode(mode: str, share: int, of_topic: str = topic) -> int:
        body = {"topic": of_topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
        return remote.call(codes.SET_MESSAGE_REQUEST_MODE, {}, json_blob(body)).code

    assert set_mode("POP", 8) == codes.SUCCESS
    assert ask("c1") == ask("c4") == [("POP", -1)], "each pops from all queues"
    assert set_mode("POP", 1) == codes.SUCCESS
    assert ask("c1") == [("POP", 0), ("POP", 1)]
    assert ask("c4") == [("POP", 3), ("POP", 0)], "its own queue and that of the next client"
    modes = json_of(remote.call(codes.GET_MESSAGE_REQUEST_MODE))["messageRequestModeMap"]
    assert modes[topic][group]["popShareQueueNum"] == 1
    assert set_mode("PULL", 0) == codes.SUCCESS
    assert ask("c1") == [("PULL", 0)]
    assert set_mode("PUSH", 0) == codes.INVALID_PARAMETER
    assert set_mode("POP", 0, f"%RETRY%{group}") == codes.NO_PERMISSION
    assert set_mode("POP", 0, "no-such-topic") == codes.TOPIC_NOT_EXIST


def test_a_topic_of_any_name_leaves_the_rest_of_a_heartbeat_in_force(remote: RemotingSocket, topic: str) -> None:
    consumer = RemotingConsumer(remote, f"g-{topic}", "c1")
    remote.produce(topic, b"m", e=0)
    for name in ("a topic", f"%RETRY%g-{topic}+{topic}", f"%RETRY%g-{topic}_{topic}", "ä", ""):
        assert consumer.beat(topic, name).code == codes.SUCCESS, name
        assert consumer.pull(topic).code == codes.SUCCESS
        assert consumer.pull(name).code == codes.TOPIC_NOT_EXIST


def test_tags_of_10_kib_select(remote: RemotingSocket, topic: str) -> None:
    consumer, tag = RemotingConsumer(remote, f"g-{topic}", "c1"), "x" * 10_240
    remote.produce(topic, b"m", {"TAGS": tag}, e=0)
    for tags in (tag, " || ".join([tag, *map(str, range(500))])):
        assert consumer.beat(subscription(topic, tags)).code == codes.SUCCESS
        assert len(records_of(consumer.pull(topic))) == 1


@pytest.mark.parametrize(("expression", "kind"), [("x" * 16_385, "TAG"), ("a", "REGEX")])
def test_a_subscription_that_no_pull_can_select_with_is_refused_with_its_topic_and_the_others_are_served(
    remote: RemotingSocket, topic: str, expression: str, kind: str
) -> None:
    consumer = RemotingConsumer(remote, f"g-{topic}", "c1")
    remote.produce(topic, b"m", e=0)
    for answer in (
        consumer.beat(topic, subscription("other", expression, kind)),
        remote.call(
            codes.CHECK_CLIENT_CONFIG, {}, json_blob({"subscriptionData": subscription("other", expression, kind)})
        ),
    ):
        assert answer.code == codes.SUBSCRIPTION_PARSE_FAILED
        assert "topic other" in answer.remark
    assert consumer.listed() == ["c1"]
    assert consumer.pull(topic).code == codes.SUCCESS
    assert remote.call(codes.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": consumer.group}).code == codes.SUCCESS


def test_a_units_query_has_the_subscription_of_the_live_clients(remote: RemotingSocket, topic: str) -> None:
    consumer = RemotingConsumer(remote, f"g-{topic}", "c1")
    remote.produce(topic, b"m", e=0)
    wanted = {"topic": topic, "queueId": 0, "index": 0, "count": 1, "consumerGroup": consumer.group}
    assert json_of(remote.call(codes.QUERY_CONSUME_QUEUE, wanted))["filterData"].endswith("is not online!")
    consumer.beat(subscription(topic, "a || b", version=5))
    found = json_of(remote.call(codes.QUERY_CONSUME_QUEUE, wanted))["subscriptionData"]
    assert (found["topic"], found["subString"], found["subVersion"]) == (topic, "a || b", 5)
