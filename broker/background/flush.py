"""Flushing the CommitLog: GroupCommitService for sync, FlushRealTimeService for async.

A producer that must wait for the disk registers a callback with the offset it waits for; one fdatasync serves all of
them, and only one flush runs at a time. A failed fdatasync ends the process: the kernel marks the pages clean even if
they were not written, so a second fdatasync would falsely report success.

Every service has a Python thread. With sync flush, a flush of a single file runs in the compiled thread of
``flush.py`` instead, which needs no GIL; the Python thread flushes whatever else there is (a new file, a stop) and
writes the checkpoint's mark.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...protocol.errors import BrokerError, ServiceNotAvailable
from ..kernels import sync_loop as kernel
from ..latency import Latencies
from ..store import Files, StoreFailed
from .loop_work import Service

if TYPE_CHECKING:
    from ..store import MappedFile, MessageStore
    from .loop_work import CallAt, LoopTimer, OnFatal, Post


# ---- The compiled thread that syncs a file at a time for the event loop, and tells the loop when it is done.

OnSynced = Callable[[OSError | None], None]
"""Called on the loop after a sync, with its error or None."""

NOTICE_BYTES_MAX = 4096


class Notice(NamedTuple):
    """A message to another broker that becomes true when a flush is done; the compiled thread sends it then."""

    fd: int
    """Descriptor of the socket, which stays open until ``done``."""
    content: bytes
    """At most ``NOTICE_BYTES_MAX``."""
    done: Callable[[int], None]
    """Called on the loop after the flush, with the number of bytes that the socket took; 0 or less: none."""


class FileSync:
    """A thread that runs ``kernels.sync_loop``. All methods belong to the loop, except ``stop``.

    The loop writes a descriptor into a shared array and wakes the thread through one event counter; the thread reports
    through another one, which the loop polls with its sockets.
    """

    def __init__(self, loop: AbstractEventLoop, on_synced: OnSynced) -> None:
        self._loop = loop
        self._on_synced = on_synced
        self._slots = np.zeros(kernel.S_LENGTH, np.int64)
        self._values = memoryview(self._slots.data)
        self._content = np.zeros(NOTICE_BYTES_MAX, np.uint8)
        self._values[kernel.S_NOTICE_AT] = self._content.ctypes.data
        self._notice: Notice | None = None
        self._requests = os.eventfd(0, os.EFD_CLOEXEC)
        self._results = os.eventfd(0, os.EFD_CLOEXEC)
        self._file: MappedFile | None = None
        """The file that is being synced; the reference keeps its descriptor open."""
        self._ending = False
        self._thread = threading.Thread(
            target=kernel.serve,
            args=(self._requests, self._results, self._slots),
            name="flintmq-file-sync",
            daemon=True,
        )

    @classmethod
    def start(cls, loop: AbstractEventLoop, on_synced: OnSynced) -> FileSync | None:
        """Start the thread; return None if the platform has no such thread, or if it is not compiled yet."""
        if not kernel.is_ready():
            return None
        sync = cls(loop, on_synced)
        sync._thread.start()
        loop.add_reader(sync._results, sync._report)
        return sync

    @property
    def busy(self) -> bool:
        """True while a file is being synced, and until the loop knows the result."""
        return self._file is not None

    def request(self, file: MappedFile, notice: Notice | None = None) -> None:
        """Sync ``file``, and then send ``notice``. Only while the thread is not busy."""
        self._file, self._notice = file, notice
        values = self._values
        values[kernel.S_FD] = file.fd
        values[kernel.S_NOTICE_FD] = kernel.NONE
        if notice is not None:
            size = values[kernel.S_NOTICE_BYTES] = len(notice.content)
            self._content.data[:size] = notice.content
            values[kernel.S_NOTICE_FD] = notice.fd
        # After the descriptors, which the thread reads as soon as it is woken.
        os.eventfd_write(self._requests, 1)

    def withdraw_notice(self) -> None:
        """Send no notice after the running sync, unless the thread is sending it already."""
        self._values[kernel.S_NOTICE_FD] = kernel.NONE

    def _report(self) -> None:
        os.eventfd_read(self._results)
        file, self._file = self._file, None
        notice, self._notice = self._notice, None
        assert file is not None, "the thread reports only what was requested"
        number = self._values[kernel.S_ERRNO]
        if notice is not None:
            notice.done(self._values[kernel.S_SENT])
        self._on_synced(OSError(number, os.strerror(number), str(file.path)) if number else None)
        if self._ending:
            self._end()

    def stop(self) -> None:
        """End the thread after the sync that it is making, and wait for it. Any thread but the loop's own."""
        if self._thread.is_alive():
            # Only the loop may stop polling the counter, and a running sync has to be reported first.
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join()
            os.close(self._requests)
            os.close(self._results)

    def _end(self) -> None:
        self._ending = True
        # While a file is being synced, ``_report`` comes here again afterwards.
        if self._file is None:
            self._loop.remove_reader(self._results)
            self._values[kernel.S_FD] = kernel.END
            os.eventfd_write(self._requests, 1)


