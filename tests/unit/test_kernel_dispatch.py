"""The dispatch kernels, rule by rule: records, units, keys, and the reasons for which a call stops."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from flintmq.broker.kernels import dispatch as kernel
from flintmq.protocol.storage.arrays.crc32 import crc32
from flintmq.protocol.storage.javahash import java_hash
from flintmq.protocol.storage.layout import MAGIC_BLANK, PROPERTIES_BYTES_MAX, RECORD, UNIT, SysFlag
from flintmq.protocol.storage.record import Record, encode_host
from tests.twins.arrays import SENTINELS, fenced, room
from tests.twins.dispatch import KEYS_OF_ONE_RECORD_MAX, Answer, Table, dispatch
from tests.twins.log import SCHEDULE_TOPIC, Queue, QueueName, keys_of, unit_of, write_log

ORDERS: QueueName = (b"orders", 0)
SCHEDULE: QueueName = (SCHEDULE_TOPIC, 2)
NOW_MS = 1_700_000_000_000
V6 = encode_host("2001:db8::7", 10911)


def a_record(properties: bytes = b"", queue: QueueName = ORDERS, queue_offset: int = 0, **fields: Any) -> Record:
    """Return a record with a body."""
    return Record(queue[0], b"body", properties, queue[1], queue_offset, store_timestamp=NOW_MS, **fields)


def run(*records: Record, queues: dict[QueueName, Queue] | None = None, index_from: int = 0, **options: Any) -> Answer:
    """Dispatch records that are at the beginning of a log."""
    log = write_log(records)
    table = Table((queues or {ORDERS: Queue(), SCHEDULE: Queue()}).items())
    return dispatch(fenced(log), 0, len(log), 0, table, index_from, **options)


def code_of(*records: Record) -> int:
    """Return the tag code of the first unit."""
    answer = run(*records)
    (units,) = answer.units.values()
    return int(UNIT.unpack(units[0])[2])


# ---- units ----


def test_a_unit_has_the_records_offset_its_size_and_its_tags_hash() -> None:
    first, second = a_record(b"TAGS\x01TagA\x02"), a_record(queue_offset=1)
    answer = run(first, second)
    size = len(first.encode())
    assert (answer.status, answer.records, answer.last_store_ms) == (kernel.DONE, 2, NOW_MS)
    assert answer.units == {
        ORDERS: [struct.pack(">qiq", 0, size, 2598919), struct.pack(">qiq", size, len(second.encode()), 0)]
    }


def test_a_negative_tags_hash_is_sign_extended() -> None:
    assert code_of(a_record(b"TAGS\x01polygenelubricants\x02")) == -(2**31)


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (1, 1),
        (2, 5),
        (3, 10),
        (4, 30),
        (5, 60),
        (6, 120),
        (14, 600),
        (15, 1200),
        (16, 1800),
        (17, 3600),
        (18, 7200),
        (19, 7200),
        (99, 7200),
        (100, 7200),
        (1000, 7200),
        (2**31 - 1, 7200),
        ("+2", 5),
        ("007", 180),
    ],
)
def test_a_scheduled_record_has_its_deliver_time_as_tags_code(delay: int | str, seconds: int) -> None:
    record = a_record(f"TAGS\x01TagA\x02DELAY\x01{delay}\x02".encode(), SCHEDULE)
    assert code_of(record) == NOW_MS + 1000 * seconds
    assert unit_of(record, len(record.encode()))[12:] == struct.pack(">q", NOW_MS + 1000 * seconds)


# ---- keys ----


def _text_with_hash(prefix: str, wanted: int) -> str:
    """Return a seven-character text that, appended to ``prefix``, has the Java hash ``wanted``: digits to base 31."""
    rest = (wanted - java_hash(prefix + "0" * 7)) % 2**32
    digits = []
    for _ in range(7):
        rest, digit = divmod(rest, 31)
        digits.append(chr(ord("0") + digit))
    return "".join(reversed(digits))


@pytest.mark.parametrize(
    ("java", "stored"), [(-(2**31), 0), (-(2**31) + 1, 2**31 - 1), (-1, 1), (0, 0), (2**31 - 1, 2**31 - 1)]
)
def test_a_keys_hash_is_absolute_and_0_for_the_smallest_integer(java: int, stored: int) -> None:
    key = _text_with_hash("orders#", java)
    assert java_hash(f"orders#{key}") == java
    assert [each[0] for each in run(a_record(f"KEYS\x01{key}\x02".encode())).keys] == [stored]


def test_a_record_of_as_many_keys_as_properties_hold_is_indexed_in_one_call() -> None:
    count = (PROPERTIES_BYTES_MAX - len(b"KEYS\x01\x02") + 1) // 2
    record = a_record(b"KEYS\x01" + b" ".join([b"k"] * count) + b"\x02", queue_offset=1)
    assert len(record.properties) == PROPERTIES_BYTES_MAX
    before = a_record(b"KEYS\x01" + b" ".join([b"j"] * (KEYS_OF_ONE_RECORD_MAX - count + 1)) + b"\x02")
    log = fenced(write_log([before, record]))
    table = Table([(ORDERS, Queue())])
    first = dispatch(log, 0, len(log.array), 0, table)
    assert (first.status, first.records) == (kernel.FULL, 1)
    second = dispatch(log, first.at, len(log.array), 0, table)
    assert (second.status, second.records) == (kernel.DONE, 1)
    assert second.keys == keys_of(record)
    assert len(second.keys) == count


# ---- reasons to stop ----


@pytest.mark.parametrize(
    ("at", "content", "status"),
    [
        (0, bytes(8), kernel.NO_RECORD),
        (0, struct.pack(">i", 0), kernel.BAD_LENGTH),
        (0, struct.pack(">i", -1), kernel.BAD_LENGTH),
        (0, struct.pack(">i", 90), kernel.BAD_LENGTH),
        (0, struct.pack(">i", 2**31 - 1), kernel.BAD_LENGTH),
        (0, struct.pack(">i", 106), kernel.BAD_LENGTH),
        (0, struct.pack(">i", 104), kernel.BAD_PARTS),
        (4, b"\0\0\0\0", kernel.BAD_MAGIC),
        (4, struct.pack(">i", MAGIC_BLANK), kernel.BLANK),
        (RECORD.at["physical_offset"], struct.pack(">q", 1), kernel.BAD_PHYSICAL_OFFSET),
        (RECORD.at["sys_flag"], struct.pack(">i", SysFlag.BORN_HOST_V6), kernel.BAD_PARTS),
        (RECORD.at["sys_flag"], struct.pack(">i", SysFlag.STORE_HOST_V6), kernel.BAD_PARTS),
        (RECORD.at["body_length"], struct.pack(">i", -1), kernel.BAD_PARTS),
        (RECORD.at["body_length"], struct.pack(">i", 5), kernel.BAD_PARTS),
        (RECORD.at["body_length"], struct.pack(">i", 2**31 - 1), kernel.BAD_PARTS),
        (RECORD.size + 4, b"\x80", kernel.BAD_PARTS),
        (RECORD.size + 4, b"\x07", kernel.BAD_PARTS),
        (RECORD.size + 11, b"\xff\xff", kernel.BAD_PARTS),
        (RECORD.size + 11, b"\x00\x05", kernel.BAD_PARTS),
        (RECORD.size, b"B", kernel.BAD_CRC),
        (RECORD.at["body_crc"], b"\0\0\0\0", kernel.BAD_CRC),
    ],
)
def test_an_unsound_record_stops_a_scan_with_the_reason(at: int, content: bytes, status: int) -> None:
    log = bytearray(write_log([a_record(b"A\x01b\x02")]))
    assert len(log) == 105
    log[at : at + len(content)] = content
    for sentinel in SENTINELS:
        array, parts, state = (
            fenced(log, sentinel=sentinel),
            room(kernel.PARTS, np.int64),
            fenced([0] * kernel.STATE, np.int64),
        )
        assert kernel.scan(array.array, 0, len(log), 0, parts.array, state.array) == (status, 0)
        assert kernel.locate(array.array, 0, len(log), 0, parts.array) == status
        answer = dispatch(array, 0, len(log), 0, Table([(ORDERS, Queue())]))
        # Reput does not check bodies: recovery has checked them below the flushed offset, and consumers check them.
        assert answer.status == (kernel.DONE if status == kernel.BAD_CRC else status)
        assert answer.records == (status == kernel.BAD_CRC)


@pytest.mark.parametrize(
    ("size", "status"),
    [(8, kernel.BLANK), (50, kernel.BLANK), (7, kernel.BAD_MAGIC), (51, kernel.BAD_MAGIC), (-1, kernel.BAD_MAGIC)],
)
def test_a_blank_ends_a_file_if_it_fits_the_file(size: int, status: int) -> None:
    first = a_record()
    log = write_log([first]) + struct.pack(">ii", size, MAGIC_BLANK) + b"\xee" * 42
    answer = dispatch(fenced(log), 0, len(log), 0, Table([(ORDERS, Queue())]))
    assert (answer.status, answer.at, answer.records) == (status, len(first.encode()), 1)


def test_every_reason_to_stop_for_damage_has_a_name() -> None:
    damage = {
        kernel.NO_RECORD,
        kernel.BAD_LENGTH,
        kernel.BAD_MAGIC,
        kernel.BAD_PHYSICAL_OFFSET,
        kernel.BAD_CRC,
        kernel.BAD_PARTS,
    }
    assert damage <= set(kernel.BAD_NAMES)
    assert not {kernel.DONE, kernel.BLANK, kernel.NEW_QUEUE, kernel.GAP, kernel.FULL} & set(kernel.BAD_NAMES)


def test_kernels_give_plain_integers() -> None:
    """NumPy integers would end up in snapshots and responses, and neither JSON nor msgpack accepts them."""
    log = fenced(write_log([a_record()])).array
    parts, state = np.zeros(kernel.PARTS, np.int64), np.zeros(kernel.STATE, np.int64)
    found = [
        *kernel.scan(log, 0, len(log), 0, parts, state),
        kernel.locate(log, 0, len(log), 0, parts),
        crc32(log, 0, len(log)),
    ]
    assert found[:3] == [kernel.DONE, len(log), kernel.DONE]
    assert {type(each) for each in found} == {int}
