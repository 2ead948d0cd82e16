"""Deferred requests of one connection: they wait for the dispatch, the disk, messages, or the client to read."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from ...protocol.errors import BrokerError, BrokerFailure, SystemBusy
from ...protocol.frames import Frame
from ..background.held_pulls import HeldPull
from ..background.selections import HELD_PULL_BYTES, Selection, Share, Shares
from ..config import BUSY_RETRY_AFTER_MS
from ..handlers.context import Broker
from ..store import WouldBlock
from .outbound_requests import OutboundRequests

log = logging.getLogger(__name__)
T = TypeVar("T")
Instead: TypeAlias = Callable[[], None] | None
"""Callback to run instead of waiting for memory, or for the client to read."""

COLD_READS_MAX = 2
"""Maximum number of concurrent cold reads of one connection, so that other connections get a thread soon."""

SELECTED_FREE_BYTES = 64 * 1024
"""Selections of a connection's pulls count as additional waiting pulls only above this size."""

HOLDS_MANY = 64
"""Pulls of a connection that holds at least this many are woken after those of other connections."""

_NO_BODY = bytearray()
_KEPT_FIELDS = ("group", "topic", "transaction_id", "parked")
"""Fields of a refused request that the audit log needs."""


def let_go(frame: Frame) -> None:
    """Drop the body and all header fields except ``_KEPT_FIELDS``.

    A waiting frame must not keep the receive buffer alive, nor memory for unknown fields that the client sent.
    """
    frame.buffer = _NO_BODY
    frame.fields = {name: frame.fields[name] for name in _KEPT_FIELDS if name in frame.fields}