PAGE_BYTES = 4096
MARK_INTERVAL_S = 0.1
"""Maximum age of the checkpoint's mark after a flush of the compiled thread. Writing it after each one would cost a
tenth of a small flush. After a crash, a start takes damage above the mark for the end of the log."""

Flushed = Callable[[BrokerError | None], None]
"""Called on the loop once the bytes are on disk (None), or with the error that says they may not be."""


class FlushService(Service):
    """Base of both services: the waiting callbacks, the flush, and the handling of its failure."""

    name = "flush"

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self._waiting: deque[tuple[int, Flushed]] = deque()
        self._failure: BrokerError | None = None
        # A lock as a binary semaphore: waking costs one release, a fraction of an Event's.
        self._signal = _thread.allocate_lock()
        self._signal.acquire()
        self.latencies = Latencies()
        """Histogram of the durations of the log's fdatasync."""
        self.began = 0.0
        """Start of the running flush, by ``time.monotonic``; 0.0: none is running. Any thread."""
        self.on_disk: Callable[[int], None] = lambda flushed: self.acknowledge()
        """Called on the loop after each flush, with the physical offset below which the log is on disk. A member of a
        replica set calls ``acknowledge`` itself, when other members have it too."""
        self.on_flushed: Callable[[], None] = lambda: None
        """Called on the loop in each ``acknowledge``, before the callbacks that wait for it."""
        self.notice: Callable[[int], Notice | None] = lambda end: None
        """Called on the loop when a flush begins after which the log is on disk below an offset: returns what shall be
        sent then. Not every flush asks for it."""

    def withdraw_notice(self) -> None:
        """Send no notice after the running flush, unless it is being sent already. Only for the loop."""

    def wait_for(self, end_offset: int, callback: Flushed) -> None:
        """Call ``callback`` on the loop when what is below ``end_offset`` may be acknowledged. Only for the loop; each
        call must pass an offset not below that of the call before."""
        if self._failure is not None:
            callback(self._failure)
        # Not at once while others wait: the callbacks keep their order.
        elif self._store.acknowledged_offset >= end_offset and not self._waiting:
            callback(None)
        else:
            self._waiting.append((end_offset, callback))

    def wake(self) -> None:
        """Announce new bytes to flush. Any thread; cheap."""
        if self._signal.locked():
            with contextlib.suppress(RuntimeError):  # another thread woke it between the two lines
                self._signal.release()

    def stop(self) -> None:
        """Flush the rest, call the waiting callbacks, and end the thread."""
        self._stopping = True
        self.wake()
        super().stop()

    def backlog(self) -> int:
        """Return the number of bytes that are written but not on disk."""
        return self._store.write_offset - self._store.flushed_offset

    def _flush(self) -> None:
        store = self._store
        if store.write_offset <= store.flushed_offset or self._failure is not None:
            return
        self.began = time.monotonic()
        try:
            store.flush(self._on_disk)
        except OSError as error:
            # The producers get their error on the loop; the exception ends this thread, and with it the broker.
            failure = self._stop_writing(error)
            self._post(self._fail)
            raise failure from error

    def _on_disk(self, flushed: int) -> None:
        self.latencies.observe(time.monotonic() - self.began)
        self.began = 0.0
        self._post(lambda: self.on_disk(flushed))

    def acknowledge(self) -> None:
        """Call the callbacks whose bytes may be acknowledged now. Only for the loop."""
        self.on_flushed()
        acknowledged, waiting = self._store.acknowledged_offset, self._waiting
        while waiting and waiting[0][0] <= acknowledged:
            waiting.popleft()[1](None)

    def give_up(self, error: BrokerError) -> None:
        """Call all waiting callbacks, and every later one, with ``error``: nothing is acknowledged any more. Only for
        the loop."""
        self._failure = error
        while self._waiting:
            self._waiting.popleft()[1](error)

    def _stop_writing(self, error: OSError) -> StoreFailed:
        """Fail the store after a failed sync; return the error that ends the broker."""
        store = self._store
        store.failed = StoreFailed(
            f"a flush of the CommitLog in {store.path} failed: {error}. The newest messages may not be on disk, "
            "and a retry cannot find out, so the broker ends. Check the disk, then start the broker again"
        )
        return store.failed

    def _fail(self) -> None:
        self.give_up(
            ServiceNotAvailable("the disk failed during the flush of the message; the message may or may not be stored")
        )

    def last_work(self) -> None:
        """Flush once more."""
        self._flush()


