"""What requests of one connection wait for: the dispatch, the disk, messages, or the client to take its answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from ...protocol.errors import BrokerError, BrokerFailure, SystemBusy
from ...protocol.frames import Frame
from ..services.long_polling import HeldPull
from ..store import WouldBlock
from .asking import Asking
from .handlers.context import Broker
from .selections import HELD_PULL_BYTES, Selection, Share, Shares

log = logging.getLogger(__name__)
T = TypeVar("T")
Rather: TypeAlias = Callable[[], None] | None
"""What is done instead of waiting for memory, or for the other side."""

COLD_READS_MAX = 2
"""Reads of one connection at a time that wait for the disk, or for a thread: the others' turn comes soon."""

SELECTED_FREE_BYTES = 64 * 1024
"""What the selections of a connection's pulls take counts as pulls that wait only above this."""

HOLDS_MANY = 64
"""Pulls of connections that hold more are woken after those of others."""

_NO_BODY = bytearray()
_KEPT_FIELDS = ("group", "topic", "transaction_id", "parked")
"""What the audit log asks of a request that was refused."""


def let_go(frame: Frame) -> None:
    """A frame that waits must keep neither the receive buffer alive nor what nobody knows of its header."""
    frame.buffer = _NO_BODY
    frame.fields = {name: frame.fields[name] for name in _KEPT_FIELDS if name in frame.fields}


