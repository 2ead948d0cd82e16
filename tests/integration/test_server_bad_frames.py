"""Frames that a broker cannot trust, and everything before HELLO: one error at most, then the connection is closed."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest

from flintmq.protocol import commands
from flintmq.protocol.commands import HELLO, PRODUCE
from flintmq.protocol.errors import FrameIllegal, HelloRequired, InvalidParameter, VersionNotSupported
from flintmq.protocol.frames import FRAME_BYTES_MAX, ONE_WAY
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker, rows


def header(*values: Any) -> bytes:
    packed: bytes = msgpack.packb(values[0] if len(values) == 1 else list(values))
    return struct.pack(">II", 4 + len(packed), len(packed)) + packed


UNTRUSTED = {
    "longer than the limit": struct.pack(">II", FRAME_BYTES_MAX + 1, 8),
    "header longer than the frame": struct.pack(">II", 12, 9) + bytes(8),
    "zeros": bytes(64),
    "no msgpack": struct.pack(">II", 8, 4) + b"\xc1\xc1\xc1\xc1",
    "unknown kind": header(3, 10, 1, {}),
    "bad UTF-8": struct.pack(">II", 4 + 9, 9) + b"\x94\x00\x0a\x01\x81\xa1\xff\xa1a",
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS greeting": bytes.fromhex("160301020001000001fc0303"),
}
"""One of each kind; the unit test of frames has all of them."""


@pytest.mark.parametrize("hello", [True, False], ids=["after HELLO", "before HELLO"])
def test_a_frame_that_cannot_be_trusted_is_answered_once_and_the_connection_closed(
    shared_broker: RunningBroker, connect: ConnectionFactory, hello: bool, topic: str
) -> None:
    bystander = connect(shared_broker)
    before = bystander.runtime_info().get("errors_FRAME_ILLEGAL", 0)
    for name, blob in UNTRUSTED.items():
        connection = connect(shared_broker, hello=hello)
        connection.send_bytes(blob)
        answer = connection.receive()
        assert (answer.code, answer.request_id) == (FrameIllegal.code, 0), name
        assert len(answer.fields["message"]) > 10, name
        assert connection.is_closed(), name
        connection.close()
    assert bystander.produce(topic, b"x").code == 0
    assert bystander.runtime_info()["errors_FRAME_ILLEGAL"] - before == len(UNTRUSTED)


def test_a_client_that_said_hello_is_never_taken_for_one_of_rocketmq(
    shared_broker: RunningBroker, connect: ConnectionFactory
) -> None:
    connection = connect(shared_broker)
    request = b'{"code":105,"opaque":9}'
    connection.send_bytes(struct.pack(">II", 4 + len(request), len(request)) + request)
    assert connection.receive().code == FrameIllegal.code


def test_requests_before_an_untrusted_frame_get_their_responses_first(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    connection = connect(shared_broker)
    produced = connection.send(PRODUCE, {"topic": topic, "count": 1}, rows([b"x", {}]))
    connection.send_bytes(b"\xff" * 100_000)
    answer = connection.receive()
    assert (answer.code, answer.request_id) == (0, produced)
    assert connection.receive().code == FrameIllegal.code
    assert connection.is_closed()


def test_an_announced_length_costs_nothing(shared_broker: RunningBroker, connect: ConnectionFactory) -> None:
    bystander = connect(shared_broker)
    before = bystander.runtime_info()["rss_bytes"]
    for _ in range(64):
        connect(shared_broker).send_bytes(struct.pack(">II", FRAME_BYTES_MAX, 16) + bytes(100))
    after = bystander.runtime_info()
    assert after["rss_bytes"] - before < 32 * 1024 * 1024
    assert after["connections"] >= 65


# ---- before HELLO, and HELLO itself ----


def test_everything_before_hello_is_refused_and_the_connection_closed(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    for code in {*commands.COMMANDS, 4711} - {HELLO.code}:
        connection = connect(shared_broker, hello=False)
        assert connection.call(code, {"topic": topic}).code == HelloRequired.code, code
        assert connection.is_closed(), code


def test_another_protocol_version_is_refused_and_hello_may_follow(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    connection = connect(shared_broker, hello=False)
    answer = connection.call(HELLO, {"protocol": 2})
    assert answer.code == VersionNotSupported.code
    assert answer.fields["protocol"] == 1
    assert connection.call(HELLO, {"protocol": "1"}).code == InvalidParameter.code
    assert connection.call(HELLO, {}).code == InvalidParameter.code
    assert connection.call(HELLO, {"protocol": 1, "unknown": [1]}).code == 0
    assert connection.produce(topic, b"x").code == 0


def test_hello_returns_the_brokers_limits(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker("--flush", "async", settings={"limits.produce_frame_bytes_max": 100_000, "server.name": "here"})
    answer = connect(running, hello=False).call(HELLO, {"protocol": 1})
    assert answer.fields["protocol"] == 1
    assert answer.fields["broker"] == "here"
    assert answer.fields["flush"] == "async"
    assert answer.fields["produce_frame_bytes_max"] == 100_000
    assert answer.fields["frame_bytes_max"] == FRAME_BYTES_MAX
    assert answer.fields["message_bytes_max"] == 512 * 1024


def test_one_way_before_hello_closes_the_connection(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    connection = connect(shared_broker, hello=False)
    connection.send(PRODUCE, {"topic": topic, "count": 1}, rows([b"x", {}]), kind=ONE_WAY)
    assert connection.receive().code == HelloRequired.code
    assert connection.is_closed()
