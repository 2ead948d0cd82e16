"""The dispatch and search kernels against their plain twins: the bytes they take for a record, the resulting units and
keys, flaws, and the next record after damage."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flintmq.broker.kernels import dispatch as kernel
from flintmq.broker.kernels import search
from flintmq.protocol.storage.layout import MAGIC_BLANK, SysFlag
from flintmq.protocol.storage.record import Record, encode_host
from tests.twins import dispatch as checks
from tests.twins import log as twin
from tests.twins.arrays import SENTINELS, examples, fenced, room
from tests.twins.dispatch import Table, Work, copy_of, dispatch, next_offsets
from tests.twins.log import (
    SCHEDULE_TOPIC,
    Queue,
    QueueName,
    Queues,
    Stopped,
    judge_record,
    read_record,
    size_at,
    write_log,
)

V4 = encode_host("10.0.0.7", 10911)
V6 = encode_host("2001:db8::7", 10911)
TOPICS = [b"orders", b"o", SCHEDULE_TOPIC, b"%RETRY%g", "größe".encode(), b"long" * 60, b"orders2"]
NAMES: list[QueueName] = [(topic, queue_id) for topic in TOPICS for queue_id in (0, 1, 65_535)]
UNKNOWN: QueueName = (b"unknown", 0)

sentinels = st.sampled_from(SENTINELS)
seeds = st.integers(0, 2**32 - 1)

NAMES_OF_PROPERTIES = [
    b"UNIQ_KEY",
    b"KEYS",
    b"TAGS",
    b"DELAY",
    b"KEY",
    b"TAGSX",
    b"UNIQ_KEZ",
    b"A",
    b"",
    b"KEYS2",
    b"\xff",
]
VALUES = [
    b"",
    b"a",
    b"Aa",
    b"BB",
    b"k1 k2",
    b" k1  k2 ",
    b"  ",
    "größe 日本語 a😀b".encode(),
    b"\xff\xfe",
    b"k\xe2\x82 x\xf0\x9f\x98",
    b"a\x01b",
    b"polygenelubricants",
    b"x" * 100,
    b"TagA",
    b"12345678",
    b"1234567\xc3\xa9",
]
DELAYS = [
    b"0",
    b"1",
    b"3",
    b"18",
    b"19",
    b"99",
    b"100",
    b"1000",
    b"99999999999",
    b"+2",
    b"-1",
    b"x1",
    b"1x",
    b"007",
    b"",
]


def rich_properties(seed: int) -> bytes:
    """Return properties that dispatch looks for, with duplicates and with pairs that lack a name or a value."""
    chance = random.Random(seed)
    blob = b""
    for _ in range(chance.randint(0, 6)):
        name = chance.choice(NAMES_OF_PROPERTIES[:4] * 3 + NAMES_OF_PROPERTIES)
        value = chance.choice(DELAYS if name == b"DELAY" else VALUES)
        blob += chance.choice([name + b"\x01" + value] * 9 + [name, value, b"\x01", name + value]) + b"\x02"
    return blob if chance.randrange(4) else blob[:-1]


pairs = st.tuples(st.sampled_from(NAMES_OF_PROPERTIES), st.one_of(st.sampled_from(VALUES), st.binary(max_size=6)))
properties = st.one_of(
    seeds.map(rich_properties),
    st.lists(pairs, max_size=5).map(lambda many: b"".join(name + b"\x01" + value + b"\x02" for name, value in many)),
    st.lists(st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"\x01", b"\x02", b"v", b" ", b"\xc3"]), max_size=9).map(
        b"".join
    ),
    st.binary(max_size=30),
)

TRANSACTIONS = (0, 0, 0, SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK)


def make_record(blob: bytes, seed: int) -> Record:
    """Return a record with these properties; all other fields follow from the seed, and its queue offset is not set
    yet."""
    chance = random.Random(seed)
    topic, queue_id = chance.choice([UNKNOWN, *NAMES] + 3 * NAMES[:9])
    return Record(
        topic=topic,
        queue_id=queue_id,
        body=chance.randbytes(chance.choice([0, 1, 15, 16, 17, 100])),
        properties=blob,
        flag=chance.getrandbits(31),
        sys_flag=chance.choice(TRANSACTIONS) | chance.choice([0, 0x703, 0x1, 0xC0]),
        born_host=chance.choice([V4, V6]),
        store_host=chance.choice([V4, V6]),
        store_timestamp=chance.choice([0, 1_700_000_000_000, chance.getrandbits(42)]),
        body_crc=chance.choice([None, None, None, 7]),
    )


def number(records: list[Record], queues: Queues, seed: int) -> None:
    """Set the records' queue offsets: mostly the next one, sometimes an earlier one, seldom one too high."""
    chance = random.Random(seed)
    next_offset = {name: queue.next for name, queue in queues.items()}
    for record in records:
        name = (record.topic, record.queue_id)
        expected = next_offset.get(name, 0)
        record.queue_offset = max(expected + chance.choice([0] * 12 + [-1, -3, chance.choice([0, 0, 1, 1000])]), 0)
        if record.queue_offset == expected and record.sys_flag & 0xC not in (0x4, 0xC):
            next_offset[name] = expected + 1


