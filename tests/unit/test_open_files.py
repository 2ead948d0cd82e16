"""Open files of ConsumeQueues: only a few of many are open, and readers and writers do not notice."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.store.files.file_system import Files, OpenFiles
from flintmq.broker.store.queues import ConsumeQueue
from flintmq.protocol.storage.layout import UNIT_BYTES

UNITS_A_FILE = 2


class CountingFiles(Files):
    """Keeps count of the open descriptors; at ``descriptors_max`` the next open fails."""

    def __init__(self, descriptors_max: int = 1000) -> None:
        self.descriptors_max = descriptors_max
        self.open_now: set[int] = set()

    def open(self, path: Path, *, create: bool = False) -> int:
        if len(self.open_now) >= self.descriptors_max:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        fd = super().open(path, create=create)
        self.open_now.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_now.remove(fd)
        super().close(fd)


def queues_of(files: Files, open_files: OpenFiles, folder: Path, count: int) -> list[ConsumeQueue]:
    file_bytes = UNITS_A_FILE * UNIT_BYTES
    return [
        ConsumeQueue(files, open_files, folder / str(queue), "orders", queue, file_bytes, queue)
        for queue in range(count)
    ]


def unit(number: int) -> bytes:
    return struct.pack(">qiq", number, 100, 0)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "gather", "read", "sync", "expire"]), st.integers(0, 3)), max_size=60
    ),
    files_max=st.integers(1, 4),
)
def test_written_data_is_read_with_few_open_files(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], files_max: int
) -> None:
    files, open_files = CountingFiles(), OpenFiles(files_max)
    queues = queues_of(files, open_files, tmp_path_factory.mktemp("queues"), 4)
    for what, number in steps:
        queue = queues[number]
        if what == "append":
            queue.append(memoryview(unit(queue.max_offset)))
        elif what == "gather":
            queue.gather(memoryview(unit(queue.max_offset)))
        elif what == "sync":
            queue.write_out()
            queue.sync()
            assert not queue.dirty
            assert b"".join(path.read_bytes() for path in sorted(queue.folder.glob("*"))).startswith(
                b"".join(unit(number) for number in range(queue.first_byte // UNIT_BYTES, queue.max_offset))
            )
        elif what == "expire":
            queue.expire(queue.max_offset // 2)
        else:
            first = queue.first_byte // UNIT_BYTES
            wanted = b"".join(unit(number) for number in range(first, queue.max_offset))
            assert queue.read_units(first, queue.max_offset - first, hot=False) == wanted
        assert len(files.open_now) == len(open_files) <= files_max
    for queue in queues:
        queue.close()
    assert not files.open_now


def test_a_queue_releases_a_descriptor_when_they_run_out(tmp_path: Path) -> None:
    files = CountingFiles(descriptors_max=2)
    queues = queues_of(files, OpenFiles(100), tmp_path, 5)
    for queue in queues:
        queue.append(memoryview(unit(7)))
    assert [queue.unit(0, hot=False) for queue in queues] == [(7, 100, 0)] * 5
    others, files.descriptors_max = files.open_now.copy(), 0
    for queue in queues:
        queue.close()
    assert others
    with pytest.raises(OSError, match="Too many open files"):
        queues_of(files, OpenFiles(100), tmp_path / "none", 1)[0].append(memoryview(unit(0)))


def test_a_reader_keeps_the_descriptor_that_it_reads(tmp_path: Path) -> None:
    files = CountingFiles()
    first, second = queues_of(files, OpenFiles(1), tmp_path, 2)
    first.append(memoryview(unit(1)))
    held = first._file(0)
    assert held is not None
    second.append(memoryview(unit(2)))
    assert first._files[0] is None, "it is not open for anybody else"
    assert held.fd in files.open_now
    del held
    assert len(files.open_now) == 1


def test_the_log_says_once_that_too_few_files_may_be_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queues = queues_of(Files(), OpenFiles(2), tmp_path, 3)
    for queue in queues[:2]:
        queue.append(memoryview(unit(0)))
    assert not caplog.messages
    for queue in queues * 2:
        queue.append(memoryview(unit(0)))
    (said,) = caplog.messages
    assert "than the 2 whose files may be open" in said
    assert "raise the open-file limit" in said


def test_the_file_that_was_used_last_stays_open(tmp_path: Path) -> None:
    queues = queues_of(Files(), OpenFiles(2), tmp_path, 4)
    for queue in queues[:3]:
        queue.append(memoryview(unit(0)))
    queues[2].unit(0, hot=False)
    assert [queue._files[0] is not None for queue in queues[:3]] == [False, True, True]
    queues[3].append(memoryview(unit(0)))
    assert queues[0]._files[0] is None
    assert queues[3]._files[0] is not None


class FailingFolders(Files):
    """The first sync of a folder fails."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync_folder(self, path: Path) -> None:
        self.syncs += 1
        if self.syncs == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        super().sync_folder(path)


def test_a_folder_whose_sync_failed_is_synced_again(tmp_path: Path) -> None:
    files = FailingFolders()
    (queue,) = queues_of(files, OpenFiles(4), tmp_path, 1)
    queue.folder.mkdir()
    queue.write_at(0, memoryview(unit(0)))
    with pytest.raises(OSError, match="Input/output error"):
        queue.sync()
    assert queue.dirty
    queue.sync()
    assert not queue.dirty
    assert files.syncs == 2
