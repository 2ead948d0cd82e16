"""A follower's copy of a log: the same bytes, queues and index, whatever the sizes of records and pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.broker.store import DamagedRecord, LogCopyRefused, MessageStore
from tests.store_tools import (
    MIB,
    Message,
    append,
    assert_holds,
    dispatch,
    index_files,
    make_topic,
    open_store,
    overwrite,
    plain,
    put,
    queue_files,
    reopen,
)

SIZES = st.lists(st.integers(0, 500_000), min_size=1, max_size=25)
LIMITS = st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=8)


def copy(source: MessageStore, target: MessageStore, limits: list[int]) -> None:
    """Copy what ``target`` lacks, in pieces of at most ``limits`` bytes in turn."""
    turn = 0
    while (offset := target.write_offset) < source.write_offset:
        end = source.log_copy.piece_end(offset, min(offset + limits[turn % len(limits)], source.write_offset))
        assert target.log_copy.append(offset, source.log_copy.read(offset, end)) == end
        turn += 1


def log_bytes(store: MessageStore) -> bytearray:
    """Return the log, up to its end."""
    files = store.commitlog.queue.files
    array = bytearray().join(file.array().tobytes() for file in files)
    return array[: store.write_offset - store.min_physical_offset]


@settings(max_examples=30, deadline=None)
@given(sizes=SIZES, limits=LIMITS, old=st.integers(0, 25))
def test_a_copy_has_the_same_log_queues_and_index(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limits: list[int], old: int
) -> None:
    """``old``: number of messages that the log has when the copy begins."""
    folder = tmp_path_factory.mktemp("copy")
    source, target = open_store(folder / "source"), open_store(folder / "target")
    for number, size in enumerate(sizes):
        if number == old:
            source.log_copy.begin_receiver()
        append(source, "orders", number % 3, [Message(bytes(size), keys=(f"key-{number}",), tags=f"tag{number % 2}")])
    make_topic(target, "orders")
    copy(source, target, limits)
    assert log_bytes(target) == log_bytes(source)
    for store in (source, target):
        dispatch(store)
        store.close()
    assert queue_files(folder / "target") == queue_files(folder / "source")
    assert len(index_files(folder / "target")) == len(index_files(folder / "source"))


def test_a_copy_that_becomes_a_primary_continues_the_queues(tmp_path: Path) -> None:
    source, target = open_store(tmp_path / "source"), open_store(tmp_path / "target")
    sent = put(source, "orders", 1, plain(50))
    make_topic(target, "orders")
    copy(source, target, [MIB])
    dispatch(target)
    sent += put(target, "orders", 1, plain(50, first=50))
    assert [each.queue_offset for each in sent] == list(range(100))
    assert_holds(target, sent)
    target.close()
    target, report = reopen(tmp_path / "target")
    assert (report.truncated_bytes, report.quarantined, report.rebuilt) == (0, [], [])
    assert_holds(target, sent)


def test_a_primary_that_becomes_a_follower_forgets_its_own_queue_offsets(tmp_path: Path) -> None:
    source, target = open_store(tmp_path / "source"), open_store(tmp_path / "target")
    put(source, "orders", 0, plain(3))
    make_topic(target, "orders")
    copy(source, target, [MIB])
    dispatch(target)
    put(target, "orders", 0, plain(1, first=3))
    copy(target, source, [MIB])
    dispatch(source)
    assert put(source, "orders", 0, plain(1, first=4))[0].queue_offset == 4


def test_one_append_may_span_files(tmp_path: Path) -> None:
    source, target = open_store(tmp_path / "source"), open_store(tmp_path / "target")
    append(source, "orders", 0, plain(32, size=300_000))
    array = log_bytes(source)
    assert len(source.commitlog.queue.files) == 3
    assert target.log_copy.append(0, array) == source.write_offset
    assert log_bytes(target) == array


class TestRefused:
    """Bytes that are refused; the log stays as it was, and the right bytes are then taken."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> MessageStore:
        store = open_store(tmp_path / "source")
        append(store, "orders", 0, plain(20, size=300))
        return store

    @pytest.fixture
    def target(self, tmp_path: Path) -> MessageStore:
        return open_store(tmp_path / "target")

    def refuse(self, source: MessageStore, target: MessageStore, offset: int, data: bytearray, text: str) -> None:
        end, before = target.write_offset, log_bytes(target) if target.write_offset else bytearray()
        with pytest.raises(LogCopyRefused, match=text):
            target.log_copy.append(offset, data)
        assert target.write_offset == end
        assert (log_bytes(target) if end else bytearray()) == before
        copy(source, target, [1000])
        assert log_bytes(target) == log_bytes(source)

    def test_a_gap(self, source: MessageStore, target: MessageStore) -> None:
        second = source.log_copy.piece_end(0, 1)
        self.refuse(source, target, second, log_bytes(source)[second:], "this log ends at 0")

    def test_a_repetition(self, source: MessageStore, target: MessageStore) -> None:
        first = log_bytes(source)[: source.log_copy.piece_end(0, 1)]
        target.log_copy.append(0, first)
        self.refuse(source, target, 0, first, "this log ends at")

    def test_nothing(self, source: MessageStore, target: MessageStore) -> None:
        self.refuse(source, target, 0, bytearray(), "not 0")

    def test_half_a_record(self, source: MessageStore, target: MessageStore) -> None:
        self.refuse(source, target, 0, log_bytes(source)[:-1], "an impossible record length")

    def test_zeros(self, source: MessageStore, target: MessageStore) -> None:
        self.refuse(source, target, 0, bytearray(1000), "zeros where a record should begin")

    @pytest.mark.parametrize("at", [0, 3, 4, 30, 100, 200])
    def test_a_changed_byte(self, source: MessageStore, target: MessageStore, at: int) -> None:
        data = log_bytes(source)
        data[source.log_copy.piece_end(0, 1000) + at] ^= 0xFF
        self.refuse(source, target, 0, data, "the bytes for offset")

    def test_records_of_another_place(self, source: MessageStore, target: MessageStore) -> None:
        second = source.log_copy.piece_end(0, 1)
        self.refuse(source, target, 0, log_bytes(source)[second:], "the physical offset of another place")

    def test_a_blank_before_the_end_of_a_file(self, source: MessageStore, target: MessageStore) -> None:
        blank = (100).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(92)
        self.refuse(source, target, 0, log_bytes(source) + blank, "an impossible record length")


