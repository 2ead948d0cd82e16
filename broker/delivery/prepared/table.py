"""Which messages are prepared, by which attempts, and which transactions are committed: a state machine without I/O.

The broker calls it as things happen; a start calls it once more for each note that is left of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate

SERIES_MAX = 10_000
"""As many series are known by the number of their last transaction; the one that committed least recently goes."""

Target = tuple[str, int]
"""A topic and a queue of it."""


class Range:
    """Prepared messages behind each other: queue offsets in PREPARED_TOPIC, from ``first`` to before ``end``."""

    __slots__ = ("end", "first")

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end


class Attempt:
    """What one attempt has prepared. ``note_offset``: queue offset of its first note; ``active_ms``: when its last
    messages came; ``targets``: where its messages are to go."""

    __slots__ = ("active_ms", "name", "note_offset", "ranges", "targets")

    def __init__(self, name: str, note_offset: int) -> None:
        self.name = name
        self.note_offset = note_offset
        self.active_ms = 0
        self.ranges: list[Range] = []
        self.targets: set[Target] = set()

    @property
    def messages(self) -> int:
        """How many there are."""
        return sum(each.end - each.first for each in self.ranges)


class Commit:
    """A transaction that is committed, and its messages on the way to their topics. ``note_offset``: queue offset of
    the note that commits it; ``position``: as many of its messages are copied."""

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
        """Behind the last of them in PREPARED_TOPIC."""

    def ranges_from(self, position: int, count: int) -> list[Range]:
        """Where up to ``count`` messages lie, from that one on."""
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


class Table:
    """See the module. Attempts are in the order of their last messages."""

    def __init__(self) -> None:
        self.attempts: OrderedDict[str, Attempt] = OrderedDict()
        self.commits: dict[str, Commit] = {}
        """By series: the transaction whose messages are being copied."""
        self.committed: OrderedDict[str, int] = OrderedDict()
        """By series: the number of its last committed transaction."""
        self.torn: dict[str, int] = {}
        """By series: the number of a transaction that was being copied when the broker ended, and of which nobody knows
        any more what it committed: that note is lost to damage."""
        self.ranges = 0
        """Of all attempts together."""
        self._last = Range(0, 0)

    @property
    def messages(self) -> int:
        """How many prepared messages wait, whether committed or not. For metrics: looks at every attempt."""
        waiting = sum(attempt.messages for attempt in list(self.attempts.values()))
        return waiting + sum(commit.messages - commit.position for commit in list(self.commits.values()))

    def is_committed(self, series: str, number: int) -> bool:
        """Whether this transaction is committed."""
        return self.committed.get(series, -1) >= number

    # ---- what happens

    def prepare(self, name: str, first: int, count: int, target: Target, note_offset: int, now_ms: int) -> None:
        """Messages of an attempt, which may be new, lie at ``first`` and behind. What was said of messages from there
        on before is not so."""
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
        """These attempts are over; unknown ones are passed over."""
        for name in names:
            attempt = self.attempts.pop(name, None)
            if attempt is not None:
                self.ranges -= len(attempt.ranges)

    def commit(self, series: str, number: int, names: Sequence[str], note_offset: int) -> Commit:
        """A transaction of these attempts is committed. Names that are not known any more count nothing."""
        attempts = [self.attempts[name] for name in names if name in self.attempts]
        self.drop(names)
        commit = self.commits[series] = Commit(series, number, attempts, note_offset)
        self.remember(series, number)
        return commit

    def remember(self, series: str, number: int) -> None:
        """This was the last transaction of its series."""
        self.committed[series] = max(self.committed.get(series, -1), number)
        self.committed.move_to_end(series)
        if len(self.committed) > SERIES_MAX:
            self.committed.popitem(last=False)

    def done(self, commit: Commit) -> None:
        """All messages of a transaction are copied."""
        if self.commits.get(commit.series) is commit:
            del self.commits[commit.series]

    def ends_at(self, end: int) -> None:
        """The queue of prepared messages ends there, when the broker starts."""
        self._last.end = min(self._last.end, end)

    # ---- what follows from it

    def beginning_with(self, prefix: str) -> list[str]:
        """The attempts whose names begin so."""
        return [name for name in self.attempts if name.startswith(prefix)]

    def idle_since(self, moment_ms: int) -> list[str]:
        """The attempts to which nothing came after that, as far as they stand in front."""
        names = []
        for attempt in self.attempts.values():
            if attempt.active_ms > moment_ms:
                break
            names.append(attempt.name)
        return names

    def oldest_ms(self) -> int | None:
        """When the attempt in front had its last messages; None where there is none."""
        return next((attempt.active_ms for attempt in self.attempts.values()), None)

    def needed(self, next_note: int, next_message: int) -> tuple[int, int]:
        """From which queue offsets on notes and messages are still needed; both topics' next offsets where none is."""
        attempts = [*self.attempts.values(), *(each for commit in self.commits.values() for each in commit.attempts)]
        notes = [attempt.note_offset for attempt in attempts] + [each.note_offset for each in self.commits.values()]
        messages = [attempt.ranges[0].first for attempt in attempts]
        return min(notes, default=next_note), min(messages, default=next_message)