def make_queues(seed: int, log_bytes: int, file_base: int) -> Queues:
    """Return every known queue, at different offsets, some with a deleted topic."""
    chance = random.Random(seed)
    return {
        name: Queue(
            chance.choice([0, 0, 5, 2**40]), chance.choice([0] * 6 + [file_base + chance.randint(0, log_bytes)])
        )
        for name in NAMES
    }


@st.composite
def stretches(draw: st.DrawFn) -> tuple[bytes, int, int, Queues]:
    """Draw (a log whose records begin at a position, that position, its file's base, the queues)."""
    blobs = draw(st.lists(properties, min_size=1, max_size=6))
    seed = draw(seeds)
    chance = random.Random(seed)
    blobs += [rich_properties(seed + k) for k in range(chance.randint(0, 10))]
    records = [make_record(blob, seed + k) for k, blob in enumerate(blobs)]
    file_base = chance.choice([0, 1 << 30, 1 << 40])
    at = chance.choice([0, 0, 7])
    queues = make_queues(seed, sum(len(record.encode()) for record in records), file_base)
    number(records, queues, seed)
    log = bytes(at) + write_log(records, file_base, at, checksum=chance.choice([False, True]))
    return log, at, file_base, queues


tails = st.one_of(
    st.just(b""),
    st.integers(0, 20).map(bytes),
    st.binary(max_size=40),
    st.integers(8, 40).map(
        lambda size: size.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True) + b"\xee" * (size - 8)
    ),
)


def check_dispatch(
    log: bytes, at: int, end: int, file_base: int, queues: Queues, index_from: int, sentinel: int
) -> None:
    """Compare one call, with room for everything, with the twin."""
    table = Table(queues.items(), sentinel=sentinel)
    answer = dispatch(
        fenced(log, sentinel=sentinel), at, end, file_base, table, index_from, Work(unit_room=32, sentinel=sentinel)
    )
    moved = copy_of(queues)
    expected = twin.dispatch(log, at, end, file_base, moved, index_from)
    assert (answer.status, answer.at) == (expected.status, expected.at)
    assert answer.units == expected.units
    assert list(answer.units) == list(expected.units)
    assert answer.keys == expected.keys
    assert (answer.records, answer.last_store_ms, answer.gap) == (
        expected.records,
        expected.last_store_ms,
        expected.gap,
    )
    assert next_offsets(table) == {name: queue.next for name, queue in moved.items()}