class Waiting(Asking):
    """What a connection waits for. Nothing here holds up the frames that follow."""

    __slots__ = ("cold_reads", "deferred", "held_pulls", "selected", "steps", "undispatched", "write_paused")

    def __init__(self, broker: Broker, address: tuple[str, int]) -> None:
        super().__init__(broker, address)
        self.write_paused = False
        self.held_pulls: set[HeldPull] = set()
        self.selected = Shares()
        """The tags and filters of pulls that wait, or look for messages."""
        self.deferred: deque[Callable[[], None]] = deque()
        self.cold_reads = 0
        self.undispatched = 0
        """Requests that wait for the dispatch, or for something else that ends by itself."""
        self.steps = 0
        """Requests that wait for their turn."""

    def is_idle(self) -> bool:
        """Whether all that was taken is answered, but for the pulls that are held."""
        return not (self.unflushed or self.cold_reads or self.undispatched or self.deferred or self.steps)

    def check_end(self) -> None:
        """Something was answered: a connection that ends may have waited for it."""
        raise NotImplementedError

    def attempt(self, frame: Frame, call: Callable[[], None]) -> None:
        """Call; what it raises answers ``frame``."""
        try:
            call()
        except BrokerError as error:
            self.fail(frame, error)
        except Exception as error:  # noqa: BLE001 - one request must not take its connection, or the broker, down
            self.unexpected(frame, error)
        self.check_end()

    def unexpected(self, frame: Frame, error: Exception) -> None:
        """Something that nobody thought of went wrong with a request: the log has it all, the client what it needs."""
        log.error("command %d from %s:%d failed", frame.code, *self.address, exc_info=error)
        of_a_file = isinstance(error, OSError) and error.filename is not None
        what = f"{error}. Check the disk" if of_a_file else type(error).__name__
        self.fail(frame, BrokerFailure(f"the broker failed: {what}; its log says more"))

    def after_dispatch(self, frame: Frame, call: Callable[[], None]) -> None:
        """See ``Peer.after_dispatch``."""
        if self.broker.is_dispatched():
            call()
            return
        self.check_may_wait()
        done = self.later(frame, call)
        self.broker.when_dispatched(lambda: done(None))

    def later(self, frame: Frame, call: Callable[[], None]) -> Callable[[BrokerError | None], None]:
        """See ``Peer.later``."""
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

    def read(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], rather: Rather = None) -> None:
        """See ``Peer.read``."""
        self.attempt(frame, lambda: self._read(frame, read, done, rather))

    def _read(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], rather: Rather) -> None:
        if not self.broker.send_memory.may_read(self):
            self._read_later(frame, read, done, rather)
            return
        try:
            result = read(True)
        except WouldBlock:
            self._read_cold(frame, read, done, rather)
        else:
            done(result)

    def _read_later(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], rather: Rather) -> None:
        """When there is memory for an answer."""
        if rather is not None:
            rather()
            return
        self.check_may_wait()
        go_on = self.later(frame, lambda: self._read(frame, read, done, None))
        self.broker.send_memory.wait(lambda: go_on(None))

    def _read_cold(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], rather: Rather) -> None:
        let_go(frame)
        if self.cold_reads < COLD_READS_MAX and not self.write_paused:
            self._start_cold(frame, read, done, rather)
        elif rather is not None:
            rather()
        else:
            self.check_may_wait()
            self.deferred.append(lambda: self._start_cold(frame, read, done, None))

    def _start_cold(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], rather: Rather) -> None:
        self.cold_reads += 1
        self.broker.cold_reads.when_free(lambda: self._submit_cold(frame, read, done, rather))

    def _submit_cold(self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None], rather: Rather) -> bool:
        """A thread is free: have it read; whether it does."""
        if self.lost:
            return False
        if not self.broker.send_memory.may_read(self):  # there was when it began to wait for the thread
            self.cold_reads -= 1
            self.attempt(frame, lambda: self._read_later(frame, read, done, rather))
            self.broker.loop.call_soon(self.run_deferred)
            return False
        future = self.broker.loop.run_in_executor(self.broker.readers, read, False)
        future.add_done_callback(lambda future: self._cold_done(frame, future, done))
        return True

    def _cold_done(self, frame: Frame, future: asyncio.Future[T], done: Callable[[T], None]) -> None:
        self.cold_reads -= 1
        future.exception()  # seen, also where nobody waits any more
        if not self.lost:
            self.attempt(frame, lambda: done(future.result()))
            self.run_deferred()
        self.broker.cold_reads.over()

    def when_writable(self, call: Callable[[], None]) -> None:
        """See ``Peer.when_writable``."""
        self.deferred.append(call)

    def run_deferred(self) -> None:
        """Go on with what waited for the client to take its answers, or for fewer reads at a time."""
        while self.deferred and not self.write_paused and self.cold_reads < COLD_READS_MAX:
            self.deferred.popleft()()

    def step(self, frame: Frame, call: Callable[[], None], rather: Rather = None) -> None:
        """See ``Peer.step``."""
        let_go(frame)
        self.steps += 1
        self.broker.turns.add(lambda: self._step(frame, call, rather))

    def _step(self, frame: Frame, call: Callable[[], None], rather: Rather) -> None:
        self.steps -= 1
        if self.lost:
            return
        if not self.write_paused:
            self.attempt(frame, call)
        elif rather is not None:
            self.attempt(frame, rather)
        else:
            self.deferred.append(lambda: self.attempt(frame, call))

    def held(self, pull: HeldPull) -> None:
        """See ``Peer.held``."""
        self.held_pulls.add(pull)

    def holds_many(self) -> bool:
        """See ``Peer.holds_many``."""
        return len(self.held_pulls) >= HOLDS_MANY

    def unheld(self, pull: HeldPull) -> None:
        """See ``Peer.unheld``."""
        self.held_pulls.discard(pull)

    def share(self, selection: Selection) -> Share:
        """See ``Peer.share``."""
        return Share(selection, self.selected)

    def check_may_wait(self) -> None:
        """See ``Peer.check_may_wait``."""
        limits = self.broker.limits
        waiting = len(self.held_pulls) + len(self.deferred) + self.undispatched + self.steps
        waiting += max(self.selected.bytes - SELECTED_FREE_BYTES, 0) // HELD_PULL_BYTES
        if waiting >= limits.held_pulls_per_connection_max:
            raise self._busy("limits.held_pulls_per_connection_max", limits.held_pulls_per_connection_max)
        if len(self.broker.holds) + self.broker.selections.bytes // HELD_PULL_BYTES >= limits.held_pulls_max:
            raise self._busy("limits.held_pulls_max", limits.held_pulls_max)

    def _busy(self, limit: str, value: int) -> SystemBusy:
        return SystemBusy(
            f"too many reads wait: {limit} is {value}, and those with long tags or filters count as several; try again "
            "later, or without wait_ms",
            retry_after_ms=self.broker.limits.busy_retry_after_ms,
        )
