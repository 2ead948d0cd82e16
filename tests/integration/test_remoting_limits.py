"""Limits and refused bytes at the port for RocketMQ's clients, as at FlintMQ's own, and hints at the wrong port."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, FlintError
from flintmq.protocol.commands import HELLO, PROTOCOL_VERSION
from flintmq.protocol.frames import FRAME_BYTES_MAX, REQUEST, RESPONSE, FrameParser, encode_frame
from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import BINARY_HEADER, JSON_HEADER, encode_head
from tests.conftest import BrokerFactory, Brokers
from tests.overload_tools import soon
from tests.processes import free_port
from tests.remoting_tools import RemotingBroker, RemotingSocket, send_fields
from tests.tls_tools import Authority

Q = {"topic": "orders", "queueId": 0}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingBroker]:
    """A broker that has the topic ``orders``, for tests that change no limit."""
    brokers = Brokers(tmp_path_factory.mktemp("gateway"))
    gateway = RemotingBroker(brokers.start)
    with gateway.connect() as client:
        assert client.produce("orders").code == codes.SUCCESS
    yield gateway
    brokers.stop_all()


def framed(header: bytes, header_type: int = JSON_HEADER) -> bytes:
    return struct.pack(">II", 4 + len(header), header_type << 24 | len(header)) + header


UNTRUSTED: dict[str, tuple[bytes, int, str]] = {
    "longer than the limit": (struct.pack(">II", FRAME_BYTES_MAX + 1, 8), 0, "the limit is"),
    "no JSON": (framed(b"hello"), 0, "not JSON"),
    "a cut binary header": (framed(b"\x00\x0a", BINARY_HEADER), 0, "cut or not UTF-8"),
    "a header without a code": (framed(b'{"opaque":77}'), 77, "code is missing"),
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 0, "HTTP"),
    "a TLS greeting": (bytes.fromhex("160301020001000001fc0303"), 0, "TLS"),
}


@pytest.mark.parametrize("name", UNTRUSTED)
def test_a_frame_that_cannot_be_trusted_is_answered_once_and_the_connection_closed(
    gateway: RemotingBroker, name: str
) -> None:
    blob, opaque, words = UNTRUSTED[name]
    with gateway.connect() as client, gateway.connect() as bystander:
        client.send_bytes(blob)
        answer = client.receive_for(opaque)
        assert answer.code == codes.SYSTEM_ERROR
        assert words in answer.remark
        assert client.is_closed()
        assert bystander.produce("orders").code == codes.SUCCESS


FIELD_NAMES = (
    "topic b group consumerGroup producerGroup groupName clientID clientId queueId e queueOffset offset commitOffset "
    "maxMsgNums sysFlag f timestamp key maxNum beginTimestamp endTimestamp cluster brokerName namespace perm "
    "readQueueNums writeQueueNums defaultTopic topicFilterType isForce statsName statsKey srcGroup destGroup offline "
    "index count delayLevel originMsgId tranStateTableOffset commitLogOffset commitOrRollback msgId recallHandle "
    "extraInfo invisibleTime pollTime bornTime initMode expType exp order attributes a c d g h i j k l m n subscription"
).split()
VALUES = (
    "",
    "1",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "1e9",
    "x" * 300,
    "%RETRY%",
    "a\x01b\x02",
    "\U0001f600",
)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_every_known_code_gets_an_answer_whatever_its_fields_and_body_are(gateway: RemotingBroker, value: str) -> None:
    """No request takes the connection, or the broker, down, and none meets an error that the broker did not expect."""
    source = random.Random(value)
    known = sorted({number for name, number in vars(codes).items() if name.isupper() and type(number) is int})
    topic = f"victim-{VALUES.index(value)}"
    fields = dict.fromkeys(FIELD_NAMES, value)
    named = {**fields, "topic": topic, "b": topic, "consumerGroup": "bills", "group": "bills"}
    bodies = (b"", b"{}", b"[]", b"null", b'{"a":' * 5_000, source.randbytes(300))
    with gateway.connect() as client:
        client._socket.settimeout(2)
        assert client.produce(topic).code == codes.SUCCESS
        for number, (code, body, sent) in enumerate(itertools.product(known, bodies, (fields, named)), 100):
            client.send_bytes(encode_head(REQUEST, code, number, sent, len(body)) + body)
            while not client._answers:
                try:
                    frame = client._next_frame()
                except TimeoutError:
                    break  # it waits for a message, as it may
                if frame.kind == RESPONSE:
                    client._answers[frame.request_id] = frame
            answer = client._answers.pop(number, None)
            assert answer is None or "the broker failed" not in answer.remark, (code, body[:20])
    assert "Traceback" not in gateway.running.log


@pytest.mark.parametrize("header_type", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
def test_an_unknown_code_is_answered_in_its_form_and_the_connection_stays(
    gateway: RemotingBroker, header_type: int
) -> None:
    with gateway.connect(header_type) as client:
        refused = client.call(31_000)
        assert (refused.code, refused.header_type) == (codes.REQUEST_CODE_NOT_SUPPORTED, header_type)
        assert "31000" in refused.remark
        assert client.call(codes.GET_MAX_OFFSET, Q).header_type == header_type


def test_a_one_way_request_is_never_answered(gateway: RemotingBroker) -> None:
    with gateway.connect() as client:
        client.send(31_000, one_way=True)
        client.send(codes.SEND_MESSAGE_V2, send_fields("no/such topic", {}), one_way=True)
        number = client.send(codes.GET_MAX_OFFSET, Q)
        assert client.receive_for(number).code == codes.SUCCESS
        assert not client._answers
        assert not client.requests


class TestLimits:
    """Each limit closes or refuses the client that exceeds it, and serves the others."""

    def test_connections_beyond_the_limit_get_an_error(self, broker: BrokerFactory) -> None:
        gateway = RemotingBroker(broker, {"limits.connections_max": 2})
        with gateway.connect() as first, gateway.connect() as second, gateway.connect() as third:
            answer = third.receive_for(0)
            assert answer.code == codes.SYSTEM_BUSY
            assert "limits.connections_max" in answer.remark
            assert third.is_closed()
            assert {each.produce("orders").code for each in (first, second)} == {codes.SUCCESS}


class TestWrongPort:
    """A client of one protocol at the port of the other gets words that its program shows."""

    def test_a_flintmq_client_at_the_port_for_rocketmq(self, gateway: RemotingBroker) -> None:
        host, port = gateway.address
        with pytest.raises(FlintError, match="serves RocketMQ's clients"), Consumer(f"{host}:{port}") as consumer:
            consumer.pull("orders", 0, 0)

    @pytest.mark.parametrize("header_type", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
    def test_a_rocketmq_client_at_flintmqs_port(self, gateway: RemotingBroker, header_type: int) -> None:
        with RemotingSocket((gateway.running.host, gateway.running.port), header_type) as client:
            refused = client.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
            assert refused.code == codes.SYSTEM_ERROR
            assert "remoting.listen" in refused.remark
            assert client.is_closed()
        assert "give RocketMQ's clients the address of remoting.listen" in gateway.running.log


def test_connections_show_language_and_release(gateway: RemotingBroker) -> None:
    with gateway.connect() as client, Admin(gateway.running.address) as admin:
        client.call(codes.GET_MAX_OFFSET, Q)
        [found] = [each for each in admin.connections() if (each.host, each.port) == client.local_address]
        assert found.client == "rocketmq other 5.3.3"
        assert found.frames_in == 1


class TestTls:
    """With a certificate, both ports speak TLS only."""

    def test_requests_pass_tls_and_plain_ones_are_refused(self, broker: BrokerFactory, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        gateway = RemotingBroker(broker, authority.issue().broker_settings)
        context = ssl.create_default_context(cafile=authority.path)
        with gateway.connect() as client:
            client._socket = context.wrap_socket(client._socket, server_hostname="127.0.0.1")
            assert client.produce("orders", bytes(200_000)).code == codes.SUCCESS
        with gateway.connect() as plain:
            plain.send(codes.GET_MAX_OFFSET, Q)
            with pytest.raises((ConnectionError, ValueError)):
                plain._next_frame()
        soon(lambda: "TLS handshake failed" in gateway.running.log)


class TestStart:
    """Where the port may be open."""

    def start(self, tmp_path: Path, *settings: str) -> str:
        """Run a broker that must not start; return what it says."""
        command = [sys.executable, "-m", "flintmq.broker.app.daemon", "serve", "--store", str(tmp_path / "store")]
        sets = [part for each in ("server.listen=127.0.0.1:0", *settings) for part in ("--set", each)]
        done = subprocess.run([*command, *sets], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        return done.stderr

    def test_beyond_loopback_it_needs_users(self, tmp_path: Path) -> None:
        said = self.start(tmp_path, "remoting.listen=0.0.0.0:0")
        assert "remoting.listen = '0.0.0.0:0' is reachable from other machines without authentication" in said
        assert "flintmq user key add" in said
        assert "--insecure" in said

    def test_a_port_in_use_is_named(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            said = self.start(tmp_path, f"remoting.listen=127.0.0.1:{taken.getsockname()[1]}")
        assert "remoting.listen" in said
        assert "another process listens there" in said

    @pytest.mark.parametrize("with_tls", [True, False], ids=["TLS", "no TLS"])
    def test_without_tls_the_log_says_what_signatures_do_not_give(
        self, broker: BrokerFactory, tmp_path: Path, with_tls: bool
    ) -> None:
        more = Authority(tmp_path).issue().broker_settings if with_tls else {}
        listen = {"remoting.listen": f"0.0.0.0:{free_port()}", "remoting.advertise": "127.0.0.1:10911"}
        listen |= {"remoting.vip_channel": "false"}
        running = broker(settings=listen | {"security.auth": "scram"} | more)
        assert ("can send a signed request again" in running.log) is not with_tls


def test_hello_of_flintmq_is_answered_in_its_own_form(gateway: RemotingBroker) -> None:
    """The answer has FlintMQ's frame, so that its clients can show the words."""
    with gateway.connect() as client:
        client.send_bytes(encode_frame(REQUEST, HELLO.code, 1, {"protocol": PROTOCOL_VERSION, "client": "test"}))
        parser = FrameParser()
        while (frame := parser.next_frame()) is None:
            blob = client._socket.recv(1 << 12)
            assert blob
            parser.writable()[: len(blob)] = blob
            parser.received(len(blob))
        assert "server.listen" in frame.fields["message"]


