"""Which messages of which producer are stored: how a frame that is sent again is told from a new one.

A producer numbers its messages: ``unique_prefix`` names it, ``unique_first`` counts. What is stored of a producer in a
topic is kept as *runs*: messages whose counters and queue offsets follow each other. All of it is in memory, and
bounded. A start reads it back from the log's tail, whose records have prefix and counter in their unique key.

Everything belongs to the event loop. Whether a frame is a duplicate is asked for every frame, so the usual answer, that
its counters are above all that came before, costs one look into a dict.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from ...protocol.errors import PartlyStored
from ..store import StoredRun

SEQUENCE_WEIGHT = 4
"""What a sequence takes of ``runs_max`` beside its runs: a producer with a single message takes memory too."""
_FORGOTTEN_SHARE = 8
"""A producer with too many runs forgets the oldest of them, one of so many at a time."""
_ORDER_S = 1.0
"""The sequences' order by activity is right to this."""

# Columns of a run.
_FIRST = 0
"""Counter of its first message."""
_END = 1
"""Behind the counter of its last message."""
_PLACE = 2
"""The topic and queue that it is stored in: see ``ProducerSequences``."""
_OFFSET = 3
"""Queue offset of its first message."""
_COLUMNS = 4
_pack = struct.Struct(f"={_COLUMNS}q").pack

_QUEUE_BITS = 16


class StoredBefore(NamedTuple):
    """Where the messages of a duplicate lie: topic and queue that they are stored in, queue offset of the first.

    They may not be on disk, nor known to the queue, yet.
    """

    topic: str
    queue: int
    queue_offset: int


class Sequence:
    """What is stored of one producer's messages to one topic: runs, by counter, none of which overlap.

    A row of an array each: as objects they would be out of the processor's caches when their turn comes, and cost more
    than all the rest.
    """

    __slots__ = ("active_at", "last_place", "next", "next_offset", "rows")

    def __init__(self, now: float) -> None:
        self.rows = array("q")
        self.next = 0
        """Above every counter that was stored. The last run ends here."""
        self.last_place = -1
        self.next_offset = -1
        """The queue offset with which the last run would go on."""
        self.active_at = now

    def __len__(self) -> int:
        return len(self.rows) // _COLUMNS

    def find(self, first: int, count: int) -> tuple[int, int] | None:
        """Place and queue offset of the first message; None where none of them is stored.

        Raises ``PartlyStored`` where they are not all of one kind, or not in one run.
        """
        runs = self.rows
        following = self._behind(first)
        if following:
            begin, end, place, queue_offset = runs[following - _COLUMNS : following]
            if first + count <= end:
                return place, queue_offset + first - begin
            if first < end:
                raise _partly_stored(first, count, end - first, end - first)
        if following < len(runs) and runs[following] < first + count:
            raise _partly_stored(first, count, 0, runs[following] - first)
        return None

    def _behind(self, counter: int) -> int:
        """Where the row of the first run begins that lies behind the counter."""
        runs = self.rows
        return _COLUMNS * bisect_right(range(0, len(runs), _COLUMNS), counter, key=runs.__getitem__)

    def add(self, first: int, count: int, place: int, queue_offset: int) -> int:
        """Messages were stored; returns how many runs there are more. What is there already stays as it is: the first
        occurrence counts."""
        end = first + count
        if first < self.next:
            before = len(self)
            self._add_between(first, end, place, queue_offset)
            return len(self) - before
        grown = 1
        if first == self.next and place == self.last_place and queue_offset == self.next_offset:
            self.rows[_END - _COLUMNS] = end
            grown = 0
        else:
            self.rows.frombytes(_pack(first, end, place, queue_offset))
            self.last_place = place
        self.next = end
        self.next_offset = queue_offset + count
        return grown

    def _add_between(self, first: int, end: int, place: int, queue_offset: int) -> None:
        runs = self.rows
        at = first
        while at < end:
            following = self._behind(at)
            if following and at < runs[following - _COLUMNS + _END]:
                at = runs[following - _COLUMNS + _END]
                continue
            stop = min(end, runs[following]) if following < len(runs) else end
            runs[following:following] = array("q", (at, stop, place, queue_offset + at - first))
            self._join(following)
            self._join(following - _COLUMNS)
            at = stop
        self.next = runs[_END - _COLUMNS]
        self.last_place = runs[_PLACE - _COLUMNS]
        self.next_offset = runs[_OFFSET - _COLUMNS] + self.next - runs[_FIRST - _COLUMNS]

    def _join(self, at: int) -> None:
        """Make the run at ``at`` and the one behind it one, where they are."""
        runs = self.rows
        behind = at + _COLUMNS
        if (
            0 <= at < behind < len(runs)
            and runs[at + _END] == runs[behind]
            and runs[at + _PLACE] == runs[behind + _PLACE]
            and runs[at + _OFFSET] + runs[at + _END] - runs[at] == runs[behind + _OFFSET]
        ):
            runs[at + _END] = runs[behind + _END]
            del runs[behind : behind + _COLUMNS]

    def forget_oldest(self, count: int) -> int:
        """Forget the runs with the lowest counters, but never all; returns how many."""
        del self.rows[: count * _COLUMNS]
        return count