def test_a_damaged_record_is_not_sent(tmp_path: Path) -> None:
    source = open_store(tmp_path / "source")
    sent = append(source, "orders", 0, plain(10))
    overwrite(tmp_path / "source/commitlog" / f"{0:020d}", sent[4].physical_offset + 100, b"\xff\xff")
    assert source.log_copy.piece_end(0, source.write_offset) == sent[4].physical_offset
    with pytest.raises(DamagedRecord, match="a body with a wrong checksum"):
        source.log_copy.piece_end(sent[4].physical_offset, source.write_offset)


def test_a_new_record_is_checked_by_the_receiver_and_again_before_it_is_sent_again(tmp_path: Path) -> None:
    source, target = open_store(tmp_path / "source"), open_store(tmp_path / "target")
    source.log_copy.begin_receiver()
    sent = append(source, "orders", 0, plain(10))
    overwrite(tmp_path / "source/commitlog" / f"{0:020d}", sent[4].physical_offset + 100, b"\xff\xff")
    for limit in (source.write_offset, source.write_offset - 1):
        end = source.log_copy.piece_end(0, limit)
        with pytest.raises(LogCopyRefused, match="a body with a wrong checksum"):
            target.log_copy.append(0, log_bytes(source)[:end])
    assert target.write_offset == 0

    source.log_copy.begin_receiver()
    assert source.log_copy.piece_end(0, source.write_offset) == sent[4].physical_offset
