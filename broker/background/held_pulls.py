"""Held pulls (long polling).

Everything runs on the event loop. A pull at the end of its queue is held here and woken when the queue grows beyond the
pull's offset, when its timeout expires, or when the broker stops. The pull's owner then reads again, and holds again if
no new message passed its filter.

A pull for certain tags is not woken by messages with other tags. It learns of the skipped messages a while later,
because skipping them is progress that the group commits.

One message can wake many pulls. They are woken for one time slice, and the rest in the following iterations of the loop
(``loop_work.py``), so that other connections do not wait for all of them.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

from .loop_work import SLICE_S

if TYPE_CHECKING:
    from ..filters import Filter
    from ..store import PullResult
    from .loop_work import CallAt, LoopTimer, StepScheduler

STALE_ENTRIES_MIN = 256
"""The heap of deadlines is cleaned when it has more stale entries than this and they are more than half of it."""

TIMER_RESOLUTION_S = 0.001
"""A timer may fire this much too early, since uvloop counts whole milliseconds: deadlines this close count as due."""

PASSED_OVER_S = 1.0
"""Maximum hold of a group's pull after it skipped messages: the member has to learn of them to commit."""
LOOK_AGAIN_S = 30.0
"""Maximum hold of any other pull after it skipped messages, so that none waits at an offset that retention deleted."""

Codes: TypeAlias = frozenset[int] | None
"""Tag codes; None: any."""


class Wake(enum.Enum):
    ARRIVED = "messages arrived in its queue"
    EXPIRED = "its timeout expired"
    STOPPED = "the broker stops"


class HeldPull:
    """One waiting pull. ``callback`` gets the reason exactly once, or never after ``cancel`` or ``give``."""

    __slots__ = ("alike", "callback", "deadline", "offset", "on_end", "service", "take")

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
        self.take: Callable[[PullResult], None] | None = None
        """Function that takes the result in place of ``callback``; None: the pull's owner must read it."""
        self.on_end: Callable[[], None] | None = None
        """Called when the pull waits no more."""

    def cancel(self) -> None:
        """Stop waiting; the callback will not be called. May be called at any time and more than once."""
        if self.service is not None:
            self.service.forget(self)


def _ended(reason: Wake) -> None:
    raise AssertionError("a pull is woken only once")


class _Alike:
    """The pulls of one queue for the same tags. ``grouped``: they are pulls of consumer groups; ``of_many``: their
    connections hold many pulls."""

    __slots__ = ("grouped", "of_many", "pulls", "queue", "tags", "timer")

    def __init__(self, queue: _Queue, tags: Codes, *, grouped: bool, of_many: bool) -> None:
        self.queue = queue
        self.tags = tags
        self.grouped = grouped
        self.of_many = of_many
        self.pulls: dict[HeldPull, None] = {}
        self.timer: LoopTimer | None = None
        """Timer that wakes these pulls after they skipped messages."""


class _Queue:
    """The pulls that wait for one queue."""

    __slots__ = ("alike", "codes", "key", "max_offset", "seen", "waking")

    def __init__(self, key: tuple[str, int], offset: int) -> None:
        self.key = key
        self.alike: dict[tuple[Codes, bool, bool], _Alike] = {}
        self.max_offset = self.seen = offset
        """``max_offset``: offset of the next message; ``seen``: offset after the last message whose tag was checked."""
        self.codes: Codes = frozenset()
        """Tags of the messages that pulls still have to be woken for; empty: there are none."""
        self.waking = False

    def only_pull(self) -> HeldPull | None:
        """Return the queue's only pull, if no other one waits and it accepts all tags."""
        if len(self.alike) == 1 and not self.waking:
            (alike,) = self.alike.values()
            if alike.tags is None and len(alike.pulls) == 1:
                return next(iter(alike.pulls))
        return None