class ProducerSequences:
    """The sequences of all producers, the least recently active ones in front.

    ``runs_max``: runs of all together, of which each sequence counts as ``SEQUENCE_WEIGHT`` more;
    ``producer_runs_max``: of one producer in one topic; ``expiry_s``: a sequence to which nothing came for so long is
    forgotten. All times are seconds of one clock, which the caller passes in.
    """

    def __init__(self, *, runs_max: int, producer_runs_max: int, expiry_s: float) -> None:
        self._runs_max = runs_max
        self._producer_rows_max = producer_runs_max * _COLUMNS
        self._expiry_s = expiry_s
        self._sequences: OrderedDict[tuple[str, str], Sequence] = OrderedDict()
        self._other_topics: dict[str, int] = {}
        """Numbers, from 1, of topics in which messages are stored that were sent to another. A *place* is such a
        number, or 0 for the topic that was asked for, and behind it, in 16 bits, the queue."""
        self._room = runs_max
        """How many runs more may be kept."""

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def runs(self) -> int:
        """How many runs are kept."""
        return self._runs_max - self._room - SEQUENCE_WEIGHT * len(self._sequences)

    def find(self, prefix: str, topic: str, first: int, count: int) -> StoredBefore | None:
        """Where a frame's messages are stored; None where none of them is known to be.

        ``topic`` is the one that they are sent to. Raises ``PartlyStored`` where only some of them are stored, or all
        but not behind each other in one queue.
        """
        sequence = self._sequences.get((prefix, topic))
        if sequence is None or first >= sequence.next:
            return None
        found = sequence.find(first, count)
        if found is None:
            return None
        place, queue_offset = found
        number, queue = divmod(place, 1 << _QUEUE_BITS)
        stored_in = list(self._other_topics)[number - 1] if number else topic
        return StoredBefore(stored_in, queue, queue_offset)

    def stored(
        self, prefix: str, asked: str, first: int, count: int, topic: str, queue: int, queue_offset: int, now: float
    ) -> None:
        """Messages that were sent to the topic ``asked`` were stored in ``queue`` of ``topic``, from ``queue_offset``
        on."""
        sequence = self._sequences.get((prefix, asked))
        if sequence is None or now > sequence.active_at + _ORDER_S:
            sequence = self._awaken((prefix, asked), sequence, now)
        if topic != asked:
            queue |= self._other_topics.setdefault(topic, len(self._other_topics) + 1) << _QUEUE_BITS
        grown = sequence.add(first, count, queue, queue_offset)
        if grown:
            self._room -= grown
            if self._room < 0 or len(sequence.rows) > self._producer_rows_max:
                self._bound((prefix, asked), sequence)

    def _awaken(self, key: tuple[str, str], sequence: Sequence | None, now: float) -> Sequence:
        """Put a sequence, made where there is none, behind all others."""
        if sequence is None:
            self.expire(now)
            self._room -= SEQUENCE_WEIGHT
            sequence = self._sequences[key] = Sequence(now)
        else:
            sequence.active_at = now
            self._sequences.move_to_end(key)
        return sequence

    def _bound(self, key: tuple[str, str], sequence: Sequence) -> None:
        """A sequence has more runs, and there are too many now: forget others."""
        if len(sequence.rows) > self._producer_rows_max:
            self._room += sequence.forget_oldest(max(len(sequence) // _FORGOTTEN_SHARE, 1))
        while self._room < 0 and len(self._sequences) > 1:
            self._sequences.move_to_end(key)  # the order is a rough one: it may stand in front
            self._forget_first()

    def restore(self, runs: Iterable[StoredRun], now: float) -> None:
        """Take what the log's tail holds, the oldest first. A start counts as a sign of life of every producer: it may
        have waited for it."""
        for run in runs:
            self.stored(*run, now=now)
            self._sequences.move_to_end(run[:2])

    def expire(self, now: float) -> None:
        """Forget the sequences to which nothing came for ``expiry_s``."""
        sequences = self._sequences
        while sequences and next(iter(sequences.values())).active_at + self._expiry_s <= now:
            self._forget_first()

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted, and its messages with it."""
        for key in [key for key in self._sequences if key[1] == topic]:
            self._room += len(self._sequences.pop(key)) + SEQUENCE_WEIGHT

    def _forget_first(self) -> None:
        self._room += len(self._sequences.popitem(last=False)[1]) + SEQUENCE_WEIGHT


def _partly_stored(first: int, count: int, stored: int, cut_at: int) -> PartlyStored:
    what = f"the first {stored} of them are" if stored else f"some of them are, the first {cut_at} are not"
    return PartlyStored(
        f"of the {count} messages from counter {first} on, {what} stored already, in one piece; nothing of the frame "
        f"was written. Send the first {cut_at} and the others in frames of their own",
        stored=stored,
        cut_at=cut_at,
    )
