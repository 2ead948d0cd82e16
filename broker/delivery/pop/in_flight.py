"""The messages of one queue that one group has in flight: a state machine without I/O and without a clock.

    not handed out ──take──▶ in flight ──settle───────────────────────────────────────▶ settled
                              ▲   │  └─ its time is over, or it is returned: moving ──moved──▶ settled
                              └───┘ renew

Offsets below ``next_offset`` have been handed out or passed over; those of them that are not in ``open`` are settled.
So the committed offset is the first one in ``open``. In an ordered queue a message never moves: the queue gives nothing
until all messages of the last take are settled or their time is over; then it continues at the committed offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Ranges = Sequence[tuple[int, int]]
"""Half-open ranges of queue offsets, ascending."""


@dataclass(slots=True)
class InFlight:
    """One message in flight. ``pop_ms``: the time that a receipt must name; ``visible_ms``: the end of its time.

    ``moving``: the broker is storing it again, because its time is over or its consumer gave it back, so nothing can
    settle or renew it any more.
    """

    pop_ms: int
    visible_ms: int
    moving: bool = False


class Take(NamedTuple):
    """How a consumer takes messages. All times are ms since 1970 UTC.

    ``ordered``: one batch at a time, in the queue's order; ``attempt``: id of the request. A consumer that lost the
    answer repeats the id and gets the same messages at once.
    """

    # A tuple, because every pop makes one: a frozen dataclass takes longer.
    now_ms: int
    invisible_ms: int
    ordered: bool = False
    attempt: str = ""


class QueueInFlight:
    """The state of one queue for one group. ``settled``: ranges from ``committed`` on that are settled already."""

    __slots__ = ("_ahead", "attempt", "counts", "next_offset", "open", "ordered", "stored")

    def __init__(self, committed: int, settled: Ranges = ()) -> None:
        self.next_offset = committed
        self.stored = committed
        """Committed offset that the table of offsets has."""
        self.open: dict[int, InFlight] = {}
        """Messages in flight by offset, ascending: they are added in the order of the queue and changed in place."""
        self.ordered = False
        """The messages in flight were taken in order."""
        self.attempt = ""
        self.counts: dict[int, int] = {}
        """For each message of the last ordered take: how often it had been delivered before."""
        self._ahead = deque((max(first, committed), end) for first, end in settled if end > committed)
        """Settled ranges from ``next_offset`` on, known from an earlier run of the broker."""
        self._pass_settled()

    @property
    def committed(self) -> int:
        """Offset of the first message that is not settled."""
        return next(iter(self.open), self.next_offset)

    @property
    def is_idle(self) -> bool:
        """Return whether the committed offset describes the whole state, so that there is nothing else to keep."""
        return not self.open and not self._ahead and not self.counts

    def blocked_until(self, take: Take) -> int | None:
        """Return when the queue gives messages again, in ms: None for now, -1 for no known time.

        Messages that were taken in order, and messages that were not, are never in flight together.
        """
        if not self.open or (not self.ordered and not take.ordered):
            return None
        # A consumer that lost its answer asks again for the very messages that block the others.
        if self.ordered and take.ordered and take.attempt and take.attempt == self.attempt:
            return None
        # All must be settled or stored again first, and no time is known for that.
        if not self.ordered:
            return -1
        # The queue gives all of them again together, when the last one's time is over.
        until = max(delivery.visible_ms for delivery in self.open.values())
        return until if until > take.now_ms else None

    def start(self) -> int:
        """Return the offset at which a take begins unless the queue is blocked."""
        return self.committed if self.ordered else self.next_offset

    def take(self, offsets: Iterable[int], end: int, take: Take, pop_ms: int) -> list[int]:
        """Hand out the messages at ``offsets``, which a read of ``start()`` up to ``end`` found; return those taken.

        The others are settled. Offsets up to ``end`` that were not found are passed over: no consumer wants them.
        """
        # A take that is not blocked by messages in flight repeats its attempt, or their time is over.
        if self.ordered and self.open:
            self._rewind()

        # Both are in the order of offsets, so one pass finds what was settled before a restart.
        settled = self._ahead
        taken = []
        at = 0
        for offset in offsets:
            while at < len(settled) and settled[at][1] <= offset:
                at += 1
            if at == len(settled) or offset < settled[at][0]:
                taken.append(offset)
        if take.ordered:
            # A repeated attempt does not count as another delivery.
            again = 0 if take.attempt and take.attempt == self.attempt else 1
            before = self.counts
            self.counts = {offset: before[offset] + again if offset in before else 0 for offset in taken}
        else:
            self.counts = {}
        self.ordered, self.attempt = take.ordered, take.attempt if take.ordered else ""
        visible_ms = pop_ms + take.invisible_ms
        for offset in taken:
            self.open[offset] = InFlight(pop_ms, visible_ms)
        self.pass_over(end)
        return taken

    def pass_over(self, end: int) -> None:
        """Note that no message below ``end`` is left to hand out."""
        self.next_offset = max(self.next_offset, end)
        self._pass_settled()

    def _pass_settled(self) -> None:
        settled = self._ahead
        while settled and settled[0][0] <= self.next_offset:
            self.next_offset = max(self.next_offset, settled.popleft()[1])

    def _rewind(self) -> None:
        """Continue at the first message that is not settled; receipts of the last take become void."""
        self.next_offset = self.committed
        self.open.clear()

    def settle(self, offset: int, pop_ms: int) -> bool:
        """Settle a message; return False if the receipt is not the one of its current delivery."""
        delivery = self.open.get(offset)
        if delivery is None or delivery.pop_ms != pop_ms or delivery.moving:
            return False
        self._close(offset)
        return True

    def _close(self, offset: int) -> None:
        del self.open[offset]
        if not self.open:
            self.counts = {}

    def renew(self, offset: int, pop_ms: int, take: Take, *, keep: bool) -> InFlight | None:
        """Give a message new time from ``take.now_ms`` on; return None if the receipt is not its current delivery's.

        ``keep``: the receipt stays valid, as it always does in an ordered queue. Otherwise the returned delivery has a
        new ``pop_ms``.
        """
        delivery = self.open.get(offset)
        if delivery is None or delivery.pop_ms != pop_ms or delivery.moving:
            return None
        if not (keep or self.ordered):
            # Later in any case, even if the clock was set back: no two deliveries have the same receipt.
            delivery.pop_ms = max(take.now_ms, pop_ms + 1)
        delivery.visible_ms = take.now_ms + take.invisible_ms
        return delivery

    def begin_move(self, offset: int, visible_ms: int) -> bool:
        """Let an expired message move; return False if ``visible_ms`` is no longer the end of its time."""
        delivery = self.open.get(offset)
        if delivery is None or delivery.visible_ms != visible_ms or delivery.moving or self.ordered:
            return False
        delivery.moving = True
        return True

    def begin_return(self, offset: int, pop_ms: int) -> InFlight | None:
        """Let a message move because its consumer gives it back; return None if the receipt is not its delivery's."""
        delivery = self.open.get(offset)
        if delivery is None or delivery.pop_ms != pop_ms or delivery.moving or self.ordered:
            return None
        delivery.moving = True
        return delivery

    def moved(self, offset: int) -> None:
        """Settle a message that has been stored again."""
        # After a reset meanwhile, the offset may be gone, or handed out again.
        if offset in self.open and self.open[offset].moving:
            self._close(offset)

    def keep(self, offset: int, visible_ms: int) -> bool:
        """Let a message that could not be stored again try at ``visible_ms``; return whether it is still in flight."""
        delivery = self.open.get(offset)
        if delivery is None or not delivery.moving:
            return False
        delivery.moving, delivery.visible_ms = False, visible_ms
        return True

    def advance(self, committed: int) -> None:
        """Settle all messages before ``committed``."""
        self.open = {offset: delivery for offset, delivery in self.open.items() if offset >= committed}
        self.pass_over(committed)

    def clip(self, end: int) -> None:
        """Forget what is at ``end`` or beyond: after a crash, new messages get these offsets."""
        self.open = {offset: delivery for offset, delivery in self.open.items() if offset < end}
        self.next_offset = min(self.next_offset, end)
        self._ahead = deque((first, min(last, end)) for first, last in self._ahead if first < end)

    def settled(self) -> list[tuple[int, int]]:
        """Return the ranges from the committed offset on that are settled."""
        ranges = []
        at = self.committed
        # All messages between two that are in flight are settled.
        for offset in self.open:
            if offset > at:
                ranges.append((at, offset))
            at = offset + 1
        if at < self.next_offset:
            ranges.append((at, self.next_offset))
        return [*ranges, *self._ahead]
