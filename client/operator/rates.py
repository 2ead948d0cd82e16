"""Counters of a broker over time: what ``flintmq top`` and the console sample, and the rates between two samples."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...protocol.commands import TOPICS_STATS_MAX
from .condition import Condition, Lag, lag_in, read_rows
from .display import is_own

if TYPE_CHECKING:
    from ...protocol.commands import TopicTotals
    from ..sync.admin import Admin

COUNTERS = ("produced_messages", "produced_bytes", "pulled_messages", "pulled_bytes", "produces", "pulls")
"""Counters of the broker's status that become rates."""


@dataclass(frozen=True, slots=True)
class CounterSample:
    """Counters by name, at one time in monotonic seconds."""

    at: float
    counts: Mapping[str, float]

    def per_second(self, name: str, before: CounterSample) -> float | None:
        """Return how much a counter grew per second since ``before``. None if one of both does not have it, or if it
        decreased: the broker was restarted, or the topic was created again."""
        now, then, seconds = self.counts.get(name), before.counts.get(name), self.at - before.at
        return None if now is None or then is None or now < then or seconds <= 0 else (now - then) / seconds


def broker_counters(condition: Condition, at: float) -> CounterSample:
    """Return the broker's counters, with the sum of its error responses, as far as the user may see them."""
    counts = {name: count for name in COUNTERS if (count := condition.number(name)) is not None}
    return CounterSample(at, counts if condition.withheld else counts | {"errors": sum(condition.errors.values())})


def topic_counters(topics: Iterable[TopicTotals], at: float) -> CounterSample:
    """Return the number of messages ever stored in each topic."""
    return CounterSample(at, {topic.topic: topic.max_offsets for topic in topics})


def all_topics_stats(admin: Admin) -> dict[str, TopicTotals]:
    """Return the figures of all topics by name; takes a request for each thousand."""
    found: dict[str, TopicTotals] = {}
    page = admin.topics_stats()
    while page:
        found |= {totals.topic: totals for totals in page if totals.queues}
        page = admin.topics_stats(page[-1].topic) if len(page) == TOPICS_STATS_MAX else []
    return found


# ---- Samples of everything that ``flintmq top`` shows.


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures at one time. ``held``: number of messages by topic; ``groups``: (sum of committed offsets, lag) by
    (group, topic)."""

    condition: Condition
    broker: CounterSample
    topics: CounterSample
    held: Mapping[str, int]
    groups: Mapping[tuple[str, str], tuple[int, Lag]]


def take(admin: Admin, *, system: bool = False) -> Sample:
    """Request all figures from the broker; ``system``: include the topics that it created for itself and for groups."""
    condition, at = Condition(admin.status()), time.monotonic()
    topics = [totals for name, totals in all_topics_stats(admin).items() if system or not is_own(name)]
    held = {totals.topic: totals.messages for totals in topics}
    return Sample(condition, broker_counters(condition, at), topic_counters(topics, at), held, _sampled_groups(admin))


def _sampled_groups(admin: Admin) -> dict[tuple[str, str], tuple[int, Lag]]:
    groups: dict[tuple[str, str], tuple[int, Lag]] = {}
    for row in read_rows(admin.consume_stats(uncommitted=True)):
        committed, lag = groups.get((row.group, row.topic), (0, Lag()))
        groups[row.group, row.topic] = (committed + max(row.committed, 0), lag + lag_in(row))
    return groups


@dataclass(frozen=True, slots=True)
class TopicRate:
    """Rate of messages produced to a topic, to a tenth, and the number of messages that it holds."""

    topic: str
    produced_per_second: float
    messages: int


@dataclass(frozen=True, slots=True)
class GroupRate:
    """Rate of messages that a group commits in a topic, to a tenth, and its lag there; None: unknown."""

    group: str
    topic: str
    committed_per_second: float
    lag: int | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates between two samples. The busiest topics and the groups with the largest lag come first. ``per_second`` is
    None for a figure that the broker does not report."""

    condition: Condition
    per_second: Mapping[str, float | None]
    topics: list[TopicRate] = field(default_factory=list)
    groups: list[GroupRate] = field(default_factory=list)


def between(before: Sample, after: Sample) -> Rates:
    """Return the rates between two samples. A broker that was restarted in between has counted from 0."""
    restarted = before.condition.info.get("pid") != after.condition.info.get("pid")
    from_zero = CounterSample(before.broker.at, dict.fromkeys(after.broker.counts, 0))

    def of_broker(name: str) -> float | None:
        # In a container the new process may have the same id, but no counter decreases without a restart.
        rate = None if restarted else after.broker.per_second(name, before.broker)
        return after.broker.per_second(name, from_zero) if rate is None else rate

    topics = [
        TopicRate(name, round(after.topics.per_second(name, before.topics) or 0.0, 1), messages)
        for name, messages in after.held.items()
    ]
    topics.sort(key=lambda topic: (-topic.produced_per_second, -topic.messages, topic.topic))
    seconds = max(after.broker.at - before.broker.at, 1e-9)
    groups = []
    for (group, topic), (committed, lag) in after.groups.items():
        grown = max(0, committed - before.groups.get((group, topic), (committed,))[0])
        groups.append(GroupRate(group, topic, round(grown / seconds, 1), lag.known))
    groups.sort(key=lambda row: (row.lag is not None, -(row.lag or 0), row.group, row.topic))
    return Rates(after.condition, {name: of_broker(name) for name in (*COUNTERS, "errors")}, topics, groups)