class TestVipChannel:
    """The port two below, where RocketMQ's dashboard expects a broker."""

    def port(self) -> int:
        """Return a free port whose second neighbour below is free, too."""
        for _ in range(100):
            port = free_port()
            with socket.socket() as below, contextlib.suppress(OSError):
                below.bind(("127.0.0.1", port - 2))
                return port
        raise AssertionError("no such port")

    def test_it_serves_requests_until_the_broker_stops(self, broker: BrokerFactory) -> None:
        port = self.port()
        running = broker(settings={"remoting.listen": f"127.0.0.1:{port}"})
        for each in (port, port - 2):
            with RemotingSocket(("127.0.0.1", each), JSON_HEADER) as client:
                assert client.produce("orders").code == codes.SUCCESS
        assert running.stop() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port - 2))

    def test_it_can_be_switched_off(self, broker: BrokerFactory) -> None:
        port = self.port()
        broker(settings={"remoting.listen": f"127.0.0.1:{port}", "remoting.vip_channel": False})
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port - 2))

    def test_a_port_in_use_is_told_and_the_broker_starts_without_it(self, broker: BrokerFactory) -> None:
        port = self.port()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port - 2))
            taken.listen()
            running = broker(settings={"remoting.listen": f"127.0.0.1:{port}"})
            with RemotingSocket(("127.0.0.1", port), JSON_HEADER) as client:
                assert client.produce("orders").code == codes.SUCCESS
        assert "(remoting.vip_channel): remoting.listen, less 2 = " in running.log
        assert f"127.0.0.1:{port - 2}': cannot listen there" in running.log


