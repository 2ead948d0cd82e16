"""A full disk: producers are refused before anything is written, nothing is lost or duplicated, and service resumes by
itself."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.background.reput import ReputMessageService
from flintmq.broker.store import MessageStore, StoreFailed, TopicConfig
from flintmq.protocol.errors import ServiceNotAvailable
from tests.store_tools import (
    SMALL,
    Sent,
    UnsyncedFiles,
    append,
    assert_holds,
    index_files,
    kill,
    open_store,
    plain,
    put,
    queue_files,
)


class FullFiles(UnsyncedFiles):
    """A disk with space for ``room`` more allocations, writes, new files and new names; None: unlimited."""

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.refused = 0

    def _take(self) -> None:
        if self.room is None:
            return
        if self.room == 0:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= 1

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open; a new file needs space."""
        if create and not path.exists():
            self._take()
        return super().open(path, create=create)

    def allocate(self, fd: int, at: int, size: int) -> None:
        """Allocate; needs space."""
        self._take()
        super().allocate(fd, at, size)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Write; needs space. Without it, half of the data is written."""
        try:
            self._take()
        except OSError:
            super().write(fd, memoryview(data)[: len(data) // 2], at)
            raise
        super().write(fd, data, at)

    def rename(self, source: Path, target: Path) -> None:
        """Rename; needs space if the folder gets a new name."""
        if not target.exists():
            self._take()
        super().rename(source, target)

    def free_bytes(self, path: Path) -> int:
        """Return the remaining space."""
        return 4096 if self.room == 0 else super().free_bytes(path)


def test_reads_and_writes_that_still_fit_continue_while_the_disk_is_full(tmp_path: Path) -> None:
    files = FullFiles()
    store = open_store(tmp_path / "store", files=files)
    sent = put(store, "orders", 0, plain(10, size=90_000))
    files.room = 0
    with pytest.raises(ServiceNotAvailable):
        append(store, "orders", 0, plain(10, size=400_000))
    assert_holds(store, sent)
    while True:
        try:
            sent += append(store, "orders", 0, plain(1, first=len(sent), size=1000))
        except ServiceNotAvailable:
            break
    assert len(sent) > 11
    files.room = None
    assert [each.queue_offset for each in sent] == list(range(len(sent)))
    store.close()
    store = open_store(tmp_path / "store")
    assert_holds(store, sent)
    store.close()


def dispatch_on_a_disk_that_fills(store: MessageStore, files: FullFiles, source: random.Random) -> int:
    """Dispatch everything while the disk is full at times; return how often it was."""
    refused = 0
    while store.reput_offset < store.write_offset:
        files.room = source.choice([0, 0, 1, 2, 3, 7, None])
        try:
            store.dispatch(store.write_offset, chunk_bytes=source.choice([100, 3000, 1 << 20]))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            refused += 1
    files.room = None
    return refused


@pytest.mark.parametrize("seed", range(4))
def test_queues_and_index_lose_and_duplicate_nothing_if_the_disk_is_full_meanwhile(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    files = FullFiles()
    store = open_store(tmp_path / "store", files=files)
    untroubled = open_store(tmp_path / "untroubled")
    sent: list[Sent] = []
    for each in (store, untroubled):
        for topic in ("orders", "bills"):
            each.topics.put(TopicConfig(topic))
    refused = 0
    for number in range(0, 600, 20):
        topic, queue = source.choice(["orders", "bills"]), source.randrange(3)
        sent += append(store, topic, queue, plain(20, first=number))
        put(untroubled, topic, queue, plain(20, first=number))
        store.flush()
        refused += dispatch_on_a_disk_that_fills(store, files, source)
    assert refused > 20
    assert_holds(store, sent)
    queues, index = queue_files(store.path), index_files(store.path)
    assert queues.keys() == queue_files(untroubled.path).keys()
    untroubled.close()
    kill(store)
    shutil.rmtree(store.path / "consumequeue")
    shutil.rmtree(store.path / "index")
    store = open_store(tmp_path / "store")
    assert queue_files(store.path) == queues
    assert index_files(store.path) == index
    store.close()


def test_a_disk_without_space_for_queues_does_not_keep_the_loop_busy(tmp_path: Path) -> None:
    """However few records are due: if the thread returned them to the loop, the two would pass them back and forth
    without a pause."""
    files = FullFiles()
    store = open_store(tmp_path / "store", files=files)
    sent = put(store, "orders", 0, plain(5)) + append(store, "orders", 0, plain(5, first=5))
    store.flush()
    posted: list[tuple[Callable[..., None], tuple[object, ...]]] = []
    touched: list[object] = []
    service = ReputMessageService(
        store, lambda call, *arguments: posted.append((call, arguments)), touched.append, lambda name, error: None
    )
    files.room = 0
    service.step()
    for _ in range(3):
        refused = files.refused
        assert service.do_once()
        assert files.refused > refused
        assert posted == []
    files.room = None
    while service.do_once():
        pass
    for call, arguments in posted:
        call(*arguments)
    assert touched == [[("orders", 0, 10)]]
    assert_holds(store, sent)
    store.close()


def prepare_all(store: MessageStore) -> None:
    """Do the work of the allocation service."""
    while store.commitlog.prepare_ahead():
        pass


def test_the_next_file_is_allocated_ahead_and_a_full_disk_there_refuses_no_producer(tmp_path: Path) -> None:
    files = FullFiles()
    store = open_store(tmp_path / "store", files=files)
    sent = put(store, "orders", 0, plain(9, size=400_000))
    files.room = 0
    with pytest.raises(OSError, match="No space"):
        prepare_all(store)
    assert not list((store.path / "flintmq" / "new").iterdir())
    files.room = None
    prepare_all(store)
    assert len(list((store.path / "commitlog").iterdir())) == 1, "a file is entered only when it is needed"
    files.room = 1  # for its name
    sent += append(store, "orders", 0, plain(4, first=9, size=200_000))
    assert files.room == 0
    assert sent[-1].physical_offset > SMALL.commitlog_file_bytes
    files.room = None
    store.close()
    store = open_store(tmp_path / "store")
    assert_holds(store, sent)
    store.close()


class BrokenAllocation(UnsyncedFiles):
    """A disk on which no more blocks can be allocated, for a reason other than being full."""

    broken = False

    def allocate(self, fd: int, at: int, size: int) -> None:
        """Fail if ``broken`` is set."""
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        super().allocate(fd, at, size)


def test_a_log_that_cannot_grow_stops_the_store_with_the_reason(tmp_path: Path) -> None:
    files = BrokenAllocation()
    store = open_store(tmp_path / "store", files=files)
    sent = put(store, "orders", 0, plain(3))
    files.broken = True
    reason = r"commitlog cannot be made longer: .*Input/output error.*the broker ends"
    with pytest.raises(StoreFailed, match=reason):
        prepare_all(store)
    with pytest.raises(StoreFailed, match=reason):
        put(store, "orders", 0, plain(30, size=400_000))
    assert isinstance(store.failed, StoreFailed)
    kill(store)
    store = open_store(tmp_path / "store")
    assert_holds(store, sent)
    store.close()
