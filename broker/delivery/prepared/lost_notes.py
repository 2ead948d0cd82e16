"""What can still be told of a committed transaction where a "prepare" note of it is lost to damage.

The messages are there, and lie between those that other notes speak of; the "commit" says how many each attempt has. So
where one attempt lacks as many as lie in one gap, they are its.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .table import Attempt, Range

log = logging.getLogger(__name__)


class LostNotes:
    """Told of the notes in their order. ``next_message``: where the first of them begins, in PREPARED_TOPIC."""

    def __init__(self, next_message: int) -> None:
        self._end = next_message
        self._gaps: list[Range] = []
        self._messages: dict[str, int] = {}
        """How many messages each attempt has that was committed."""

    def prepared(self, first: int, count: int) -> None:
        """A "prepare"."""
        if first > self._end:
            self._gaps.append(Range(self._end, first))
        self._end = first + count

    def committed(self, messages: Iterable[tuple[str, int]]) -> None:
        """A "commit": its attempts, and how many messages each has."""
        self._messages.update(messages)

    def complete(self, attempts: Iterable[Attempt], end: int) -> None:
        """Give the attempt its messages back that lacks those of a gap, if that can be told. ``attempts``: those of
        unfinished commits; ``end``: of PREPARED_TOPIC's queue."""
        if end > self._end:
            self._gaps.append(Range(self._end, end))
        lacking = [each for each in attempts if each.messages < self._messages.get(each.name, 0)]
        if not lacking:
            return
        missing = self._messages[lacking[0].name] - lacking[0].messages
        if len(lacking) == len(self._gaps) == 1 and self._gaps[0].end - self._gaps[0].first == missing:
            attempt, gap = lacking[0], self._gaps[0]
            attempt.ranges = sorted([*attempt.ranges, gap], key=lambda each: each.first)
            log.warning("the %d messages behind a lost note are those that attempt %s lacks", missing, attempt.name)
        else:
            log.error("notes are lost to damage of the log, and whose messages lie behind them cannot be told: %d "
                      "attempts are committed without some of theirs", len(lacking))  # fmt: skip
