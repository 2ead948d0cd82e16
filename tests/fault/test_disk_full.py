"""A full disk: producers are refused before anything is written, nothing is lost or duplicated, and service resumes by
itself."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.background.services import ReputMessageService
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
    pull_all,
    put,
    queue_files,
    reopen,
)


class FullFiles(UnsyncedFiles):
    """A disk with space for ``room`` more allocations, writes, new files and new names; None: unlimited.

    A write to allocated bytes needs no space.
    """

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.refused = 0
        self._allocated: dict[int, int] = {}
        """End of the allocated bytes by descriptor."""

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
        self._allocated[fd] = at + size

    def close(self, fd: int) -> None:
        self._allocated.pop(fd, None)
        super().close(fd)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Write; needs space unless it is allocated. Without space, half of the data is written."""
        try:
            if at + len(data) > self._allocated.get(fd, 0):
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


class FailingWrites(UnsyncedFiles):
    """A disk on which the ``nth`` write to the log from now on fails with ``number``, after half of its bytes, and with
    ``stays`` every later write too."""

    def __init__(self) -> None:
        self.nth = 0
        self.number = errno.ENOSPC
        self.stays = False

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().parent.name == "commitlog":
            self.nth -= 1
            if self.nth == 0 or (self.nth < 0 and self.stays):
                super().write(fd, memoryview(data)[: len(data) // 2], at)
                raise OSError(self.number, os.strerror(self.number), str(Path(f"/proc/self/fd/{fd}").readlink()))
        super().write(fd, data, at)


WRITES_ACROSS_FILES = 6
"""Number of writes of the frame below: a write of each buffer, and of a blank."""


def nearly_full(path: Path, files: FailingWrites) -> tuple[MessageStore, list[Sent]]:
    """Return a store whose first log file has room for one more buffer and a half, and its messages."""
    store = open_store(path, files=files)
    return store, put(store, "orders", 0, plain(25, size=100_000))


@pytest.mark.parametrize("nth", range(1, WRITES_ACROSS_FILES + 1))
def test_a_frame_that_a_full_disk_cuts_short_leaves_no_record(tmp_path: Path, nth: int) -> None:
    files = FailingWrites()
    store, sent = nearly_full(tmp_path / "store", files)
    end = store.write_offset
    files.nth = nth
    with pytest.raises(ServiceNotAvailable, match="is full"):
        append(store, "orders", 0, plain(40, first=25, size=100_000))
    assert store.write_offset == end
    for file in [*store.commitlog.queue.files, *store.commitlog.ahead.prepared]:
        assert not file.array()[max(end - file.start_offset, 0) :].any()
    crashed = tmp_path / "crashed"
    shutil.copytree(store.path, crashed)
    # The same sizes again: anything left of the refused frame would follow the new record without a gap.
    sent += put(store, "orders", 0, plain(1, first=25, size=100_000))
    assert_holds(store, sent)
    sent += put(store, "orders", 0, plain(40, first=26, size=100_000))
    assert_holds(store, sent)
    kill(store)
    for path, expected in ((store.path, sent), (crashed, sent[:25])):
        store = open_store(path)
        assert_holds(store, expected)
        store.close()


def test_the_frame_across_two_files_takes_that_many_writes(tmp_path: Path) -> None:
    files = FailingWrites()
    store, _ = nearly_full(tmp_path / "store", files)
    files.nth = 0
    append(store, "orders", 0, plain(40, first=25, size=100_000))
    assert -files.nth == WRITES_ACROSS_FILES
    assert len(store.commitlog.queue.files) == 2
    store.close()


@pytest.mark.parametrize("nth", range(1, WRITES_ACROSS_FILES + 1))
@pytest.mark.parametrize(("number", "stays"), [(errno.EIO, False), (errno.ENOSPC, True)], ids=["EIO", "ENOSPC"])
def test_a_log_that_cannot_be_written_stops_the_store_with_the_reason(
    tmp_path: Path, nth: int, number: int, stays: bool
) -> None:
    files = FailingWrites()
    store, sent = nearly_full(tmp_path / "store", files)
    end = store.write_offset
    files.nth, files.number, files.stays = nth, number, stays
    with pytest.raises(StoreFailed, match=rf"cannot be written: .*{os.strerror(number)}.*commitlog.*the broker ends"):
        append(store, "orders", 0, plain(40, first=25, size=100_000))
    assert store.write_offset == end
    assert isinstance(store.failed, StoreFailed)
    with pytest.raises(ServiceNotAvailable, match="stopped writing"):
        append(store, "orders", 0, plain(1))
    kill(store)
    store, report = reopen(tmp_path / "store")
    assert report.quarantined == []
    found = [message.body for message in pull_all(store, "orders", 0)]
    assert found[:25] == [each.message.body for each in sent]
    store.close()
