"""``ProduceHead`` makes the same head as ``encode_head``."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest

from flintmq.protocol.commands import LAYOUT_COLUMNS, LAYOUT_ROWS, PRODUCE, ProduceRequest
from flintmq.protocol.fields import decode_fields, encode_fields
from flintmq.protocol.frames import REQUEST
from flintmq.protocol.produce_frame import ProduceHead

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
