"""The client of RocketMQ's remoting protocol, against servers that answer rightly and wrongly."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flintmq.broker.migration.ha_connection import MasterRefused
from flintmq.broker.migration.master import MasterClient, connected
from flintmq.broker.remoting.outbound import FRAME_BYTES_MAX, decode_answer, encode_request
from flintmq.protocol.errors import ConnectionFailed, RemoteProtocolError
from tests.processes import free_port

Respond = Callable[[dict[str, Any]], bytes]
"""Returns the bytes that a server sends after a request with this header."""


def frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return a frame as RocketMQ writes it."""
    text = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def answer(request: dict[str, Any], code: int = 0, body: bytes = b"", **more: Any) -> bytes:
    """Return a response to ``request``."""
    return frame({"code": code, "opaque": request["opaque"], "flag": 1, "language": "JAVA", **more}, body)


@asynccontextmanager
async def asking(respond: Respond) -> AsyncIterator[MasterClient]:
    """Yield a client of a server that answers each request with ``respond``, and closes after an empty answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.read(8):
                length, header_bytes = struct.unpack(">II", head)
                header = json.loads(await reader.readexactly(header_bytes))
                assert length == 4 + header_bytes
                said = respond(header)
                writer.write(said)
                if not said:
                    break
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, connected(*server.sockets[0].getsockname()[:2]) as client:
        yield client


async def test_a_request_carries_its_fields_and_the_answer_its_body() -> None:
    seen: list[dict[str, Any]] = []

    def respond(request: dict[str, Any]) -> bytes:
        seen.append(request)
        return answer(request, body=b"\0\xff", extFields={"offset": "7"}, remark=None)

    async with asking(respond) as client:
        got = await client.call(33, offset="42")
        again = await client.call(28)
    assert (got.body, got.fields, got.remark) == (b"\0\xff", {"offset": "7"}, "")
    assert [(each["code"], each["extFields"]) for each in seen] == [(33, {"offset": "42"}), (28, {})]
    assert seen[0]["opaque"] != seen[1]["opaque"]
    assert again.body == b"\0\xff"


async def test_a_request_is_what_rocketmqs_parser_reads() -> None:
    blob = encode_request(26, 5, {})
    length, header_bytes = struct.unpack_from(">II", blob)
    assert (length, header_bytes) == (len(blob) - 4, len(blob) - 8)
    header = json.loads(blob[8:])
    assert (header["code"], header["opaque"], header["flag"]) == (26, 5, 0)
    assert (header["language"], header["serializeTypeCurrentRPC"]) == ("OTHER", "JSON")


async def test_requests_of_the_server_and_answers_to_others_are_passed_over() -> None:
    def respond(request: dict[str, Any]) -> bytes:
        own_request = frame({"code": 40, "opaque": request["opaque"], "flag": 0})
        other = answer(request | {"opaque": 999}, body=b"other")
        return own_request + other + answer(request, body=b"right")

    async with asking(respond) as client:
        assert (await client.call(21)).body == b"right"


async def test_an_error_names_the_broker_the_request_and_its_words() -> None:
    async with asking(lambda request: answer(request, 16, remark="no permission")) as client:
        with pytest.raises(
            MasterRefused, match=r"127\.0\.0\.1:\d+ refused request 26 with code 16: no permission"
        ) as seen:
            await client.call(26)
        assert seen.value.code == 16
        assert (await client.ask(26)).code == 16


async def test_a_connection_that_ends_before_the_answer_is_a_connection_failure() -> None:
    async with asking(lambda request: b"") as client:
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            await client.call(26)


async def test_a_port_without_a_server_is_a_connection_failure() -> None:
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        async with connected("127.0.0.1", free_port()):
            pass


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">I", FRAME_BYTES_MAX + 1),
        struct.pack(">I", 3) + b"abc",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">II", 6, 3) + b"{}",
        struct.pack(">II", 6, 1 << 24 | 2) + b"{}",
        struct.pack(">II", 6, 2) + b"{}",
        struct.pack(">II", 6, 2) + b"[]",
        struct.pack(">II", 6, 2) + b"\xff\xff",
        frame({"code": "many", "opaque": 1, "flag": 1}),
        frame({"code": 0, "opaque": 1, "flag": 1, "extFields": [1]}),
    ],
)
async def test_an_answer_of_another_protocol_is_refused(said: bytes) -> None:
    async with asking(lambda request: said) as client:
        with pytest.raises(RemoteProtocolError, match="does not answer as a RocketMQ broker"):
            await client.call(26)


def test_a_frame_without_its_header_is_refused() -> None:
    whole = answer({"opaque": 3})[4:]
    for size in range(4, len(whole)):
        with pytest.raises(RemoteProtocolError):
            decode_answer(whole[:size])
