"""A notice that becomes true by a sync: the compiled thread sends it, and the event loop learns of both later."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.background.flush import FileSync, Notice
from flintmq.broker.kernels import sync_loop

pytestmark = pytest.mark.skipif(not sync_loop.AVAILABLE, reason="this platform or mode has no compiled thread")

CONTENT = b"the log is on disk"


@dataclass
class File:
    fd: int
    path: Path


class Disk:
    """A file to sync, and the two ends of a connection on which notices are sent."""

    def __init__(self, file: File) -> None:
        loop = asyncio.get_running_loop()
        self.synced: asyncio.Queue[OSError | None] = asyncio.Queue()
        self.sent: asyncio.Queue[int] = asyncio.Queue()
        self.file: Any = file
        self.here, self.there = socket.socketpair()
        self.there.settimeout(30)
        sync = FileSync.start(loop, self.synced.put_nowait)
        assert sync is not None
        self.sync = sync

    def notice(self) -> Notice:
        return Notice(self.here.fileno(), CONTENT, self.sent.put_nowait)

    def arrived(self) -> bytes:
        """Return what has arrived, without waiting for it."""
        self.there.setblocking(False)
        try:
            return self.there.recv(100)
        except BlockingIOError:
            return b""

    async def stop(self) -> None:
        await asyncio.to_thread(self.sync.stop)
        self.here.close()
        self.there.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    yield File(fd, path)
    os.close(fd)


async def test_a_notice_arrives_before_the_loop_knows_of_the_sync(file: File) -> None:
    disk = Disk(file)
    disk.sync.request(disk.file, disk.notice())
    assert disk.there.recv(100) == CONTENT  # the loop stands still meanwhile
    assert disk.sync.busy
    assert await disk.sent.get() == len(CONTENT)
    assert await disk.synced.get() is None
    await disk.stop()


async def test_a_notice_is_sent_after_one_sync_only(file: File) -> None:
    disk = Disk(file)
    for notice in (disk.notice(), None):
        disk.sync.request(disk.file, notice)
        assert await disk.synced.get() is None
    assert disk.arrived() == CONTENT
    await disk.stop()


async def test_a_withdrawn_notice_is_not_sent(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(file)
    wake = os.eventfd_write

    def withdraw_first(fd: int, value: int) -> None:
        disk.sync.withdraw_notice()
        wake(fd, value)

    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd_write", withdraw_first)
        disk.sync.request(disk.file, disk.notice())
    assert await disk.sent.get() == 0
    assert await disk.synced.get() is None
    assert disk.arrived() == b""
    await disk.stop()


async def test_nothing_is_sent_after_a_sync_that_failed(file: File) -> None:
    disk = Disk(file)
    pipe = os.pipe()
    disk.file = File(pipe[0], file.path)
    disk.sync.request(disk.file, disk.notice())
    assert await disk.sent.get() == 0
    assert isinstance(await disk.synced.get(), OSError)
    assert disk.arrived() == b""
    await disk.stop()
    for fd in pipe:
        os.close(fd)


async def test_a_notice_to_a_closed_connection_is_not_sent_and_harms_nothing(file: File) -> None:
    disk = Disk(file)
    disk.here.shutdown(socket.SHUT_RDWR)
    for _ in range(2):
        disk.sync.request(disk.file, disk.notice())
        assert await disk.sent.get() < 0
        assert await disk.synced.get() is None
    await disk.stop()
