"""With ``store.record_checksum``, no bit of a record changes unnoticed; without it, and in records that RocketMQ wrote,
no record needs a checksum."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.store import CorruptLog, MessageStore, StoreSettings
from flintmq.broker.store.tables.store_state import OPEN
from flintmq.protocol.storage.layout import CHECKPOINT, RECORD, RECORD_HEAD_BYTES
from flintmq.protocol.storage.record import Record, check_record_crc, decode_record, encode_host
from tests.store_tools import (
    HOST,
    MIB,
    SMALL,
    Message,
    Sent,
    append,
    assert_holds,
    copy_store,
    dispatch,
    find,
    kill,
    make_topic,
    open_store,
    plain,
    pull_all,
    put,
)
from tests.tools_runs import findings

ON = dataclasses.replace(SMALL, record_checksum=True)
BODY = 60
FIRST_FILE = f"{0:020d}"
TRIED = Message(b"x" * BODY, ("k-1", "k-2"), "eu", (("source", "web"),), flag=7)


def fill(path: Path, settings: StoreSettings, count: int, first: int = 0) -> list[Sent]:
    """Append messages by a broker with these settings, and stop it cleanly; return the messages."""
    store = open_store(path, settings)
    sent = put(store, "orders", 0, plain(count, size=BODY, first=first))
    store.close()
    return sent


def ranges(path: Path, name: str = "state.json") -> list[list[int]]:
    found: list[list[int]] = json.loads((path / "flintmq" / name).read_text())["checksummed"]
    return found


def flip(path: Path, physical_offset: int, mask: int = 0x01) -> None:
    """Flip bits in a byte of the log's first file."""
    with (path / "commitlog" / FIRST_FILE).open("r+b") as file:
        file.seek(physical_offset)
        byte = file.read(1)[0]
        file.seek(physical_offset)
        file.write(bytes([byte ^ mask]))


def log_of(path: Path) -> bytes:
    return (path / "commitlog" / FIRST_FILE).read_bytes()


def kinds(path: Path) -> set[str]:
    return {each.kind for each in findings(path)}


def assert_not_served_changed(path: Path, sent: list[Sent], originals: dict[int, bytes]) -> None:
    """Check that a broker on this store does not start, or serves only records that were stored."""
    try:
        store = open_store(path, ON)
    except CorruptLog:
        return
    for record in pull_all(store, sent[0].topic, sent[0].queue):
        assert record.encode() == originals[record.physical_offset]
    kill(store)


def test_every_record_of_the_broker_has_a_valid_checksum(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path, ON)
    sent = put(store, "orders", 0, [TRIED, *plain(20), Message(b"")])
    own = [Record(b"orders", b"own", b"KEYS\x01o-1", queue_id=0), Record(b"orders", b"", queue_id=1)]
    store.append_records(own)
    log, at = log_of(path), 0
    for _ in range(len(sent) + 2):
        check_record_crc(log, at)
        at += int.from_bytes(log[at : at + 4], "big")
    assert at == store.write_offset
    store.close()
    assert findings(path) == []
    store = open_store(path, ON)
    assert [record.body for record in pull_all(store, "orders", 0)] == [*(each.message.body for each in sent), b"own"]
    store.close()


HEADER = [name for name in RECORD.at if name != "body_crc"]


@pytest.mark.parametrize("field", [*HEADER, "body_crc", "topic", "key", "value", "checksum"])
def test_a_changed_bit_in_any_field_is_found_and_never_served(tmp_path: Path, field: str) -> None:
    path = tmp_path / "store"
    store = open_store(path, ON)
    sent = put(store, "orders", 0, [*plain(3, size=BODY), TRIED, *plain(3, size=BODY, first=3)])
    originals = {each.physical_offset: each.encode() for each in pull_all(store, "orders", 0)}
    store.close()
    at = sent[3].physical_offset
    record = originals[at]
    behind = {
        "topic": RECORD_HEAD_BYTES + BODY + 1,
        "key": record.index(b"k-2"),
        "value": record.index(b"web"),
        "checksum": len(record) - 5,
    }
    flip(path, at + (behind[field] if field in behind else RECORD.at[field]), 0x01)
    found = [each for each in findings(path) if each.physical_offset == at]
    assert found, findings(path)
    assert_not_served_changed(path, sent, originals)


