"""Recall of timed messages by RocketMQ's clients: a message that is taken back never comes, even after kill -9."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable

import pytest

from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from tests.conftest import BrokerFactory
from tests.remoting_tools import RemotingBroker, RemotingSocket

DAY_MS = 86_400_000


def now_ms() -> int:
    return int(time.time() * 1000)


def key_of(number: int) -> str:
    return f"7F00000104D2A1B2C3D4{number:012X}"


def send_timed(client: RemotingSocket, topic: str, body: bytes, deliver_ms: int, number: int = 1) -> str:
    """Send a timed message and return its handle."""
    properties = {"UNIQ_KEY": key_of(number), "TIMER_DELIVER_MS": str(deliver_ms)}
    answer = client.produce(topic, body, properties)
    assert answer.code == codes.SUCCESS, answer.remark
    return str(answer.fields["recallHandle"])


def recall(client: RemotingSocket, topic: str, handle: str) -> RemotingFrame:
    return client.call(codes.RECALL_MESSAGE, {"producerGroup": "p", "topic": topic, "recallHandle": handle})


def handle_of(topic: str, broker: str, deliver_ms: int, key: str = key_of(1)) -> str:
    return base64.urlsafe_b64encode(f"v1 {topic} {broker} {deliver_ms} {key}".encode()).decode()


def broker_name(handle: str) -> str:
    return base64.urlsafe_b64decode(handle).decode().split(" ")[2]


def test_a_recalled_message_never_comes_and_the_one_beside_it_does(remote: RemotingSocket, topic: str) -> None:
    deliver_ms = now_ms() + 2_500
    for number in (1, 2, 3):
        handle = send_timed(remote, topic, b"%d" % number, deliver_ms, number)
        if number != 2:
            answer = recall(remote, topic, handle)
            assert (answer.code, answer.fields["msgId"]) == (codes.SUCCESS, key_of(number)), answer.remark
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
    last = send_timed(remote, topic, b"last", deliver_ms + 1_000, 4)
    assert [record.body for record in remote.pull(topic, wait_ms=20_000)] == [b"2"]
    assert [record.body for record in remote.pull(topic, offset=1, wait_ms=20_000)] == [b"last"]
    late = recall(remote, topic, last)
    assert late.code == codes.ILLEGAL_OPERATION
    assert "timestamp invalid: the time of the message has come" in late.remark


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_what_was_recalled_does_not_come_after_kill_9(broker: BrokerFactory, topic: str, flush: str) -> None:
    gateway = RemotingBroker(broker, {"flush.policy": flush})
    deliver_ms = now_ms() + 4_000
    with gateway.connect() as client:
        handles = [send_timed(client, topic, b"%d" % number, deliver_ms, number) for number in range(4)]
        assert recall(client, topic, handles[0]).code == codes.SUCCESS
    gateway.running.kill()
    gateway = RemotingBroker(broker, {"flush.policy": flush}, store=gateway.running.store)
    with gateway.connect() as client:
        assert recall(client, topic, handles[2]).code == codes.SUCCESS
    gateway.running.kill()
    gateway = RemotingBroker(broker, {"flush.policy": flush}, store=gateway.running.store)
    with gateway.connect() as client:
        send_timed(client, topic, b"last", deliver_ms + 1_000, 9)
        bodies: list[bytes] = []
        while b"last" not in bodies:
            bodies += [record.body for record in client.pull(topic, offset=len(bodies), wait_ms=20_000)]
    assert bodies == [b"1", b"3", b"last"]


def test_a_recall_of_a_message_that_was_never_sent_succeeds_and_concerns_no_other(
    remote: RemotingSocket, topic: str
) -> None:
    handle = send_timed(remote, topic, b"kept", now_ms() + 2_500)
    unknown = handle_of(topic, broker_name(handle), now_ms() + 2_500, key_of(99))
    answer = recall(remote, topic, unknown)
    assert (answer.code, answer.fields["msgId"]) == (codes.SUCCESS, key_of(99))
    other = f"{topic}-other"
    assert remote.produce(other).code == codes.SUCCESS
    of_other = base64.urlsafe_b64decode(handle).decode().replace(topic, other)
    assert recall(remote, other, base64.urlsafe_b64encode(of_other.encode()).decode()).code == codes.SUCCESS
    assert [record.body for record in remote.pull(topic, wait_ms=20_000)] == [b"kept"]


Made = Callable[[str, str], str]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda topic, name: "", "recall handle is invalid; pass the recallHandle"),
        (lambda topic, name: "no handle", "recall handle is invalid; pass the recallHandle"),
        (lambda topic, name: handle_of(f"{topic}-2", name, now_ms() + 5_000), "topic not match: the handle is of"),
        (lambda topic, name: handle_of(topic, "b2", now_ms() + 5_000), "this is {name}; send the recall to b2"),
        (lambda topic, name: handle_of(topic, name, now_ms() - 1), "the time of the message has come"),
        (lambda topic, name: handle_of(topic, name, now_ms() + 41 * DAY_MS), "no message is delivered later than in"),
    ],
    ids=["empty", "garbage", "another topic", "another broker", "past", "far future"],
)
def test_a_handle_that_is_not_valid_here_is_refused_with_advice(
    remote: RemotingSocket, topic: str, make: Made, words: str
) -> None:
    name = broker_name(send_timed(remote, topic, b"x", now_ms() + DAY_MS))
    answer = recall(remote, topic, make(topic, name))
    assert answer.code == codes.ILLEGAL_OPERATION
    assert words.format(name=name) in answer.remark


def test_a_topic_or_a_field_that_is_missing_is_refused(remote: RemotingSocket, topic: str) -> None:
    answer = recall(remote, f"{topic}-not", handle_of(f"{topic}-not", "b", now_ms() + 5_000))
    assert answer.code == codes.TOPIC_NOT_EXIST
    assert f"the topic[{topic}-not] not exist; pass the topic" in answer.remark
    assert remote.call(codes.RECALL_MESSAGE, {"recallHandle": "x"}).code == codes.INVALID_PARAMETER


def test_a_message_cannot_make_itself_a_recall(gateway: RemotingBroker, topic: str) -> None:
    properties = {"UNIQ_KEY": key_of(2), "TIMER_DEL_UNIQKEY": f"{topic}+{key_of(1)}", "TIMER_DELAY_SEC": "60"}
    with gateway.connect() as client:
        answer = client.produce(topic, b"0", properties)
        assert answer.code == codes.MESSAGE_ILLEGAL
        assert "call recallMessage with the handle of its send" in answer.remark
