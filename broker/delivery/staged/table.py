"""State of prepared messages, their attempts, and the committed transactions: a state machine without I/O.

The broker calls it for each event; a start replays the stored notes through it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate

SERIES_MAX = 10_000
"""Maximum number of series whose last transaction number is remembered (LRU by commit)."""

Target = tuple[str, int]
"""A topic and a queue of it."""


class Range:
    """Consecutive prepared messages: queue offsets in PREPARED_TOPIC, from ``first`` to before ``end``."""

    __slots__ = ("end", "first")

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end


class Attempt:
    """The prepared messages of one attempt.

    ``note_offset``: queue offset of its first note; ``active_ms``: when its last messages arrived; ``targets``: topics
    and queues that its messages are for.
    """

    __slots__ = ("active_ms", "name", "note_offset", "ranges", "targets")

    def __init__(self, name: str, note_offset: int) -> None:
        self.name = name
        self.note_offset = note_offset
        self.active_ms = 0
        self.ranges: list[Range] = []
        self.targets: set[Target] = set()

    @property
    def messages(self) -> int:
        """Number of prepared messages."""
        return sum(each.end - each.first for each in self.ranges)


class Commit:
    """A committed transaction whose messages are being copied to their topics.

    ``note_offset``: queue offset of its commit note; ``position``: number of messages copied so far.
    """

    def __init__(self, series: str, number: int, attempts: Sequence[Attempt], note_offset: int) -> None:
        self.series = series
        self.number = number
        self.attempts = attempts
        self.note_offset = note_offset
        self.position = 0
        ranges = [each for attempt in attempts for each in attempt.ranges if each.end > each.first]
        self._ranges = ranges
        self._starts = list(accumulate((each.end - each.first for each in ranges), initial=0))
        self.messages = self._starts[-1]
        self.end = max((each.end for each in ranges), default=0)
        """Queue offset in PREPARED_TOPIC after its last message."""

    def ranges_from(self, position: int, count: int) -> list[Range]:
        """Return the ranges of up to ``count`` messages from ``position`` on."""
        found = []
        at = bisect_right(self._starts, position) - 1
        while count > 0 and at < len(self._ranges):
            mine = self._ranges[at]
            first = mine.first + position - self._starts[at]
            end = min(mine.end, first + count)
            found.append(Range(first, end))
            count -= end - first
            at += 1
            position = self._starts[at]
        return found


class StagedBatches:
    """The state of all prepared messages. Attempts are in the order of their last messages."""

    def __init__(self) -> None:
        self.attempts: OrderedDict[str, Attempt] = OrderedDict()
        self.commits: dict[str, Commit] = {}
        """By series: the transaction whose messages are being copied."""
        self.committed: OrderedDict[str, int] = OrderedDict()
        """By series: the number of its last committed transaction."""
        self.torn: dict[str, int] = {}
        """By series: the number of a transaction that was being copied when the broker ended, and whose commit note was
        lost to damage, so that its remaining messages are unknown."""
        self.ranges = 0
        """Number of ranges of all attempts together."""
        self._last = Range(0, 0)

    @property
    def messages(self) -> int:
        """Number of prepared messages that wait, committed or not. For metrics: goes through all attempts."""
        waiting = sum(attempt.messages for attempt in list(self.attempts.values()))
        return waiting + sum(commit.messages - commit.position for commit in list(self.commits.values()))

    def is_committed(self, series: str, number: int) -> bool:
        """Return whether this transaction is committed."""
        return self.committed.get(series, -1) >= number

    # ---- events

    def prepare(self, name: str, first: int, count: int, target: Target, note_offset: int, now_ms: int) -> None:
        """Enter ``count`` messages of a new or known attempt, from queue offset ``first`` on."""
        # If the range before reaches past ``first``, its frame was refused or cut short: its messages end here.
        self._last.end = min(self._last.end, first)
        attempt = self.attempts.get(name)
        if attempt is None:
            attempt = self.attempts[name] = Attempt(name, note_offset)
        else:
            self.attempts.move_to_end(name)
        attempt.active_ms = now_ms
        attempt.targets.add(target)
        if attempt.ranges and attempt.ranges[-1].end == first:
            self._last = attempt.ranges[-1]
            self._last.end = first + count
        else:
            self._last = Range(first, first + count)
            attempt.ranges.append(self._last)
            self.ranges += 1

    def drop(self, names: Iterable[str]) -> None:
        """Remove these attempts; ignore unknown ones."""
        for name in names:
            attempt = self.attempts.pop(name, None)
            if attempt is not None:
                self.ranges -= len(attempt.ranges)

    def commit(self, series: str, number: int, names: Sequence[str], note_offset: int) -> Commit:
        """Enter a committed transaction of these attempts; ignore unknown ones."""
        attempts = [self.attempts[name] for name in names if name in self.attempts]
        self.drop(names)
        commit = self.commits[series] = Commit(series, number, attempts, note_offset)
        self.remember(series, number)
        return commit

    def remember(self, series: str, number: int) -> None:
        """Remember the last transaction of a series."""
        self.committed[series] = max(self.committed.get(series, -1), number)
        self.committed.move_to_end(series)
        if len(self.committed) > SERIES_MAX:
            self.committed.popitem(last=False)

    def done(self, commit: Commit) -> None:
        """Remove a transaction whose messages are all copied."""
        if self.commits.get(commit.series) is commit:
            del self.commits[commit.series]

    def ends_at(self, end: int) -> None:
        """Cut the last range at the end of the queue, when the broker starts."""
        self._last.end = min(self._last.end, end)

    # ---- queries

    def beginning_with(self, prefix: str) -> list[str]:
        """Return the attempts whose names begin with ``prefix``."""
        return [name for name in self.attempts if name.startswith(prefix)]

    def idle_since(self, moment_ms: int) -> list[str]:
        """Return the attempts that got no messages after that time."""
        names = []
        for attempt in self.attempts.values():
            if attempt.active_ms > moment_ms:
                break
            names.append(attempt.name)
        return names

    def oldest_ms(self) -> int | None:
        """Return the time of the last messages of the longest inactive attempt; None if there is no attempt."""
        return next((attempt.active_ms for attempt in self.attempts.values()), None)

    def needed(self, next_note: int, next_message: int) -> tuple[int, int]:
        """Return the queue offsets from which on notes and messages are still needed.

        ``next_note``, ``next_message``: next offsets of both topics, which are returned if none is needed.
        """
        attempts = [*self.attempts.values(), *(each for commit in self.commits.values() for each in commit.attempts)]
        notes = [attempt.note_offset for attempt in attempts] + [each.note_offset for each in self.commits.values()]
        messages = [attempt.ranges[0].first for attempt in attempts]
        return min(notes, default=next_note), min(messages, default=next_message)
