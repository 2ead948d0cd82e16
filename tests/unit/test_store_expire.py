"""Retention in the store: it deletes the oldest CommitLog files, and only the entries that refer to them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore, PullSelection
from flintmq.broker.store.queues import SCHEDULE_TOPIC
from flintmq.broker.store.retention import HALF_TOPIC, TIMER_TOPIC
from flintmq.protocol.errors import OffsetOutOfRange
from flintmq.protocol.storage.record import Record, encode_properties
from tests.store_tools import (
    MIB,
    SMALL,
    Sent,
    UnsyncedFiles,
    append,
    assert_found,
    assert_holds,
    dispatch,
    find,
    kill,
    open_store,
    plain,
    pull_all,
    put,
    reopen,
)

FILE_BYTES = SMALL.commitlog_file_bytes


def fill(store: MessageStore, files: int, topic: str = "orders") -> list[Sent]:
    """Put messages in two queues until the log has ``files`` files."""
    sent: list[Sent] = []
    for number in itertools.count():
        if len(store.commitlog.queue.files) >= files:
            return sent
        sent += put(store, topic, number % 2, plain(8, size=60_000, first=8 * number))
    raise AssertionError


def left(sent: list[Sent], store: MessageStore) -> list[Sent]:
    return [each for each in sent if each.physical_offset >= store.min_physical_offset]


def files_of(store: MessageStore, queue: str) -> int:
    return len(list((store.path / "consumequeue" / queue).iterdir()))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "store")
    yield store
    if store.failed is None:
        store.close()


def test_the_oldest_files_are_deleted_and_the_rest_is_served_and_found(store: MessageStore) -> None:
    sent = fill(store, 5)
    assert store.expire(3) == 3 * FILE_BYTES
    assert sorted(path.name for path in (store.path / "commitlog").iterdir()) == [
        f"{3 * FILE_BYTES:020d}",
        f"{4 * FILE_BYTES:020d}",
    ]
    kept = left(sent, store)
    assert 0 < len(kept) < len(sent)
    assert_holds(store, kept)
    assert find(store, "orders", sent[0].message.keys[0]) == []


@pytest.mark.parametrize("end", [MessageStore.close, kill])
def test_a_store_opens_after_files_went(tmp_path: Path, end: Callable[[MessageStore], None]) -> None:
    store = open_store(tmp_path / "store")
    sent = fill(store, 4)
    store.expire(2)
    end(store)
    store, report = reopen(tmp_path / "store")
    assert report.rebuilt == []
    assert store.min_physical_offset == 2 * FILE_BYTES
    sent += put(store, "orders", 0, plain(3, first=10_000))
    assert_holds(store, left(sent, store))
    store.close()


def test_a_vanished_offset_is_refused_with_the_new_minimum(store: MessageStore) -> None:
    sent = fill(store, 3)
    store.expire(1)
    expected = min(each.queue_offset for each in left(sent, store) if each.queue == 0)
    with pytest.raises(OffsetOutOfRange) as caught:
        store.pulls.pull("orders", 0, 0, PullSelection(10, MIB), hot=False)
    assert caught.value.min_offset == expected
    assert store.queue_reads.min_offset("orders", 0, hot=False) == expected


class Overtaken(UnsyncedFiles):
    """Files in which something else happens right after the first read of the log file ``path``."""

    path = Path()
    then: Callable[[], object] | None = None

    def read(self, fd: int, buffer: memoryview, at: int, *, wait: bool) -> int:
        """Read, then call ``then`` once."""
        count = super().read(fd, buffer, at, wait=wait)
        if self.then is not None and Path(f"/proc/self/fd/{fd}").readlink() == self.path:
            then, self.then = self.then, None
            then()
        return count


def test_a_pull_overtaken_by_retention_behaves_like_a_later_one(tmp_path: Path) -> None:
    files = Overtaken()
    store = open_store(tmp_path / "store", files=files)
    sent = fill(store, 3)
    expected = min(each.queue_offset for each in sent if each.queue == 0 and each.physical_offset >= FILE_BYTES)
    files.path = store.commitlog.queue.files[0].path
    files.then = lambda: store.expire(1)  # the units have been read, and some of their records
    with pytest.raises(OffsetOutOfRange) as caught:
        store.pulls.pull("orders", 0, 0, PullSelection(20, 4 * MIB), hot=False)
    assert caught.value.min_offset == expected
    assert store.pulls.pull("orders", 0, expected, PullSelection(20, 4 * MIB), hot=False).count == 20
    store.close()


def test_queue_files_go_with_the_log_but_the_last_stays(store: MessageStore) -> None:
    put(store, "bills", 0, plain(3))
    for number in range(40):
        put(store, "orders", 0, plain(10, size=10_000, first=10 * number))
    fill(store, len(store.commitlog.queue.files) + 2, "later")
    assert files_of(store, "orders/0") == 8
    store.expire(len(store.commitlog.queue.files) - 1)
    assert files_of(store, "orders/0") == 1
    assert files_of(store, "bills/0") == 1
    assert list(pull_all(store, "orders", 0)) == []


@pytest.mark.parametrize("end", [MessageStore.close, kill])
def test_a_queue_without_messages_continues_at_its_offset(tmp_path: Path, end: Callable[[MessageStore], None]) -> None:
    store = open_store(tmp_path / "store")
    put(store, "bills", 0, plain(7))
    fill(store, 3)
    store.expire(2)
    assert store.queue_reads.max_offset("bills", 0) == 7
    end(store)
    store = open_store(tmp_path / "store")
    sent = put(store, "bills", 0, plain(2, first=7))
    assert [each.queue_offset for each in sent] == [7, 8]
    assert_holds(store, sent)
    store.close()


def test_index_files_go_with_the_log_but_the_last_stays(store: MessageStore) -> None:
    sent = []
    for number in range(60):
        sent += put(store, "orders", 0, plain(20, size=6_000, first=20 * number))
    files = sorted((store.path / "index").iterdir())
    assert len(files) > 4
    store.expire(len(store.commitlog.queue.files) - 1)
    remaining = sorted((store.path / "index").iterdir())
    assert 1 <= len(remaining) < len(files)
    assert remaining == files[-len(remaining) :]
    assert_found(store, left(sent, store))


def test_nothing_goes_that_is_not_dispatched(store: MessageStore) -> None:
    for number in range(12):
        append(store, "orders", 0, plain(10, size=60_000, first=10 * number))
    store.flush()
    assert store.expire(1) == 0
    assert store.min_physical_offset == 0
    dispatch(store)
    assert store.expire(1) == FILE_BYTES


def test_a_reader_of_a_file_that_goes_reads_on(store: MessageStore) -> None:
    fill(store, 3)
    file = store.commitlog.queue.files[0]
    before, after = bytearray(1000), bytearray(1000)
    store.files.read(file.fd, memoryview(before), 0, wait=True)
    store.expire(2)
    assert not file.path.exists()
    store.files.read(file.fd, memoryview(after), 0, wait=True)
    assert after == before != bytearray(1000)


def test_the_age_of_a_file_is_that_of_its_newest_message(store: MessageStore) -> None:
    sent = fill(store, 4)
    store.topics.remove("orders")
    for file, old in zip(store.commitlog.queue.files, store.expiry.old_files(), strict=False):
        inside = [each for each in sent if file.start_offset <= each.physical_offset < file.end_offset]
        assert old.newest_ms == max(each.store_ms for each in inside)
        assert (old.path, old.bytes, old.kept_for) == (file.path, FILE_BYTES, "")


def test_the_last_file_is_never_offered(store: MessageStore) -> None:
    assert list(store.expiry.old_files()) == []
    put(store, "orders", 0, plain(1))
    assert list(store.expiry.old_files()) == []
    fill(store, 3)
    assert len(list(store.expiry.old_files())) == 2


def kept_for(store: MessageStore) -> list[str]:
    return [file.kept_for for file in store.expiry.old_files()]


def opened_with(path: Path, topic: str, queue: int, properties: list[dict[str, str]]) -> MessageStore:
    """Return a store whose log begins with messages that only a broker writes."""
    log = b""
    for number, each in enumerate(properties):
        log += Record(
            topic=topic.encode(),
            queue_id=queue,
            queue_offset=number,
            physical_offset=len(log),
            body=b"later",
            properties=encode_properties(each),
            store_timestamp=1_700_000_000_000,
        ).encode()
    (path / "commitlog").mkdir(parents=True)
    (path / "commitlog" / f"{0:020d}").write_bytes(log.ljust(FILE_BYTES, b"\0"))
    return open_store(path)


def test_a_file_with_a_message_that_is_to_be_delivered_later_stays(tmp_path: Path) -> None:
    store = opened_with(tmp_path / "store", SCHEDULE_TOPIC, 2, [{"REAL_TOPIC": "orders"}] * 2)
    fill(store, 3)
    assert kept_for(store) == ["a message that is delayed (level 3)"] * 2
    store.close()
    (store.path / "config" / "delayOffset.json").write_text(json.dumps({"offsetTable": {"3": 2}}))
    store = open_store(store.path)
    assert kept_for(store) == ["", ""]
    store.close()


def test_a_file_with_a_transaction_that_is_not_ended_stays(store: MessageStore) -> None:
    put(store, HALF_TOPIC, 0, plain(2))
    fill(store, 3)
    assert kept_for(store) == ["a message that is of an open transaction"] * 2
    store.consumer_offsets.commit("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0, 2)
    assert kept_for(store) == ["", ""]


def test_a_file_with_a_message_whose_time_is_to_come_stays(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    due = [{"TIMER_OUT_MS": str(now_ms + ms)} for ms in (-5000, 60_000, -1000)]
    store = opened_with(tmp_path / "store", TIMER_TOPIC, 0, due)
    fill(store, 2)
    waiting = "a message that is due at a later time"
    assert [file.kept_for for file in store.expiry.old_files(now_ms)] == [waiting]
    assert [file.kept_for for file in store.expiry.old_files(now_ms + 60_001)] == [""]
    store.close()
