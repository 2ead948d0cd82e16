"""The run of a follower: a store gets the log and the tables of a RocketMQ master until the process is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ...protocol.display import show_bytes
from ...protocol.errors import ConnectionFailed, RequestTimeout
from ...protocol.storage.layout import MAGIC_BLANK, SysFlag
from ...protocol.storage.record import Record, decode_record
from ..addresses import format_address, parse_address
from ..background.services import CHECKPOINT_S
from ..store import LogCopyRefused, MessageStore, StoreError
from ..store.queues import last_record_unit
from ..store.tables.checkpoint import StoreCheckpoint
from ..store.tables.store_state import DeletedTopic
from .ha_connection import (
    HaConnection,
    HaReceiver,
    HaStreamError,
    HistoryDiffers,
    MasterRefused,
    MasterUnsuitable,
    RecordBytes,
    StillServing,
    ha_connected,
)
from .master import (
    DELAY_LEVELS,
    LogExtent,
    MasterClient,
    MasterSettings,
    MasterTables,
    apply_names,
    apply_progress,
    connected,
    read_extent,
    read_record,
    read_settings,
    read_tables,
)

# ---- The store's side of a migration: append, flush and dispatch what a master sends. One thread owns all of
# it.

_BEGINNING = struct.Struct(">ii")
"""Length and magic number of a record."""

log = logging.getLogger(__name__)


class LogFollower:
    """A store that gets its log from a master."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store

    @property
    def is_empty(self) -> bool:
        return self.store.write_offset == self.store.min_physical_offset

    @property
    def unflushed_bytes(self) -> int:
        return self.store.write_offset - self.store.flushed_offset

    def begin_at(self, physical_offset: int) -> None:
        """Begin a log without files where the master's begins."""
        if physical_offset and not self.store.commitlog.queue.files:
            self.store.log_copy.begin_at(physical_offset)
            self.store.dispatcher.reput_offset = physical_offset

    def newest_record(self) -> tuple[int, bytes] | None:
        """Return physical offset and bytes of the newest record that has a ConsumeQueue unit; None without one."""
        units = [last_record_unit(queue, queue.max_offset) for queue in self.store.queues]
        newest = max(((unit[1], unit[2]) for unit in units if unit is not None), default=None)
        if newest is None or newest[0] < self.store.min_physical_offset:
            return None
        return newest[0], bytes(self._read(*newest))

    def append(self, records: RecordBytes) -> None:
        """Append records that follow the log. Raises ``LogCopyRefused`` if they are damaged, with nothing written."""
        self.store.log_copy.append(records.offset, records.data)

    def flush(self) -> None:
        """Put everything that was appended on disk, then into queues and index.

        After an OSError it is unknown what is on disk: the process must end without closing the store in order.
        """
        store = self.store
        # First: after a loss of power, the unit of a record that was not on disk would point to other bytes.
        end = store.flush()
        while (at := store.reput_offset) < end:
            store.dispatch(end)
            # Each record makes a unit, except for those of transactions of RocketMQ before 4.3 and of deleted topics.
            if store.dispatcher.dispatched_units < store.dispatcher.dispatched_records:
                self._find_recreated_topic(at, store.reput_offset)

    def check_dispatched(self, begin: int) -> None:
        """Look for recreated topics in what a start after a crash has dispatched, from ``begin`` on.

        A start takes their records for ones that have a unit already.
        """
        # A topic that begins again takes dispatch back; the flush dispatches from there.
        self._find_recreated_topic(max(begin, self.store.min_physical_offset), self.store.reput_offset)
        self.flush()

    def delete_below(self, physical_offset: int) -> None:
        """Delete the log's files that end at or before an offset, as the master did; never the last one."""
        files = self.store.commitlog.queue.files[:-1]
        if count := sum(1 for file in files if file.end_offset <= physical_offset):
            self.store.expire(count)

    def _find_recreated_topic(self, begin: int, end: int) -> None:
        """Look for a record without a unit, because the master deleted its topic and created it again.

        RocketMQ then counts queue offsets from 0 again. The queues here begin again too, and dispatch continues with
        that record; the older messages are deleted, as they are at the master.
        """
        at = begin
        while at < end:
            size, magic = _BEGINNING.unpack(self._read(at, _BEGINNING.size))
            if magic != MAGIC_BLANK:
                record = decode_record(bytes(self._read(at, size)))
                if self._lacks_unit(record):
                    self._begin_again(record.topic.decode(), at)
                    return
            at += size

    def _lacks_unit(self, record: Record) -> bool:
        topic = record.topic.decode()
        transaction = record.sys_flag & SysFlag.TRANSACTION_MASK
        queue = self.store.queues.get(topic, record.queue_id)
        return (
            transaction not in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK)
            and record.physical_offset >= self.store.state.deleted_below(topic)
            and queue is not None
            # The unit at its queue offset is that of an older message of the deleted topic.
            and queue.unit(record.queue_offset, hot=False)[0] != record.physical_offset
        )

    def _begin_again(self, topic: str, physical_offset: int) -> None:
        log.warning(
            "the master deleted topic %s and created it again: its messages before physical offset %d are gone",
            topic,
            physical_offset,
        )
        store = self.store
        # The note first: without it, a start after a crash could make the units of the older messages again.
        store.state.delete({topic: DeletedTopic(physical_offset, {})})
        for queue in store.queues.by_topic[topic].values():
            store.queues.move_aside(queue)
        store.queues.topic_deleted(topic)
        store.dispatcher.reput_offset = physical_offset

    def _read(self, physical_offset: int, size: int) -> bytearray:
        buffer = bytearray(size)
        self.store.commitlog.queue.read(physical_offset, memoryview(buffer), hot=False)
        return buffer


