"""State of the stages and of the committed transactions: a state machine without I/O.

The broker calls it for each event; a start replays the stored notes through it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate

SCOPES_MAX = 10_000
"""Maximum number of scopes whose last sequence is remembered (LRU by commit)."""

Target = tuple[str, int]
"""A topic and a queue of it."""


class Range:
    """Consecutive staged messages: queue offsets in PREPARED_TOPIC, from ``first`` to before ``end``."""

    __slots__ = ("end", "first")

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end


class Stage:
    """The messages that one producer contributes to a staged transaction.

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
        """Number of its messages."""
        return sum(each.end - each.first for each in self.ranges)


class Commit:
    """A committed transaction whose messages are being copied to their topics.

    ``note_offset``: queue offset of its commit note; ``position``: number of messages copied so far.
    """

    def __init__(self, scope: str, sequence: int, stages: Sequence[Stage], note_offset: int) -> None:
        self.scope = scope
        self.sequence = sequence
        self.stages = stages
        self.note_offset = note_offset
        self.position = 0
        ranges = [each for stage in stages for each in stage.ranges if each.end > each.first]
        self._ranges = ranges
        self._starts = list(accumulate((each.end - each.first for each in ranges), initial=0))
        self.messages = self._starts[-1]
        self.end = max((each.end for each in ranges), default=0)
        """Queue offset in PREPARED_TOPIC after its last message."""

    def ranges_from(self, position: int, count: int) -> list[Range]:
        """Return the ranges of up to ``count`` messages from ``position`` on."""
        found = []
        # Beyond the last message this is the index after the last range: ``_starts`` ends with the number of messages.
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


class StageTable:
    """All stages, in the order of their last messages, and all commits."""

    def __init__(self) -> None:
        self.stages: OrderedDict[str, Stage] = OrderedDict()
        self.commits: dict[str, Commit] = {}
        """By scope: the transaction whose messages are being copied."""
        self.sequences: OrderedDict[str, int] = OrderedDict()
        """By scope: the sequence of its last committed transaction."""
        self.torn: dict[str, int] = {}
        """By scope: the sequence of a transaction that was being copied when the broker ended and whose commit note was
        lost to damage: its remaining messages are unknown."""
        self.ranges = 0
        """Number of ranges of all stages together."""
        self._last = Range(0, 0)

    @property
    def messages(self) -> int:
        """Number of staged messages that wait, committed or not. For metrics: goes through all stages."""
        waiting = sum(stage.messages for stage in list(self.stages.values()))
        return waiting + sum(commit.messages - commit.position for commit in list(self.commits.values()))

    def is_committed(self, scope: str, sequence: int) -> bool:
        """Return whether this transaction is committed."""
        return self.sequences.get(scope, -1) >= sequence

    # ---- events

    def add_messages(self, name: str, first: int, count: int, target: Target, note_offset: int, now_ms: int) -> None:
        """Enter ``count`` messages of a new or known stage, from queue offset ``first`` on."""
        # If the range before reaches past ``first``, its frame was refused or cut short: its messages end here.
        self._last.end = min(self._last.end, first)
        stage = self.stages.get(name)
        if stage is None:
            stage = self.stages[name] = Stage(name, note_offset)
        else:
            self.stages.move_to_end(name)
        stage.active_ms = now_ms
        stage.targets.add(target)
        if stage.ranges and stage.ranges[-1].end == first:
            self._last = stage.ranges[-1]
            self._last.end = first + count
        else:
            self._last = Range(first, first + count)
            stage.ranges.append(self._last)
            self.ranges += 1

    def drop_stages(self, names: Iterable[str]) -> None:
        """Remove these stages; ignore unknown ones."""
        for name in names:
            stage = self.stages.pop(name, None)
            if stage is not None:
                self.ranges -= len(stage.ranges)

    def commit_stages(self, scope: str, sequence: int, names: Sequence[str], note_offset: int) -> Commit:
        """Enter a committed transaction of these stages; ignore unknown ones."""
        stages = [self.stages[name] for name in names if name in self.stages]
        self.drop_stages(names)
        commit = self.commits[scope] = Commit(scope, sequence, stages, note_offset)
        self.remember_sequence(scope, sequence)
        return commit

    def remember_sequence(self, scope: str, sequence: int) -> None:
        """Remember the last committed transaction of a scope."""
        self.sequences[scope] = max(self.sequences.get(scope, -1), sequence)
        self.sequences.move_to_end(scope)
        if len(self.sequences) > SCOPES_MAX:
            self.sequences.popitem(last=False)

    def remove_commit(self, commit: Commit) -> None:
        """Remove a transaction whose messages are all copied."""
        if self.commits.get(commit.scope) is commit:
            del self.commits[commit.scope]

    def cut_last_range(self, end: int) -> None:
        """Cut the last range at the end of the queue, when the broker starts."""
        self._last.end = min(self._last.end, end)

    # ---- queries

    def names_with_prefix(self, prefix: str) -> list[str]:
        """Return the stages whose names begin with ``prefix``."""
        return [name for name in self.stages if name.startswith(prefix)]

    def idle_since(self, moment_ms: int) -> list[str]:
        """Return the stages that got no messages after that time."""
        names = []
        for stage in self.stages.values():
            # In the order of activity, so the first active one ends the search.
            if stage.active_ms > moment_ms:
                break
            names.append(stage.name)
        return names

    def oldest_active_ms(self) -> int | None:
        """Return the time of the last messages of the longest inactive stage; None if there is no stage."""
        return next((stage.active_ms for stage in self.stages.values()), None)

    def needed_offsets(self, next_note: int, next_message: int) -> tuple[int, int]:
        """Return the queue offsets from which on notes and messages are still needed.

        ``next_note``, ``next_message``: next offsets of both topics, which are returned if none is needed.
        """
        stages = [*self.stages.values(), *(each for commit in self.commits.values() for each in commit.stages)]
        notes = [stage.note_offset for stage in stages] + [each.note_offset for each in self.commits.values()]
        # Each has a range: a start leaves out the stages of a commit that have lost theirs.
        messages = [stage.ranges[0].first for stage in stages]
        return min(notes, default=next_note), min(messages, default=next_message)