JSON_CODES = [
    codes.HEART_BEAT,
    codes.CHECK_CLIENT_CONFIG,
    codes.LOCK_BATCH_MQ,
    codes.UNLOCK_BATCH_MQ,
    codes.QUERY_ASSIGNMENT,
    codes.SET_MESSAGE_REQUEST_MODE,
    codes.BATCH_ACK_MESSAGE,
    codes.UPDATE_AND_CREATE_TOPIC_LIST,
    codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    codes.UPDATE_BROKER_CONFIG,
]


@pytest.mark.parametrize("code", JSON_CODES)
def test_a_body_that_is_longer_than_any_the_request_needs_is_not_decoded(gateway: RemotingBroker, code: int) -> None:
    bomb = b'{"a":[' + b"{}," * 400_000 + b"{}]}"
    with gateway.connect() as client:
        refused = client.call(code, {}, bomb)
        assert refused.code == codes.INVALID_PARAMETER
        assert f"has {len(bomb):,} bytes; the maximum is" in refused.remark


def test_a_body_of_too_many_values_is_refused(gateway: RemotingBroker) -> None:
    with gateway.connect() as client:
        for many in (b'{"a":[' + b"{}," * 100_000 + b"{}]}", b'{"a":[' + b"[[0]]," * 50_000 + b"0]}"):
            refused = client.call(codes.HEART_BEAT, {}, many)
            assert (refused.code, "more than 65,536 values" in refused.remark) == (codes.INVALID_PARAMETER, True)


def test_requests_keep_their_order_when_a_long_body_is_decoded_beside_them(gateway: RemotingBroker) -> None:
    tags = " || ".join(f"tag-{number}" for number in range(1_000))
    subscription = {"topic": "orders", "subString": tags, "expressionType": "TAG", "tagsSet": tags.split(" || ")}
    row = {"groupName": "many-tags", "subscriptionDataSet": [subscription]}
    body = json.dumps({"clientID": "many-tags", "consumerDataSet": [row]}).encode()
    listed = {"consumerGroup": "many-tags"}
    with gateway.connect() as client:
        numbers = [
            client.send(codes.HEART_BEAT, {}, body),
            client.send(codes.GET_CONSUMER_LIST_BY_GROUP, listed),
            client.send(codes.UNREGISTER_CLIENT, {"clientID": "many-tags", "consumerGroup": "many-tags"}),
            client.send(codes.GET_CONSUMER_LIST_BY_GROUP, listed),
        ]
        answers = [client.receive_for(number) for number in numbers]
        assert [answer.code for answer in answers] == [0, 0, 0, codes.SYSTEM_ERROR], answers[0].remark
        assert b"many-tags" in bytes(answers[1].body)
        # A client that goes meanwhile leaves nothing behind.
        client.send(codes.HEART_BEAT, {}, body)
    with gateway.connect() as client:
        assert client.produce("orders").code == codes.SUCCESS
