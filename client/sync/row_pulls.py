"""Pulls parts of queues as rows, one part after the other: the next pull is in flight while the caller handles one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from ...protocol.errors import MessageDamaged, OffsetOutOfRange, TopicNotExist
from ..arrow.stream import PulledRows, pull
from ..core.consume.batch import TagFilter
from ..core.rpc.operation import Operation
from .pool import Asker, Caller


@dataclass(slots=True)
class QueuePart:
    """Offsets ``[position, end)`` of a queue that are still to be read.

    ``may_move``: if the start has expired, the read may begin at the first offset that exists.
    """

    queue: int
    position: int
    end: int
    may_move: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``[start, end)`` of a queue whose messages cannot be read; ``is_damage``: for damage of the log."""

    queue: int
    start: int
    end: int
    why: str
    is_damage: bool


@dataclass(frozen=True, slots=True)
class RowPulls:
    """Pulls of a topic. ``rows_max``: maximum number of rows of a response; ``timeout``: seconds for which the broker
    may be away; ``on_gap`` is called with messages that cannot be read, and raises, or reading continues after them."""

    caller: Caller
    topic: str
    tags: TagFilter
    condition: str
    rows_max: int
    timeout: float
    on_gap: Callable[[Gap], None]

    def of(self, *parts: QueuePart) -> Iterator[tuple[PulledRows, int]]:
        """Yield the broker's responses that have rows, with the end of the part that each belongs to."""
        asker: Asker[PulledRows] = Asker(self.caller, self.timeout)
        left = deque(part for part in parts if part.position < part.end)
        with closing(asker):
            while left:
                part = left[0]
                if not asker.is_asked:
                    asker.ask(self._pull(part))
                pulled = self._answer(asker, part)
                if part.position >= part.end:
                    left.popleft()
                if left:
                    asker.ask(self._pull(left[0]))
                if pulled is not None and len(pulled.starts):
                    yield pulled, part.end

    def _pull(self, part: QueuePart) -> Operation[PulledRows]:
        count = min(part.end - part.position, self.rows_max)
        return pull(self.topic, part.queue, part.position, count, self.tags, self.condition)

    def _answer(self, asker: Asker[PulledRows], part: QueuePart) -> PulledRows | None:
        """Return the response, or None for a refusal, after moving the part's position past it."""
        try:
            pulled = asker.answer()
        except OffsetOutOfRange as error:
            self._move(part, error.min_offset, error.max_offset)
            return None
        except TopicNotExist:
            part.may_move = False
            self._move(part, part.end, part.end)
            return None
        except MessageDamaged as error:
            self.on_gap(Gap(part.queue, error.queue_offset, error.queue_offset + 1, str(error), True))
            part.position = error.queue_offset + 1
            return None
        if pulled.lost and pulled.lost_from < part.end:
            lost_end = pulled.lost_from + pulled.lost
            self.on_gap(Gap(part.queue, pulled.lost_from, lost_end, "its log was damaged there", True))
        if pulled.next_offset > part.position:
            part.position = pulled.next_offset
            part.may_move = False
        else:  # the queue ends here, before the planned end
            self._move(part, pulled.min_offset, pulled.max_offset)
        return pulled

    def _move(self, part: QueuePart, first: int, last: int) -> None:
        """Continue at the next offset of the queue, which has ``[first, last)``, after the position was found gone."""
        position = min(part.end, first) if first > part.position else part.end
        if not (part.may_move and first > part.position):
            why = f"the queue holds [{first}, {last})" if last > first else "the queue is gone or empty"
            self.on_gap(Gap(part.queue, part.position, position, why, False))
        part.position = position
        part.may_move = False
