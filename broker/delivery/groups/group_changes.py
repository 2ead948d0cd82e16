"""Changes of groups and of their progress that must not be forgotten: made on the event loop, confirmed when they are
on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from ....protocol.errors import BrokerError, ServiceNotAvailable

if TYPE_CHECKING:
    from ...store import MessageStore

log = logging.getLogger(__name__)

Done = Callable[[BrokerError | None], None]


class GroupChanges:
    """The writes of these changes. All that wait when a write begins share it (group commit).

    Belongs to the event loop. ``writers``: threads that write to the disk.
    """

    def __init__(self, store: MessageStore, loop: asyncio.AbstractEventLoop, writers: Executor) -> None:
        self._store = store
        self._loop = loop
        self._writers = writers
        self.replicate: Callable[[Callable[[], None]], object] = lambda done: done()
        """Called after a write; calls its argument when other brokers that must have the changes do, too."""
        self._waiting: list[Done] = []
        self._written: list[Done] = []
        """Callbacks of the write that runs, or that other brokers do not have yet."""
        self._running = False
        self._given_up: BrokerError | None = None

    @property
    def pending(self) -> bool:
        """Return whether there may be a change that is not confirmed yet."""
        return self._running or self._store.consumer_offsets.unsaved or self._store.groups.unsaved

    def when_saved(self, done: Done) -> None:
        """Call ``done`` on the loop, with the error or None, when all changes made by now are confirmed."""
        if self._given_up is not None:
            self._loop.call_soon(done, self._given_up)
            return
        self._waiting.append(done)
        if not self._running:
            self._running = True
            # Not before the next turn of the loop, so that other changes of this turn share the write.
            self._loop.call_soon(self._next)

    def give_up(self, error: BrokerError) -> None:
        """Call all waiting callbacks, and every later one, with ``error``: no change is confirmed any more."""
        self._given_up = error
        ended, self._written, self._waiting = [*self._written, *self._waiting], [], []
        for done in ended:
            done(error)

    def _next(self) -> None:
        if not self._waiting:
            self._running = False
            return
        self._written, self._waiting = self._waiting, []
        work = self._loop.run_in_executor(self._writers, self._write)
        work.add_done_callback(self._on_disk)

    def _write(self) -> None:
        # In this order: a start takes a missing table of offsets beside groups for lost.
        self._store.consumer_offsets.save()
        if self._store.groups.unsaved:
            self._store.groups.persist()

    def _on_disk(self, work: asyncio.Future[None]) -> None:
        error = work.exception()
        if error is None:
            self.replicate(lambda: self._confirmed(None))
            return
        log.error("could not write the tables of the groups", exc_info=error)
        self._confirmed(
            ServiceNotAvailable(
                f"the tables of the groups of {self._store.path} cannot be written: {error}; the change may be lost if "
                "the broker ends now. Check the disk"
            )
        )

    def _confirmed(self, error: BrokerError | None) -> None:
        if self._given_up is None:
            written, self._written = self._written, []
            for done in written:
                done(error)
            self._next()
