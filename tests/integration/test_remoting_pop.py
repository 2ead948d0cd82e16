"""POP at the level of the protocol: taking, settling, renewing, waiting, retries, order, restarts."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from tests.pop_tools import (
    INVISIBLE_MS,
    ask,
    bodies,
    committed,
    messages,
    notice,
    ordered,
    pop,
    produce,
    renewed,
    settle,
)
from tests.remoting_tools import RemotingBroker, RemotingSocket, json_blob

SHORT_MS = 50


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """Return a group of the test's own."""
    return f"g-{abs(hash(request.node.name)) % 10**9}"


def test_each_message_goes_to_one_consumer_until_it_is_acknowledged(
    remote: RemotingSocket, topic: str, group: str
) -> None:
    produce(remote, topic, "a", "b", "c")
    first = messages(pop(remote, topic, group, maxMsgNums=2), topic)
    second = messages(pop(remote, topic, group), topic)
    assert [each.body for each in first + second] == [b"a", b"b", b"c"]
    assert pop(remote, topic, group).code == codes.POLLING_TIMEOUT
    assert committed(remote, topic, group) == 0
    assert settle(remote, first[1], group).code == codes.SUCCESS
    assert committed(remote, topic, group) == 0, "the first message is still in flight"
    assert settle(remote, first[0], group).code == codes.SUCCESS
    assert committed(remote, topic, group) == 2
    assert settle(remote, first[0], group).code == codes.NO_MESSAGE, "it is acknowledged already"
    assert settle(remote, second[0], group).code == codes.SUCCESS
    assert committed(remote, topic, group) == 3


def test_a_message_whose_time_is_over_comes_again_as_one_of_its_topic(
    remote: RemotingSocket, topic: str, group: str
) -> None:
    produce(remote, topic, "a", i="KEYS\x01k\x02TAGS\x01eu\x02")
    (lost,) = messages(pop(remote, topic, group, invisibleTime=SHORT_MS), topic)
    (again,) = messages(pop(remote, topic, group, pollTime=20_000), topic)
    assert (again.body, again.reconsume_times, again.properties["TAGS"]) == (b"a", 1, "eu")
    assert again.properties["1ST_POP_TIME"] == lost.handle.split(" ")[1]
    assert settle(remote, lost, group).code == codes.NO_MESSAGE, "the message has another delivery"
    assert settle(remote, again, group).code == codes.SUCCESS
    assert committed(remote, topic, group) == 1
    assert committed(remote, f"%RETRY%{group}+{topic}", group) == 1
    assert pop(remote, topic, group).code == codes.POLLING_TIMEOUT
    assert pop(remote, topic, group, pollTime=-1).code == codes.POLLING_TIMEOUT


def test_a_renewal_gives_more_time_and_a_new_receipt(remote: RemotingSocket, topic: str, group: str) -> None:
    produce(remote, topic, "a")
    (message,) = messages(pop(remote, topic, group, invisibleTime=400), topic)
    answer = settle(remote, message, group, codes.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=INVISIBLE_MS)
    assert pop(remote, topic, group, pollTime=800).code == codes.POLLING_TIMEOUT
    assert settle(remote, message, group).code == codes.NO_MESSAGE
    assert settle(remote, renewed(message, answer), group).code == codes.SUCCESS


def test_a_batch_acknowledges_by_bits(remote: RemotingSocket, topic: str, group: str) -> None:
    produce(remote, topic, *"abcdefghij")
    found = messages(pop(remote, topic, group), topic)
    start, pop_ms, invisible_ms, revive, mark, *_ = found[0].handle.split(" ")
    bits = sum(1 << each.offset - int(start) for each in found if each.body != b"d")
    ack = {
        "c": group,
        "t": topic,
        "r": mark,
        "so": int(start),
        "q": 0,
        "rq": int(revive),
        "pt": int(pop_ms),
        "it": int(invisible_ms),
        "b": base64.b64encode(bits.to_bytes(2, "little")).decode(),
    }
    body = json_blob({"brokerName": "b", "acks": [ack]})
    assert remote.call(codes.BATCH_ACK_MESSAGE, {}, body).code == codes.SUCCESS
    assert committed(remote, topic, group) == 3
    assert remote.call(codes.BATCH_ACK_MESSAGE, {}, body).code == codes.NO_MESSAGE
    assert settle(remote, found[3], group).code == codes.SUCCESS
    assert committed(remote, topic, group) == 10


@pytest.mark.parametrize(
    "ack", [{}, {"c": "g"}, {"c": "g", "t": "t", "r": "7", "so": 0, "q": 0, "pt": 0, "b": "AQ=="}, 7, None]
)
def test_a_bad_batch_settles_nothing(remote: RemotingSocket, topic: str, ack: Any) -> None:
    answer = remote.call(codes.BATCH_ACK_MESSAGE, {}, json_blob({"acks": [ack]}))
    assert answer.code == codes.INVALID_PARAMETER
    assert remote.call(codes.BATCH_ACK_MESSAGE, {}, json_blob({"acks": []})).code == codes.NO_MESSAGE


