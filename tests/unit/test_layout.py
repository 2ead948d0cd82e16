"""The layouts are Apache RocketMQ's, field by field."""

from __future__ import annotations

import struct

import pytest

from flintmq.protocol.storage import layout
from flintmq.protocol.storage.layout import (
    CHECKPOINT,
    CHECKPOINT_MARK,
    INDEX_ENTRY,
    INDEX_HEADER,
    RECORD,
    UNIT,
    Field,
    Layout,
)

LAYOUTS = {
    "RECORD": RECORD,
    "UNIT": UNIT,
    "INDEX_HEADER": INDEX_HEADER,
    "INDEX_ENTRY": INDEX_ENTRY,
    "CHECKPOINT": CHECKPOINT,
    "CHECKPOINT_MARK": CHECKPOINT_MARK,
}


def test_the_record_head_has_rocketmqs_layout() -> None:
    assert RECORD.at == {
        "total_size": 0,
        "magic": 4,
        "body_crc": 8,
        "queue_id": 12,
        "flag": 16,
        "queue_offset": 20,
        "physical_offset": 28,
        "sys_flag": 36,
        "born_timestamp": 40,
        "born_host": 48,
        "store_timestamp": 56,
        "store_host": 64,
        "reconsume_times": 72,
        "prepared_transaction_offset": 76,
        "body_length": 84,
    }
    assert layout.RECORD_STRUCT.format == ">iiiiiqqiq8sq8siqi"


def test_units_index_and_checkpoint_have_rocketmqs_layout() -> None:
    assert UNIT.at == {"physical_offset": 0, "size": 8, "tags_code": 12}
    assert INDEX_HEADER.at == {
        "begin_timestamp": 0,
        "end_timestamp": 8,
        "begin_physical_offset": 16,
        "end_physical_offset": 24,
        "hash_slot_count": 32,
        "index_count": 36,
    }
    assert INDEX_ENTRY.at == {"key_hash": 0, "physical_offset": 4, "seconds": 12, "previous": 16}
    assert list(CHECKPOINT.at.values()) == [0, 8, 16, 24, 32]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_no_gap_and_its_format_has_its_size(name: str) -> None:
    table = LAYOUTS[name]
    at = 0
    for field in table.fields:
        assert table.at[field.name] == at
        assert field.meaning
        at += field.width
    assert table.size == at == struct.calcsize(table.format())


def test_a_width_that_is_no_integers_is_bytes() -> None:
    table = Layout(Field("small", 1, "one"), Field("host", 20, "not an integer"), Field("wide", 8, "eight"))
    assert table.format() == ">b20sq"
    assert table.format("wide") == ">b20s8s"
    assert table.at == {"small": 0, "host": 1, "wide": 21}


def test_magic_numbers_are_rocketmqs() -> None:
    assert layout.MAGIC_V1 & 0xFFFFFFFF == 0xDAA320A7
    assert layout.MAGIC_V2 & 0xFFFFFFFF == 0xDAA320AB
    assert layout.MAGIC_BLANK & 0xFFFFFFFF == 0xCBD43194


def test_a_producer_may_set_compression_and_multi_tags_only() -> None:
    assert layout.SysFlag.FROM_PRODUCER == 0x703


def test_the_checkpoint_mark_is_where_rocketmq_does_not_look() -> None:
    assert CHECKPOINT.size <= layout.CHECKPOINT_MARK_AT
    assert layout.CHECKPOINT_MARK_AT + CHECKPOINT_MARK.size <= layout.CHECKPOINT_FILE_BYTES
    assert layout.CHECKPOINT_MARK_MAGIC.to_bytes(4, "big") == b"FLMQ"
