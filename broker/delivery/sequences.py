"""Which messages of which producer are stored: how a frame that is sent again is told from a new one.

A producer numbers its messages: ``unique_prefix`` names it, ``unique_first`` counts. What is stored of a producer in a
topic is kept as *runs*: messages whose counters and queue offsets follow each other. All of it is in memory, and
bounded. A start reads it back from the log's tail, whose records have prefix and counter in their unique key.

Everything belongs to the event loop. Whether a frame is a duplicate is asked for every frame, so the usual answer, that
its counters are above all that came before, costs one look into a dict.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from ...protocol.errors import PartlyStored
from ..store import StoredRun

SEQUENCE_WEIGHT = 4
"""What a sequence takes of ``runs_max`` beside its runs: a producer with a single message takes memory too."""
_FORGOTTEN_SHARE = 8
"""A producer with too many runs forgets the oldest of them, one of so many at a time."""
_ORDER_S = 1.0
"""The sequences' order by activity is right to this."""

Run: TypeAlias = tuple[int, int, str, int, int]
"""(counter of the first message, behind that of the last, topic, queue, queue offset of the first); topic and queue are
those that the messages are stored in."""

_first_of = itemgetter(0)


class StoredBefore(NamedTuple):
    """Where the messages of a duplicate lie: topic and queue that they are stored in, queue offset of the first.

    The log holds them below ``end_offset``; it may not be on disk so far.
    """

    topic: str
    queue: int
    queue_offset: int
    end_offset: int


class Sequence:
    """What is stored of one producer's messages to one topic: runs, by counter, none of which overlap."""

    __slots__ = ("active_at", "end_offset", "next", "runs")

    def __init__(self, now: float) -> None:
        self.runs: list[Run] = []
        self.next = 0
        """Above every counter that was stored."""
        self.end_offset = 0
        """Where the last of its records ends that was stored since the start."""
        self.active_at = now

    def find(self, first: int, count: int) -> StoredBefore | None:
        """Where the messages are, None where none of them is. Raises ``PartlyStored`` where they are not all of one
        kind, or not in one run."""
        runs = self.runs
        following = bisect_right(runs, first, key=_first_of)
        if following:
            begin, end, topic, queue, queue_offset = runs[following - 1]
            if first + count <= end:
                return StoredBefore(topic, queue, queue_offset + first - begin, self.end_offset)
            if first < end:
                raise _partly_stored(first, count, end - first, end - first)
        if following < len(runs) and runs[following][0] < first + count:
            raise _partly_stored(first, count, 0, runs[following][0] - first)
        return None

    def add(self, run: Run) -> int:
        """Messages were stored; returns how many runs there are more. What is there already stays as it is: the first
        occurrence counts."""
        runs = self.runs
        if run[0] < self.next:
            before = len(runs)
            self._add_between(run)
            return len(runs) - before
        self.next = run[1]
        if runs:
            last = runs[-1]
            if last[1] == run[0] and last[3] == run[3] and _is_one(last, run):
                runs[-1] = (last[0], run[1], last[2], last[3], last[4])
                return 0
        runs.append(run)
        return 1

    def _add_between(self, run: Run) -> None:
        runs = self.runs
        first, end, topic, queue, queue_offset = run
        self.next = max(self.next, end)
        at = first
        while at < end:
            following = bisect_right(runs, at, key=_first_of)
            if following and at < runs[following - 1][1]:
                at = runs[following - 1][1]
                continue
            stop = min(end, runs[following][0]) if following < len(runs) else end
            runs.insert(following, (at, stop, topic, queue, queue_offset + at - first))
            self._join(following)
            self._join(following - 1)
            at = stop

    def _join(self, number: int) -> None:
        """Make a run and the one behind it one, where they are."""
        if 0 <= number < len(self.runs) - 1:
            run, following = self.runs[number : number + 2]
            if run[1] == following[0] and run[3] == following[3] and _is_one(run, following):
                self.runs[number : number + 2] = [(run[0], following[1], run[2], run[3], run[4])]

    def forget_oldest(self, count: int) -> int:
        """Forget the runs with the lowest counters; returns how many."""
        del self.runs[:count]
        return count


