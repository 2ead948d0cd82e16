"""The layouts are Apache RocketMQ's, field by field."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import pytest

from flintmq.protocol.storage import layout
from flintmq.protocol.storage.layout import (
    CHECKPOINT,
    CHECKPOINT_MARK,
    INDEX_ENTRY,
    INDEX_HEADER,
    RECORD,
    UNIT,
    Layout,
    SysFlag,
    record_head,
)

LAYOUTS: dict[str, Layout[Any]] = {
    "RECORD": RECORD,
    "UNIT": UNIT,
    "INDEX_HEADER": INDEX_HEADER,
    "INDEX_ENTRY": INDEX_ENTRY,
    "CHECKPOINT": CHECKPOINT,
    "CHECKPOINT_MARK": CHECKPOINT_MARK,
}


class _Example(NamedTuple):
    small: Annotated[int, 1, "one"]
    host: Annotated[bytes, 8, "bytes"]
    wide: Annotated[int, 8, "eight"]


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
    assert RECORD.struct.format == ">iiiiiqqiq8sq8siqi"


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
    assert table.size == at == table.struct.size


def test_a_layout_follows_the_named_tuple() -> None:
    table = Layout(_Example)
    assert table.struct.format == ">b8sq"
    assert table.at == {"small": 0, "host": 1, "wide": 9}
    assert table.dtype() == [("small", ">i1"), ("host", "V8"), ("wide", ">i8")]
    assert table.unpack(b"\0" + table.pack(-1, b"12345678", 2), 1) == _Example(-1, b"12345678", 2)


def test_a_field_may_be_wider_than_its_type_says() -> None:
    table = Layout(_Example, host=20)
    assert table.struct.format == ">b20sq"
    assert table.at == {"small": 0, "host": 1, "wide": 21}


def test_the_head_of_a_record_is_longer_by_its_ipv6_hosts() -> None:
    both = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    for flags, born, store in (
        (0, 8, 8),
        (SysFlag.BORN_HOST_V6, 20, 8),
        (SysFlag.STORE_HOST_V6, 8, 20),
        (both, 20, 20),
    ):
        head = record_head(flags | SysFlag.COMPRESSED)
        assert head.at["store_timestamp"] == 48 + born
        assert head.at["reconsume_times"] == 48 + born + 8 + store
        assert head.size == 72 + born + store


def test_magic_numbers_are_rocketmqs() -> None:
    assert layout.MAGIC_V1 & 0xFFFFFFFF == 0xDAA320A7
    assert layout.MAGIC_V2 & 0xFFFFFFFF == 0xDAA320AB
    assert layout.MAGIC_BLANK & 0xFFFFFFFF == 0xCBD43194


def test_a_producer_may_set_compression_and_multi_tags_only() -> None:
    assert layout.SysFlag.FROM_PRODUCER == 0x703


def test_the_checkpoint_mark_is_in_bytes_unused_by_rocketmq() -> None:
    assert CHECKPOINT.size <= layout.CHECKPOINT_MARK_AT
    assert layout.CHECKPOINT_MARK_AT + CHECKPOINT_MARK.size <= layout.CHECKPOINT_FILE_BYTES
    assert layout.CHECKPOINT_MARK_MAGIC.to_bytes(4, "big") == b"FLMQ"
