"""Deduplication: the stored messages of each producer, by which the broker tells a resent frame from a new one.

A producer numbers its messages: ``unique_prefix`` names the producer, ``unique_first`` is the counter. The stored
messages of a producer in a topic are kept as *runs*: messages with consecutive counters and queue offsets. All runs are
in memory, and bounded. A start restores them from the tail of the log, whose records have prefix and counter in their
unique key.

Everything runs on the event loop. Every frame is checked, so the common case, counters above all earlier ones, costs a
single dict look-up.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from ...protocol.errors import PartlyStored
from ..int_table import IntTable
from ..kernels.short_sends import Q_BLOCK, Q_NEXT, Q_OFFSET, Q_OWNER, Q_PLACE, Q_RUNS, Q_RUNS_MAX, Q_WIDTH
from ..kernels.short_sends import RUN_END as _END
from ..kernels.short_sends import RUN_FIRST as _FIRST
from ..kernels.short_sends import RUN_OFFSET as _OFFSET
from ..kernels.short_sends import RUN_PLACE as _PLACE
from ..kernels.short_sends import RUN_WIDTH as _COLUMNS

if TYPE_CHECKING:
    from ..store import StoredRun

SEQUENCE_WEIGHT = 4
"""Weight of a sequence in ``runs_max`` besides its runs: even a producer of one message takes memory."""
_FORGOTTEN_SHARE = 8
"""A producer with too many runs loses the oldest eighth of them."""
_ORDER_S = 1.0
"""Accuracy of the sequences' order by activity."""

_QUEUE_BITS = 16
"""A topic has at most 65,536 queues."""


class StoredBefore(NamedTuple):
    """The place of a duplicate's messages: topic and queue that they are stored in, queue offset of the first.

    They may not be flushed or dispatched yet.
    """

    topic: str
    queue: int
    queue_offset: int


class SequenceTables:
    """The tables of all sequences, which a kernel counts in too. ``producer_runs_max``: maximum runs of a sequence."""

    __slots__ = ("producer_runs_max", "runs", "sequences")

    def __init__(self, producer_runs_max: int) -> None:
        self.producer_runs_max = producer_runs_max
        self.sequences = IntTable(Q_WIDTH)
        self.runs = IntTable(_COLUMNS)


