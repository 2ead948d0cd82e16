"""Counters of a broker over time: what ``flintmq top`` and the console sample, and the rates between two samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .condition import Condition

if TYPE_CHECKING:
    from ...protocol.commands import TopicTotals

COUNTERS = ("produced_messages", "produced_bytes", "pulled_messages", "pulled_bytes", "produces", "pulls")
"""Counters of the broker's status that become rates."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters by name, at one time in monotonic seconds."""

    at: float
    counts: Mapping[str, float]

    def per_second(self, name: str, before: Counters) -> float | None:
        """Return how much a counter grew per second since ``before``. None if one of both does not have it, or if it
        decreased: the broker was restarted, or the topic was created again."""
        now, then, seconds = self.counts.get(name), before.counts.get(name), self.at - before.at
        return None if now is None or then is None or now < then or seconds <= 0 else (now - then) / seconds


def broker_counters(condition: Condition, at: float) -> Counters:
    """Return the broker's counters, with the sum of its error responses, as far as the user may see them."""
    counts = {name: count for name in COUNTERS if (count := condition.number(name)) is not None}
    return Counters(at, counts if condition.withheld else counts | {"errors": sum(condition.errors.values())})


def topic_counters(topics: Iterable[TopicTotals], at: float) -> Counters:
    """Return the number of messages ever stored in each topic."""
    return Counters(at, {topic.topic: topic.max_offsets for topic in topics})
