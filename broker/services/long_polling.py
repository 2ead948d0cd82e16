"""Pulls that wait for messages.

The event loop owns all of it. A pull at the end of its queue is held here under its queue and woken when the queue
grows beyond the offset it waits at, when its time is over, or when the broker stops. Who holds a pull reads again when
woken, and holds again where nothing in the queue was for it (a tag filter).
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Callable
from typing import Protocol

STALE_ENTRIES_MIN = 256
"""The heap of deadlines is cleaned when more than this, and more than half of it, is done with."""


TIMER_RESOLUTION_S = 0.001
"""A timer may fire this much too early (uvloop counts whole milliseconds): what is due then counts as due."""


class Wake(enum.Enum):
    """Why a held pull is given back."""

    ARRIVED = "messages arrived in its queue"
    EXPIRED = "its time is over"
    STOPPED = "the broker stops"


class Timer(Protocol):
    """What ``call_at`` returns; ``asyncio.TimerHandle`` is one."""

    def cancel(self) -> None:
        """Take the call back."""


class HeldPull:
    """One pull that waits. ``callback`` gets the reason once; after ``cancel`` never."""

    __slots__ = ("callback", "deadline", "offset", "queue_key", "service")

    def __init__(
        self,
        service: PullRequestHoldService,
        queue_key: tuple[str, int],
        offset: int,
        deadline: float,
        callback: Callable[[Wake], None],
    ) -> None:
        self.service: PullRequestHoldService | None = service
        self.queue_key = queue_key
        self.offset = offset
        self.deadline = deadline
        self.callback = callback

    def cancel(self) -> None:
        """Give the place up; from now on the callback is not called. Any number of times, at any moment."""
        self.callback = _nobody
        if self.service is not None:
            self.service.forget(self)


def _nobody(reason: Wake) -> None:
    """The callback of a pull that was cancelled while it was being given back."""


class PullRequestHoldService:
    """Holds pulls by queue.

    ``clock``: seconds, never going back; ``call_at``: calls a function at a moment of that clock (``loop.time`` and
    ``loop.call_at``). There is one timer, for the nearest deadline, however many pulls are held.
    """

    def __init__(self, clock: Callable[[], float], call_at: Callable[[float, Callable[[], None]], Timer]) -> None:
        self._clock = clock
        self._call_at = call_at
        self._by_queue: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._sequence = itertools.count()
        self._held = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return self._held

    def hold(self, topic: str, queue: int, offset: int, deadline: float, callback: Callable[[Wake], None]) -> HeldPull:
        """Hold a pull that waits for ``offset`` of a queue until ``deadline`` (seconds of the clock)."""
        held = HeldPull(self, (topic, queue), offset, deadline, callback)
        self._by_queue.setdefault(held.queue_key, {})[held] = None
        self._held += 1
        heapq.heappush(self._deadlines, (deadline, next(self._sequence), held))
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)
        return held

    def wake(self, topic: str, queue: int, max_offset: int) -> None:
        """The queue has messages below ``max_offset`` now: give back who waits for one of them."""
        waiting = self._by_queue.get((topic, queue))
        if waiting:
            self._give_back([held for held in waiting if held.offset < max_offset], Wake.ARRIVED)

    def wake_topic(self, topic: str) -> None:
        """The topic changed or went: give back all who wait for any of its queues, so that they look again."""
        keys = [key for key in self._by_queue if key[0] == topic]
        self._give_back([held for key in keys for held in self._by_queue[key]], Wake.ARRIVED)

    def wake_all(self) -> None:
        """What is allowed changed: give back every pull, so that all look again."""
        self._give_back([held for waiting in self._by_queue.values() for held in waiting], Wake.ARRIVED)

    def answer_all(self) -> None:
        """The broker stops: give back every pull."""
        self._give_back([held for waiting in self._by_queue.values() for held in waiting], Wake.STOPPED)
        self._deadlines.clear()
        self._set_timer(None)

    def forget(self, held: HeldPull) -> None:
        """Take a pull out without calling it."""
        waiting = self._by_queue[held.queue_key]
        del waiting[held]
        if not waiting:
            del self._by_queue[held.queue_key]
        held.service = None
        self._held -= 1
        stale = len(self._deadlines) - self._held
        if stale > STALE_ENTRIES_MIN and stale > self._held:
            self._deadlines = [entry for entry in self._deadlines if entry[2].service is not None]
            heapq.heapify(self._deadlines)

    def _give_back(self, pulls: list[HeldPull], reason: Wake) -> None:
        # All are taken out first: a callback may hold again, or cancel another of them.
        for held in pulls:
            self.forget(held)
        for held in pulls:
            held.callback(reason)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock() + TIMER_RESOLUTION_S
        over: list[HeldPull] = []
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].service is None):
            held = heapq.heappop(self._deadlines)[2]
            if held.service is not None:
                over.append(held)
        if self._deadlines:
            self._set_timer(self._deadlines[0][0])
        self._give_back(over, Wake.EXPIRED)

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            self._timer = self._call_at(at, self._expire)