def test_only_records_written_with_the_option_must_have_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = fill(path, SMALL, 5)
    assert ranges(path) == []
    sent += fill(path, ON, 5, first=5)
    sent += fill(path, ON, 5, first=10)
    begin = sent[5].physical_offset
    assert ranges(path) == [[begin, OPEN]]
    sent += fill(path, SMALL, 5, first=15)
    end = sent[15].physical_offset
    assert ranges(path) == ranges(path, "state.json.bak") == [[begin, end]]
    assert findings(path) == []
    for number, expected in ((2, set()), (7, {"record-crc"}), (12, {"record-crc"}), (17, set())):
        copy = copy_store(path, tmp_path / f"copy-{number}")
        flip(copy, sent[number].physical_offset + RECORD.at["flag"])
        assert kinds(copy) == expected
        if not expected:
            store = open_store(copy)
            assert len(list(pull_all(store, "orders", 0))) == len(sent)
            store.close()
    store = open_store(path)
    assert_holds(store, sent)
    store.close()


def test_a_record_without_a_checksum_is_damage_if_all_must_have_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = fill(path, ON, 5)
    blob = log_of(path)
    at, end = sent[2].physical_offset, sent[3].physical_offset
    record = decode_record(blob, at)
    record.properties = record.properties[:-20] + b"AN_ORDINARY_ONE\x012\x02\x02\x02"
    assert len(record.encode()) == end - at
    with (path / "commitlog" / FIRST_FILE).open("r+b") as file:
        file.seek(at)
        file.write(record.encode())
    assert {(each.kind, each.physical_offset) for each in findings(path)} == {("record-crc", at)}


def test_a_torn_last_record_is_cut_although_its_body_is_right(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path, ON)
    sent = put(store, "orders", 0, plain(5, size=BODY))
    torn = append(store, "orders", 0, [TRIED])[0]  # not acknowledged
    kill(store)
    record = decode_record(log_of(path), torn.physical_offset)
    key_at = log_of(path).index(b"k-2", torn.physical_offset)
    flip(path, key_at)
    assert decode_record(log_of(path), torn.physical_offset).body == record.body
    store = open_store(path, ON)
    assert store.write_offset == torn.physical_offset
    assert_holds(store, sent)
    store.close()


# RocketMQ uses the store in between.


def rocketmq_writes(path: Path, at: int, records: list[Record]) -> int:
    """Do what a RocketMQ does that uses the store for a while: write records at ``at``, and no mark. Return their
    end."""
    with (path / "commitlog" / FIRST_FILE).open("r+b") as file:
        file.seek(at)
        for record in records:
            record.physical_offset = file.tell()
            record.store_host, record.born_host = HOST, encode_host("10.0.0.1", 1)
            file.write(record.encode())
        end = file.tell()
        file.write(bytes(4 * MIB - end))
    blob = bytearray((path / "checkpoint").read_bytes())
    blob[: CHECKPOINT.size] = bytes(CHECKPOINT.size)
    (path / "checkpoint").write_bytes(blob)
    return end