def _is_one(run: Run, following: Run) -> bool:
    """Whether two runs in the same queue, of which one ends with the counter that the other begins with, are one."""
    return run[4] + run[1] - run[0] == following[4] and run[2] == following[2]


class ProducerSequences:
    """The sequences of all producers, the least recently active ones in front.

    ``runs_max``: runs of all together, of which each sequence counts as ``SEQUENCE_WEIGHT`` more;
    ``producer_runs_max``: of one producer in one topic; ``expiry_s``: a sequence to which nothing came for so long is
    forgotten. All times are seconds of one clock, which the caller passes in.
    """

    def __init__(self, *, runs_max: int, producer_runs_max: int, expiry_s: float) -> None:
        self._runs_max = runs_max
        self._producer_runs_max = producer_runs_max
        self._expiry_s = expiry_s
        self._sequences: OrderedDict[tuple[str, str], Sequence] = OrderedDict()
        self.runs = 0
        """How many runs are kept."""

    def __len__(self) -> int:
        return len(self._sequences)

    def find(self, prefix: str, topic: str, first: int, count: int) -> StoredBefore | None:
        """Where a frame's messages are stored; None where none of them is known to be.

        ``topic`` is the one that they are sent to. Raises ``PartlyStored`` where only some of them are stored, or all
        but not behind each other in one queue.
        """
        sequence = self._sequences.get((prefix, topic))
        if sequence is None or first >= sequence.next:
            return None
        return sequence.find(first, count)

    def stored(
        self, prefix: str, asked_topic: str, first: int, count: int, topic: str, queue: int, queue_offset: int,
        end_offset: int, now: float,
    ) -> None:  # fmt: skip
        """Messages that were sent to ``asked_topic`` were stored in ``queue`` of ``topic``, from ``queue_offset`` on.

        ``end_offset``: where the log ends behind them.
        """
        key = (prefix, asked_topic)
        sequence = self._sequences.get(key)
        if sequence is None:
            self.expire(now)
            sequence = self._sequences[key] = Sequence(now)
        elif now > sequence.active_at + _ORDER_S:
            sequence.active_at = now
            self._sequences.move_to_end(key)
        sequence.end_offset = end_offset
        more = sequence.add((first, first + count, topic, queue, queue_offset))
        if more:
            self._bound(key, sequence, more)

    def _bound(self, key: tuple[str, str], sequence: Sequence, more: int) -> None:
        """A sequence has so many runs more: forget others where there are too many."""
        self.runs += more
        if len(sequence.runs) > self._producer_runs_max:
            self.runs -= sequence.forget_oldest(max(self._producer_runs_max // _FORGOTTEN_SHARE, 1))
        while self.runs + SEQUENCE_WEIGHT * len(self._sequences) > self._runs_max and len(self._sequences) > 1:
            self._sequences.move_to_end(key)  # the order is a rough one: it may stand in front
            self._forget_first()

    def restore(self, runs: Iterable[StoredRun], now: float) -> None:
        """Take what the log's tail holds, the oldest first. A start counts as a sign of life of every producer: it may
        have waited for it."""
        for run in runs:
            self.stored(*run, end_offset=0, now=now)
            self._sequences.move_to_end(run[:2])

    def expire(self, now: float) -> None:
        """Forget the sequences to which nothing came for ``expiry_s``."""
        sequences = self._sequences
        while sequences and next(iter(sequences.values())).active_at + self._expiry_s <= now:
            self._forget_first()

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted, and its messages with it."""
        for key in [key for key in self._sequences if key[1] == topic]:
            self.runs -= len(self._sequences.pop(key).runs)

    def _forget_first(self) -> None:
        self.runs -= len(self._sequences.popitem(last=False)[1].runs)


def _partly_stored(first: int, count: int, stored: int, cut_at: int) -> PartlyStored:
    what = f"the first {stored} of them are" if stored else f"some of them are, the first {cut_at} are not"
    return PartlyStored(
        f"of the {count} messages from counter {first} on, {what} stored already, in one piece; nothing of the frame "
        f"was written. Send the first {cut_at} and the others in frames of their own",
        stored=stored,
        cut_at=cut_at,
    )