class PullRequestHoldService:
    """The held pulls by queue.

    ``clock``: monotonic, in seconds; ``call_at``: calls a function at a time of that clock (``loop.time`` and
    ``loop.call_at``). One timer, for the nearest deadline, serves all held pulls. ``turns``: scheduler of the work that
    exceeds a time slice. ``codes_between``: returns the tag codes of a queue's messages (topic, queue, first, end), or
    None if it would have to read from disk.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        call_at: CallAt,
        turns: StepScheduler,
        codes_between: Callable[[str, int, int, int], Codes] = lambda topic, queue, first, end: None,
    ) -> None:
        self.turns = turns
        self._clock = clock
        self._call_at = call_at
        self._codes_between = codes_between
        self.on_awaited: Callable[[str, int, int], None] = lambda topic, queue, awaited: None
        """Called with 1 when a pull begins to wait for a queue, and with 0 when none does any more."""
        self.by_queue: dict[tuple[str, int], _Queue] = {}
        """Held pulls by topic and queue. Other modules read it to see whether a queue has any."""
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._sequence = itertools.count()
        self._held = 0
        self._timer: LoopTimer | None = None
        self._timer_at = 0.0
        self._work: deque[Iterator[None]] = deque()
        """Iterators that wake pulls, one pull a step."""
        self._in_turns = False
        """True while waking is in progress or scheduled for a later iteration of the loop."""

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

        ``tags``: only messages with one of these codes wake it; ``grouped``: it is a consumer group's pull;
        ``of_many``: its connection holds many pulls, so pulls of other connections are woken first.
        """
        of_queue = self.by_queue.get((topic, queue))
        if of_queue is None:
            of_queue = self.by_queue[topic, queue] = _Queue((topic, queue), offset)
        of_queue.seen = min(of_queue.seen, offset)  # lower only if the topic was deleted and created again
        alike = of_queue.alike.get((tags, grouped, of_many))
        if alike is None:
            alike = _Alike(of_queue, tags, grouped=grouped, of_many=of_many)
            of_queue.alike[tags, grouped, of_many] = alike
        held = HeldPull(self, alike, offset, deadline, callback)
        alike.pulls[held] = None
        self._held += 1
        self.on_awaited(topic, queue, 1)
        # The number breaks ties between equal deadlines, because pulls cannot be compared.
        heapq.heappush(self._deadlines, (deadline, next(self._sequence), held))
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)
        return held

    def taker(self, topic: str, queue: int, offset: int) -> HeldPull | None:
        """Return the queue's only pull, if it waits for ``offset`` and takes a result."""
        of_queue = self.by_queue.get((topic, queue))
        held = of_queue.only_pull() if of_queue is not None and not self._in_turns else None
        return held if held is not None and held.offset == offset and held.take is not None else None

    def give(self, held: HeldPull, pulled: PullResult) -> None:
        """End the wait of a pull that ``taker`` returned, with the result for its offset."""
        take = held.take
        assert take is not None
        self.forget(held)
        take(pulled)

    def wake(self, topic: str, queue: int, max_offset: int) -> None:
        """Wake the pulls that wait for messages of a queue, which now has messages below ``max_offset``."""
        self.wake_queues([(topic, queue, max_offset)])

    def wake_queues(self, grown: Sequence[tuple[str, int, int]]) -> None:
        """Do what ``wake`` does for several queues: (topic, queue, max_offset)."""
        if not self.by_queue:
            return
        single = len(grown) == 1 and not self._in_turns
        for topic, queue, max_offset in grown:
            of_queue = self.by_queue.get((topic, queue))
            if of_queue is None or max_offset <= of_queue.seen:
                continue
            if single and (held := of_queue.only_pull()) is not None and held.offset < max_offset:
                # Its queue has no pull left and is forgotten with it, so nothing is to be noted of the message.
                self._one(held, Wake.ARRIVED)  # the usual case: one consumer waits for the queue
                continue
            # With None, all pulls are being woken already.
            if of_queue.codes is not None:
                of_queue.codes = self._codes_of(of_queue, max_offset)
            of_queue.max_offset = of_queue.seen = max_offset
            if not of_queue.waking:
                of_queue.waking = True
                self._work.append(self._woken(of_queue))
        self._give_back_now()

    def _codes_of(self, of_queue: _Queue, max_offset: int) -> Codes:
        """Return the tags that pulls have to be woken for, including those of new messages below ``max_offset``."""
        assert of_queue.codes is not None
        if all(tags is None for tags, _, _ in of_queue.alike):
            return None
        found = self._codes_between(*of_queue.key, of_queue.seen, max_offset)
        return None if found is None else of_queue.codes | found

    def wake_topic(self, topic: str) -> None:
        """Wake all pulls of a topic that was changed or deleted, so that they check again."""
        self._begin(self._all_of([each for key, each in self.by_queue.items() if key[0] == topic], Wake.ARRIVED))

    def wake_all(self) -> None:
        """Wake all pulls after a change of permissions, so that they check again."""
        self._begin(self._all_of(list(self.by_queue.values()), Wake.ARRIVED))

    def answer_all(self) -> None:
        """Wake all pulls at once because the broker stops."""
        # Without time slices: from here on, the broker serves nothing else.
        for _ in self._all_of(list(self.by_queue.values()), Wake.STOPPED):
            pass
        self._deadlines.clear()
        self._set_timer(None)

    def forget(self, held: HeldPull) -> None:
        """Remove a pull without calling its callback."""
        alike = held.alike
        del alike.pulls[held]
        if not alike.pulls:
            queue = alike.queue
            del queue.alike[alike.tags, alike.grouped, alike.of_many]
            if alike.timer is not None:
                alike.timer.cancel()
            if not queue.alike:
                del self.by_queue[queue.key]
                self.on_awaited(*queue.key, 0)
        held.service = None
        if held.on_end is not None:
            held.on_end()
        # Both lead to the pull's owner, which refers to ``held``: the cycle would be garbage that only a collection
        # frees, and a collection stops the loop.
        held.callback, held.take = _ended, None
        self._held -= 1
        # Pulls that end early leave their entries behind, since a heap gives up only its first one.
        stale = len(self._deadlines) - self._held
        if stale > STALE_ENTRIES_MIN and stale > self._held:
            self._deadlines = [entry for entry in self._deadlines if entry[2].service is not None]
            heapq.heapify(self._deadlines)

    # ---- waking, one pull a step

    def _begin(self, work: Iterator[None]) -> None:
        self._work.append(work)
        self._give_back_now()

    def _give_back_now(self) -> None:
        """Wake pulls now for one time slice, which is usually enough: most often there is a single pull."""
        if self._work and not self._in_turns:
            self._give_back()

    def _give_back(self) -> None:
        """Wake pulls for one time slice. All queues take turns, so that one with few pulls does not wait for one with
        many."""
        self._in_turns = True  # set before the callbacks: what they wake must join this run, not start a nested one
        end = self._clock() + SLICE_S
        try:
            while self._work:
                work = self._work.popleft()
                # A single step: work that may have more goes to the end of the line.
                for _ in work:
                    self._work.append(work)
                    break
                if self._clock() >= end:
                    break
        finally:
            # Even after an error in a callback, or the pulls after it would never be woken.
            self._in_turns = bool(self._work)
            if self._in_turns:
                self.turns.add(self._give_back)

    def _one(self, held: HeldPull, reason: Wake) -> None:
        callback = held.callback
        self.forget(held)
        callback(reason)

    def _woken(self, queue: _Queue) -> Iterator[None]:
        """Wake the pulls that wait for new messages of the queue and accept one of their tags."""
        try:
            # Messages that arrive while pulls are woken add their tags, and the loop runs again.
            while queue.codes is None or queue.codes:
                codes, queue.codes = queue.codes, frozenset()
                for alike in sorted(queue.alike.values(), key=attrgetter("of_many")):
                    if codes is not None and alike.tags is not None and codes.isdisjoint(alike.tags):
                        self._passed_over(alike)
                        yield
                        continue
                    # A copy, because each woken pull leaves the dict.
                    for held in list(alike.pulls):
                        # Skip pulls that were cancelled meanwhile, and those held meanwhile for later messages.
                        if held.service is not None and held.offset < queue.max_offset:
                            self._one(held, Wake.ARRIVED)
                            yield
        finally:
            queue.waking = False

    def _passed_over(self, alike: _Alike) -> None:
        """Set a timer that wakes pulls whose tags no new message has; one that is set already stays."""
        if alike.timer is None:
            after = PASSED_OVER_S if alike.grouped else LOOK_AGAIN_S
            alike.timer = self._call_at(self._clock() + after, lambda: self._begin(self._hear_of_it(alike)))

    def _hear_of_it(self, alike: _Alike) -> Iterator[None]:
        """Wake the pulls that skipped messages, so that their owners learn the offset to continue from."""
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

        # Not if a pull that was held meanwhile has set an earlier timer.
        if self._deadlines and (self._timer is None or self._deadlines[0][0] < self._timer_at):
            self._set_timer(self._deadlines[0][0])

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            self._timer = self._call_at(at, self._expire)