REPORT_EVERY_S = 5.0
"""RocketMQ's ``haSendHeartbeatInterval``; a master drops a slave that is silent for 20 s."""
TABLES_EVERY_S = 10.0
RECONNECT_S = (1.0, 2.0, 5.0)
"""Pauses before the next attempts to connect; the last one is repeated."""
DAMAGED_MAX = 3
"""Number of times in a row that bytes may be refused before the run ends."""
UNFLUSHED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that are appended at most before a flush, while more are there to be read."""
BULK_BYTES = 128 * 1024
"""A read of fewer bytes emptied the connection: what came so far is flushed and reported at once."""
QUIET_S = 0.005
"""Time without bytes after which everything is flushed."""

_MAY_PASS = (ConnectionFailed, RequestTimeout, MasterRefused)
"""Errors after which the master is asked again; one that starts, or stops, refuses requests for a moment."""

T = TypeVar("T")


class MasterFollower:
    """One run. ``store`` is open, and nothing else uses it; ``say`` prints a line for the operator."""

    def __init__(self, store: MessageStore, host: str, port: int, say: Callable[[str], None]) -> None:
        self._store = store
        self._log = LogFollower(store)
        self._host, self._port = host, port
        self._address = format_address(host, port)
        self._say = say
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="store")
        """The thread that owns the store."""
        self._flushed = asyncio.Condition()
        self._tables_at = ""
        self._checked = asyncio.Event()
        """Set while the master is connected whose log the store's is the beginning of."""

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the master until ``stop`` is set.

        Raises ``MigrationError`` if a person has to decide; otherwise errors of the store, after which it must not be
        closed in order.
        """
        parts: list[Coroutine[Any, Any, object]] = [self._copy_until_refused(), self._follow_tables(), self._sync()]
        tasks = [asyncio.create_task(part) for part in (*parts, stop.wait())]
        try:
            # Of all tasks only ``stop`` ends without an error.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._worker.shutdown()  # waits for the step that is running

    async def _own(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a step on the store's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    # ---- the log ----

    async def _copy_until_refused(self) -> None:
        failures = damaged = 0
        while True:
            before = self._store.write_offset
            try:
                await self._copy()
            except _MAY_PASS as error:
                damaged = 0 if self._store.write_offset > before else damaged
                said = str(error)
            except (HaStreamError, LogCopyRefused) as error:
                # Progress shows that the log itself continues: only refusals without progress in between count.
                damaged = 1 if self._store.write_offset > before else damaged + 1
                if damaged == DAMAGED_MAX:
                    raise
                said = str(error)
            # A connection that brought something was a good one: the pauses begin with the shortest again.
            failures = 0 if self._store.write_offset > before else failures
            pause_s = RECONNECT_S[min(failures, len(RECONNECT_S) - 1)]
            failures += 1
            self._say(f"{said}; next attempt in {pause_s:.0f} s")
            await asyncio.sleep(pause_s)

    async def _copy(self) -> None:
        """Copy the log over one connection, until that ends. Raises the reason, always."""
        async with connected(self._host, self._port) as client:
            settings = await read_settings(client)
            extent = await read_extent(client)
            await self._check_master(client, settings, extent)
        store = self._store
        # Before the first byte of the log, so that the store always says whose copy it is.
        if store.followed_master.address() != self._address:
            await self._own(store.followed_master.note, self._address)
        await self._own(self._log.begin_at, extent.begin)
        await self._own(self._log.flush)  # the first report, too, is of what is on disk
        async with ha_connected(self._host, settings.ha_port) as connection:
            receiver = HaReceiver(store.write_offset)
            connection.report(receiver.first_report)
            self._say(f"connected to {connection.address}; the log continues at {store.write_offset:,}")
            reports = asyncio.create_task(self._report(connection))
            self._checked.set()
            try:
                await self._receive(connection, receiver)
            finally:
                self._checked.clear()
                reports.cancel()

    async def _receive(self, connection: HaConnection, receiver: HaReceiver) -> None:
        while True:
            data = await connection.read(QUIET_S) if self._log.unflushed_bytes else await connection.read()
            # After a quiet moment there are no bytes, and what was appended before is flushed.
            if data and (records := receiver.feed(data)) is not None:
                await self._own(self._log.append, records)
            unflushed = self._log.unflushed_bytes
            if unflushed and (len(data) < BULK_BYTES or unflushed >= UNFLUSHED_BYTES_MAX):
                await self._own(self._log.flush)
                # A synchronous master acknowledges to its producers what is reported, so only flushed bytes count.
                connection.report(self._store.flushed_offset)
                async with self._flushed:
                    self._flushed.notify_all()

    async def _report(self, connection: HaConnection) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            connection.report(self._store.flushed_offset)

    async def _check_master(self, client: MasterClient, settings: MasterSettings, extent: LogExtent) -> None:
        """Raise ``MasterUnsuitable`` or ``HistoryDiffers`` unless the store's log is the beginning of the master's."""
        own_bytes = self._store.settings.commitlog_file_bytes
        # The log's bytes include the blanks at the ends of the master's files.
        if settings.commitlog_file_bytes != own_bytes:
            raise MasterUnsuitable(
                f"{self._address} has log files of {settings.commitlog_file_bytes:,} bytes "
                f"(mappedFileSizeCommitLog), and this store of {own_bytes:,}: follow it into an empty folder with "
                f"--set store.commitlog_file_bytes={settings.commitlog_file_bytes}"
            )
        if extent.begin % own_bytes or extent.end < extent.begin:
            raise MasterUnsuitable(
                f"{self._address} says that its log is from {extent.begin:,} to {extent.end:,}, which is not from the "
                f"begin of a file of {own_bytes:,} bytes on: check its store"
            )
        if settings.delay_levels != DELAY_LEVELS:
            self._say(
                f"note: {self._address} has its own messageDelayLevel; after the promotion, delayed messages are "
                f"delivered by RocketMQ's default levels ({DELAY_LEVELS})"
            )
        await check_history(self._log, client, extent)

    # ---- the tables ----

    async def _follow_tables(self) -> None:
        while True:
            await self._checked.wait()
            began = time.monotonic()
            try:
                async with connected(self._host, self._port) as client:
                    tables = await read_tables(client, await read_settings(client))
                    # Asked last: every message that the tables count as delivered or consumed is below its end.
                    extent = await read_extent(client)
            except _MAY_PASS as error:
                self._say(f"the tables were not taken: {error}")
            else:
                await self._take_tables(tables, extent)
            await asyncio.sleep(max(began + TABLES_EVERY_S - time.monotonic(), 0))

    async def _take_tables(self, tables: MasterTables, extent: LogExtent) -> None:
        # Names need no log; progress must not be ahead of it, so it waits for another time if the log is far behind.
        await self._own(apply_names, self._store, tables)
        self._say(self.status(extent))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TABLES_EVERY_S), self._flushed:
                await self._flushed.wait_for(lambda: self._store.flushed_offset >= extent.end)
        if self._store.flushed_offset >= extent.end:
            await self._own(apply_progress, self._store, tables)
            self._tables_at = time.strftime("%H:%M:%S")
            await self._own(self._log.delete_below, extent.begin)

    def status(self, extent: LogExtent) -> str:
        """Return the line that says how far the store is behind its master."""
        end = self._store.write_offset
        behind = max(extent.end - end, 0)
        last_ms = self._store.commitlog.last_store_ms
        seconds = max(time.time() - last_ms / 1000, 0) if behind and last_ms else 0
        age = f"{seconds:,.0f} s" if last_ms or not behind else "all of it"
        return (
            f"behind {show_bytes(behind)}, {age}; the log ends at {end:,}, the master's at {extent.end:,}; offsets "
            + (f"as of {self._tables_at}" if self._tables_at else "not taken yet, which needs a complete log")
        )

    async def _sync(self) -> None:
        """Sync queues and index from time to time, so that less is dispatched again after a crash."""
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            await self._own(self._store.sync_derived)


@contextlib.contextmanager
def opened_follower(store: MessageStore, progress: Callable[[str, int, int], None]) -> Iterator[None]:
    """Open a store to follow or to promote it, and close it. Raises as ``MessageStore.open``.

    After an error of the disk or of the store nothing more is written, and the next start recovers.
    """
    store.followed_master.is_expected = True
    # Read before the start, which moves its mark on.
    checkpoint = StoreCheckpoint(store.files, store.path / "checkpoint")
    checkpoint.load()
    store.open(progress)
    try:
        if checkpoint.mark is not None and not store.ended_clean:
            LogFollower(store).check_dispatched(checkpoint.mark.dispatched_offset)
        yield
    except (OSError, StoreError) as error:
        # Nothing of refused bytes was written, so the store is sound and may be closed in order.
        if not isinstance(error, LogCopyRefused):
            store.failed = error
        raise
    finally:
        try:
            if store.failed is None:
                LogFollower(store).flush()
        finally:
            store.close()


async def check_history(log: LogFollower, client: MasterClient, extent: LogExtent) -> None:
    """Raise ``HistoryDiffers`` unless the log is the beginning of the master's. RocketMQ's slaves do not check it."""
    if log.is_empty and not log.store.write_offset:
        return
    path, end = log.store.path, log.store.write_offset
    if end > extent.end:
        raise HistoryDiffers(
            f"{path} ends at {end:,}, and the log of {client.address} at {extent.end:,}: it is another log, or it lost "
            "its newest messages. Follow it into an empty folder, or take this store over with `flintmq-broker promote`"
        )
    if end < extent.begin:
        raise HistoryDiffers(
            f"{path} ends at {end:,}, and {client.address} has deleted its log below {extent.begin:,}: what is between "
            "them is lost to this store. Follow it into an empty folder"
        )
    # Without a record, only the places of begin and end can be compared.
    if log.is_empty:
        return
    newest = log.newest_record()
    if newest is None or await read_record(client, newest[0]) != newest[1]:
        place = f"its record at offset {newest[0]:,} is another there" if newest else "it has no record to compare"
        raise HistoryDiffers(
            f"{path} is not a copy of the log of {client.address}: {place}. Follow it into an empty folder"
        )


# ---- End of a migration: the store of a follower becomes FlintMQ's own.


async def take_last_tables(store: MessageStore) -> bool:
    """Take the tables of the master that the store follows once more; return whether the master could be reached.

    Raises ``StillServing`` if it has messages that the store lacks, or may still get some, and ``HistoryDiffers`` if it
    has another log.
    """
    host, port = parse_address(store.followed_master.address())
    try:
        async with connected(host, port) as client:
            settings = await read_settings(client)
            tables = await read_tables(client, settings)
            # After the tables: what they count as delivered or consumed is below this end.
            extent = await read_extent(client)
            await check_history(LogFollower(store), client, extent)
            address = client.address
    except (ConnectionFailed, RequestTimeout):
        return False
    if extent.end > store.write_offset:
        raise StillServing(
            f"{address} has {extent.end - store.write_offset:,} bytes of log that {store.path} lacks: run "
            f"`flintmq-broker follow-rocketmq {address}` until it is behind by nothing, or give them up with --force"
        )
    if settings.takes_messages:
        raise StillServing(
            f"{address} still takes messages: stop it, or make it read-only (mqadmin updateBrokerConfig -b {address} "
            "-k brokerPermission -v 4) and follow it to its end; --force ignores it"
        )
    apply_names(store, tables)
    apply_progress(store, tables)
    return True