class Sequence:
    """The stored messages of one producer in one topic: runs, sorted by counter, that do not overlap.

    A row of ``tables.sequences`` (``Q_…``), and a block of rows of ``tables.runs``, one for each run, in which the
    kernel of short sends counts too. Objects would not be in the CPU's caches when they are needed, and those misses
    would cost more than everything else.
    """

    __slots__ = ("_block_runs", "_tables", "active_at", "number", "place")

    def __init__(self, now: float, tables: SequenceTables, number: int) -> None:
        self._tables = tables
        self._block_runs = 0
        self.number = number
        self.active_at = now
        self.place = place = tables.sequences.take()
        values = tables.sequences.values
        values[place + Q_OWNER] = number
        values[place + Q_PLACE] = values[place + Q_OFFSET] = -1
        self._move(1)

    def __len__(self) -> int:
        return self._tables.sequences.values[self.place + Q_RUNS]

    @property
    def next(self) -> int:
        """Counter after the highest one stored."""
        return self._tables.sequences.values[self.place + Q_NEXT]

    @property
    def rows(self) -> memoryview:
        """The runs, each with ``_COLUMNS`` integers; the last one may end earlier than the sequence does."""
        values, place = self._tables.sequences.values, self.place
        block = values[place + Q_BLOCK]
        return self._tables.runs.values[block : block + values[place + Q_RUNS] * _COLUMNS]

    def _move(self, runs: int) -> None:
        """Move the runs into another block, which has room for ``runs``."""
        tables, place = self._tables, self.place
        values = tables.sequences.values
        before, integers = values[place + Q_BLOCK], len(self) * _COLUMNS
        block = tables.runs.take(runs)
        if self._block_runs:
            tables.runs.array[block : block + integers] = tables.runs.array[before : before + integers]
            tables.runs.give_back(before, self._block_runs)
        self._block_runs = runs
        values[place + Q_BLOCK] = block
        values[place + Q_RUNS_MAX] = min(runs, tables.producer_runs_max)

    def settle(self) -> None:
        """Let the last run end where the sequence does: frames that continue it do not touch its row."""
        rows = self.rows
        if rows:
            rows[_END - _COLUMNS] = self.next

    def find(self, first: int, count: int) -> tuple[int, int] | None:
        """Return place and queue offset of the first message; None if none of the messages is stored.

        Raises ``PartlyStored`` if only some of them are stored, or all but in more than one run.
        """
        self.settle()
        runs = self.rows
        # Runs do not overlap, so only the run before this one can contain the first message.
        following = _row_after(runs, first)
        if following:
            begin, end, place, queue_offset = runs[following - _COLUMNS : following]
            if first + count <= end:
                return place, queue_offset + first - begin
            if first < end:
                raise _partly_stored(first, count, end - first, end - first)
        # The first message is new, but a run begins within the frame.
        if following < len(runs) and runs[following] < first + count:
            raise _partly_stored(first, count, 0, runs[following] - first)
        return None

    def add(self, first: int, count: int, place: int, queue_offset: int) -> int:
        """Add stored messages; return the number of runs that this added. Messages already present stay as they are:
        the first occurrence counts."""
        end = first + count
        values, row = self._tables.sequences.values, self.place
        # Not above all others: a frame that was refused, and is sent again after later ones, fills a gap.
        if first < values[row + Q_NEXT]:
            before = len(self)
            self._add_between(first, end, place, queue_offset)
            return len(self) - before
        # In the common case the frame continues the last run, which only grows.
        continues = (
            first == values[row + Q_NEXT] and place == values[row + Q_PLACE] and queue_offset == values[row + Q_OFFSET]
        )
        if not continues:
            self.begin_run(first, end, place, queue_offset, values[row + Q_NEXT])
            values[row + Q_PLACE] = place
        values[row + Q_NEXT] = end
        values[row + Q_OFFSET] = queue_offset + count
        return int(not continues)

    def begin_run(self, first: int, end: int, place: int, queue_offset: int, before: int) -> None:
        """Add a run above all others; the other columns are the caller's. ``before``: ``next`` before it."""
        count = len(self)
        if count == self._block_runs:
            self._move(2 * count)
        sequences, runs = self._tables.sequences.values, self._tables.runs.values
        row = sequences[self.place + Q_BLOCK] + count * _COLUMNS
        if count:
            runs[row - _COLUMNS + _END] = before
        runs[row + _FIRST], runs[row + _END], runs[row + _PLACE], runs[row + _OFFSET] = first, end, place, queue_offset
        sequences[self.place + Q_RUNS] = count + 1

    def _add_between(self, first: int, end: int, place: int, queue_offset: int) -> None:
        self.settle()
        runs = array("q", self.rows)
        at = first
        # Piece by piece: what a run has is skipped, and what is between two runs becomes a run.
        while at < end:
            following = _row_after(runs, at)
            if following and at < runs[following - _COLUMNS + _END]:
                at = runs[following - _COLUMNS + _END]
                continue
            stop = min(end, runs[following]) if following < len(runs) else end
            runs[following:following] = array("q", (at, stop, place, queue_offset + at - first))
            # With the later neighbour first, since a join with the earlier one moves the run.
            _join(runs, following)
            _join(runs, following - _COLUMNS)
            at = stop

        # The last run may be another one, or longer.
        count = len(runs) // _COLUMNS
        while count > self._block_runs:
            self._move(2 * self._block_runs)
        values, end = self._tables.sequences.values, runs[_END - _COLUMNS]
        values[self.place + Q_RUNS] = count
        block = values[self.place + Q_BLOCK]
        self._tables.runs.array[block : block + len(runs)] = runs
        values[self.place + Q_NEXT] = end
        values[self.place + Q_PLACE] = runs[_PLACE - _COLUMNS]
        values[self.place + Q_OFFSET] = runs[_OFFSET - _COLUMNS] + end - runs[_FIRST - _COLUMNS]

    def forget_oldest(self, count: int) -> int:
        """Forget the ``count`` runs with the lowest counters; return ``count``. The caller never passes all of them."""
        values, runs = self._tables.sequences.values, self._tables.runs.array
        block, kept = values[self.place + Q_BLOCK], (len(self) - count) * _COLUMNS
        runs[block : block + kept] = runs[block + count * _COLUMNS : block + count * _COLUMNS + kept]
        values[self.place + Q_RUNS] -= count
        return count

    def give_back(self) -> None:
        """Give the rows back: the sequence is forgotten."""
        values = self._tables.sequences.values
        self._tables.runs.give_back(values[self.place + Q_BLOCK], self._block_runs)
        values[self.place + Q_OWNER] = 0
        self._tables.sequences.give_back(self.place)


