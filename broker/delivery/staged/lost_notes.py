"""Reconstruction of a committed transaction if a "prepare" note of it was lost to damage.

Its messages still exist, between those that other notes mention, and the "commit" stores how many each attempt has. So
if exactly one attempt lacks as many messages as the only gap has, these are its messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .table import Attempt, Range

log = logging.getLogger(__name__)


class LostNotes:
    """Collector of the notes in their order. ``next_message``: queue offset in PREPARED_TOPIC at which they begin."""

    def __init__(self, next_message: int) -> None:
        self._end = next_message
        self._gaps: list[Range] = []
        self._messages: dict[str, int] = {}
        """Number of messages of each committed attempt."""

    def prepared(self, first: int, count: int) -> None:
        """Process a "prepare" note."""
        if first > self._end:
            self._gaps.append(Range(self._end, first))
        self._end = first + count

    def committed(self, messages: Iterable[tuple[str, int]]) -> None:
        """Process a "commit" note: its attempts, with the number of messages of each."""
        self._messages.update(messages)

    def complete(self, attempts: Iterable[Attempt], end: int) -> None:
        """Give the messages of the gap to the attempt that lacks them, if there is only one gap and one such attempt.

        ``attempts``: those of unfinished commits; ``end``: of PREPARED_TOPIC's queue.
        """
        if end > self._end:
            self._gaps.append(Range(self._end, end))
        lacking = [each for each in attempts if each.messages < self._messages.get(each.name, 0)]
        if not lacking:
            return
        missing = self._messages[lacking[0].name] - lacking[0].messages
        if len(lacking) == len(self._gaps) == 1 and self._gaps[0].end - self._gaps[0].first == missing:
            attempt, gap = lacking[0], self._gaps[0]
            attempt.ranges = sorted([*attempt.ranges, gap], key=lambda each: each.first)
            log.warning("recovered %d messages of a lost note: attempt %s lacks exactly these", missing, attempt.name)
        else:
            log.error(
                "notes are lost to damage of the log, and it is unknown which messages they were about: %d "
                "attempts are committed without some of their messages",
                len(lacking),
            )