class GroupCommitService(FlushService):
    """Sync: flush as soon as bytes were written; all messages that arrive during one fdatasync share the next one.

    Only one thread flushes at a time, and the loop decides which: it hands the log to the Python thread in ``wake`` and
    takes it back in ``_taken_back``.
    """

    name = "group-commit"

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal) -> None:
        super().__init__(store, post, on_fatal)
        self._sync: FileSync | None = None
        """The compiled thread; None: the Python thread makes all flushes."""
        self._handed_over = False
        """True while the Python thread owns the log; written on the loop only."""
        self._requested = False
        """True until the Python thread begins the flush that it was handed."""
        self._target = self._target_ms = 0
        """End offset of the compiled thread's flush, and the store time of its last record."""
        self._mark: tuple[int, int] | None = None
        """Flushed offset and store time that the Python thread is to write into the checkpoint."""
        self._mark_due = False
        """True while a timer runs that will hand the mark over."""
        self._marked_at = 0.0
        self._call_later: CallAt
        """The loop's ``call_later``; it is set with ``_sync``."""

    def use_compiled_thread(self, loop: AbstractEventLoop) -> None:
        """Flush single files in the compiled thread, if there is one and the store's file system is the real one.

        Only for the loop, also while the Python thread flushes; does nothing if the compiled thread runs already.
        """
        # A file layer of the tests must see every sync, and the compiled thread would make them past it.
        if self._sync is not None or type(self._store.files).sync_data is not Files.sync_data:
            return
        sync = FileSync.start(loop, self._synced)
        if sync is not None:
            self._call_later = loop.call_later
            # The Python thread owns the log, and may be flushing it: it gives it back after one more flush.
            self._handed_over = self._requested = True
            self._sync = sync
            super().wake()

    def wake(self) -> None:
        """Flush the bytes that were written. Only for the loop, except while the service stops."""
        sync = self._sync
        if sync is None or self._stopping:
            super().wake()
            return
        if sync.busy or self._handed_over or self._failure is not None:
            return  # ``_synced`` and ``_taken_back`` look again
        commitlog = self._store.commitlog
        # Before the sync is requested, which covers at least these bytes.
        target, target_ms = commitlog.write_offset, commitlog.last_store_ms
        if target <= commitlog.flushed_offset:
            return
        file = commitlog.only_file_to_flush()
        if file is None:
            self._handed_over = self._requested = True
            super().wake()
            return
        self._target, self._target_ms = target, target_ms
        self.began = time.monotonic()
        sync.request(file, self.notice(target))

    def withdraw_notice(self) -> None:
        """Have the compiled thread send no notice, if it has one and is not sending it already."""
        if self._sync is not None:
            self._sync.withdraw_notice()

    def _synced(self, error: OSError | None) -> None:
        """Publish a flush of the compiled thread."""
        if error is not None:
            failure = self._stop_writing(error)
            self._fail()
            self._on_fatal(self.name, failure)
            return
        target, now = self._target, time.monotonic()
        self.latencies.observe(now - self.began)
        self.began = 0.0
        commitlog = self._store.commitlog
        if target > commitlog.flushed_offset:  # otherwise the last flush of a stop has already published more
            commitlog.flushed_offset = target
        # One timer at a time: it writes the newest mark when it fires.
        if not self._mark_due:
            self._mark_due = True
            wait = self._marked_at + MARK_INTERVAL_S - now
            if wait > 0:
                self._call_later(wait, self._hand_over_mark)
            else:
                self._hand_over_mark()
        if commitlog.write_offset > target:
            self.wake()  # before the responses, so that the disk works while they are sent
        self.on_disk(target)

    def _hand_over_mark(self) -> None:
        self._mark_due = False
        self._marked_at = time.monotonic()
        self._mark = self._store.flushed_offset, self._target_ms
        super().wake()

    def do_once(self) -> bool:
        """Wait for a wake, then flush, or only write the checkpoint's mark."""
        self._signal.acquire()
        mark, self._mark = self._mark, None
        if self._sync is None:
            self._flush()
        elif self._requested:
            # The mark that was taken is dropped: ``store.flush`` writes a newer one.
            self._requested = False
            self._flush()
            self._post(self._taken_back)
        elif mark is not None:
            self._store.mark_flushed(*mark)
        return True

    def _taken_back(self) -> None:
        """Make the loop the owner of the log again. Only for the loop."""
        self._handed_over = False
        self.wake()

    def stop(self) -> None:
        """Flush the rest, call the waiting callbacks, and end both threads."""
        # First, so that ``wake`` turns to the Python thread, which makes the last flush.
        self._stopping = True
        if self._sync is not None:
            self._sync.stop()
        super().stop()