def _row_after(runs: memoryview | array[int], counter: int) -> int:
    """Return the index of the first run that begins after the counter."""
    # The runs are rows of one array: the range has the index of each row's first column, and the key reads it.
    return _COLUMNS * bisect_right(range(0, len(runs), _COLUMNS), counter, key=runs.__getitem__)


def _join(runs: array[int], at: int) -> None:
    """Merge the run at ``at`` with the next one if that continues it."""
    following = at + _COLUMNS
    if (
        0 <= at < following < len(runs)
        and runs[at + _END] == runs[following]
        and runs[at + _PLACE] == runs[following + _PLACE]
        and runs[at + _OFFSET] + runs[at + _END] - runs[at] == runs[following + _OFFSET]
    ):
        runs[at + _END] = runs[following + _END]
        del runs[following : following + _COLUMNS]


class ProducerSequences:
    """The sequences of all producers, least recently active first.

    ``runs_max``: maximum number of runs of all producers, where each sequence counts as ``SEQUENCE_WEIGHT`` more;
    ``producer_runs_max``: maximum of one producer in one topic; ``expiry_s``: time without a message after which a
    sequence is forgotten. All times are seconds of one clock, which the caller passes in.
    """

    def __init__(self, *, runs_max: int, producer_runs_max: int, expiry_s: float) -> None:
        self._runs_max = runs_max
        self._expiry_s = expiry_s
        self._sequences: OrderedDict[tuple[str, str], Sequence] = OrderedDict()
        self._other_topics: dict[str, int] = {}
        """Numbers, from 1, of topics that store messages sent to another topic. A *place* is such a number, or 0 for
        the topic the messages were sent to, followed by the queue in the lowest 16 bits."""
        self._room = runs_max
        """Number of runs that may still be added."""
        self._created = 0
        self.tables = SequenceTables(producer_runs_max)

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def runs(self) -> int:
        return self._runs_max - self._room - SEQUENCE_WEIGHT * len(self._sequences)

    def may_have(self, prefix: str, topic: str, first: int) -> bool:
        """Return whether messages from counter ``first`` on may be stored; ``find`` knows. False for new ones."""
        sequence = self._sequences.get((prefix, topic))
        return sequence is not None and first < sequence.next

    def find(self, prefix: str, topic: str, first: int, count: int) -> StoredBefore | None:
        """Return where a frame's messages are stored; None if none of them is known to be stored.

        ``topic``: the topic that they are sent to. Raises ``PartlyStored`` if only some of them are stored, or all but
        not consecutively in one queue.
        """
        sequence = self._sequences.get((prefix, topic))
        if sequence is None or first >= sequence.next:
            return None
        found = sequence.find(first, count)
        if found is None:
            return None
        place, queue_offset = found
        # Numbers are given in the order of the dict and never taken back, so a number is also a position in it.
        number, queue = divmod(place, 1 << _QUEUE_BITS)
        stored_in = list(self._other_topics)[number - 1] if number else topic
        return StoredBefore(stored_in, queue, queue_offset)

    def stored(
        self, prefix: str, asked: str, first: int, count: int, topic: str, queue: int, queue_offset: int, now: float
    ) -> None:
        """Record that messages sent to the topic ``asked`` were stored in ``queue`` of ``topic``, from ``queue_offset``
        on."""
        sequence = self._sequences.get((prefix, asked))

        # At most once a second: the order need not be exact, so most frames leave it as it is.
        if sequence is None or now > sequence.active_at + _ORDER_S:
            sequence = self._awaken((prefix, asked), sequence, now)
        if topic != asked:
            queue |= self._other_topics.setdefault(topic, len(self._other_topics) + 1) << _QUEUE_BITS
        grown = sequence.add(first, count, queue, queue_offset)
        if grown:
            self._bound(sequence)
            self.make_room(grown)

    def _awaken(self, key: tuple[str, str], sequence: Sequence | None, now: float) -> Sequence:
        """Move a sequence to the end of the order; create it if ``sequence`` is None."""
        if sequence is None:
            # Expired sequences matter only if memory grows, and it grows here.
            self.expire(now)
            self._room -= SEQUENCE_WEIGHT
            self._created += 1
            sequence = self._sequences[key] = Sequence(now, self.tables, self._created)
        else:
            sequence.active_at = now
            self._sequences.move_to_end(key)
        return sequence

    def _bound(self, sequence: Sequence) -> None:
        """Forget the oldest runs of a sequence that has grown over its limit."""
        if len(sequence) > self.tables.producer_runs_max:
            self._room += sequence.forget_oldest(max(len(sequence) // _FORGOTTEN_SHARE, 1))

    def make_room(self, grown: int) -> None:
        """Count runs that were added; if there are too many, forget some.

        The least recently active sequences lose the older half of their runs, in turn, and are forgotten if they have a
        single one: the messages that a producer may send again are its last.
        """
        self._room -= grown
        while self._room < 0 and len(self._sequences) > 1:
            key, sequence = next(iter(self._sequences.items()))
            if len(sequence) > 1:
                self._room += sequence.forget_oldest(len(sequence) // 2)
                self._sequences.move_to_end(key)
            else:
                self._forget_first()

    def restore(self, runs: list[StoredRun], now: float) -> None:
        """Restore the runs found in the tail of the log, oldest first.

        A start of the broker counts as activity of every producer: it may have been waiting for the broker.
        """
        # Of more sequences than there is room for, those that were active last would stay: only these are restored.
        newest: set[tuple[str, str]] = set()
        for run in reversed(runs):
            if len(newest) > self._runs_max // (SEQUENCE_WEIGHT + 1):
                break
            newest.add(run[:2])
        for run in runs:
            if run[:2] not in newest:
                continue
            self.stored(*run, now=now)
            # ``stored`` moves a sequence at most once a second, and all of these have the same time.
            self._sequences.move_to_end(run[:2])

    def expire(self, now: float) -> None:
        """Forget the sequences without a new message for ``expiry_s``."""
        sequences = self._sequences
        while sequences and next(iter(sequences.values())).active_at + self._expiry_s <= now:
            self._forget_first()

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self._sequences if key[1] == topic]:
            self._forget(self._sequences.pop(key))

    def _forget_first(self) -> None:
        self._forget(self._sequences.popitem(last=False)[1])

    def _forget(self, sequence: Sequence) -> None:
        self._room += len(sequence) + SEQUENCE_WEIGHT
        sequence.give_back()

    def sequence(self, prefix: str, topic: str) -> Sequence | None:
        """Return the sequence of a producer in a topic; None if nothing of it is known."""
        return self._sequences.get((prefix, topic))

    def extended(self, key: tuple[str, str], run: tuple[int, int, int, int] | None, before: int, now: float) -> None:
        """Do what a kernel that stored a frame left: its run found no room, or its producer was silent for a while.

        ``key``: prefix and topic; ``run``: first counter, end, queue and queue offset of the run that the frame began,
        None if it has its row or continues another; ``before``: the sequence's ``next`` before the frame. The caller
        counts the run, with ``make_room``, after all of them.
        """
        sequence = self._sequences[key]
        if now > sequence.active_at + _ORDER_S:
            self._awaken(key, sequence, now)
        if run is not None:
            sequence.begin_run(*run, before)
            self._bound(sequence)


def _partly_stored(first: int, count: int, stored: int, cut_at: int) -> PartlyStored:
    found = f"the first {stored} are" if stored else f"some, but not the first {cut_at}, are"
    return PartlyStored(
        f"of the {count} messages from counter {first} on, {found} already stored; the broker wrote nothing of this "
        f"frame. Resend the first {cut_at} messages and the others in separate frames",
        stored=stored,
        cut_at=cut_at,
    )
