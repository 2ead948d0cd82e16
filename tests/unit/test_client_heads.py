"""Heads of fixed width: the same values as in those that ``encode_head`` makes and msgpack reads."""

from __future__ import annotations

import struct
from dataclasses import astuple
from typing import Any

import msgpack
import pytest

from flintmq.client.core.rpc.session import Answer, Session
from flintmq.protocol.commands import LAYOUT_COLUMNS, LAYOUT_ROWS, PRODUCE, ProduceRequest, RecordsAnswer
from flintmq.protocol.errors import PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SUCCESS
from flintmq.protocol.fields import decode_fields, encode_fields
from flintmq.protocol.frames import (
    REQUEST,
    RESPONSE,
    ProduceHead,
    decode_records_head,
    encode_head,
    encode_records_head,
)

PREFIX = "7F00000155A738209810"


@pytest.mark.parametrize("queue", [-1, 0, 65_535])
@pytest.mark.parametrize("layout", [LAYOUT_ROWS, LAYOUT_COLUMNS])
@pytest.mark.parametrize("flush", ["", "sync"])
@pytest.mark.parametrize("common", ["", "TAGS\x01ключ\x02", "a\x01" + "x" * 30_000 + "\x02"])
@pytest.mark.parametrize("topic", ["t", "x" * 127])
def test_every_field_of_a_head_is_in_its_place(queue: int, layout: int, flush: str, common: str, topic: str) -> None:
    head = ProduceHead(topic, queue, layout, flush, common, PREFIX)
    for request_id, count, first, born_ms in ((1, 1, 0, 0), (2**31 - 1, 2**31 - 1, 2**48 - 1, 2**63 - 1)):
        blob = head.encode(request_id, count, first, born_ms, 1000)
        assert len(blob) == head.size
        frame_length, header_length = struct.unpack_from(">II", blob)
        assert (frame_length, header_length) == (len(blob) - 4 + 1000, len(blob) - 8)
        kind, code, its_id, fields = msgpack.unpackb(blob[8:])
        assert (kind, code, its_id) == (REQUEST, PRODUCE.code, request_id)
        expected: dict[str, Any] = {
            "topic": topic,
            "count": count,
            "queue": queue,
            "layout": layout,
            "flush": flush,
            "common": common,
            "unique_prefix": PREFIX,
            "unique_first": first,
            "born_ms": born_ms,
        }
        request = ProduceRequest(**expected)
        assert {**fields, "unique_first": first, "born_ms": born_ms} == {
            **encode_fields(request),
            "unique_first": first,
            "born_ms": born_ms,
        }
        assert decode_fields(ProduceRequest, fields) == request


def received(frame: bytes) -> Answer:
    """Return the only response in ``frame``."""
    session = Session()
    session.parser.writable()[: len(frame)] = frame
    session.parser.received(len(frame))
    (answer,) = session.answers()
    return answer


@pytest.mark.parametrize("code", [SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY])
@pytest.mark.parametrize("numbers", [(0, 0, 0, 0), (3, 7, 5, 9), (2**31, 2**63 - 1, 5, 2**63 - 2)])
@pytest.mark.parametrize("body", [b"", b"records"])
def test_a_response_with_records_is_read_the_same_from_both_kinds_of_heads(
    code: int, numbers: tuple[int, int, int, int], body: bytes
) -> None:
    fields = RecordsAnswer(*numbers)
    short = received(encode_records_head(code, 2**31 - 1, *numbers, len(body)) + body)
    general = received(encode_head(RESPONSE, code, 2**31 - 1, encode_fields(fields), len(body)) + body)
    assert short.records == decode_fields(RecordsAnswer, general.fields) == fields
    assert (short.request_id, short.code, short.body) == (general.request_id, general.code, general.body)
    assert general.records is None


def test_only_whole_responses_with_records_take_the_short_way() -> None:
    head = encode_records_head(SUCCESS, 1, 1, 2, 0, 2, 4)
    frame = bytearray(head + b"four")
    found = decode_records_head(frame, 0, len(frame))
    assert found is not None
    assert (*found[:2], *astuple(found[2])[:4], found[3]) == (SUCCESS, 1, 1, 2, 0, 2, len(head))
    for end in range(len(frame)):
        assert decode_records_head(frame, 0, end) is None
    assert decode_records_head(frame + b"x", 0, len(frame) + 1) is None
    for too_large in ((0, 2**63, 0, 0), (0, 0, 2**63, 0), (0, 0, 0, 2**63)):
        large = bytearray(encode_records_head(SUCCESS, 1, *too_large, 0))
        assert decode_records_head(large, 0, len(large)) is None
    constant = [at for at in range(len(head)) if chr(head[at]).isalpha()]
    for at in constant:
        changed = bytearray(frame)
        changed[at] ^= 1
        assert decode_records_head(changed, 0, len(changed)) is None