# ---- Tags and filters of waiting pulls. Pulls with the same selection share it, and its memory is counted.
#
# A waiting pull takes ``HELD_PULL_BYTES``; long tags or a long filter can take a hundred times that. They
# count as the corresponding number of additional pulls, per connection and in total.

HELD_PULL_BYTES = 1536
"""Memory of a waiting pull without its selection."""
_INTEGER_BYTES = 32
_FILTER_BYTES = 2048
_FILTER_BYTES_A_CHAR = 128
"""A compiled filter takes up to 116 bytes per character of its text: ``a=b OR a=b OR …``."""


class Selection:
    """Tags and filter of one or more pulls. ``tags``: tag codes, None for all; ``records``: filter, None for none."""

    __slots__ = ("__weakref__", "_all", "bytes", "records", "tags")

    def __init__(self, of_all: Selections, tags: frozenset[int] | None, records: Filter | None) -> None:
        self.tags = tags
        self.records = records
        self.bytes = 0
        if tags is not None:
            self.bytes += sys.getsizeof(tags) + _INTEGER_BYTES * len(tags)
        if records is not None:
            self.bytes += _FILTER_BYTES + _FILTER_BYTES_A_CHAR * len(records.text)
        self._all = of_all
        of_all.bytes += self.bytes

    def __del__(self) -> None:
        # With the last reference, however the pull ends: so no path can forget to count it.
        self._all.bytes -= self.bytes


