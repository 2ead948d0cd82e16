"""Reconstruction of a committed transaction if a note about its messages was lost to damage.

Its messages still exist, between those that other notes mention, and the commit note stores how many each stage has. So
if exactly one stage lacks as many messages as the only gap has, these are its messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .table import Range

if TYPE_CHECKING:
    from .table import Stage

log = logging.getLogger(__name__)


class LostNotes:
    """Collector of the notes in their order. ``next_message``: queue offset in PREPARED_TOPIC at which they begin."""

    def __init__(self, next_message: int) -> None:
        self._end = next_message
        self._gaps: list[Range] = []
        self._messages: dict[str, int] = {}
        """Number of messages of each committed stage."""

    def take_stage(self, first: int, count: int) -> None:
        """Process a note about the messages of a stage."""
        if first > self._end:
            self._gaps.append(Range(self._end, first))
        self._end = first + count

    def take_commit(self, messages: Iterable[tuple[str, int]]) -> None:
        """Process a commit note: its stages, with the number of messages of each."""
        self._messages.update(messages)

    def recover_gap(self, stages: Iterable[Stage], end: int) -> None:
        """Give the messages of the gap to the stage that lacks them, if there is only one gap and one such stage.

        ``stages``: those of unfinished commits; ``end``: of PREPARED_TOPIC's queue.
        """
        if end > self._end:
            self._gaps.append(Range(self._end, end))
        lacking = [each for each in stages if each.messages < self._messages.get(each.name, 0)]
        if not lacking:
            return
        missing = self._messages[lacking[0].name] - lacking[0].messages
        if len(lacking) == len(self._gaps) == 1 and self._gaps[0].end - self._gaps[0].first == missing:
            stage, gap = lacking[0], self._gaps[0]
            stage.ranges = sorted([*stage.ranges, gap], key=lambda each: each.first)
            log.warning("recovered %d messages of a lost note: stage %s lacks exactly these", missing, stage.name)
        else:
            log.error(
                "notes are lost to damage of the log, and it is unknown which messages they were about: %d "
                "stages are committed without some of their messages",
                len(lacking),
            )
