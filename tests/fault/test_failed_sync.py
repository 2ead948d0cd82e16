"""A failing disk: the broker acknowledges no message that may not be on it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.background.flush import FlushService, flush_service
from flintmq.broker.background.services import ReputMessageService
from flintmq.broker.store import StoreFailed, StoreSettings
from flintmq.protocol.errors import BrokerError, ServiceNotAvailable
from tests.store_tools import MIB, UnsyncedFiles, append, make_topic, open_store, plain, reopen


class FailingDisk(UnsyncedFiles):
    """File system whose fdatasync fails with ``error`` while that is set."""

    error = 0
    write_error = 0

    def sync_data(self, fd: int) -> None:
        """Fail if ``error`` is set, otherwise do nothing."""
        if self.error:
            raise OSError(self.error, "the disk failed")

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Fail if ``write_error`` is set."""
        if self.write_error:
            raise OSError(self.write_error, "the disk failed")
        super().write(fd, data, at)


@pytest.mark.parametrize("policy", ["sync", "async"])
async def test_a_failed_sync_fails_every_waiting_producer_and_acknowledges_none(tmp_path: Path, policy: str) -> None:
    files = FailingDisk()
    settings = StoreSettings(
        commitlog_file_bytes=4 * MIB,
        consumequeue_file_bytes=1000,
        index_slots=500,
        index_entries=200,
        allocate_step_bytes=MIB,
        flush_policy=policy,
        flush_interval_ms=1,
    )
    store = open_store(tmp_path / "store", settings, files)
    loop = asyncio.get_running_loop()
    fatal: asyncio.Future[tuple[str, BaseException]] = loop.create_future()
    service = flush_service(store, loop.call_soon_threadsafe, lambda name, error: fatal.set_result((name, error)))
    service.start()
    make_topic(store, "orders")
    append(store, "orders", 0, plain(1))
    assert await flushed(service, store.write_offset) is None

    ends = []
    for _ in range(5):
        append(store, "orders", 0, plain(1))
        ends.append(store.write_offset)
    files.error = errno.EIO
    for answer in await asyncio.gather(*[flushed(service, end) for end in ends]):
        assert isinstance(answer, ServiceNotAvailable)
        assert "may or may not be stored" in str(answer)
    name, error = await fatal
    assert name == service.name
    assert isinstance(error, StoreFailed)
    assert store.failed is error

    files.error = 0  # a second try would succeed although the data is lost
    assert isinstance(await flushed(service, ends[0]), ServiceNotAvailable)
    with pytest.raises(ServiceNotAvailable, match="stopped writing"):
        append(store, "orders", 0, plain(1))
    service.stop()
    store.close()
    assert (store.path / "abort").exists()
    store, report = reopen(tmp_path / "store", settings)
    assert not report.clean
    assert store.queue_reads.max_offset("orders", 0) >= 1
    store.close()


async def flushed(service: FlushService, end_offset: int) -> BrokerError | None:
    """Wait until the disk has everything below ``end_offset``; return the result."""
    answer: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
    service.wait_for(end_offset, answer.set_result)
    service.wake()
    return await answer


def test_a_failed_write_of_queues_on_the_loop_ends_the_broker(tmp_path: Path) -> None:
    files = FailingDisk()
    store = open_store(tmp_path / "store", files=files)
    make_topic(store, "orders")
    posted: list[tuple[Callable[..., object], tuple[object, ...]]] = []
    ended: list[tuple[str, BaseException]] = []
    service = ReputMessageService(
        store,
        lambda call, *arguments: posted.append((call, arguments)),
        lambda touched: None,
        lambda name, error: ended.append((name, error)),
    )
    append(store, "orders", 0, plain(1))
    store.flush()
    files.write_error = errno.ENOSPC
    service.step()
    files.write_error = 0
    while service.do_once():
        pass
    append(store, "orders", 0, plain(1, first=1))
    store.flush()
    files.write_error = errno.EIO
    assert ended == []
    for call, arguments in posted:
        call(*arguments)
    ((name, error),) = ended
    assert name == "reput"
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO
    files.write_error = 0
    store.close()
