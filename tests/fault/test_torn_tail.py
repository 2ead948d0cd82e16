"""The torn tail of the CommitLog, records that were written and never flushed: a start cuts it off for good."""

from __future__ import annotations

import dataclasses
import random
import struct
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore
from flintmq.protocol.storage.layout import UNIT_BYTES
from flintmq.protocol.storage.record import Record
from tests.fault.damaged_logs import FILE_BYTES, FIRST, SECOND, flip_in_body, zero_64
from tests.store_tools import (
    SMALL,
    Message,
    Sent,
    append,
    assert_holds,
    dispatch,
    find,
    kill,
    open_store,
    overwrite,
    plain,
    pull_all,
    put,
    reopen,
    restore,
    save,
)


def end_of(log: Path) -> int:
    """Return the offset after the last byte that is not zero."""
    return len(log.read_bytes().rstrip(b"\0"))


def torn_stores(tmp_path: Path) -> tuple[Path, list[Sent], Sent, int]:
    """Yield killed stores whose last record was never flushed, with its end."""
    store = open_store(tmp_path / "whole")
    sent = put(store, "orders", 0, plain(20)) + put(store, "orders", 1, plain(20, first=20))
    last = append(store, "orders", 0, [Message(b"the last one", keys=("last",), tags="eu")])[0]
    end = store.write_offset
    kill(store)
    return store.path, sent, last, end


def test_a_complete_last_record_is_kept(tmp_path: Path) -> None:
    path, sent, last, end = torn_stores(tmp_path)
    store, report = reopen(path)
    assert (report.truncated_bytes, store.write_offset, store.flushed_offset) == (0, end, end)
    assert_holds(store, [*sent, last])
    store.close()


@pytest.mark.parametrize("kind", ["zeros", "ones", "random"])
def test_a_record_torn_at_any_byte_is_cut_zeroed_and_stays_away(tmp_path: Path, kind: str) -> None:
    path, sent, last, end = torn_stores(tmp_path)
    log = (path / "commitlog" / FIRST).read_bytes()
    saved = save(path)
    source = random.Random(11)
    begin = last.physical_offset
    for at in range(begin, end, 1 if kind == "zeros" else 5):
        rest = end - at
        tail = {"zeros": bytes(rest), "ones": b"\xff" * rest, "random": source.randbytes(rest)}[kind]
        if (kind != "zeros" and at >= end - 37) or log[at:end] == tail:
            continue  # bytes of the properties that no checksum covers, and not the zeros of a lost page
        restore(path, saved)
        overwrite(path / "commitlog" / FIRST, at, tail)
        store, report = reopen(path)
        assert store.write_offset == store.flushed_offset == begin, at
        assert report.truncated_bytes == len((log[begin:at] + tail).rstrip(b"\0")), at
        assert end_of(path / "commitlog" / FIRST) == begin, at
        assert_holds(store, sent)
        assert find(store, "orders", "last") == []
        if at % 8:
            kill(store)
            continue
        new = put(store, "orders", 0, plain(2, first=50))
        assert [each.queue_offset for each in new] == [20, 21]
        store.close()
        store, report = reopen(path)
        assert (report.clean, report.truncated_bytes, report.rebuilt) == (True, 0, []), at
        assert_holds(store, [*sent[:20], *new])
        store.close()


@pytest.mark.parametrize(
    ("body", "properties"), [(b"", (("k", "v"),)), (bytes(40), ())], ids=["empty body", "body of zeros, no properties"]
)
def test_zeros_of_a_torn_record_are_distinguished_from_its_own_zeros(
    tmp_path: Path, body: bytes, properties: tuple[tuple[str, str], ...]
) -> None:
    """Tears a record at every byte that has zeros itself, and nothing after its topic."""
    store = open_store(tmp_path / "whole")
    sent = put(store, "orders", 0, plain(3))
    last = append(store, "orders", 0, [Message(body, properties=properties)])[0]
    begin, end = last.physical_offset, store.write_offset
    kill(store)
    log = (store.path / "commitlog" / FIRST).read_bytes()
    saved = save(store.path)
    for at in range(begin, end):
        restore(store.path, saved)
        overwrite(store.path / "commitlog" / FIRST, at, bytes(end - at))
        again, _ = reopen(store.path)
        as_it_was = log[at:end] == bytes(end - at)
        assert again.write_offset == (end if as_it_was else begin), at
        assert_holds(again, [*sent, last] if as_it_was else sent)
        kill(again)


def test_a_torn_frame_leaves_only_its_complete_records(tmp_path: Path) -> None:
    store = open_store(tmp_path / "whole")
    sent = put(store, "orders", 0, plain(5))
    frame = append(store, "orders", 1, plain(10, first=5))
    end = store.write_offset
    kill(store)
    saved = save(store.path)
    for number, torn in enumerate(frame):
        restore(store.path, saved)
        log = store.path / "commitlog" / FIRST
        overwrite(log, torn.physical_offset + 50, bytes(end - torn.physical_offset - 50))
        again, _ = reopen(store.path)
        assert again.write_offset == torn.physical_offset
        assert_holds(again, [*sent, *frame[:number]])
        assert put(again, "orders", 1, plain(1))[0].queue_offset == number
        again.close()