LEAST_PAGES = 4
"""async: fewer dirty pages than this wait for the thorough flush; as RocketMQ's."""
THOROUGH_S = 10.0
"""async: maximum time until everything is flushed, however few pages are dirty; as RocketMQ's."""


class FlushRealTimeService(FlushService):
    """Async: flush at each interval if enough pages are dirty, in any case after ``THOROUGH_S``, and at once if a
    produce asked for sync."""

    name = "flush-real-time"

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal) -> None:
        super().__init__(store, post, on_fatal)
        settings = store.settings
        self._interval_seconds = settings.flush_interval_ms / 1000
        self._least_bytes = LEAST_PAGES * PAGE_BYTES
        self._last_thorough = time.monotonic()

    def wake(self) -> None:
        """Wake the thread only if a caller waits for the disk; otherwise the interval is enough."""
        if self._waiting or self._stopping:
            super().wake()

    def do_once(self) -> bool:
        """Wait for the interval or for a wake, then flush if that is due."""
        self._signal.acquire(timeout=self._interval_seconds)
        now = time.monotonic()
        thorough = now - self._last_thorough >= THOROUGH_S
        if self._waiting or thorough or self.backlog() >= self._least_bytes:
            self._flush()
        if thorough:
            self._last_thorough = now
        return True


def flush_service(store: MessageStore, post: Post, on_fatal: OnFatal) -> FlushService:
    kind = GroupCommitService if store.settings.flush_policy == "sync" else FlushRealTimeService
    return kind(store, post, on_fatal)


# ---- Detection of disk stalls: flushes of the log that take too long are noticed while they run.
#
# The detection does not touch the flush itself. While a flush hangs, the broker refuses new messages, because
# each would wait for it and occupy memory. As in RocketMQ, a producer that has waited too long gets
# FLUSH_DISK_TIMEOUT: see ``Connection.sweep``.

log = logging.getLogger(__name__)

LOOKS = 5
"""Number of checks within the time that counts as a stall, so that a stall is noticed soon."""


class DiskStall:
    """Watcher of the flush service. Runs on the event loop.

    ``stall_s``: a flush that takes longer is a stall; ``on_change`` is called when a stall begins and when it ends.
    ``clock``: monotonic, in seconds, the same as that of ``flush``; ``call_later``: that of the loop.
    """

    def __init__(
        self,
        flush: FlushService,
        *,
        stall_s: float,
        clock: Callable[[], float],
        call_later: CallAt,
        on_change: Callable[[], None],
    ) -> None:
        self._flush = flush
        self._stall_s = stall_s
        self._clock = clock
        self._call_later = call_later
        self._on_change = on_change
        self._timer: LoopTimer | None = None
        self._began = 0.0
        """Start of the flush that has become a stall, or 0."""

    def start(self) -> None:
        self._timer = self._call_later(self._stall_s / LOOKS, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def seconds(self) -> float:
        """Return how long the hanging flush has taken so far, or 0.0. Any thread."""
        began = self._began
        return self._clock() - began if began else 0.0

    def refusal(self) -> str:
        """Return why the broker refuses messages; empty if the disk keeps up. Any thread."""
        seconds = self.seconds()
        if not seconds:
            return ""
        return (
            f"the disk has not finished a flush of the log for {seconds:.1f} s (flush.stall_ms is "
            f"{self._stall_s * 1000:.0f}): the broker refuses messages until it has; check the disk of the store"
        )

    def flushed(self) -> None:
        """End the stall, if there is one, after a flush."""
        if self._began:
            log.warning("the hanging flush finished after %.1f s: accepting messages again", self.seconds())
            self._began = 0.0
            self._on_change()

    def _look(self) -> None:
        # First, so that the watch continues, whatever the rest does.
        self.start()
        began = self._flush.began
        if began and not self._began and self._clock() - began > self._stall_s:
            self._began = began
            log.error("%s; %d bytes of the log wait for it", self.refusal(), self._flush.backlog())
            self._on_change()
