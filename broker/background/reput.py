"""ReputMessageService: dispatches the log to queues and index, without delaying the producers.

Dispatch has one owner at a time, which changes only on the loop. While the backlog fits in one chunk, the loop itself
dispatches, directly after it has answered the producers: a held pull sees a message within a fraction of a millisecond.
A larger backlog goes to the thread, whose kernels run in parallel to the loop on another core. After it has caught up,
the thread hands dispatch back.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .service import Service, log

if TYPE_CHECKING:
    from ..store import MessageStore
    from .service import OnFatal, Post

Touched = list[tuple[str, int, int]]
"""(topic, queue, new max offset) of queues that got messages."""

DISK_FULL_WAIT_SECONDS = 1.0
"""Pause of the thread while the disk has no room for queues or index."""
INLINE_BYTES = 256 * 1024
"""Backlog above which the thread dispatches instead of the event loop."""
THREAD_CHUNK_BYTES = 2 * 1024 * 1024
"""CommitLog bytes that one step of the thread covers."""
GIVE_BACK_BYTES = 64 * 1024
"""Backlog at which the thread hands dispatch back: a hand-over costs more than a small step."""


class ReputMessageService(Service):
    """The dispatch of one store. ``on_dispatched`` is called on the loop."""

    name = "reput"

    def __init__(
        self, store: MessageStore, post: Post, on_dispatched: Callable[[Touched], None], on_fatal: OnFatal
    ) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self._on_dispatched = on_dispatched
        self._threaded = False
        """True while the thread owns dispatch; written on the loop only."""
        self._giving_back = False
        """True when the thread has caught up and waits for the loop to take dispatch back."""
        self._no_room = False
        """True if the disk was full for queues or index at the last attempt; written by the owner of dispatch."""

    def backlog(self) -> int:
        """Return the number of bytes of the log that are not dispatched yet."""
        return self._store.write_offset - self._store.reput_offset

    def step(self) -> None:
        """Dispatch the backlog, or hand it to the thread. Only for the loop."""
        if self._threaded or self._stopping:
            return
        store = self._store
        end = store.dispatchable_offset
        backlog = end - store.reput_offset
        if backlog <= 0:
            return
        if backlog > INLINE_BYTES:
            self._hand_over()
            return
        while store.reput_offset < end:
            try:
                touched = store.dispatch(end)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._no_room = True
                log.error("no space for consumequeue or index in %s: %s; retrying", store.path, error)
                self._hand_over()  # the thread can wait for space, the loop cannot
                return
            if touched:
                self._on_dispatched(touched)

    def stop_on_loop(self) -> None:
        """Dispatch no more on the loop, whose timers still run while another thread calls ``stop``. Only for the
        loop."""
        self._stopping = True

    def _hand_over(self) -> None:
        self._threaded = True
        self.wake()

    def _take_back(self) -> None:
        """Make the loop the owner again, after the thread has caught up. Only for the loop."""
        self._giving_back = False
        self._threaded = False
        # Records that arrived during the hand-over are dispatched at once.
        self.step()

    def do_once(self) -> bool:
        """Dispatch one chunk while the thread owns dispatch."""
        # Between the decision to give back and ``_take_back``, neither loop nor thread dispatches.
        if not self._threaded or self._giving_back:
            return False
        store = self._store
        end = store.dispatchable_offset
        # As long as there is no room, dispatch stays here, because only a thread can wait for it.
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
                log.error("no space for consumequeue or index in %s: %s; retrying", store.path, error)
            self._no_room = True
            # A stop ends the pause.
            self._woken.wait(DISK_FULL_WAIT_SECONDS)
            return not self._stopping
        if self._no_room:
            self._no_room = False
            log.warning("there is space for consumequeue and index in %s again", store.path)
        if touched:
            self._call_on_loop(self._on_dispatched, touched)
        return True

    def stop(self) -> None:
        """Stop the thread, then dispatch the rest for up to 5 s. If a loop dispatches too, call ``stop_on_loop`` first,
        so that dispatch keeps one owner."""
        super().stop()
        store = self._store
        deadline = time.monotonic() + 5
        while store.failed is None and store.reput_offset < store.dispatchable_offset and time.monotonic() < deadline:
            try:
                store.dispatch(store.dispatchable_offset, THREAD_CHUNK_BYTES)
            except OSError as error:
                log.error("stopped with %d bytes of the log not dispatched: %s", self.backlog(), error)
                return