def test_records_of_rocketmq_need_no_checksum_and_keep_stale_ones(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = fill(path, ON, 5)
    end = sent[-1].physical_offset + int.from_bytes(log_of(path)[sent[-1].physical_offset :][:4], "big")
    stale = b"KEYS\x01k\x02__CRC32#\x010123456789\x02"
    theirs = [
        Record(b"orders", b"theirs", properties, queue_offset=5 + number, store_timestamp=sent[-1].store_ms)
        for number, properties in enumerate([b"", stale])
    ]
    behind = rocketmq_writes(path, end, theirs)
    assert "record-crc" not in kinds(path)
    store = open_store(path, ON)
    assert [record.body for record in pull_all(store, "orders", 0)][5:] == [b"theirs"] * 2
    put(store, "orders", 0, plain(2, first=7))
    store.close()
    assert ranges(path) == [[sent[0].physical_offset, end], [behind, OPEN]]
    assert findings(path) == []
    copy = copy_store(path, tmp_path / "copy")
    flip(copy, end + RECORD.at["flag"])
    assert kinds(copy) == set()
    flip(copy, sent[1].physical_offset + RECORD.at["flag"])
    assert kinds(copy) == {"record-crc"}


@pytest.mark.parametrize("stopped", [True, False])
def test_records_that_rocketmq_wrote_over_its_cut_are_kept(tmp_path: Path, stopped: bool) -> None:
    path = tmp_path / "store"
    store = open_store(path, ON)
    sent = put(store, "orders", 0, plain(5, size=BODY))
    store.close() if stopped else kill(store)
    at = sent[3].physical_offset
    theirs = [Record(b"orders", b"theirs", queue_offset=3, store_timestamp=sent[-1].store_ms)]
    rocketmq_writes(path, at, theirs)
    for folder in ("consumequeue", "index"):  # as RocketMQ leaves them, except for their contents
        for each in sorted((path / folder).rglob("*"), reverse=True):
            each.unlink() if each.is_file() else each.rmdir()
    store = open_store(path, ON)
    assert [record.body for record in pull_all(store, "orders", 0)][3:] == [b"theirs"]
    store.close()
    assert ranges(path)[0][0] == 0 or not stopped
    assert findings(path) == []


def test_a_delivered_record_gets_a_checksum_of_its_own(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", ON)
    make_topic(store, "orders")
    make_topic(store, "SCHEDULE_TOPIC_XXXX", 18)
    waiting = [
        Record(b"SCHEDULE_TOPIC_XXXX", b"body", properties, queue_id=0)
        for properties in (
            b"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02__CRC32#\x011234567890\x02",
            b"REAL_TOPIC\x01orders\x02REAL_QID\x010",
        )
    ]
    store.append_records(waiting)
    sizes = [len(record.encode(checksum=True)) for record in waiting]
    found = deliver(store, waiting, sizes)
    assert [record.queue_offset for record in found] == [0, 1]
    store.close()
    assert findings(tmp_path / "store") == []


def deliver(store: MessageStore, waiting: list[Record], sizes: list[int]) -> list[Record]:
    """Deliver waiting records; return the resulting records, checked."""
    rows = np.array([(each.physical_offset, size, 0) for each, size in zip(waiting, sizes, strict=True)], np.int64)
    begin = store.write_offset
    read = store.rewriter.read(rows.reshape(-1), hot=False)
    assert read.unsound == 0
    store.deliver(read, read.targets)
    store.flush()
    while store.reput_offset < store.write_offset:
        store.dispatch(store.write_offset)
    log, found = log_of(store.path), []
    while begin < store.write_offset:
        check_record_crc(log, begin)
        found.append(decode_record(log, begin))
        assert found[-1].topic == b"orders"
        begin += int.from_bytes(log[begin : begin + 4], "big")
    return found


def test_a_record_damaged_while_a_broker_runs_is_neither_found_nor_delivered(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", ON)
    make_topic(store, "SCHEDULE_TOPIC_XXXX", 18)
    sent = put(store, "orders", 0, [TRIED, *plain(2)])
    waiting = [
        Record(b"SCHEDULE_TOPIC_XXXX", b"body", b"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02", queue_id=0)
        for _ in range(2)
    ]
    store.append_records(waiting)
    dispatch(store)
    sizes = [len(record.encode(checksum=True)) for record in waiting]
    assert [record.body for record in find(store, "orders", "k-1")] == [TRIED.body]
    assert store.log_reads.record_at(sent[0].physical_offset, 0, hot=False) is not None
    with (store.path / "commitlog" / FIRST_FILE).open("r+b") as file:
        for at in (sent[0].physical_offset, waiting[0].physical_offset):
            file.seek(at + RECORD.at["flag"])
            file.write(b"\x01")
    assert find(store, "orders", "k-1") == []
    assert store.log_reads.record_at(sent[0].physical_offset, 0, hot=False) is None
    assert len(find(store, "orders", "key-0")) == 1
    rows = [(each.physical_offset, size, 0) for each, size in zip(waiting, sizes, strict=True)]
    read = store.rewriter.read(np.array(rows, np.int64).reshape(-1), hot=False)
    assert (read.unsound, read.group_of.tolist()[0], sum(read.counts)) == (1, -1, 1)
    kill(store)
