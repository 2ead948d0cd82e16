"""Delivery of due messages: targets are found, and records rewritten, as the plain twin does it."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.kernels import deliver as kernel
from flintmq.broker.kernels.dispatch import PARTS
from flintmq.protocol.storage.layout import PROPERTIES_BYTES_MAX, SysFlag
from flintmq.protocol.storage.record import Record, encode_properties
from tests.twins import deliver as twin
from tests.twins.arrays import SENTINELS, Fenced, examples, fenced, room
from tests.twins.log import write_log
from tests.twins.pull import Chosen

sentinels = st.sampled_from(SENTINELS)
seeds = st.integers(0, 2**32 - 1)
FILE_BASE = 1 << 30
STORE_MS = 1_795_275_188_276

NAMES = ["REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "__CRC32#", "UNIQ_KEY", "__CRC32#x", "REAL_TOPI", "REAL_QIX"]
NAMES += ["TIMER_DEL_UNIQKEY", "TIMER_DEL_UNIQKEX"]
VALUES = ["orders", "é" * 100, "0", "7", "123456789", "1234567890", "-1", "+1", "1x", "1795275188000", "9" * 16]
SYS_FLAGS = [0, 1, 0x101, SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_PREPARED, 0xC, 2**31 - 1]
HOST_BITS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


def some_properties(chance: random.Random) -> bytes:
    """Return properties that mostly name the message's target, some more than once, some badly."""
    pairs = [(chance.choice(NAMES), chance.choice(VALUES)) for _ in range(chance.randrange(4))]
    if chance.randrange(5):
        pairs += [("REAL_TOPIC", chance.choice(["orders", "t"])), ("REAL_QID", str(chance.randrange(3)))]
    chance.shuffle(pairs)
    blob = encode_properties(pairs)
    for odd in (b"\x02", b"__CRC32#\x02", b"REAL_TOPIC\x02", b"REAL_QID\x01\x02", b"\x01x\x02"):
        if not chance.randrange(8):
            blob = odd + blob if chance.randrange(2) else blob + odd
    if not chance.randrange(12):  # hardly room for a checksum, or none
        blob += b"A\x01".ljust(PROPERTIES_BYTES_MAX - len(blob) - chance.choice([0, 1, 19, 20, 21, 22]), b"x") + b"\x02"
        blob = blob[:PROPERTIES_BYTES_MAX]
    return blob[:-1] if blob and not chance.randrange(3) else blob


def some_records(chance: random.Random, count: int) -> tuple[list[bytes], list[Chosen]]:
    """Return records as they wait in the log, some of them damaged, with the places given for them."""
    host = chance.choice([bytes(8), bytes(range(20))])
    every = [
        Record(
            chance.choice([b"SCHEDULE_TOPIC_XXXX", b"w" * 200]),
            chance.randbytes(chance.choice([0, 1, 40])),
            some_properties(chance),
            queue_id=3,
            flag=chance.randrange(-5, 5),
            queue_offset=k,
            sys_flag=chance.choice(SYS_FLAGS) & ~HOST_BITS,
            born_timestamp=chance.randrange(2**41),
            born_host=chance.choice([b"\x7f\0\0\1\0\0\0\1", bytes(range(1, 21))]),
            store_timestamp=STORE_MS - 1000,
            store_host=host,
            reconsume_times=chance.randrange(17),
            prepared_transaction_offset=chance.randrange(3),
        )
        for k in range(count)
    ]
    checksum = chance.choice([False, True])
    write_log(every, 4096, checksum=checksum)
    blobs = [record.encode(checksum=checksum) for record in every]
    chosen = [(record.physical_offset, len(blob), k) for k, (record, blob) in enumerate(zip(every, blobs, strict=True))]
    for k in range(count):
        if not chance.randrange(6):
            damaged = bytearray(blobs[k])
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            blobs[k] = bytes(damaged)
        if not chance.randrange(12):
            chosen[k] = (chosen[k][0] + chance.choice([0, 1]), chosen[k][1], k)
    return blobs, chosen


def find_targets(
    blobs: list[bytes], chosen: list[Chosen], checksummed: tuple[int, int], sentinel: int
) -> tuple[Fenced, Fenced, Fenced, int]:
    """Return the records' array, the plan, the groups, and the number of groups."""
    count = len(blobs)
    records = fenced(b"".join(blobs), sentinel=sentinel)
    rows = fenced(np.array(chosen, np.int64).reshape(-1), np.int64, sentinel)
    slots = fenced(np.zeros(1 << (2 * count + 1).bit_length(), np.int32), np.int32, sentinel)
    plan = room(count * kernel.PLAN_ROW, np.int64, sentinel)
    groups = room((count + 1) * kernel.GROUP_ROW, np.int64, sentinel)
    scratch = room(PARTS + kernel.FOUND, np.int64, sentinel)
    found = kernel.find_targets(
        records.array, rows.array, count, slots.array, plan.array, groups.array, scratch.array, *checksummed
    )
    assert all(array.intact for array in (records, rows, slots, plan, groups, scratch))
    assert records.bytes() == b"".join(blobs)
    return records, plan, groups, found


