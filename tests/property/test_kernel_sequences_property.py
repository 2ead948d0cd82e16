"""The sequences kernel against its plain twin: which records are producers' messages, and which messages form a run."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.kernels import dispatch, sequences
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import UNIQUE_PREFIX_DIGITS, Record, encode_host, unique_key
from tests.twins.arrays import SENTINELS, examples
from tests.twins.log import write_log
from tests.twins.sequences import WAITING_TOPICS, call, stored_runs

V4 = encode_host("10.0.0.7", 10911)
V6 = encode_host("2001:db8::7", 10911)
PREFIXES = ("7F00000155A738209801", "7F00000155A738209802", "7f00000155a738209801")
TOPICS = (b"orders", b"o", b"%RETRY%g", "größe".encode(), b"long" * 60, *WAITING_TOPICS)
TRANSACTIONS = (0, 0, 0, 0, SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK)

sentinels = st.sampled_from(SENTINELS)
seeds = st.integers(0, 2**32 - 1)


def make_properties(chance: random.Random, topic: bytes, key: str) -> bytes:
    """Return properties that a broker writes, sometimes with other content."""
    pairs = [("KEYS", "a b"), ("UNIQ_KEY", key)]
    if (topic in WAITING_TOPICS) != (chance.randrange(8) == 0):
        pairs.insert(chance.randint(0, 2), ("REAL_TOPIC", chance.choice(["orders", "o", "größe"])))
    if not chance.randrange(10):
        pairs.insert(chance.randint(0, 2), ("RETRY_TOPIC", "orders"))
    if not chance.randrange(10):
        pairs.insert(
            chance.randint(0, 2), (chance.choice(["UNIQ_KEY", "REAL_TOPIC", "A", ""]), chance.choice(["", "x"]))
        )
    blob = b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs)
    return blob if chance.randrange(4) else blob[:-1]


def make_key(chance: random.Random, prefix: str, counter: int) -> str:
    """Return a unique key, sometimes damaged."""
    key = unique_key(prefix, counter)
    if chance.randrange(8):
        return key
    at = chance.randrange(len(key))
    return chance.choice([key[:at] + chance.choice("Gg/:@`x") + key[at + 1 :], key[:at], key + "0", ""])


def make_records(seed: int) -> list[Record]:
    """Return records of a few producers whose counters and queue offsets are mostly consecutive."""
    chance = random.Random(seed)
    counters = {prefix: chance.choice([0, 2**40, 2**48 - 4]) for prefix in PREFIXES}
    ends: dict[tuple[bytes, int], int] = {}
    records = []
    topic, queue_id, prefix = chance.choice(TOPICS), 0, PREFIXES[0]
    for _ in range(chance.randint(1, 16)):
        if not chance.randrange(3):
            topic, queue_id, prefix = chance.choice(TOPICS), chance.choice([0, 1, 65_535]), chance.choice(PREFIXES)
        counter = counters[prefix] + chance.choice([0] * 8 + [1, -1])
        counters[prefix] = max(counter + 1, 0)
        queue_offset = ends.get((topic, queue_id), 0) + chance.choice([0] * 8 + [1])
        ends[topic, queue_id] = queue_offset + 1
        key = make_key(chance, prefix, max(counter, 0))
        records.append(
            Record(
                topic,
                chance.randbytes(chance.choice([0, 1, 40])),
                make_properties(chance, topic, key),
                queue_id,
                queue_offset,
                sys_flag=chance.choice(TRANSACTIONS),
                born_host=chance.choice([V4, V6]),
                store_host=chance.choice([V4, V6]),
                reconsume_times=chance.choice([0] * 9 + [1]),
            )
        )
    return records


@examples(400)
@given(seeds, st.sampled_from([0, 7]), st.sampled_from([0, 1 << 40]), st.sampled_from([1, 2, 64]), sentinels)
def test_runs_equal_those_of_the_twin(seed: int, at: int, file_base: int, run_room: int, sentinel: int) -> None:
    log = bytes(at) + write_log(make_records(seed), file_base, at)
    assert call(log, at, len(log), file_base, run_room, sentinel) == stored_runs(log, at, len(log), file_base, run_room)


@examples(150)
@given(seeds, st.binary(max_size=30))
def test_any_properties_are_read_like_the_twin(seed: int, properties: bytes) -> None:
    records = make_records(seed)
    records[random.Random(seed).randrange(len(records))].properties = properties
    log = write_log(records)
    assert call(log, 0, len(log), 0) == stored_runs(log, 0, len(log), 0, 64)


@examples(150)
@given(seeds, seeds, sentinels)
def test_a_damaged_or_truncated_log_is_read_like_the_twin(seed: int, damage: int, sentinel: int) -> None:
    chance = random.Random(damage)
    log = bytearray(write_log(make_records(seed)))
    if chance.randrange(2):
        log[chance.randrange(len(log))] = chance.randrange(256)
    else:
        del log[chance.randrange(len(log)) :]
    blob = bytes(log)
    assert call(blob, 0, len(blob), 0, 64, sentinel) == stored_runs(blob, 0, len(blob), 0, 64)


@examples(100)
@given(seeds)
def test_calls_that_continue_after_a_full_one_find_the_same_messages(seed: int) -> None:
    log = write_log(make_records(seed))
    whole = call(log, 0, len(log), 0)[2]
    status, at, found = dispatch.FULL, 0, []
    while status == dispatch.FULL:
        status, at, runs = call(log, at, len(log), 0, run_room=2)
        found += runs
    assert status == dispatch.DONE
    assert sum(run.count for run in found) == sum(run.count for run in whole)
    assert {run.at for run in found} >= {run.at for run in whole}


def test_digits_and_waiting_topics_are_those_of_unique_keys_and_delivery() -> None:
    assert sequences.PREFIX_DIGITS == UNIQUE_PREFIX_DIGITS
    assert len(unique_key(PREFIXES[0], 0)) == sequences.KEY_DIGITS
    assert tuple(name.encode() for name in sequences.WAITING_TOPICS) == WAITING_TOPICS


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # a NumPy integer if kernels are interpreted
def test_the_smallest_queue_offset_does_not_follow_the_largest() -> None:
    records = [
        Record(b"orders", b"", f"UNIQ_KEY\x01{unique_key(PREFIXES[0], counter)}\x02".encode(), 0, queue_offset)
        for counter, queue_offset in ((5, 2**63 - 1), (6, -(2**63)))
    ]
    log = write_log(records)
    assert call(log, 0, len(log), 0)[2] == stored_runs(log, 0, len(log), 0, 64)[2]
    assert [run.queue_offset for run in call(log, 0, len(log), 0)[2]] == [2**63 - 1, -(2**63)]


def test_the_kernel_stops_at_the_end_of_the_records() -> None:
    log = write_log([Record(b"orders", b"body")])
    assert call(log + bytes(200), 0, len(log) + 200, 0)[:2] == (dispatch.NO_RECORD, len(log))
    assert call(log, 0, len(log), 1)[:2] == (dispatch.BAD_PHYSICAL_OFFSET, 0)
