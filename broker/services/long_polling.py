"""Pulls that wait for messages.

The event loop owns all of it. A pull at the end of its queue is held here under its queue and woken when the queue
grows beyond the offset it waits at, when its time is over, or when the broker stops. Who holds a pull reads again when
woken, and holds again where nothing in the queue was for it (a filter).

Pulls that want certain tags are asleep while messages of other tags arrive. They hear of those that they passed over a
while later, because that is progress too.

However many pulls are woken by one message, nobody else waits for all of them: they are given back for a slice of time,
and the others in the turns of the loop that follow (``turns.py``).
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Protocol, TypeAlias

from .turns import SLICE_S, Turns

STALE_ENTRIES_MIN = 256
"""The heap of deadlines is cleaned when more than this, and more than half of it, is done with."""

TIMER_RESOLUTION_S = 0.001
"""A timer may fire this much too early (uvloop counts whole milliseconds): what is due then counts as due."""

PASSED_OVER_S = 1.0
"""A group's pull that passed over messages is held no longer than this: its member has to hear of them to commit."""
LOOK_AGAIN_S = 30.0
"""Another one looks again after this long, so that it does not wait at an offset that retention has taken."""

Codes: TypeAlias = frozenset[int] | None
"""Tag codes; None: any."""


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

    __slots__ = ("alike", "callback", "deadline", "offset", "service")

    def __init__(
        self,
        service: PullRequestHoldService,
        alike: _Alike,
        offset: int,
        deadline: float,
        callback: Callable[[Wake], None],
    ) -> None:
        self.service: PullRequestHoldService | None = service
        self.alike = alike
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


class _Alike:
    """The pulls of one queue that want the same tags; ``grouped``: they are a group's; ``of_many``: their connections
    hold many."""

    __slots__ = ("grouped", "of_many", "pulls", "queue", "tags", "timer")

    def __init__(self, queue: _Queue, tags: Codes, *, grouped: bool, of_many: bool) -> None:
        self.queue = queue
        self.tags = tags
        self.grouped = grouped
        self.of_many = of_many
        self.pulls: dict[HeldPull, None] = {}
        self.timer: Timer | None = None
        """When they are woken because of what they passed over."""


class _Queue:
    """The pulls that wait for one queue."""

    __slots__ = ("alike", "codes", "key", "max_offset", "seen", "waking")

    def __init__(self, key: tuple[str, int], offset: int) -> None:
        self.key = key
        self.alike: dict[tuple[Codes, bool, bool], _Alike] = {}
        self.max_offset = self.seen = offset
        """Where the next message will be, and behind the last one whose tag was looked at."""
        self.codes: Codes = frozenset()
        """Tags of the messages that pulls are still to be woken for; empty: there are none."""
        self.waking = False