def row_of(array: Fenced, number: int, width: int) -> list[int]:
    """Return one row of integers."""
    return array.values()[width * number : width * (number + 1)]


@given(seeds, st.integers(0, 12), sentinels)
@examples(300)
def test_records_are_grouped_by_target_like_the_twin(seed: int, count: int, sentinel: int) -> None:
    chance = random.Random(seed)
    blobs, chosen = some_records(chance, count)
    checksummed = chance.choice([(0, 0), (0, 1 << 62), (4096 + chance.randrange(1000), 4096 + chance.randrange(3000))])
    records, plan, groups, found = find_targets(blobs, chosen, checksummed, sentinel)
    named: list[twin.Target | None] = [None]
    for number in range(1, found):
        row = row_of(groups, number, kernel.GROUP_ROW)
        at = row[kernel.G_TOPIC_AT]
        named.append((records.bytes()[at : at + row[kernel.G_TOPIC_BYTES]], row[kernel.G_QUEUE_ID]))
    expected = twin.plan(blobs, chosen, checksummed)
    seen = [0] * found
    for k, planned in enumerate(expected):
        row = row_of(plan, k, kernel.PLAN_ROW)
        assert row[kernel.P_AT] == sum(map(len, blobs[:k]))
        if planned is None:
            assert row[kernel.P_GROUP] == kernel.UNSOUND
            assert row[kernel.P_RECALLED_AT] == row[kernel.P_RECALLED_END]
            continue
        assert named[row[kernel.P_GROUP]] == planned.target
        assert row[kernel.P_DUE_MS] == planned.due_ms
        assert records.bytes()[row[kernel.P_KEY_AT] : row[kernel.P_KEY_END]] == planned.key
        assert records.bytes()[row[kernel.P_RECALLED_AT] : row[kernel.P_RECALLED_END]] == planned.recalled
        seen[row[kernel.P_GROUP]] += 1
    assert len(set(named)) == found
    assert seen == [row_of(groups, number, kernel.GROUP_ROW)[kernel.G_COUNT] for number in range(found)]


@given(
    seeds,
    st.integers(1, 10),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.one_of(st.integers(0, 2500), st.just(200_000)),
    sentinels,
)
@examples(300)
def test_records_are_written_like_the_twin_and_continue_in_the_next_file(
    seed: int, count: int, v6: bool, committed: bool, checksum: bool, room_bytes: int, sentinel: int
) -> None:
    chance = random.Random(seed)
    blobs, chosen = some_records(chance, count)
    records, plan, groups, found = find_targets(blobs, chosen, (0, 0), sentinel)
    host = bytes(range(100, 120)) if v6 else bytes(range(100, 108))
    texts, queue_offsets, targets = bytearray(host), [], []
    for number in range(found):
        name = chance.choice([b"there", b"x" * 127, b"y" * 128, b"z" * 255])
        first = chance.choice([-1, 0, 5, 2**40])
        at = number * kernel.GROUP_ROW
        groups.array[at + kernel.G_NAME_AT] = len(texts)
        groups.array[at + kernel.G_NAME_END] = len(texts) + len(name)
        groups.array[at + kernel.G_TO_QUEUE_ID] = number
        groups.array[at + kernel.G_NEXT] = first
        texts += name
        queue_offsets.append(first)
        targets.append(name)
    position = chance.choice([0, 8, 100])
    log = room(room_bytes, sentinel=sentinel)
    text_array = fenced(texts, sentinel=sentinel)
    numbers = fenced(
        [room_bytes, FILE_BASE + position, STORE_MS, len(host), int(committed), 20 * checksum], np.int64, sentinel
    )
    done, end = kernel.deliver(
        records.array, plan.array, 0, count, groups.array, text_array.array, numbers.array, log.array
    )
    assert all(array.intact for array in (records, plan, groups, text_array, numbers, log))
    expected = bytearray()
    written = 0
    for k, planned in enumerate(twin.plan(blobs, chosen)):
        group = row_of(plan, k, kernel.PLAN_ROW)[kernel.P_GROUP]
        if planned is not None and queue_offsets[group] >= 0:
            blob = twin.delivered(
                planned.record,
                targets[group],
                group,
                queue_offsets[group],
                FILE_BASE + position + len(expected),
                STORE_MS,
                host,
                committed,
            ).encode(checksum=checksum)
            if len(expected) + len(blob) + 8 > room_bytes:
                break
            expected += blob
            queue_offsets[group] += 1
        written = k + 1
    assert (done, end) == (written, len(expected))
    assert log.bytes() == bytes(expected).ljust(room_bytes, b"\xff")
    assert queue_offsets == [row_of(groups, number, kernel.GROUP_ROW)[kernel.G_NEXT] for number in range(found)]