def test_no_cut_record_reappears_when_the_log_grows_over_it(tmp_path: Path) -> None:
    """Old records after a torn one are sound and at their right places: only zeros keep them from coming back."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(5))
    ghosts = append(store, "orders", 0, plain(40, first=5))
    kill(store)
    zero_64(store.path / "commitlog" / FIRST, ghosts[0])
    store, report = reopen(store.path)
    assert store.write_offset == ghosts[0].physical_offset
    assert report.truncated_bytes > 40 * 100
    # A message exactly as long as the torn one, so that the first old record would follow it.
    sent += put(store, "orders", 0, plain(1, first=5))
    assert store.write_offset == ghosts[1].physical_offset
    for end in (kill, MessageStore.close, MessageStore.close):
        end(store)
        store, report = reopen(store.path)
        assert (store.write_offset, report.truncated_bytes) == (ghosts[1].physical_offset, 0)
        assert_holds(store, sent)
    store.close()


def test_complete_files_after_the_cut_are_removed_too(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(2, size=400_000))
    lost = append(store, "orders", 0, plain(28, size=400_000, first=2))
    assert len(list((path / "commitlog").iterdir())) == 3
    kill(store)
    flip_in_body(path / "commitlog" / FIRST, lost[3])
    store, report = reopen(path)
    assert store.write_offset == lost[3].physical_offset
    assert report.truncated_bytes > FILE_BYTES
    assert [each.name for each in (path / "commitlog").iterdir()] == [FIRST]
    sent += lost[:3]
    assert_holds(store, sent)
    sent += put(store, "orders", 0, plain(30, size=400_000, first=100))
    assert [each.queue_offset for each in sent] == list(range(35))
    kill(store)
    store, _ = reopen(path)
    assert_holds(store, sent)
    store.close()


def test_zeros_in_place_of_a_lost_blank_end_the_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(10, size=400_000))
    end = store.write_offset
    lost = append(store, "orders", 0, plain(3, size=400_000, first=10))
    assert lost[0].physical_offset == FILE_BYTES
    kill(store)
    overwrite(path / "commitlog" / FIRST, end, bytes(8))
    store, _ = reopen(path)
    assert store.write_offset == end
    assert_holds(store, sent)
    sent += put(store, "orders", 0, plain(3, size=400_000, first=20))
    assert sent[-3].physical_offset == FILE_BYTES
    kill(store)
    store, _ = reopen(path)
    assert_holds(store, sent)
    store.close()


@pytest.mark.parametrize("last", ["end", "blank"])
def test_a_log_that_ends_with_its_file_continues_in_the_next(tmp_path: Path, last: str) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(10, size=400_000))
    if last == "blank":
        lost = append(store, "orders", 0, plain(1, size=400_000, first=10))
        kill(store)
        overwrite(path / "commitlog" / SECOND, 0, bytes(200))
        assert lost[0].physical_offset == FILE_BYTES
        store, _ = reopen(path)
        assert store.write_offset == FILE_BYTES
    sent += put(store, "orders", 0, plain(1, size=400_000, first=11))
    assert sent[-1].physical_offset == FILE_BYTES
    for end in (kill, MessageStore.close):
        end(store)
        store = open_store(path)
        assert_holds(store, sent)
    store.close()


def test_queues_and_index_never_point_past_the_cut(tmp_path: Path) -> None:
    """Under async flush, dispatched records may be torn."""
    settings = dataclasses.replace(SMALL, flush_policy="async")
    store = open_store(tmp_path / "store", settings)
    sent = put(store, "orders", 0, plain(120))
    store.sync_derived()
    lost = append(store, "orders", 0, plain(120, first=120))
    while store.reput_offset < store.write_offset:
        store.dispatch(store.dispatchable_offset)
    store.sync_derived()
    store.consumer_offsets.commit("group", "orders", 0, 240)
    store.consumer_offsets.persist()
    kill(store)
    overwrite(store.path / "commitlog" / FIRST, lost[5].physical_offset + 40, bytes(FILE_BYTES // 2))
    store, report = reopen(store.path, settings)
    assert report.truncated_bytes > 0
    assert store.queue_reads.max_offset("orders", 0) == 125
    assert store.consumer_offsets.committed("group", "orders") == {0: 125}
    assert_holds(store, [*sent, *lost[:5]])
    assert all(find(store, "orders", key) == [] for each in lost[5:] for key in each.message.keys)
    new = put(store, "orders", 0, plain(120, first=1000))
    assert_holds(store, [*sent, *lost[:5], *new])
    for content in (path.read_bytes() for path in (store.path / "consumequeue" / "orders" / "0").iterdir()):
        for unit in range(0, len(content), UNIT_BYTES):
            physical_offset, size = struct.unpack_from(">qi", content, unit)
            assert physical_offset + size <= store.write_offset
    store.close()


def test_a_record_forged_inside_a_torn_body_is_not_taken_for_the_end(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(3))
    begin = store.write_offset
    inner = Record(topic=b"orders", body=b"forged", queue_offset=3, physical_offset=0).encode()
    append(store, "orders", 0, [Message(bytes(200) + inner + bytes(50))])
    kill(store)
    log = store.path / "commitlog" / FIRST
    overwrite(log, begin, bytes(60))
    store, _ = reopen(store.path)
    assert store.write_offset == begin
    assert [record.body for record in pull_all(store, "orders", 0)] == [each.message.body for each in sent]
    assert end_of(log) == begin
    dispatch(store)
    store.close()