def test_a_batch_of_too_many_acknowledgements_settles_nothing(remote: RemotingSocket, topic: str, group: str) -> None:
    """A few bytes can name millions of messages, by many rows and by many bits in each."""
    produce(remote, topic, "a")
    answer = pop(remote, topic, group)
    (found,) = messages(answer, topic)
    start, pop_ms, *_ = found.handle.split(" ")
    row = {"c": group, "t": topic, "r": "0", "so": int(start), "q": 0, "pt": int(pop_ms), "it": 60_000, "b": "AQ=="}
    full = base64.b64encode(b"\xff" * 1_250).decode()
    for rows in ([row, {**row, "b": full}], [row, *300 * [{**row, "b": full}]], 4_097 * [row]):
        refused = remote.call(codes.BATCH_ACK_MESSAGE, {}, json_blob({"acks": rows}))
        assert (refused.code, "4,096" in refused.remark) == (codes.INVALID_PARAMETER, True)
    assert settle(remote, found, group).code == codes.SUCCESS


def test_a_pop_waits_for_a_message(gateway: RemotingBroker, remote: RemotingSocket, topic: str, group: str) -> None:
    produce(remote, topic, "a")
    settle(remote, messages(pop(remote, topic, group), topic)[0], group)
    with gateway.connect() as other:
        waiting = ask(other, topic, group, pollTime=20_000)
        while int(remote.call(codes.POLLING_INFO, {"consumerGroup": group, "topic": topic}).fields["pollingNum"]) < 1:
            pass
        produce(remote, topic, "b", e=2)
        assert bodies(other.receive_for(waiting), topic) == [b"b"]


def test_one_message_answers_one_of_many_waiting_pops(
    gateway: RemotingBroker, remote: RemotingSocket, topic: str, group: str
) -> None:
    produce(remote, topic, "a")
    settle(remote, messages(pop(remote, topic, group), topic)[0], group)
    with gateway.connect() as other:
        waiting = [ask(other, topic, group, pollTime=2_000, maxMsgNums=1) for _ in range(5)]
        while int(remote.call(codes.POLLING_INFO, {"consumerGroup": group, "topic": topic}).fields["pollingNum"]) < 5:
            pass
        produce(remote, topic, "b", "c", e=1)
        answers = [other.receive_for(number) for number in waiting]
    found = [body for answer in answers if answer.code == codes.SUCCESS for body in bodies(answer, topic)]
    assert sorted(found) == [b"b", b"c"]
    assert [answer.code for answer in answers].count(codes.POLLING_TIMEOUT) == 3


def test_a_pop_selects_by_tags_and_by_sql(remote: RemotingSocket, topic: str, group: str) -> None:
    for tag, price in (("eu", 1), ("us", 2), ("eu", 3)):
        produce(remote, topic, f"{tag}{price}", i=f"TAGS\x01{tag}\x02price\x01{price}\x02")
    assert bodies(pop(remote, topic, group, exp="us || asia"), topic) == [b"us2"]
    answer = pop(remote, topic, group + "-sql", expType="SQL92", exp="price > 1 AND TAGS = 'eu'")
    (found,) = messages(answer, topic)
    assert found.body == b"eu3"
    assert committed(remote, topic, group + "-sql") == 2, "what no consumer wants is settled"
    refused = pop(remote, topic, group, expType="SQL92", exp="price >")
    assert refused.code == codes.SUBSCRIPTION_PARSE_FAILED


def test_a_new_group_begins_where_it_asks(remote: RemotingSocket, topic: str, group: str) -> None:
    produce(remote, topic, "a", "b")
    assert bodies(pop(remote, topic, group, initMode=0), topic) == [b"a", b"b"]
    assert bodies(pop(remote, topic, group + "-max", initMode=1), topic) == [b"a", b"b"], "the queue is young"


# ---- order ----


def test_an_ordered_queue_gives_nothing_while_a_batch_is_in_flight(
    remote: RemotingSocket, topic: str, group: str
) -> None:
    produce(remote, topic, "a", "b", "c")
    answer = ordered(remote, topic, group, maxMsgNums=2)
    assert answer.fields["reviveQid"] == "999"
    assert answer.fields["orderCountInfo"] == "0 0 0"
    first, second = messages(answer, topic)
    assert ordered(remote, topic, group).code == codes.POLLING_TIMEOUT
    assert pop(remote, topic, group).code == codes.POLLING_TIMEOUT, "nor does it to consumers without order"
    assert settle(remote, second, group).code == codes.SUCCESS
    assert committed(remote, topic, group) == 0
    waiting = ask(remote, topic, group, order=True, queueId=0, pollTime=20_000)
    assert settle(remote, first, group).code == codes.SUCCESS
    assert bodies(remote.receive_for(waiting), topic) == [b"c"], "the acknowledgement woke it"


