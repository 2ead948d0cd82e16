"""Appending: the bytes of every record, the end of a file, frames over several files, and refused frames."""

from __future__ import annotations

import dataclasses
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore
from flintmq.protocol.errors import MessageIllegal
from flintmq.protocol.storage.layout import BLANK_BYTES_MIN, MAGIC_BLANK
from flintmq.protocol.storage.record import (
    Record,
    decode_record,
    encode_host,
    encode_properties,
    offset_id,
    record_size,
)
from tests.store_tools import (
    BORN_HOST,
    HOST,
    MIB,
    SMALL,
    Message,
    append,
    assert_holds,
    dispatch,
    find,
    kill,
    make_batch,
    make_topic,
    open_store,
    plain,
    pull_all,
    put,
    sent_of,
    split_answer,
)

FILE_BYTES = SMALL.commitlog_file_bytes
FIXED_BYTES = record_size(0, len("orders"), 0)
"""A record of topic `orders` without a body and properties."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    opened = open_store(tmp_path / "store")
    yield opened
    opened.close()


def log_bytes(store: MessageStore) -> bytes:
    """Return the bytes of the whole log."""
    return b"".join(path.read_bytes() for path in sorted((store.path / "commitlog").iterdir()))


def body_that_takes(record_bytes: int) -> Message:
    """Return a message whose record has this size."""
    return Message(b"x" * (record_bytes - FIXED_BYTES))


def fill(store: MessageStore, left: int) -> None:
    """Append to the file until ``left`` bytes of it remain."""
    while (room := FILE_BYTES - store.write_offset % FILE_BYTES - left) > 0:
        size = min(room, 256 * 1024)
        append(store, "orders", 0, [body_that_takes(size if room - size == 0 or room - size > 1000 else size - 1000)])


def test_every_record_is_the_bytes_of_its_message(store: MessageStore) -> None:
    began_ms = int(time.time() * 1000)
    messages = [
        Message(b"", keys=("only-a-key",)),
        Message(b"body", keys=("a", "b"), tags="eu", properties=(("source", "web"),), flag=-7),
        Message(bytes(range(256)), properties=(("ünïcode", "価値"),), sys_flag=0x1 | 0x200),
    ]
    config = make_topic(store, "orders")
    batch = make_batch(messages, unique_prefix=b"7F0000010000ABCDEF01", unique_first=0xFFFF, common=b"app\x01bench\x02")
    sent = sent_of(store.append(config, 2, batch), "orders", 2, messages)
    store.flush()
    log = log_bytes(store)
    at = 0
    for number, (message, each) in enumerate(zip(messages, sent, strict=True)):
        _, row, *_ = message.to_row()
        assert isinstance(row, dict)
        record = Record(
            topic=b"orders",
            body=message.body,
            properties=b"app\x01bench\x02"
            + encode_properties(row)
            + b"UNIQ_KEY\x01"
            + b"7F0000010000ABCDEF01"
            + b"%012X" % (0xFFFF + number)
            + b"\x02",
            queue_id=2,
            queue_offset=number,
            physical_offset=at,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=each.store_ms,
            born_host=BORN_HOST,
            store_timestamp=each.store_ms,
            store_host=HOST,
        )
        written = decode_record(log, at)
        assert written.property_map() == record.property_map()
        record.properties = written.properties  # the kernel chooses their order
        assert log[at : at + len(record.encode())] == record.encode()
        assert each.physical_offset == at
        at += len(record.encode())
    assert store.write_offset == store.flushed_offset == at
    assert not any(log[at:])
    assert began_ms <= sent[0].store_ms <= time.time() * 1000


def test_queue_offsets_are_dense_in_every_queue_for_any_frames(store: MessageStore) -> None:
    source = random.Random(1)
    sent = []
    number = 0
    for _ in range(60):
        count = source.randrange(1, 30)
        sent += append(store, source.choice(["orders", "bills"]), source.randrange(4), plain(count, first=number))
        number += count
    dispatch(store)
    assert_holds(store, sent)
    for topic in ("orders", "bills"):
        for queue in range(4):
            records = list(pull_all(store, topic, queue))
            assert [record.queue_offset for record in records] == list(range(len(records)))


def test_store_times_never_go_back_when_the_clock_does(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = append(store, "orders", 0, plain(1))[0].store_ms
    monkeypatch.setattr("time.time_ns", lambda: (first - 60_000) * 1_000_000)
    assert append(store, "orders", 0, plain(1))[0].store_ms == first


def test_store_times_do_not_go_back_after_a_kill_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "store")
    last = append(store, "orders", 0, plain(1))[0].store_ms
    kill(store)
    monkeypatch.setattr(time, "time_ns", lambda: (last - 3_600_000) * 1_000_000)
    store = open_store(tmp_path / "store")
    assert append(store, "orders", 0, plain(1))[0].store_ms >= last
    store.close()


@pytest.mark.parametrize("left", [8, 9, 100, FIXED_BYTES + 7])
def test_a_record_that_would_leave_too_little_room_goes_to_the_next_file(store: MessageStore, left: int) -> None:
    fill(store, left)
    end = store.write_offset
    assert end == FILE_BYTES - left
    sent = put(store, "orders", 1, [Message(b"")])
    assert sent[0].physical_offset == FILE_BYTES
    size, magic = struct.unpack_from(">ii", log_bytes(store), end)
    assert (size, magic) == (left, MAGIC_BLANK)
    assert not any(log_bytes(store)[end + 8 : FILE_BYTES])
    assert_holds(store, sent)


def test_a_record_may_leave_exactly_the_room_of_a_blank_record(store: MessageStore) -> None:
    fill(store, FIXED_BYTES + BLANK_BYTES_MIN)
    sent = put(store, "orders", 1, [Message(b"")])
    assert sent[0].physical_offset == FILE_BYTES - FIXED_BYTES - BLANK_BYTES_MIN
    assert store.write_offset == FILE_BYTES - BLANK_BYTES_MIN
    assert put(store, "orders", 1, [Message(b"")])[0].physical_offset == FILE_BYTES
    assert len(list(pull_all(store, "orders", 1))) == 2


def test_a_frame_goes_over_as_many_files_as_it_needs(store: MessageStore) -> None:
    messages = [Message(bytes([number]) * 300_000, keys=(f"k{number}",)) for number in range(40)]
    sent = put(store, "orders", 0, messages)
    files = sorted((store.path / "commitlog").iterdir())
    assert [path.name for path in files] == [f"{number * FILE_BYTES:020d}" for number in range(len(files))]
    assert len(files) == 4
    assert {path.stat().st_size for path in files} == {FILE_BYTES}
    for each in sent:
        assert each.physical_offset // FILE_BYTES == (each.physical_offset + 300_100) // FILE_BYTES
    assert_holds(store, sent)


def test_messages_around_every_border_of_a_file_come_back(tmp_path: Path) -> None:
    source = random.Random(2)
    store = open_store(tmp_path / "store")
    sent = []
    for _ in range(80):
        sizes = [source.choice([0, 1, 90, 4096, 100_000, 400_000]) for _ in range(source.randrange(1, 5))]
        messages = [Message(source.randbytes(min(size, 64)) * (size // 64 + 1)) for size in sizes]
        sent += append(store, "orders", source.randrange(4), messages)
    dispatch(store)
    assert store.write_offset > 3 * FILE_BYTES
    assert_holds(store, sent)
    store.close()
    store = open_store(tmp_path / "store")
    assert_holds(store, sent)
    store.close()


def test_the_largest_message_is_taken_and_one_byte_more_is_refused(store: MessageStore) -> None:
    limit = SMALL.message_bytes_max
    assert put(store, "orders", 0, [body_that_takes(limit)])[0].physical_offset == 0
    with pytest.raises(MessageIllegal, match=f"{limit + 1:,} bytes, store.message_bytes_max allows {limit:,}"):
        append(store, "orders", 0, [body_that_takes(limit + 1)])


@pytest.mark.parametrize("bad", [Message(b"x", properties=(("INNER_NUM", "1"),)), Message(b"x" * MIB)])
def test_a_refused_frame_leaves_not_a_byte(store: MessageStore, bad: Message) -> None:
    put(store, "orders", 0, plain(3))
    end, log = store.write_offset, log_bytes(store)
    with pytest.raises(MessageIllegal, match=r"message 2: .*nothing of the frame was written"):
        append(store, "orders", 0, [*plain(2), bad, *plain(2)])
    assert store.write_offset == end
    assert log_bytes(store) == log
    assert put(store, "orders", 0, plain(1))[0].queue_offset == 3


def test_a_count_that_the_body_cannot_hold_is_refused_before_anything_is_made_room_for(store: MessageStore) -> None:
    batch = dataclasses.replace(make_batch(plain(1)), count=2**31 - 1)
    with pytest.raises(MessageIllegal, match="count says 2147483647 messages"):
        store.append(make_topic(store, "orders"), 0, batch)
    assert not list((store.path / "commitlog").iterdir())


@pytest.mark.parametrize("born", [BORN_HOST, encode_host("2001:db8::9", 4000)], ids=["from IPv4", "from IPv6"])
@pytest.mark.parametrize("host", [HOST, encode_host("2001:db8::1", 10911)], ids=["at IPv4", "at IPv6"])
def test_addresses_of_both_families_are_stored_found_and_recovered(tmp_path: Path, born: bytes, host: bytes) -> None:
    path = tmp_path / "store"
    store = MessageStore(path, SMALL, store_host=host)
    store.open()
    config = make_topic(store, "orders")
    messages = plain(12, size=400_000)
    for message in messages:
        store.append(config, 0, dataclasses.replace(make_batch([message]), born_host=born))
    dispatch(store)
    kill(store)
    (path / "checkpoint").unlink()
    store = MessageStore(path, SMALL, store_host=host)
    store.open()
    records = list(pull_all(store, "orders", 0))
    assert [record.body for record in records] == [message.body for message in messages]
    assert {(record.born_host, record.store_host) for record in records} == {(born, host)}
    for record in records:
        found = store.view(offset_id(host, record.physical_offset), "", False)
        assert split_answer(found.body, found.count) == [record.encode()]
        assert find(store, "orders", record.property_map()["KEYS"]) == [record]
    store.close()


def test_the_writer_gives_only_the_bytes_that_are_in_the_log(store: MessageStore) -> None:
    writer, chance = store.commitlog.writer, random.Random(7)
    given = []
    for size in [40, 40, 300, 40, *(chance.choice([40, 900, 500_000]) for _ in range(12))]:
        for own in (False, True):
            begin = store.write_offset
            if own:
                store.append_records([Record(topic=b"orders", body=b"y" * size)])
            else:
                put(store, "orders", 0, [Message(b"x" * size)])
            written = store.write_offset - begin
            bytes_of_log = log_bytes(store)[begin : store.write_offset]
            assert writer.written(begin, written) in (None, bytes_of_log)
            for offset, length in ((begin, written - 1), (begin + 1, written), (begin - written, written)):
                assert writer.written(offset, length) is None
            given.append(writer.written(begin, written) is not None)
    assert given[:2] == [True, False]


def test_the_writer_gives_nothing_of_an_append_over_several_files(store: MessageStore) -> None:
    begin = store.write_offset
    put(store, "orders", 0, plain(9, size=500_000))
    assert store.commitlog.writer.written(begin, store.write_offset - begin) is None
