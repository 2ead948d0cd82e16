"""Flushing the CommitLog: GroupCommitService for sync, FlushRealTimeService for async.

Both own one thread, the only one that calls ``fdatasync``. A producer that must wait for the disk registers a callback
with the offset it waits for; one fdatasync serves all of them. A failed fdatasync ends the process: the kernel marks
the pages clean even if they were not written, so a second fdatasync would falsely report success.
"""

from __future__ import annotations

import _thread
import contextlib
import time
from collections import deque
from collections.abc import Callable

from ...protocol.errors import BrokerError, ServiceNotAvailable
from ..latency import Latencies
from ..store import MessageStore, StoreFailed
from .service import OnFatal, Post, Service

PAGE_BYTES = 4096

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
        self.on_flushed: Callable[[], None] = lambda: None
        """Called on the loop after each flush, after the callbacks that waited for it."""

    def wait_for(self, end_offset: int, callback: Flushed) -> None:
        """Call ``callback`` on the loop when the log is on disk below ``end_offset``. Only for the loop; each call must
        pass an offset not below that of the call before."""
        if self._failure is not None:
            callback(self._failure)
        elif self._store.flushed_offset >= end_offset and not self._waiting:
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
        if store.write_offset <= store.flushed_offset:
            return
        self.began = time.monotonic()
        try:
            store.flush(self._on_disk)
        except OSError as error:
            store.failed = StoreFailed(
                f"a flush of the CommitLog in {store.path} failed: {error}. The newest messages may not be on disk, "
                "and a retry cannot find out, so the broker ends. Check the disk, then start the broker again"
            )
            self._post(self._fail)
            raise store.failed from error

    def _on_disk(self, flushed: int) -> None:
        self.latencies.observe(time.monotonic() - self.began)
        self.began = 0.0
        self._post(self._complete, flushed)

    def _complete(self, flushed: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= flushed:
            waiting.popleft()[1](None)
        self.on_flushed()

    def _fail(self) -> None:
        self._failure = ServiceNotAvailable(
            "the disk failed during the flush of the message; the message may or may not be stored"
        )
        while self._waiting:
            self._waiting.popleft()[1](self._failure)

    def last_work(self) -> None:
        """Flush once more."""
        self._flush()


class GroupCommitService(FlushService):
    """Sync: flush as soon as bytes were written; all messages that arrive during one fdatasync share the next one."""

    name = "group-commit"

    def do_once(self) -> bool:
        """Wait for a wake, then flush."""
        self._signal.acquire()
        self._flush()
        return True


class FlushRealTimeService(FlushService):
    """Async: flush at each interval if enough pages are dirty, unconditionally at each thorough interval, and at once
    if a produce asked for sync."""

    name = "flush-real-time"

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal) -> None:
        super().__init__(store, post, on_fatal)
        settings = store.settings
        self._interval_seconds = settings.flush_interval_ms / 1000
        self._least_bytes = settings.flush_least_pages * PAGE_BYTES
        self._thorough_seconds = settings.flush_thorough_interval_ms / 1000
        self._last_thorough = time.monotonic()

    def wake(self) -> None:
        """Wake the thread only if a caller waits for the disk; otherwise the interval is enough."""
        if self._waiting or self._stopping:
            super().wake()

    def do_once(self) -> bool:
        """Wait for the interval or for a wake, then flush if that is due."""
        self._signal.acquire(timeout=self._interval_seconds)
        now = time.monotonic()
        thorough = now - self._last_thorough >= self._thorough_seconds
        if self._waiting or thorough or self.backlog() >= self._least_bytes:
            self._flush()
        if thorough:
            self._last_thorough = now
        return True


def flush_service(store: MessageStore, post: Post, on_fatal: OnFatal) -> FlushService:
    """Return the service for the store's flush policy."""
    kind = GroupCommitService if store.settings.flush_policy == "sync" else FlushRealTimeService
    return kind(store, post, on_fatal)
