"""Deferred requests of one connection: they wait for the dispatch, the disk, messages, or the client to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...protocol.errors import SystemBusy
from ..background.selections import HELD_PULL_BYTES, Share, Shares
from ..config import BUSY_RETRY_AFTER_MS

if TYPE_CHECKING:
    from ..background.held_pulls import HeldPull
    from ..background.selections import Selection
    from ..delivery.pop.waits import Wait
    from .broker import Broker
    from .response_queue import ResponseQueue

COLD_READS_MAX = 2
"""Maximum number of concurrent cold reads of one connection, so that other connections get a thread soon."""
SELECTED_FREE_BYTES = 64 * 1024
"""Selections of a connection's pulls count as additional waiting pulls only above this size."""
HOLDS_MANY = 64
"""Pulls of a connection that holds at least this many are woken after those of other connections."""


class DeferredRequests:
    """The waiting requests of one connection. None of them delays the frames that follow.

    ``on_progress`` is called after each request that was answered after a wait: an ending connection may then close.
    """

    __slots__ = tuple(
        "_broker _responses cold_reads held_pulls on_progress selected steps undispatched waiting".split()
    )

    def __init__(self, broker: Broker, responses: ResponseQueue, on_progress: Callable[[], None]) -> None:
        self._broker = broker
        self._responses = responses
        self.on_progress = on_progress
        self.held_pulls: set[HeldPull | Wait] = set()
        """Held pulls, which are cancelled when the connection closes."""
        self.selected = Shares()
        """Tags and filters of the pulls that wait or search for messages."""
        self.waiting: deque[Callable[[], None]] = deque()
        """Requests that wait for the client to read, or for one of its cold reads to finish."""
        self.cold_reads = 0
        self.undispatched = 0
        """Number of requests that wait for the dispatch, or for other work that always completes."""
        self.steps = 0
        """Number of requests that wait for their turn."""

    def is_idle(self) -> bool:
        """Return whether no request waits, except held pulls."""
        return not (self.cold_reads or self.undispatched or self.waiting or self.steps)

    def run_waiting(self) -> None:
        """Continue requests that waited for the client to read, or for one of its cold reads to finish."""
        while self.waiting and not self._responses.paused and self.cold_reads < COLD_READS_MAX:
            self.waiting.popleft()()

    def holds_many(self) -> bool:
        """Return whether many pulls of this connection are held."""
        return len(self.held_pulls) >= HOLDS_MANY

    def cancel_held(self) -> None:
        """Cancel the held pulls without a response, because the connection closes."""
        for pull in self.held_pulls:
            pull.cancel()
        self.held_pulls.clear()

    def share(self, selection: Selection) -> Share:
        """Return this connection's share of a selection; it counts until it is garbage-collected."""
        return Share(selection, self.selected)

    def check_may_wait(self) -> None:
        """Raise ``SystemBusy`` if too many pulls of this connection, or of all connections, wait."""
        broker = self._broker
        limits = broker.limits
        # They are of different kinds, but each keeps a request in memory.
        waiting = len(self.held_pulls) + len(self.waiting) + self.undispatched + self.steps
        waiting += max(self.selected.bytes - SELECTED_FREE_BYTES, 0) // HELD_PULL_BYTES
        if waiting >= limits.held_pulls_per_connection_max:
            raise self._busy("limits.held_pulls_per_connection_max", limits.held_pulls_per_connection_max)
        held = len(broker.holds) + len(broker.pops.waits) + len(broker.pops.watches)
        if held + broker.selections.bytes // HELD_PULL_BYTES >= limits.held_pulls_max:
            raise self._busy("limits.held_pulls_max", limits.held_pulls_max)

    def _busy(self, limit: str, value: int) -> SystemBusy:
        return SystemBusy(
            f"too many reads are waiting: {limit} is {value}, and reads with long tags or filters count as several; "
            "try again later, or without wait_ms",
            retry_after_ms=BUSY_RETRY_AFTER_MS,
        )