@given(stretches(), tails, sentinels, st.data())
@examples(150)
def test_units_and_keys_equal_those_of_the_twin(
    stretch: tuple[bytes, int, int, Queues], tail: bytes, sentinel: int, data: st.DataObject
) -> None:
    log, at, file_base, queues = stretch
    end = data.draw(st.integers(at, len(log) + len(tail)))
    index_from = file_base + data.draw(st.sampled_from([0, 0, len(log) // 2, len(log)]))
    check_dispatch(log + tail, at, end, file_base, queues, index_from, sentinel)


@given(stretches(), seeds, sentinels)
@examples(60)
def test_a_damaged_log_stops_where_the_twin_stops(
    stretch: tuple[bytes, int, int, Queues], seed: int, sentinel: int
) -> None:
    log, at, file_base, queues = stretch
    for _, damaged in zip(range(10), damages(log, seed), strict=False):
        check_dispatch(damaged, at, len(damaged), file_base, queues, 0, sentinel)


def damages(log: bytes, seed: int) -> Iterator[bytes]:
    """Yield the log with a flipped bit, changed bytes, a cut, or zeros; without end."""
    chance = random.Random(seed)
    while True:
        blob = bytearray(log)
        at = chance.randrange(len(blob))
        match chance.randrange(5):
            case 0:
                blob[at] ^= 1 << chance.randrange(8)
            case 1:
                blob[at] = chance.choice([0x00, 0x7F, 0x80, 0xFF])
            case 2:
                del blob[at:]
            case 3:
                blob[at:] = bytes(len(blob) - at)
            case 4:
                head = min(chance.choice([0, 3, 36, 39, 52, 84, 91]), len(blob) - 1)
                blob[head] ^= chance.choice([0x10, 0x20, 0x30, 0x80, 0x04])
        yield bytes(blob)


@given(stretches(), st.integers(1, 3), st.integers(1, 300), sentinels)
@examples(80)
def test_many_calls_with_little_room_equal_one_call(
    stretch: tuple[bytes, int, int, Queues], unit_room: int, step: int, sentinel: int
) -> None:
    log, at, file_base, queues = stretch
    queues = {name: Queue(queue.next) for name, queue in queues.items()}
    moved = copy_of(queues)
    expected = twin.dispatch(log, at, len(log), file_base, moved)
    table = Table(queues.items(), sentinel=sentinel)
    fenced_log = fenced(log, sentinel=sentinel)
    units: dict[QueueName, list[bytes]] = {}
    keys: list[tuple[int, int, int]] = []
    status = kernel.DONE
    while at < len(log) and status in (kernel.DONE, kernel.FULL):
        work = Work(unit_room, sentinel=sentinel)
        answer = dispatch(fenced_log, at, min(at + step, len(log)), file_base, table, 0, work)
        assert answer.records > 0 or answer.status not in (kernel.DONE, kernel.FULL), "a call must get on"
        assert sum(map(len, answer.units.values())) <= unit_room
        for name, more in answer.units.items():
            units.setdefault(name, []).extend(more)
        keys += answer.keys
        at, status = answer.at, answer.status
    assert (status, at) == (expected.status, expected.at)
    assert units == expected.units
    assert keys == expected.keys


@given(st.lists(st.sampled_from([0, 1, 2, 5, 12, 13]), min_size=1, max_size=12), st.integers(13, 30), sentinels)
@examples(60)
def test_keys_that_do_not_fit_wait_for_the_next_call(key_counts: list[int], key_room: int, sentinel: int) -> None:
    records = [
        Record(
            b"orders",
            b"",
            b"KEYS\x01" + b" ".join(b"k%d" % k for k in range(count)) + b"\x02" if count else b"",
            queue_offset=place,
        )
        for place, count in enumerate(key_counts)
    ]
    log = write_log(records)
    expected = twin.dispatch(log, 0, len(log), 0, {(b"orders", 0): Queue()})
    table = Table([((b"orders", 0), Queue())], sentinel=sentinel)
    keys: list[tuple[int, int, int]] = []
    at = 0
    while at < len(log):
        answer = dispatch(fenced(log), at, len(log), 0, table, 0, Work(64, key_room, sentinel=sentinel))
        assert answer.status in (kernel.DONE, kernel.FULL)
        assert answer.records > 0
        keys += answer.keys
        at = answer.at
    assert keys == expected.keys


def check_scan(log: bytes, at: int, end: int, file_base: int, sentinel: int) -> None:
    """Compare ``scan`` and ``locate`` with the twin."""
    array = fenced(log, sentinel=sentinel)
    for checksummed in (False, True):
        parts, state = room(kernel.PARTS, np.int64, sentinel), fenced([0] * kernel.STATE, np.int64, sentinel)
        state.array[kernel.S_CHECKSUMMED] = checksummed
        status, stopped_at, records = twin.scan(log, at, end, file_base, checksummed)
        assert kernel.scan(array.array, at, end, file_base, parts.array, state.array) == (status, stopped_at)
        assert state.array[kernel.S_RECORDS] == len(records)
        assert state.array[kernel.S_LAST_STORE_MS] == (records[-1].store_timestamp if records else 0)
        assert parts.intact
        assert state.intact
    check_locate(log, at, file_base + at, sentinel)
    assert array.intact


def check_locate(log: bytes, at: int, physical_offset: int, sentinel: int) -> None:
    """Compare ``locate`` with the twin."""
    array, parts = fenced(log, sentinel=sentinel), room(kernel.PARTS, np.int64, sentinel)
    found = kernel.locate(array.array, at, len(log), physical_offset, parts.array)
    assert array.intact
    assert parts.intact
    record = judge_record(log, at, physical_offset)
    if isinstance(record, Stopped):
        assert found == record.status
        return
    assert found == kernel.DONE
    values = parts.values()
    assert values[kernel.R_SIZE] == size_at(log, at)
    assert log[values[kernel.R_BODY_AT] : values[kernel.R_BODY_END]] == record.body
    assert log[values[kernel.R_TOPIC_AT] : values[kernel.R_TOPIC_END]] == record.topic
    assert log[values[kernel.R_PROPERTIES_AT] : at + values[kernel.R_SIZE]] == record.properties
    assert (values[kernel.R_STORE_MS], values[kernel.R_SYS_FLAG]) == (record.store_timestamp, record.sys_flag)


@given(stretches(), tails, seeds, sentinels)
@examples(80)
def test_a_scan_stops_where_the_twin_stops(
    stretch: tuple[bytes, int, int, Queues], tail: bytes, seed: int, sentinel: int
) -> None:
    log, at, file_base, _ = stretch
    check_scan(log + tail, at, len(log + tail), file_base, sentinel)
    check_scan(log + tail, at, max(at, len(log) // 2), file_base, sentinel)
    for _, damaged in zip(range(10), damages(log, seed), strict=False):
        check_scan(damaged, min(at, len(damaged)), len(damaged), file_base, sentinel)


@given(properties, seeds, sentinels)
@examples(8)
def test_a_checksum_detects_every_changed_bit_of_a_record(blob: bytes, seed: int, sentinel: int) -> None:
    record = make_record(blob, seed)
    record.body_crc = None
    log = write_log([record], 4096, checksum=True)
    for bit in range(8 * len(log)):
        damaged = bytearray(log)
        damaged[bit // 8] ^= 1 << bit % 8
        array = fenced(damaged, sentinel=sentinel)
        parts, state = room(kernel.PARTS, np.int64, sentinel), fenced([0] * kernel.STATE, np.int64, sentinel)
        state.array[kernel.S_CHECKSUMMED] = 1
        status, at = kernel.scan(array.array, 0, len(log), 4096, parts.array, state.array)
        assert at == 0
        assert status in kernel.BAD_NAMES


@given(st.binary(max_size=200), st.integers(0, 200), st.one_of(st.just(0), st.integers(0, 2**40)), sentinels)
@examples(100)
def test_random_bytes_are_no_records(blob: bytes, at: int, file_base: int, sentinel: int) -> None:
    check_scan(blob, min(at, len(blob)), len(blob), file_base, sentinel)


@given(
    st.lists(st.tuples(st.binary(max_size=6), st.integers(0, 3)), unique=True, max_size=30),
    st.integers(0, 3),
    sentinels,
)
@examples(100)
def test_every_queue_and_only_these_are_found(names: list[tuple[bytes, int]], spread: int, sentinel: int) -> None:
    names = [(name.hex().encode(), queue_id << 8 * spread) for name, queue_id in names]
    known, unknown = names[: len(names) // 2], names[len(names) // 2 :]
    table = Table(((name, Queue()) for name in known), sentinel=sentinel)
    assert [table.find(name) for name in known] == list(range(len(known)))
    assert {table.find(name) for name in unknown} <= {-1}
    for topic, queue_id in known:
        for other in ((topic, queue_id + 1), (topic + b"0", queue_id), (topic[:-1] + b"_", queue_id)):
            assert other in known or table.find(other) == -1
    assert table.intact


# ---- places that a generator seldom meets ----

ORDERS: QueueName = (b"orders", 0)
SCHEDULE: QueueName = (SCHEDULE_TOPIC, 0)
PROPERTIES = [
    *(b"TAGS\x01TagA\x02DELAY\x01%b\x02" % delay for delay in [*DELAYS, b"0", b"x", b"+", b"\xd9\xa1"]),
    b"DELAY\x013\x02TAGS\x01TagA\x02",
    b"KEYS\x01 a  b \x02UNIQ_KEY\x01u\x02",
    b"KEYS\x01a b\x02TAGS\x01x\x02UNIQ_KEY\x01u\x02KEYS\x01c\x02TAGS\x01TagA\x02UNIQ_KEY\x01v\x02",
    b"KEYS\x01a",
    b"\x02KEYS\x01a\x02\x02",
    b"\x01x\x02KEYS\x01a\x02KEYS\x01\x02KEYS\x02KEYS",
    b"K\x01KEYS\x01x\x02KEYS\x01a",
    b"KEYS\x01a\x01b\x02",
    "KEYS\x01schlüssel 😀\x02UNIQ_KEY\x01日本\x02".encode(),
]
OFFSETS = [-(2**63), -(2**63) + 5, -1, 0, 2, 6, 7, 8, 1000, 2**58, kernel.QUEUE_OFFSET_MAX, 2**63 - 1]


@pytest.mark.parametrize("blob", PROPERTIES)
def test_properties_of_every_kind_are_read_like_the_twin(blob: bytes) -> None:
    for name, sys_flag in itertools.product([ORDERS, SCHEDULE, ("größe".encode(), 1)], sorted(set(TRANSACTIONS))):
        log = write_log([Record(name[0], b"body", blob, name[1], store_timestamp=9, sys_flag=sys_flag)] * 2)
        check_dispatch(log, 0, len(log), 0, {name: Queue()}, 0, SENTINELS[0])


def test_queue_offsets_at_the_limits_are_judged_like_the_twin() -> None:
    for known, offset, sys_flag in itertools.product([0, 7], [*OFFSETS, OFFSETS[-2] + 1], sorted(set(TRANSACTIONS))):
        records = [
            Record(b"orders", b"", b"KEYS\x01k\x02", queue_offset=place, sys_flag=flag)
            for place, flag in [(known, 0), (offset, sys_flag), (known + 1, 0)]
        ]
        log = write_log(records)
        for deleted_below, index_from in [(0, 0), (len(records[0].encode()), 0), (0, len(records[0].encode()))]:
            check_dispatch(log, 0, len(log), 0, {ORDERS: Queue(known, deleted_below)}, index_from, SENTINELS[0])
        check_dispatch(log, 0, len(log), 0, {SCHEDULE: Queue()}, 0, SENTINELS[0])


def test_a_call_ends_at_the_first_record_at_or_after_its_end_like_the_twin() -> None:
    log = write_log([Record(b"orders", b"body", queue_offset=place) for place in range(3)])
    for end in range(len(log) + 1):
        check_dispatch(log, 0, end, 0, {ORDERS: Queue()}, 0, SENTINELS[0])


# ---- the modes of a check: flaws of records ----

margins = st.sampled_from([0, 3_000, 2**40])


def check_examine(log: bytes, at: int, end: int, file_base: int, queues: Queues, margin_ms: int, sentinel: int) -> None:
    for checksummed in (False, True):
        table = checks.ExaminedTable(queues, sentinel)
        work = checks.work_for(margin_ms, checksummed=checksummed, sentinel=sentinel)
        answer = checks.examine(fenced(log, sentinel=sentinel), at, end, file_base, table, work)
        examination = checks.Examination(queues, margin_ms, checksummed=checksummed)
        assert answer == examination.examine(log, at, end, file_base)
    # The mode of a start finds the same, except flaws that a queue does not show.
    table, work = checks.ExaminedTable(queues, sentinel), checks.work_for(0, mode=kernel.DERIVE, sentinel=sentinel)
    derived = checks.examine(fenced(log, sentinel=sentinel), at, end, file_base, table, work)
    of_queues = (kernel.FLAW_QUEUE_OFFSET, kernel.FLAW_NO_QUEUE_OFFSET)
    assert derived == replace(answer, flaws=[flaw for flaw in answer.flaws if flaw[0] in of_queues])


@given(stretches(), tails, margins, sentinels, st.data())
@examples(150)
def test_flaws_units_and_keys_equal_those_of_the_twin(
    stretch: tuple[bytes, int, int, Queues], tail: bytes, margin_ms: int, sentinel: int, data: st.DataObject
) -> None:
    log, at, file_base, queues = stretch
    end = data.draw(st.integers(at, len(log) + len(tail)))
    check_examine(log + tail, at, end, file_base, queues, margin_ms, sentinel)


@given(stretches(), seeds, sentinels)
@examples(60)
def test_damaged_records_are_judged_like_the_twin(
    stretch: tuple[bytes, int, int, Queues], seed: int, sentinel: int
) -> None:
    log, at, file_base, queues = stretch
    for _, damaged in zip(range(10), damages(log, seed), strict=False):
        check_examine(damaged, min(at, len(damaged)), len(damaged), file_base, queues, 3_000, sentinel)


@given(stretches(), st.integers(1, 3), st.integers(4, 8), st.integers(1, 300), sentinels)
@examples(60)
def test_many_calls_with_little_room_find_the_same_as_one_call(
    stretch: tuple[bytes, int, int, Queues], unit_room: int, flaw_room: int, step: int, sentinel: int
) -> None:
    log, at, file_base, queues = stretch
    expected = checks.Examination(queues, 0).examine(log, at, len(log), file_base)
    table = checks.ExaminedTable(queues, sentinel)
    work = checks.work_for(0, unit_room=unit_room, flaw_room=flaw_room, sentinel=sentinel)
    found = checks.Examined(at=at)
    while found.at < len(log) and found.status in (kernel.DONE, kernel.FULL):
        answer = checks.examine(
            fenced(log, sentinel=sentinel), found.at, min(found.at + step, len(log)), file_base, table, work
        )
        assert answer.records > 0 or answer.status not in (kernel.DONE, kernel.FULL), "a call must get on"
        found.at, found.status = answer.at, answer.status
        found.records += answer.records
        found.flaws += answer.flaws
        found.keys += answer.keys
        found.optional_keys += answer.optional_keys
        found.runs += answer.runs
        found.last_store_ms, found.next = answer.last_store_ms, answer.next
        found.first, found.wanted = answer.first, answer.wanted
    units = {(run.name, run.queue_offset + k): unit for run in expected.runs for k, unit in enumerate(run.units)}
    assert {(run.name, run.queue_offset + k): unit for run in found.runs for k, unit in enumerate(run.units)} == units
    found.runs = expected.runs
    assert found == expected


@given(st.lists(st.sampled_from([-(2**63), -(2**63) + 3_000, -1, 0, 2**63 - 1]), min_size=2, max_size=5), margins)
def test_store_times_at_the_ends_of_their_range_are_compared_as_numbers(times: list[int], margin_ms: int) -> None:
    log = write_log([Record(*ORDERS[:1], b"", queue_offset=k, store_timestamp=ms) for k, ms in enumerate(times)])
    check_examine(log, 0, len(log), 0, {ORDERS: Queue()}, margin_ms, 0)


def follow(queue_offsets: list[int]) -> list[tuple[int, int]]:
    """Return (number of the record, expected offset) of each record whose queue offset is a flaw."""
    log = write_log([Record(*ORDERS[:1], b"", queue_offset=offset) for offset in queue_offsets])
    queues = {ORDERS: Queue()}
    answer = checks.examine(fenced(log), 0, len(log), 0, checks.ExaminedTable(queues), checks.work_for(0))
    assert answer == checks.Examination(queues, 0).examine(log, 0, len(log), 0)
    size = size_at(log, 0)
    return [(at // size, detail) for kind, at, detail in answer.flaws if kind == kernel.FLAW_QUEUE_OFFSET]


def test_a_record_with_a_wrong_queue_offset_is_one_flaw() -> None:
    assert follow([7, 8, 500, 10, 11, 3, 13]) == [(2, 9), (5, 12)]


@given(
    st.lists(
        st.sampled_from(
            [-(2**63), -(2**63) + 1, -2, -1, 0, 1, 2, kernel.QUEUE_OFFSET_MAX, kernel.QUEUE_OFFSET_MAX + 1, 2**63 - 1]
        ),
        min_size=1,
        max_size=8,
    )
)
@example([-(2**63)])  # the smallest was once taken for "none yet", like -1
@example([-(2**63), -(2**63) + 1, 0])
@example([5, -1, 7, -1])
@example([2**63 - 1, 0])
def test_queue_offsets_at_the_ends_of_their_range_are_compared_as_numbers(queue_offsets: list[int]) -> None:
    log = write_log([Record(*ORDERS[:1], b"", queue_offset=queue_offset) for queue_offset in queue_offsets])
    check_examine(log, 0, len(log), 0, {ORDERS: Queue()}, 0, 0)


def test_an_impossible_queue_offset_counts_as_the_next_one() -> None:
    log = write_log([Record(*ORDERS[:1], b"", queue_offset=offset) for offset in (7, -(2**63), 9, 2**63 - 1, 11)])
    answer = checks.examine(fenced(log), 0, len(log), 0, checks.ExaminedTable({ORDERS: Queue()}), checks.work_for(0))
    size = size_at(log, 0)
    assert answer.flaws == [(kernel.FLAW_NO_QUEUE_OFFSET, at * size, 0) for at in (1, 3)]
    assert [(run.queue_offset, len(run.units)) for run in answer.runs] == [(7, 1), (9, 1), (11, 1)]
    assert answer.next == {ORDERS: 12}


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of NumPy, where kernels run interpreted
@pytest.mark.parametrize("store_ms", [2**63 - 1, 2**63 - 1000, -(2**63), 0])
def test_the_time_of_a_delay_level_at_the_ends_of_its_range_wraps_as_in_java(store_ms: int) -> None:
    name = (SCHEDULE_TOPIC, 0)
    log = write_log([Record(SCHEDULE_TOPIC, b"", properties=b"DELAY\x0118\x02", store_timestamp=store_ms)])
    check_examine(log, 0, len(log), 0, {name: Queue()}, 0, 0)


def test_consecutive_missing_messages_are_one_flaw() -> None:
    assert follow([7, 8, 20, 21, 22]) == [(2, 9)]


@given(stretches(), st.integers(0, 60), seeds, sentinels)
@examples(80)
def test_the_next_record_after_damage_is_found(
    stretch: tuple[bytes, int, int, Queues], skip: int, seed: int, sentinel: int
) -> None:
    log, at, file_base, _ = stretch
    blank = random.Random(seed).randint(8, 40)
    log += blank.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True) + bytes(blank - 8)
    for begin, end in ((at + skip, len(log)), (at + skip, len(log) // 2), (len(log) - 3, len(log))):
        array, parts = fenced(log, sentinel=sentinel), room(kernel.PARTS, np.int64, sentinel)
        found = search.next_record(array.array, begin, end, file_base, parts.array)
        assert array.intact
        assert parts.intact
        assert found == next(iter(places(log, begin, end, file_base, blank)), end)


def places(log: bytes, begin: int, end: int, file_base: int, blank: int) -> list[int]:
    found = []
    for at in range(begin, end):
        try:
            read_record(log, at, file_base + at, check_body=False)
        except Stopped as stopped:
            if stopped.status != kernel.BLANK or at != len(log) - blank:
                continue
        found.append(at)
    return found


# ---- the search for the next sound record ----


def check_search(log: bytes, at: int, end: int, file_base: int, store_ms_min: int, sentinel: int) -> None:
    array, parts = fenced(log, sentinel=sentinel), room(kernel.PARTS, np.int64, sentinel)
    found = search.find_record(array.array, at, end, file_base, store_ms_min, parts.array)
    assert array.intact
    assert parts.intact
    assert found == twin.find_record(log, at, end, file_base, store_ms_min)


@given(stretches(), tails, sentinels, st.data())
@examples(60)
def test_the_next_sound_record_equals_the_twins(
    stretch: tuple[bytes, int, int, Queues], tail: bytes, sentinel: int, data: st.DataObject
) -> None:
    log, at, file_base, _ = stretch
    log += tail
    begin = data.draw(st.integers(at, len(log)))
    end = data.draw(st.integers(begin, len(log)))
    store_ms_min = data.draw(st.sampled_from([0, 0, 1, 1_700_000_000_000, 2**62]))
    check_search(log, begin, end, file_base, store_ms_min, sentinel)


@given(stretches(), seeds, sentinels)
@examples(40)
def test_damaged_records_are_skipped_like_the_twin(
    stretch: tuple[bytes, int, int, Queues], seed: int, sentinel: int
) -> None:
    log, at, file_base, _ = stretch
    chance = random.Random(seed)
    for _, damaged in zip(range(5), damages(log, seed), strict=False):
        begin = min(at + chance.randrange(3), len(damaged))
        check_search(damaged, begin, len(damaged), file_base, 0, sentinel)
