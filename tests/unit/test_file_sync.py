"""The thread that syncs the log, and the responses that it sends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.broker.background.file_sync import EarlyResponses, FileSync
from flintmq.broker.background.flush import GroupCommitService
from flintmq.broker.kernels import sync_loop
from flintmq.broker.store import Files
from tests.store_tools import SMALL, append, open_store, plain

pytestmark = pytest.mark.skipif(not sync_loop.AVAILABLE, reason="this platform or mode has no such thread")
WAIT_S = 30


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Any]:
    """Yield a file, as far as ``FileSync`` looks at it."""
    path = tmp_path / "log"
    path.write_bytes(bytes(100))
    fd = os.open(path, os.O_RDWR)
    yield SimpleNamespace(fd=fd, path=path)
    os.close(fd)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield two connected sockets that do not block."""
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    with here, there:
        yield here, there


class Syncs:
    """A ``FileSync`` on the running loop, and what it reports."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.reported: asyncio.Queue[OSError | None] = asyncio.Queue()
        self.sync = FileSync(asyncio.get_running_loop(), self.reported.put_nowait)
        asyncio.get_running_loop().add_reader(self.sync._results, self.sync._report)

    def early(self, to: socket.socket, content: bytes) -> EarlyResponses:
        """Return responses for a socket."""
        return EarlyResponses(os.dup(to.fileno()), content, self.sent.append)

    async def report(self) -> OSError | None:
        """Return the next report; start the thread if it does not run."""
        if not self.sync._thread.is_alive():
            self.sync._thread.start()
        return await asyncio.wait_for(self.reported.get(), WAIT_S)


def run(test: Callable[[Syncs], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop, and stop its thread."""

    async def main() -> None:
        syncs = Syncs()
        await test(syncs)
        await asyncio.get_running_loop().run_in_executor(None, syncs.sync.stop)

    asyncio.run(main())


def test_the_thread_sends_the_responses_after_the_sync(log_file: Any, pair: tuple[socket.socket, ...]) -> None:
    async def test(syncs: Syncs) -> None:
        syncs.sync.request(log_file, syncs.early(pair[0], b"stored"))
        assert await syncs.report() is None
        assert syncs.sent == [6]
        assert pair[1].recv(100) == b"stored"
        syncs.sync.request(log_file)
        assert await syncs.report() is None
        with pytest.raises(BlockingIOError):
            pair[1].recv(100)

    run(test)


def test_responses_that_are_taken_back_are_not_sent(log_file: Any, pair: tuple[socket.socket, ...]) -> None:
    async def test(syncs: Syncs) -> None:
        syncs.sync.request(log_file, syncs.early(pair[0], b"stored"))
        assert syncs.sync.take_back()
        assert await syncs.report() is None
        assert syncs.sent == [0]
        with pytest.raises(BlockingIOError):
            pair[1].recv(100)
        # The next request is not affected.
        syncs.sync.request(log_file, syncs.early(pair[0], b"next"))
        assert await syncs.report() is None
        assert pair[1].recv(100) == b"next"

    run(test)


def test_responses_that_were_sent_cannot_be_taken_back(log_file: Any, pair: tuple[socket.socket, ...]) -> None:
    async def test(syncs: Syncs) -> None:
        syncs.sync.request(log_file, syncs.early(pair[0], b"stored"))
        assert await syncs.report() is None
        assert not syncs.sync.take_back()

    run(test)


def test_nothing_is_sent_after_a_failed_sync(pair: tuple[socket.socket, ...], tmp_path: Path) -> None:
    async def test(syncs: Syncs) -> None:
        reads, writes = os.pipe()  # a pipe cannot be synced
        syncs.sync.request(SimpleNamespace(fd=reads, path=tmp_path), syncs.early(pair[0], b"stored"))  # type: ignore[arg-type]  # a stand-in
        error = await syncs.report()
        os.close(reads)
        os.close(writes)
        assert error is not None
        assert error.errno == errno.EINVAL
        assert syncs.sent == [0]
        assert not syncs.sync.synced
        with pytest.raises(BlockingIOError):
            pair[1].recv(100)

    run(test)


def test_a_client_that_does_not_read_does_not_stop_the_thread(log_file: Any, pair: tuple[socket.socket, ...]) -> None:
    async def test(syncs: Syncs) -> None:
        for size in (65536, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    pair[0].send(bytes(size))
        syncs.sync.request(log_file, syncs.early(pair[0], b"stored"))
        assert await syncs.report() is None
        assert syncs.sent == [0]
        pair[1].close()
        syncs.sync.request(log_file, syncs.early(pair[0], b"stored"))
        assert await syncs.report() is None
        assert syncs.sent == [0, 0]

    run(test)


def test_each_request_closes_its_descriptor(log_file: Any, pair: tuple[socket.socket, ...]) -> None:
    async def test(syncs: Syncs) -> None:
        for _ in range(3):
            early = syncs.early(pair[0], b"stored")
            syncs.sync.request(log_file, early)
            await syncs.report()
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(early.socket)

    run(test)


def test_the_flush_offers_each_wait_once(tmp_path: Path) -> None:
    """A message that no client waits for may follow one whose responses are about to be sent by the loop."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        settings = dataclasses.replace(SMALL, flush_policy="sync")
        store = open_store(tmp_path / "store", settings, Files())
        service = GroupCommitService(store, loop.call_soon_threadsafe, lambda name, error: loop.stop())
        service.use_compiled_thread(loop)
        service.start()
        append(store, "orders", 0, plain(1))
        service.wake()  # the Python thread flushes the name of the new file too
        await flushed(service, store.write_offset)
        for _ in range(20):
            offers: list[int] = []

            def offer(end_offset: int, take_back: Callable[[], bool], offers: list[int] = offers) -> None:
                offers.append(end_offset)

            append(store, "orders", 0, plain(1))
            acknowledged = flushed(service, store.write_offset, offer)
            expected = [store.write_offset]
            service.wake()
            append(store, "orders", 0, plain(1))
            await acknowledged
            assert offers == expected
            await flushed(service, store.write_offset)
        await loop.run_in_executor(None, service.stop)
        store.close()

    asyncio.run(test())


async def _done(future: asyncio.Future[None]) -> None:
    await asyncio.wait_for(future, WAIT_S)


def flushed(service: GroupCommitService, end_offset: int, offer: Any = None) -> Coroutine[Any, Any, None]:
    """Wait for the flush of what is below ``end_offset``."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    service.wait_for(end_offset, lambda error: future.set_result(None), offer)
    return _done(future)