class PullRequestHoldService:
    """Holds pulls by queue.

    ``clock``: seconds, never going back; ``call_at``: calls a function at a moment of that clock (``loop.time`` and
    ``loop.call_at``). There is one timer, for the nearest deadline, however many pulls are held. ``turns``: where what
    does not fit into a slice of time goes on. ``codes_between``: the tag codes of a queue's messages (topic, queue,
    first, end); None where it cannot tell at once.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], Timer],
        turns: Turns,
        codes_between: Callable[[str, int, int, int], Codes] = lambda topic, queue, first, end: None,
    ) -> None:
        self.turns = turns
        self._clock = clock
        self._call_at = call_at
        self._codes_between = codes_between
        self._by_queue: dict[tuple[str, int], _Queue] = {}
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._sequence = itertools.count()
        self._held = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._work: deque[Iterator[None]] = deque()
        """Pulls that are being given back, one a step."""
        self._in_turns = False
        """Whether it goes on in a turn to come."""

    def __len__(self) -> int:
        return self._held

    def hold(
        self,
        topic: str,
        queue: int,
        offset: int,
        deadline: float,
        callback: Callable[[Wake], None],
        *,
        tags: Codes = None,
        grouped: bool = False,
        of_many: bool = False,
    ) -> HeldPull:
        """Hold a pull that waits for ``offset`` of a queue until ``deadline`` (seconds of the clock).

        ``tags``: the codes, any of which a message must have to wake it; ``grouped``: it is a group's;
        ``of_many``: its connection holds many, so that others are woken first.
        """
        of_queue = self._by_queue.get((topic, queue))
        if of_queue is None:
            of_queue = self._by_queue[topic, queue] = _Queue((topic, queue), offset)
        of_queue.seen = min(of_queue.seen, offset)  # lower only where the topic was made anew
        alike = of_queue.alike.get((tags, grouped, of_many))
        if alike is None:
            alike = _Alike(of_queue, tags, grouped=grouped, of_many=of_many)
            of_queue.alike[tags, grouped, of_many] = alike
        held = HeldPull(self, alike, offset, deadline, callback)
        alike.pulls[held] = None
        self._held += 1
        heapq.heappush(self._deadlines, (deadline, next(self._sequence), held))
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)
        return held

    def wake(self, topic: str, queue: int, max_offset: int) -> None:
        """The queue has messages below ``max_offset`` now: give back who waits for one of them."""
        self.wake_queues([(topic, queue, max_offset)])

    def wake_queues(self, grown: Iterable[tuple[str, int, int]]) -> None:
        """``wake`` for several queues: (topic, queue, max_offset)."""
        for topic, queue, max_offset in grown:
            of_queue = self._by_queue.get((topic, queue))
            if of_queue is None or max_offset <= of_queue.seen:
                continue
            if of_queue.codes is not None:
                of_queue.codes = self._codes_of(of_queue, max_offset)
            of_queue.max_offset = of_queue.seen = max_offset
            if not of_queue.waking:
                of_queue.waking = True
                self._work.append(self._woken(of_queue))
        self._give_back_now()

    def _codes_of(self, of_queue: _Queue, max_offset: int) -> Codes:
        """Tags of messages that pulls are to be woken for, with those below ``max_offset``."""
        assert of_queue.codes is not None
        if all(tags is None for tags, _, _ in of_queue.alike):
            return None
        found = self._codes_between(*of_queue.key, of_queue.seen, max_offset)
        return None if found is None else of_queue.codes | found

    def wake_topic(self, topic: str) -> None:
        """The topic changed or went: give back all who wait for any of its queues, so that they look again."""
        self._begin(self._all_of([each for key, each in self._by_queue.items() if key[0] == topic], Wake.ARRIVED))

    def wake_all(self) -> None:
        """What is allowed changed: give back every pull, so that all look again."""
        self._begin(self._all_of(list(self._by_queue.values()), Wake.ARRIVED))

    def answer_all(self) -> None:
        """The broker stops: give back every pull."""
        for _ in self._all_of(list(self._by_queue.values()), Wake.STOPPED):
            pass
        self._deadlines.clear()
        self._set_timer(None)

    def forget(self, held: HeldPull) -> None:
        """Take a pull out without calling it."""
        alike = held.alike
        del alike.pulls[held]
        if not alike.pulls:
            queue = alike.queue
            del queue.alike[alike.tags, alike.grouped, alike.of_many]
            if alike.timer is not None:
                alike.timer.cancel()
            if not queue.alike:
                del self._by_queue[queue.key]
        held.service = None
        self._held -= 1
        stale = len(self._deadlines) - self._held
        if stale > STALE_ENTRIES_MIN and stale > self._held:
            self._deadlines = [entry for entry in self._deadlines if entry[2].service is not None]
            heapq.heapify(self._deadlines)

    # ---- giving back, a pull a step

    def _begin(self, work: Iterator[None]) -> None:
        self._work.append(work)
        self._give_back_now()

    def _give_back_now(self) -> None:
        """At once, as far as a slice of time reaches: usually there is one pull."""
        if self._work and not self._in_turns:
            self._give_back()

    def _give_back(self) -> None:
        """Give pulls back for a slice of time. All that were woken take turns: few do not wait for many."""
        self._in_turns = True  # also for what a callback wakes
        end = self._clock() + SLICE_S
        try:
            while self._work:
                work = self._work.popleft()
                for _ in work:
                    self._work.append(work)
                    break
                if self._clock() >= end:
                    break
        finally:
            self._in_turns = bool(self._work)
            if self._in_turns:
                self.turns.add(self._give_back)

    def _one(self, held: HeldPull, reason: Wake) -> None:
        self.forget(held)
        held.callback(reason)

    def _woken(self, queue: _Queue) -> Iterator[None]:
        """Give back who waits for a message of the queue that has one of its tags."""
        try:
            while queue.codes is None or queue.codes:
                codes, queue.codes = queue.codes, frozenset()
                for alike in sorted(queue.alike.values(), key=attrgetter("of_many")):
                    if codes is not None and alike.tags is not None and codes.isdisjoint(alike.tags):
                        self._passed_over(alike)
                        yield
                        continue
                    for held in list(alike.pulls):
                        # What was cancelled meanwhile is gone; what was held meanwhile waits for later messages.
                        if held.service is not None and held.offset < queue.max_offset:
                            self._one(held, Wake.ARRIVED)
                            yield
        finally:
            queue.waking = False

    def _passed_over(self, alike: _Alike) -> None:
        if alike.timer is None:
            after = PASSED_OVER_S if alike.grouped else LOOK_AGAIN_S
            alike.timer = self._call_at(self._clock() + after, lambda: self._begin(self._hear_of_it(alike)))

    def _hear_of_it(self, alike: _Alike) -> Iterator[None]:
        alike.timer = None
        for held in list(alike.pulls):
            if held.service is not None and held.offset < alike.queue.max_offset:
                self._one(held, Wake.EXPIRED if alike.grouped else Wake.ARRIVED)
                yield

    def _all_of(self, queues: list[_Queue], reason: Wake) -> Iterator[None]:
        for queue in queues:
            for alike in list(queue.alike.values()):
                for held in list(alike.pulls):
                    if held.service is not None:
                        self._one(held, reason)
                        yield

    def _expire(self) -> None:
        self._timer = None
        self._begin(self._expired(self._clock() + TIMER_RESOLUTION_S))

    def _expired(self, now: float) -> Iterator[None]:
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].service is None):
            held = heapq.heappop(self._deadlines)[2]
            if held.service is not None:
                self._one(held, Wake.EXPIRED)
                yield
        if self._deadlines and (self._timer is None or self._deadlines[0][0] < self._timer_at):
            self._set_timer(self._deadlines[0][0])

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            self._timer = self._call_at(at, self._expire)
