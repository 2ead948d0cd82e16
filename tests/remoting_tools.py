"""A blocking client of the remoting gateway, as small as possible, and brokers that serve it."""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from flintmq.protocol.frames import ONE_WAY, REQUEST, RESPONSE
from flintmq.protocol.remoting import codes, fastjson
from flintmq.protocol.remoting.command import JSON_HEADER, RemotingFrame, decode_frame, encode_head
from flintmq.protocol.storage.record import Record, decode_record
from tests.conftest import BrokerFactory, RunningBroker
from tests.processes import free_port

TIMEOUT_S = 120.0
GROUP = "test-producers"
_LENGTH = struct.Struct(">I")
_BATCH_HEAD = struct.Struct(">iiiii")


class RemotingSocket:
    """One connection. ``header_type``: form of the headers that it sends; answers have the same."""

    def __init__(self, address: tuple[str, int], header_type: int = JSON_HEADER) -> None:
        self.header_type = header_type
        self.requests: deque[RemotingFrame] = deque()
        """Requests of the broker that arrived while a response was awaited."""
        self._answers: dict[int, RemotingFrame] = {}
        self._numbers = itertools.count(1)
        self._socket = socket.create_connection(address, TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def __enter__(self) -> RemotingSocket:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @property
    def local_address(self) -> tuple[str, int]:
        """Return host and port of this end."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def send_bytes(self, blob: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(blob)

    def send(
        self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"", *, one_way: bool = False
    ) -> int:
        """Send a request without waiting for its response; return its opaque number. Field values become strings."""
        number = next(self._numbers)
        texts = None if fields is None else {name: as_text(value) for name, value in fields.items()}
        kind = ONE_WAY if one_way else REQUEST
        self.send_bytes(encode_head(kind, code, number, texts, len(body), header_type=self.header_type) + body)
        return number

    def call(self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"") -> RemotingFrame:
        """Send a request and return its response."""
        return self.receive_for(self.send(code, fields, body))

    def receive_for(self, number: int) -> RemotingFrame:
        """Return the response to the request with this opaque number."""
        while number not in self._answers:
            frame = self._next_frame()
            if frame.kind == RESPONSE:
                self._answers[frame.request_id] = frame
            else:
                self.requests.append(frame)
        return self._answers.pop(number)

    def receive_request(self, code: int) -> RemotingFrame:
        """Return the broker's next request with this code; drop others."""
        while True:
            frame = self.requests.popleft() if self.requests else self._next_frame()
            if frame.kind == RESPONSE:
                self._answers[frame.request_id] = frame
            elif frame.code == code:
                return frame

    def respond(self, request: RemotingFrame, code: int = codes.SUCCESS, remark: str | None = None) -> None:
        """Answer a request of the broker."""
        self.send_bytes(
            encode_head(RESPONSE, code, request.request_id, None, 0, remark=remark, header_type=self.header_type)
        )

    def send_no_more(self) -> None:
        """Tell the broker that nothing more will be sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def is_closed(self) -> bool:
        """Wait for the end of the connection; return False if anything else arrives."""
        try:
            return not self._socket.recv(1)
        except ConnectionResetError:
            return True

    def _next_frame(self) -> RemotingFrame:
        length = _LENGTH.unpack(self._take(4))[0]
        blob = bytearray(_LENGTH.pack(length)) + self._take(length)
        return decode_frame(blob, 0, len(blob))

    def _take(self, size: int) -> bytearray:
        while len(self._received) < size:
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the broker closed the connection")
            self._received += more
        taken = self._received[:size]
        del self._received[:size]
        return taken

    # ---- requests that many tests send ----

    def produce(
        self, topic: str, body: bytes = b"body", properties: Mapping[str, str] | None = None, **fields: Any
    ) -> RemotingFrame:
        """Send one message as the Java client does, and return the response. ``fields``: long or short names."""
        return self.call(codes.SEND_MESSAGE_V2, send_fields(topic, properties or {}, **fields), body)

    def pull(self, topic: str, queue: int = 0, offset: int = 0, *, wait_ms: int = 0, tags: str = "*") -> list[Record]:
        """Return the messages of a queue from an offset on; with ``wait_ms``, wait for the first."""
        fields = {
            "consumerGroup": "test-consumers",
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 6 if wait_ms else 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": wait_ms,
            "subscription": tags,
            "subVersion": 0,
            "expressionType": "TAG",
        }
        answer = self.call(codes.PULL_MESSAGE, fields)
        assert answer.code in (codes.SUCCESS, codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY), answer.remark
        return decode_records(bytes(answer.body))

    def heart_beat(self, client_id: str, producers: tuple[str, ...] = (), consumers: tuple[Any, ...] = ()) -> None:
        """Register this connection as a client in groups. ``consumers``: rows of ``consumerDataSet``."""
        body = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": name} for name in producers],
            "consumerDataSet": list(consumers),
        }
        answer = self.call(codes.HEART_BEAT, {}, json_blob(body))
        assert answer.code == codes.SUCCESS, answer.remark


def json_of(answer: RemotingFrame) -> Any:
    """Return the body of a response without an error."""
    assert answer.code == codes.SUCCESS, answer.remark
    return fastjson.decode(bytes(answer.body))


def decode_records(blob: bytes) -> list[Record]:
    """Return the records that fill an answer's body."""
    records, at = [], 0
    while at < len(blob):
        records.append(decode_record(blob, at))
        at += _LENGTH.unpack_from(blob, at)[0]
    return records


def as_text(value: Any) -> str:
    """Return a field's value as RocketMQ's clients send it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def json_blob(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value).encode()


def properties_text(properties: Mapping[str, str]) -> str:
    """Return properties as a send carries them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def send_fields(topic: str, properties: Mapping[str, str], **fields: Any) -> dict[str, Any]:
    """Return the fields of SEND_MESSAGE_V2; ``fields`` by their short names replace them."""
    return {
        "a": GROUP,
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": properties_text(properties),
        "j": 0,
        "k": False,
        "m": False,
        **fields,
    }


def batch_body(*messages: tuple[bytes, Mapping[str, str]], flag: int = 0) -> bytes:
    """Return the body of a batch of messages, each with its body and its properties."""
    parts = []
    for body, properties in messages:
        blob = properties_text(properties).encode()
        size = _BATCH_HEAD.size + len(body) + 2 + len(blob)
        parts += [_BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body, struct.pack(">h", len(blob)), blob]
    return b"".join(parts)


class RemotingBroker:
    """A broker with a gateway. ``address``: host and port for RocketMQ's clients; ``running``: the process.

    ``arguments`` and ``settings`` go to ``start``, which is ``Brokers.start``.
    """

    def __init__(self, start: BrokerFactory, settings: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        self.address = ("127.0.0.1", free_port())
        listen = f"{self.address[0]}:{self.address[1]}"
        settings = {"remoting.listen": listen, "remoting.vip_channel": False, **(settings or {})}
        self.running: RunningBroker = start(settings=settings, **arguments)

    def connect(self, header_type: int = JSON_HEADER) -> RemotingSocket:
        """Open a connection; the caller closes it."""
        return RemotingSocket(self.address, header_type)