class Selections:
    """All selections that a pull refers to. ``bytes``: their total memory."""

    def __init__(self) -> None:
        self.bytes = 0
        self._known: WeakValueDictionary[tuple[frozenset[int] | None, str], Selection] = WeakValueDictionary()

    def share(self, tags: frozenset[int] | None, records: Filter | None) -> Selection:
        """Return the selection with these tags and this filter; equal selections are the same object."""
        key = (tags, "" if records is None else records.text)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Selection(self, tags, records)
        return known


class Shares:
    """Selections in use by the pulls of one connection. ``bytes``: their memory, each selection counted once."""

    __slots__ = ("bytes", "uses")

    def __init__(self) -> None:
        self.bytes = 0
        self.uses: dict[Selection, int] = {}
        """Number of pulls of each selection."""


class Share:
    """One pull's use of a selection; it counts until it is garbage-collected."""

    __slots__ = ("_shares", "selection")

    def __init__(self, selection: Selection, shares: Shares) -> None:
        self.selection = selection
        self._shares = shares
        uses = shares.uses.get(selection, 0)
        shares.uses[selection] = uses + 1
        if not uses:
            shares.bytes += selection.bytes

    def __del__(self) -> None:
        shares = self._shares
        uses = shares.uses[self.selection] - 1
        if uses:
            shares.uses[self.selection] = uses
        else:
            del shares.uses[self.selection]
            shares.bytes -= self.selection.bytes