class DeferredRequests(OutboundRequests):
    """A connection with deferred requests. None of them delays the frames that follow."""

    __slots__ = ("cold_reads", "deferred", "held_pulls", "selected", "steps", "undispatched", "write_paused")

    def __init__(self, broker: Broker, address: tuple[str, int]) -> None:
        super().__init__(broker, address)
        self.write_paused = False
        self.held_pulls: set[HeldPull] = set()
        self.selected = Shares()
        """Tags and filters of the pulls that wait or search for messages."""
        self.deferred: deque[Callable[[], None]] = deque()
        self.cold_reads = 0
        self.undispatched = 0
        """Number of requests that wait for the dispatch, or for other work that always completes."""
        self.steps = 0
        """Number of requests that wait for their turn."""

    def is_idle(self) -> bool:
        """Return whether all accepted requests are answered, except held pulls."""
        return not (self.unflushed or self.cold_reads or self.undispatched or self.deferred or self.steps)

    def check_end(self) -> None:
        """Close the connection if it is ending and nothing is left to answer."""
        raise NotImplementedError

    def attempt(self, frame: Frame, call: Callable[[], None]) -> None:
        """Call ``call``; an error that it raises answers ``frame``."""
        try:
            call()
        except BrokerError as error:
            self.fail(frame, error)
        except Exception as error:  # noqa: BLE001 - one request must not take its connection, or the broker, down
            self.unexpected(frame, error)
        self.check_end()

    def unexpected(self, frame: Frame, error: Exception) -> None:
        """Log an unexpected exception with its traceback, and answer ``frame`` with ``BrokerFailure``."""
        log.error("command %d from %s:%d failed", frame.code, *self.address, exc_info=error)
        of_a_file = isinstance(error, OSError) and error.filename is not None
        cause = f"{error}. Check the disk" if of_a_file else type(error).__name__
        self.fail(frame, BrokerFailure(f"the broker failed: {cause}; see its log for details"))

    def after_dispatch(self, frame: Frame, call: Callable[[], None]) -> None:
        """Call ``call`` once everything that is acknowledged now has been dispatched."""
        if self.broker.is_dispatched():
            call()
            return
        self.check_may_wait()
        done = self.later(frame, call)
        self.broker.when_dispatched(lambda: done(None))

    def later(self, frame: Frame, call: Callable[[], None]) -> Callable[[BrokerError | None], None]:
        """Return the callback that ends the wait of ``frame``."""
        let_go(frame)
        self.undispatched += 1

        def done(error: BrokerError | None) -> None:
            self.undispatched -= 1
            if self.lost:
                return
            if error is not None:
                self.fail(frame, error)
                self.check_end()
            else:
                self.attempt(frame, call)

        return done

    def read(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], instead: Instead = None) -> None:
        """Read from the store, in a reader thread if the read would block, and pass the result to ``done``."""
        self.attempt(frame, lambda: self._read(frame, read, done, instead))

    def _read(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], instead: Instead) -> None:
        if not self.broker.send_memory.may_read(self):
            self._read_later(frame, read, done, instead)
            return
        try:
            result = read(True)
        except WouldBlock:
            self._read_cold(frame, read, done, instead)
        else:
            done(result)

    def _read_later(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], instead: Instead) -> None:
        """Wait until there is memory for a response."""
        if instead is not None:
            instead()
            return
        self.check_may_wait()
        go_on = self.later(frame, lambda: self._read(frame, read, done, None))
        self.broker.send_memory.wait(lambda: go_on(None))

    def _read_cold(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], instead: Instead) -> None:
        let_go(frame)
        if self.cold_reads < COLD_READS_MAX and not self.write_paused:
            self._start_cold(frame, read, done, instead)
        elif instead is not None:
            instead()
        else:
            self.check_may_wait()
            self.deferred.append(lambda: self._start_cold(frame, read, done, None))

    def _start_cold(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], instead: Instead) -> None:
        self.cold_reads += 1
        self.broker.cold_reads.when_free(lambda: self._submit_cold(frame, read, done, instead))

    def _submit_cold(
        self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], instead: Instead
    ) -> bool:
        """Give the read to a free thread; return False if it does not need the thread now."""
        if self.lost:
            return False
        if not self.broker.send_memory.may_read(self):  # memory became short while it waited for the thread
            self.cold_reads -= 1
            self.attempt(frame, lambda: self._read_later(frame, read, done, instead))
            self.broker.loop.call_soon(self.run_deferred)
            return False
        future = self.broker.loop.run_in_executor(self.broker.readers, read, False)
        future.add_done_callback(lambda future: self._cold_done(frame, future, done))
        return True

    def _cold_done(self, frame: Frame, future: asyncio.Future[T], done: Callable[[T], None]) -> None:
        self.cold_reads -= 1
        future.exception()  # marks it as retrieved, or asyncio logs it when the connection is gone
        if not self.lost:
            self.attempt(frame, lambda: done(future.result()))
            self.run_deferred()
        self.broker.cold_reads.release()

    def when_writable(self, call: Callable[[], None]) -> None:
        """Call ``call`` once the client has read its responses."""
        self.deferred.append(call)

    def run_deferred(self) -> None:
        """Continue requests that waited for the client to read, or for one of its cold reads to finish."""
        while self.deferred and not self.write_paused and self.cold_reads < COLD_READS_MAX:
            self.deferred.popleft()()

    def step(self, frame: Frame, call: Callable[[], None], instead: Instead = None) -> None:
        """Call ``call`` in a later turn of the loop, once the client has read its responses."""
        let_go(frame)
        self.steps += 1
        self.broker.turns.add(lambda: self._step(frame, call, instead))

    def _step(self, frame: Frame, call: Callable[[], None], instead: Instead) -> None:
        self.steps -= 1
        if self.lost:
            return
        if not self.write_paused:
            self.attempt(frame, call)
        elif instead is not None:
            self.attempt(frame, instead)
        else:
            self.deferred.append(lambda: self.attempt(frame, call))

    def held(self, pull: HeldPull) -> None:
        """Register a held pull, to be cancelled when the connection closes."""
        self.held_pulls.add(pull)

    def holds_many(self) -> bool:
        """Return whether many pulls of this connection are held."""
        return len(self.held_pulls) >= HOLDS_MANY

    def unheld(self, pull: HeldPull) -> None:
        """Remove a pull that is no longer held."""
        self.held_pulls.discard(pull)

    def share(self, selection: Selection) -> Share:
        """Return this connection's share of a selection."""
        return Share(selection, self.selected)

    def check_may_wait(self) -> None:
        """Raise ``SystemBusy`` if too many pulls of this connection, or of all connections, wait."""
        limits = self.broker.limits
        waiting = len(self.held_pulls) + len(self.deferred) + self.undispatched + self.steps
        waiting += max(self.selected.bytes - SELECTED_FREE_BYTES, 0) // HELD_PULL_BYTES
        if waiting >= limits.held_pulls_per_connection_max:
            raise self._busy("limits.held_pulls_per_connection_max", limits.held_pulls_per_connection_max)
        if len(self.broker.holds) + self.broker.selections.bytes // HELD_PULL_BYTES >= limits.held_pulls_max:
            raise self._busy("limits.held_pulls_max", limits.held_pulls_max)

    def _busy(self, limit: str, value: int) -> SystemBusy:
        return SystemBusy(
            f"too many reads are waiting: {limit} is {value}, and reads with long tags or filters count as several; "
            "try again later, or without wait_ms",
            retry_after_ms=BUSY_RETRY_AFTER_MS,
        )
