"""The dispatch kernels, rule by rule: records, units, keys, and the reasons for which a call stops."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from flintmq.broker.kernels import dispatch as kernel
from flintmq.protocol.storage.javahash import index_key_hash, java_hash
from flintmq.protocol.storage.layout import MAGIC_BLANK, PROPERTIES_BYTES_MAX, RECORD, UNIT, SysFlag
from flintmq.protocol.storage.record import Record, encode_host
from tests.twins.arrays import SENTINELS, fenced, room
from tests.twins.dispatch_call import KEYS_OF_ONE_RECORD_MAX, Answer, Table, Work, dispatch, next_offsets
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


def key_names(answer: Answer, *names: str, topic: str = "orders") -> bool:
    """Return whether the answer has exactly these keys, in this order."""
    return [key[0] for key in answer.keys] == [index_key_hash(topic, name) for name in names]


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


@pytest.mark.parametrize("delay", [b"0", b"-1", b"x", b"1x", b"+", b"\xd9\xa1"])
def test_a_scheduled_record_without_a_level_has_its_tags_hash(delay: bytes) -> None:
    assert code_of(a_record(b"TAGS\x01TagA\x02DELAY\x01" + delay + b"\x02", SCHEDULE)) == 2598919


def test_a_delay_counts_in_the_schedule_topic_alone() -> None:
    assert code_of(a_record(b"DELAY\x013\x02TAGS\x01TagA\x02")) == 2598919


@pytest.mark.parametrize("transaction", [SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK])
def test_a_record_that_no_consumer_may_see_gets_no_unit_and_takes_no_offset(transaction: int) -> None:
    answer = run(a_record(sys_flag=transaction, queue_offset=77), a_record(queue_offset=0))
    assert answer.status == kernel.DONE
    assert len(answer.units[ORDERS]) == 1


def test_units_are_grouped_by_queue_in_the_order_of_the_log() -> None:
    other: QueueName = (b"orders", 1)
    records = [
        a_record(queue=queue, queue_offset=place) for place, queue in [(0, other), (0, ORDERS), (1, ORDERS), (1, other)]
    ]
    answer = run(*records, queues={ORDERS: Queue(), other: Queue()})
    assert list(answer.units) == [other, ORDERS]
    assert {name: [UNIT.unpack(unit)[0] for unit in units] for name, units in answer.units.items()} == {
        other: [records[0].physical_offset, records[3].physical_offset],
        ORDERS: [records[1].physical_offset, records[2].physical_offset],
    }


def test_a_record_that_has_its_unit_already_gets_no_other_but_its_keys() -> None:
    answer = run(a_record(b"KEYS\x01k\x02", queue_offset=4), queues={ORDERS: Queue(next=5)})
    assert (answer.status, answer.units) == (kernel.DONE, {})
    assert key_names(answer, "k")


# ---- keys ----


def test_the_unique_key_comes_first_and_then_each_key() -> None:
    answer = run(a_record(b"KEYS\x01 a  b \x02UNIQ_KEY\x01u\x02"))
    assert key_names(answer, "u", "a", "b")
    assert {key[1:] for key in answer.keys} == {(0, NOW_MS)}


def test_the_last_of_several_properties_of_a_name_counts() -> None:
    answer = run(
        a_record(b"KEYS\x01a b\x02TAGS\x01x\x02UNIQ_KEY\x01u\x02KEYS\x01c\x02TAGS\x01TagA\x02UNIQ_KEY\x01v\x02")
    )
    assert key_names(answer, "v", "c")
    assert UNIT.unpack(answer.units[ORDERS][0])[2] == 2598919


@pytest.mark.parametrize(
    "blob",
    [
        b"KEYS\x01a",
        b"KEYS\x01a\x02",
        b"\x02KEYS\x01a\x02\x02",
        b"\x01x\x02KEYS\x01a\x02KEYS\x01\x02KEYS\x02KEYS",
        b"K\x01KEYS\x01x\x02KEYS\x01a",
    ],
)
def test_pairs_without_a_name_or_a_value_are_ignored_and_the_last_separator_may_be_missing(blob: bytes) -> None:
    assert key_names(run(a_record(blob)), "a")


def test_a_value_goes_from_the_first_separator_to_the_end_of_its_pair() -> None:
    assert key_names(run(a_record(b"KEYS\x01a\x01b\x02")), "a\x01b")


def test_keys_of_a_rolled_back_record_are_left_out_and_those_of_a_prepared_one_are_not() -> None:
    answer = run(
        a_record(b"KEYS\x01rolled\x02", sys_flag=SysFlag.TRANSACTION_ROLLBACK),
        a_record(b"KEYS\x01half\x02", sys_flag=SysFlag.TRANSACTION_PREPARED),
        a_record(b"KEYS\x01committed\x02", sys_flag=SysFlag.TRANSACTION_COMMIT),
    )
    assert key_names(answer, "half", "committed")
    assert len(answer.units[ORDERS]) == 1


def test_keys_hash_with_their_topic_and_may_be_any_text() -> None:
    record = a_record("KEYS\x01schlüssel 😀\x02UNIQ_KEY\x01日本\x02".encode(), ("größe".encode(), 1))
    answer = run(record, queues={("größe".encode(), 1): Queue()})
    assert key_names(answer, "日本", "schlüssel", "😀", topic="größe")


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


def test_records_that_the_index_has_are_not_indexed_again() -> None:
    first, second = a_record(b"KEYS\x01a\x02"), a_record(b"KEYS\x01b\x02", queue_offset=1)
    answer = run(first, second, index_from=len(first.encode()))
    assert key_names(answer, "b")
    assert len(answer.units[ORDERS]) == 2


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


@pytest.mark.parametrize(
    ("first", "second", "records"), [(1, 13, 1), (2, 12, 1), (13, 1, 1), (1, 12, 2), (0, 13, 2), (13, 0, 2)]
)
def test_a_call_stops_before_the_record_whose_keys_no_longer_fit(first: int, second: int, records: int) -> None:
    properties = [b"KEYS\x01" + b" ".join([b"k"] * count) + b"\x02" if count else b"" for count in (first, second)]
    answer = run(a_record(properties[0]), a_record(properties[1], queue_offset=1), work=Work(unit_room=8, key_room=13))
    assert (answer.status, answer.records) == (kernel.DONE if records == 2 else kernel.FULL, records)
    assert len(answer.keys) == (first + second if records == 2 else first)


# ---- deleted topics ----


def test_records_of_a_deleted_topic_are_skipped_up_to_the_deletion() -> None:
    before, behind = a_record(b"KEYS\x01a\x02", queue_offset=700), a_record(b"KEYS\x01b\x02", queue_offset=3)
    size = len(before.encode())
    answer = run(before, behind, queues={ORDERS: Queue(next=3, deleted_below=size)})
    assert (answer.status, answer.records) == (kernel.DONE, 2)
    assert [UNIT.unpack(unit)[0] for unit in answer.units[ORDERS]] == [size]
    assert key_names(answer, "b")


# ---- reasons to stop ----


def test_a_queue_that_is_not_known_stops_the_call_at_its_record() -> None:
    known, unknown = a_record(), a_record(queue=(b"orders", 9))
    answer = run(known, unknown, known)
    assert (answer.status, answer.at, answer.records) == (kernel.NEW_QUEUE, len(known.encode()), 1)
    assert len(answer.units[ORDERS]) == 1


@pytest.mark.parametrize("queue_offset", [2, 1000, 2**58, kernel.QUEUE_OFFSET_MAX])
def test_a_gap_in_a_queue_stops_the_call_and_names_the_queue(queue_offset: int) -> None:
    first, second = a_record(), a_record(queue_offset=queue_offset)
    answer = run(first, second)
    assert (answer.status, answer.at, answer.gap) == (kernel.GAP, len(first.encode()), ORDERS)
    assert len(answer.units[ORDERS]) == 1


@pytest.mark.parametrize("known", [0, 7])
@pytest.mark.parametrize("queue_offset", [-1, -(2**63), -(2**63) + 5, kernel.QUEUE_OFFSET_MAX + 1, 2**63 - 1])
def test_a_queue_offset_that_no_queue_can_have_stops_the_call(queue_offset: int, known: int) -> None:
    first = a_record(queue_offset=known)
    answer = run(first, a_record(queue_offset=queue_offset), queues={ORDERS: Queue(next=known)})
    assert (answer.status, answer.at) == (kernel.BAD_QUEUE_OFFSET, len(first.encode()))
    assert len(answer.units[ORDERS]) == 1


@pytest.mark.parametrize("sys_flag", [SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK])
def test_a_record_that_gets_no_unit_may_have_any_queue_offset(sys_flag: int) -> None:
    answer = run(a_record(queue_offset=-1, sys_flag=sys_flag))
    assert (answer.status, answer.units) == (kernel.DONE, {})


@pytest.mark.parametrize("unit_room", [1, 2, 5])
def test_a_call_stops_without_room_for_units_and_the_next_continues(unit_room: int) -> None:
    records = [a_record(queue_offset=place) for place in range(5)]
    log = fenced(write_log(records))
    table = Table([(ORDERS, Queue())])
    at = done = 0
    while at < len(log.array):
        answer = dispatch(log, at, len(log.array), 0, table, work=Work(unit_room))
        assert answer.records == min(unit_room, 5 - done)
        done += answer.records
        at = answer.at
        assert answer.status == (kernel.FULL if done < 5 else kernel.DONE)
        assert next_offsets(table) == {ORDERS: done}


def test_a_call_ends_at_the_first_record_that_begins_at_or_after_its_end() -> None:
    records = [a_record(queue_offset=place) for place in range(3)]
    size = len(records[0].encode())
    log = fenced(write_log(records))
    for end, count in [(0, 0), (1, 1), (size, 1), (size + 1, 2), (2 * size, 2), (3 * size, 3)]:
        answer = dispatch(log, 0, end, 0, Table([(ORDERS, Queue())]))
        assert (answer.status, answer.at, answer.records) == (kernel.DONE, count * size, count)


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


def test_a_record_that_is_cut_at_any_byte_is_not_dispatched() -> None:
    for properties in (b"", b"KEYS\x01k\x02"):
        for record in (
            a_record(properties),
            a_record(properties, (b"x" * 200, 0)),
            a_record(born_host=V6, store_host=V6),
        ):
            blob = write_log([record])
            for end in range(len(blob)):
                array, parts = fenced(blob[:end], sentinel=blob[end]), room(kernel.PARTS, np.int64)
                assert kernel.locate(array.array, 0, end, 0, parts.array) == (
                    kernel.NO_RECORD if end < 8 else kernel.BAD_LENGTH
                )
            array, parts = fenced(blob), room(kernel.PARTS, np.int64)
            assert kernel.locate(array.array, 0, len(blob), 0, parts.array) == kernel.DONE


def test_an_empty_bodys_checksum_is_not_looked_at() -> None:
    record = a_record(body_crc=12345)
    record.body = b""
    log = fenced(write_log([record]))
    assert kernel.locate(log.array, 0, len(log.array), 0, room(kernel.PARTS, np.int64).array) == kernel.DONE


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


# ---- the table of queues ----


@pytest.mark.parametrize("slots", [2, 4, 64])
def test_queues_that_share_a_slot_are_distinguished(slots: int) -> None:
    names: list[QueueName] = [(b"t", queue_id) for queue_id in range(slots - 1)]
    table = Table(((name, Queue()) for name in names), slots)
    assert len(table.slots.array) == slots
    assert [table.find(name) for name in names] == list(range(slots - 1))
    assert table.find((b"t", slots)) == -1
    assert table.find((b"u", 0)) == -1
    assert table.find((b"", 0)) == -1


def test_no_queue_is_found_in_an_empty_table() -> None:
    assert Table([]).find(ORDERS) == -1