def test_an_ordered_queue_repeats_from_the_first_that_is_not_settled(
    remote: RemotingSocket, topic: str, group: str
) -> None:
    produce(remote, topic, "a", "b", "c", "d")
    first, second, third = messages(ordered(remote, topic, group, maxMsgNums=3), topic)
    settle(remote, first, group)
    settle(remote, third, group)
    answer = settle(remote, second, group, codes.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=200)
    assert answer.fields["popTime"] == second.handle.split(" ")[1], "an ordered receipt stays valid"
    again = ordered(remote, topic, group, maxMsgNums=3, pollTime=20_000)
    assert bodies(again, topic) == [b"b", b"c", b"d"]
    assert again.fields["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1;0 0 0"
    assert settle(remote, second, group).code == codes.NO_MESSAGE
    for message in messages(again, topic):
        assert settle(remote, message, group).code == codes.SUCCESS
    assert committed(remote, topic, group) == 4


def test_the_same_attempt_gets_the_same_messages_again(remote: RemotingSocket, topic: str, group: str) -> None:
    produce(remote, topic, "a")
    ordered(remote, topic, group, attemptId="one")
    again = ordered(remote, topic, group, attemptId="one")
    assert again.fields["orderCountInfo"] == "0 0 0"
    assert bodies(again, topic) == [b"a"]
    assert ordered(remote, topic, group, attemptId="two").code == codes.POLLING_TIMEOUT


# ---- watching ----


def test_a_notification_says_whether_there_are_messages(
    gateway: RemotingBroker, remote: RemotingSocket, topic: str, group: str
) -> None:
    produce(remote, topic, "a")
    assert remote.receive_for(notice(remote, topic, group)).fields == {"hasMsg": "true", "pollingFull": "false"}
    pop(remote, topic, group)
    assert remote.receive_for(notice(remote, topic, group)).fields["hasMsg"] == "false"
    waiting = [notice(remote, topic, group, pollTime=20_000) for _ in range(2)]
    produce(remote, topic, "b")
    assert [remote.receive_for(number).fields["hasMsg"] for number in waiting] == ["true", "true"]


def test_a_notification_is_false_while_an_ordered_queue_is_blocked(
    remote: RemotingSocket, topic: str, group: str
) -> None:
    produce(remote, topic, "a", "b")
    ordered(remote, topic, group, maxMsgNums=1, attemptId="one")
    blocked = remote.receive_for(notice(remote, topic, group, queueId=0, order=True, attemptId="two"))
    assert blocked.fields["hasMsg"] == "false"
    same = remote.receive_for(notice(remote, topic, group, queueId=0, order=True, attemptId="one"))
    assert same.fields["hasMsg"] == "true"


# ---- refusals ----


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "no-such-topic"}, codes.TOPIC_NOT_EXIST),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, codes.TOPIC_NOT_EXIST),
        ({"queueId": 99}, codes.INVALID_PARAMETER),
        ({"maxMsgNums": 33}, codes.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, codes.INVALID_PARAMETER),
        ({"invisibleTime": -1}, codes.INVALID_PARAMETER),
        ({"invisibleTime": "soon"}, codes.INVALID_PARAMETER),
        ({"consumerGroup": "bad group"}, codes.INVALID_PARAMETER),
        ({"consumerGroup": "CID_RMQ_SYS_x"}, codes.NO_PERMISSION),
    ],
)
def test_a_bad_pop_is_refused(
    remote: RemotingSocket, topic: str, group: str, fields: dict[str, Any], code: int
) -> None:
    produce(remote, topic, "a")
    answer = pop(remote, topic, group, **fields)
    assert answer.code == code, answer.remark
    assert answer.remark
    assert committed(remote, topic, group) == -1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "no-such-topic"}, codes.TOPIC_NOT_EXIST),
        ({"queueId": 99}, codes.MESSAGE_ILLEGAL),
        ({"offset": 10**12}, codes.NO_MESSAGE),
        ({"offset": -5}, codes.NO_MESSAGE),
        ({"extraInfo": ""}, codes.INVALID_PARAMETER),
        ({"extraInfo": "0 x 1 0 0 b 0 0"}, codes.INVALID_PARAMETER),
        ({"extraInfo": "0 5 1 0 0 b 0 0"}, codes.NO_MESSAGE),
    ],
)
@pytest.mark.parametrize("request_code", [codes.ACK_MESSAGE, codes.CHANGE_MESSAGE_INVISIBLETIME])
def test_a_bad_receipt_settles_nothing(
    remote: RemotingSocket, topic: str, group: str, request_code: int, fields: dict[str, Any], code: int
) -> None:
    produce(remote, topic, "a")
    (message,) = messages(pop(remote, topic, group), topic)
    answer = settle(remote, message, group, request_code, **{"invisibleTime": 1_000, **fields})
    assert answer.code == code, answer.remark
    assert settle(remote, message, group).code == codes.SUCCESS
