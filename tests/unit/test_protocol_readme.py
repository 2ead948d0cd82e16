"""``protocol/README.md`` matches the code: its examples are the code's bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.protocol import commands
from flintmq.protocol.commands import (
    HELLO,
    LAYOUT_COLUMNS,
    PHYSICAL_OFFSET_STRUCT,
    PRODUCE,
    PULL,
    RECORD_SIZE_STRUCT,
    HelloAnswer,
    HelloRequest,
    ProduceAnswer,
    ProduceRequest,
    PullRequest,
    RecordsAnswer,
)
from flintmq.protocol.errors import TopicNotExist
from flintmq.protocol.fields import encode_fields
from flintmq.protocol.frames import REQUEST, RESPONSE, FrameParser, encode_frame
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import Record, encode_host

README = (Path(__file__).parents[2] / "protocol" / "README.md").read_text(encoding="utf-8")


def test_every_bit_of_sys_flag_is_explained() -> None:
    bits = re.findall(r"^\| (0x[0-9A-F]+) \| `(\w+)` \|", README, re.MULTILINE)
    described = {name: int(value, 16) for value, name in bits}
    assert described == {
        name: value for name, value in vars(SysFlag).items() if name.isupper() and name != "FROM_PRODUCER"
    }
    assert f"0x{SysFlag.FROM_PRODUCER:X}" in README


# ---- examples ----

BROKER_HOST = encode_host("127.0.0.1", 10911)
PREFIX = "7F00000104D2A1B2C3D4"
FIRST = 0x4C4B40_0000
MESSAGES: list[tuple[bytes, dict[str, str]]] = [(b"hello", {"TAGS": "eu", "KEYS": "o-1"}), (b"again", {})]
STORED = Record(
    topic=b"orders",
    body=b"hello",
    properties=f"TAGS\x01eu\x02KEYS\x01o-1\x02UNIQ_KEY\x01{PREFIX}{FIRST:012X}\x02".encode(),
    queue_id=2,
    queue_offset=7,
    physical_offset=4096,
    born_timestamp=1_795_275_200_000,
    born_host=encode_host("127.0.0.1", 50_000),
    store_timestamp=1_795_275_200_001,
    store_host=BROKER_HOST,
)
HELLO_ANSWER = HelloAnswer(
    protocol=1,
    broker="flintmq",
    version="0.1.0",
    flush="sync",
    frame_bytes_max=16 * 1024 * 1024,
    produce_frame_bytes_max=1024 * 1024,
    message_bytes_max=512 * 1024,
)


def _request(command: commands.Command, request_id: int, fields: Any, body: bytes = b"") -> bytes:
    return encode_frame(REQUEST, command.code, request_id, encode_fields(fields), body)


def _answer(request_id: int, fields: Any, body: bytes = b"") -> bytes:
    return encode_frame(RESPONSE, 0, request_id, encode_fields(fields), body)


def _example_offsets() -> bytes:
    size = len(STORED.encode())
    return PHYSICAL_OFFSET_STRUCT.pack(4096) + PHYSICAL_OFFSET_STRUCT.pack(4096 + size)


def _example_missing_topic() -> bytes:
    error = TopicNotExist("topic nowhere does not exist")
    return encode_frame(RESPONSE, error.code, 4, error.fields())


EXAMPLES: dict[str, Callable[[], bytes]] = {
    "hello request": lambda: _request(HELLO, 1, HelloRequest(protocol=1, client="example")),
    "hello answer": lambda: _answer(1, HELLO_ANSWER),
    "produce rows": lambda: _request(
        PRODUCE,
        2,
        ProduceRequest(topic="orders", count=2, queue=2, unique_prefix=PREFIX, unique_first=FIRST),
        b"".join(msgpack.packb(message) for message in MESSAGES),
    ),
    "produce columns": lambda: _request(
        PRODUCE,
        2,
        ProduceRequest(topic="orders", count=2, queue=2, layout=LAYOUT_COLUMNS, common="TAGS\x01eu\x02"),
        msgpack.packb([body for body, _ in MESSAGES]) + msgpack.packb(["o-1", None]),
    ),
    "produce answer": lambda: _answer(2, ProduceAnswer(2, 7, 1_795_275_200_001), _example_offsets()),
    "pull request": lambda: _request(PULL, 3, PullRequest("orders", 2, 7, wait_ms=5000, tags="eu || us")),
    "pull answer": lambda: _answer(
        3, RecordsAnswer(1, 8, 0, 9), RECORD_SIZE_STRUCT.pack(len(STORED.encode())) + STORED.encode()
    ),
    "error answer": _example_missing_topic,
}


def _printed(name: str) -> bytes:
    (found,) = re.findall(rf"<!-- example: {re.escape(name)} -->\n\n```text\n(.*?)\n```", README, re.DOTALL)
    return bytes.fromhex("".join(re.split(r"\s{2,}", line)[0] for line in str(found).splitlines()))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_equals_the_bytes_that_the_code_sends(name: str) -> None:
    assert _printed(name) == EXAMPLES[name]()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_code_reads_an_example(name: str) -> None:
    data = _printed(name)
    parser = FrameParser()
    parser.writable()[: len(data)] = data
    parser.received(len(data))
    frame = parser.next_frame()
    assert frame is not None
    assert parser.pending_bytes == 0
    # The same computation, following only the text of the specification.
    frame_length, header_length = struct.unpack_from(">II", data)
    assert len(data) == 4 + frame_length
    header = msgpack.unpackb(data[8 : 8 + header_length])
    assert header == [frame.kind, frame.code, frame.request_id, frame.fields]
    assert data[8 + header_length :] == frame.body


def test_the_example_ids_are_those_of_the_example_record() -> None:
    assert f"`{PREFIX}{FIRST:012X}`" in README
    assert f"`{(BROKER_HOST + struct.pack('>q', STORED.physical_offset)).hex().upper()}`" in README
