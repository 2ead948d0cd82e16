"""ReputMessageService: turns the log into queues and index entries, behind the producers' backs.

It has one owner at a time, changed only on the loop. While the backlog fits one chunk the loop steps it itself, right
after it answered the producers: a message is visible to a held pull within a fraction of a millisecond. A larger
backlog goes to the thread, whose kernels run beside the loop on another core; caught up, the thread gives it back.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from ..store import MessageStore
from .service import OnFatal, Post, Service, log

Touched = list[tuple[str, int, int]]
"""(topic, queue, new max offset) of queues that got messages."""

DISK_FULL_WAIT_SECONDS = 1.0
THREAD_CHUNK_BYTES = 2 * 1024 * 1024
GIVE_BACK_BYTES = 64 * 1024
"""The thread goes on until the backlog is this small: handing over costs more than a small step."""


class ReputMessageService(Service):
    """See the module. ``on_dispatched`` is called on the loop."""

    name = "reput"

    def __init__(
        self, store: MessageStore, post: Post, on_dispatched: Callable[[Touched], None], on_fatal: OnFatal
    ) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self._on_dispatched = on_dispatched
        self._threaded = False
        """Whether the thread owns reput; written on the loop only."""
        self._giving_back = False
        """Whether the thread has caught up and waits for the loop to take reput back."""
        self._no_room = False
        """Whether the disk had no room for queues or index when last tried; written by whoever owns reput."""
        self._inline_bytes = min(store.settings.reput_chunk_bytes, 256 * 1024)

    def behind(self) -> int:
        """Bytes of the log that queues and index do not cover yet."""
        return self._store.write_offset - self._store.reput_offset

    def step(self) -> None:
        """Dispatch what is there, or have the thread do it. The loop only."""
        if self._threaded:
            return
        store = self._store
        end = store.dispatchable_offset
        backlog = end - store.reput_offset
        if backlog <= 0:
            return
        if backlog > self._inline_bytes:
            self._hand_over()
            return
        while store.reput_offset < end:
            try:
                touched = store.dispatch(end)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._no_room = True
                log.error("no room for consumequeue or index in %s: %s; trying again", store.path, error)
                self._hand_over()  # the thread can wait for space, the loop cannot
                return
            if touched:
                self._on_dispatched(touched)

    def _hand_over(self) -> None:
        self._threaded = True
        self.wake()

    def _take_back(self) -> None:
        """On the loop: the thread has caught up and does nothing more."""
        self._giving_back = False
        self._threaded = False
        self.step()

    def do_once(self) -> bool:
        """One chunk, while the thread owns reput."""
        if not self._threaded or self._giving_back:
            return False
        store = self._store
        end = store.dispatchable_offset
        if end - store.reput_offset <= GIVE_BACK_BYTES and not self._no_room:
            self._giving_back = True
            self._call_on_loop(self._take_back)
            return False
        try:
            touched = store.dispatch(end, THREAD_CHUNK_BYTES)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not self._no_room:
                log.error("no room for consumequeue or index in %s: %s; trying again", store.path, error)
            self._no_room = True
            self._woken.wait(DISK_FULL_WAIT_SECONDS)
            return not self._stopping
        if self._no_room:
            self._no_room = False
            log.warning("there is room for consumequeue and index in %s again", store.path)
        if touched:
            self._call_on_loop(self._on_dispatched, touched)
        return True

    def stop(self) -> None:
        """Dispatch what may be dispatched, then end."""
        super().stop()
        store = self._store
        deadline = time.monotonic() + 5
        while store.failed is None and store.reput_offset < store.dispatchable_offset and time.monotonic() < deadline:
            try:
                store.dispatch(store.dispatchable_offset, THREAD_CHUNK_BYTES)
            except OSError as error:
                log.error("stopped with %d bytes not dispatched: %s", self.behind(), error)
                return
