"""What ``flintmq top`` shows: samples of the broker's figures, and the rates between two of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ...protocol.errors import TopicNotExist, UnknownCommand
from ..sync.admin import Admin
from .condition import Condition
from .lags import read_rows

TOPICS_ASKED_MAX = 1000
"""Of more topics than this only the first are looked at: each is a request."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures at one moment. ``ends``: the sum of a topic's max offsets; ``held``: its messages;
    ``groups``: by (group, topic), (sum of committed offsets, lag)."""

    at: float
    condition: Condition
    ends: Mapping[str, int]
    held: Mapping[str, int]
    groups: Mapping[tuple[str, str], tuple[int, int]]
    topics_left_out: int = 0


def take(admin: Admin) -> Sample:
    """Ask the broker for everything."""
    ends: dict[str, int] = {}
    held: dict[str, int] = {}
    condition = Condition(admin.status())
    names = list(admin.topics())
    for name in names[:TOPICS_ASKED_MAX]:
        try:
            stats = admin.topic_stats(name)
        except TopicNotExist:  # deleted meanwhile
            continue
        ends[name] = sum(queue.max_offset for queue in stats)
        held[name] = sum(queue.count for queue in stats)
    left_out = max(0, len(names) - TOPICS_ASKED_MAX)
    return Sample(time.monotonic(), condition, ends, held, _groups(admin), left_out)


def _groups(admin: Admin) -> dict[tuple[str, str], tuple[int, int]]:
    groups: dict[tuple[str, str], tuple[int, int]] = {}
    try:
        rows = admin.consume_stats()
    except UnknownCommand:  # an older broker
        return groups
    for row in read_rows(rows):
        committed, lag = groups.get((row.group, row.topic), (0, 0))
        groups[row.group, row.topic] = (committed + row.committed, lag + row.lag)
    return groups


@dataclass(frozen=True, slots=True)
class TopicRate:
    """A topic: messages a second produced to it, and how many it holds."""

    topic: str
    produced_per_second: float
    messages: int


@dataclass(frozen=True, slots=True)
class GroupRate:
    """A group in a topic: messages a second that it committed, and how many it has still to read."""

    group: str
    topic: str
    committed_per_second: float
    lag: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two samples; the busiest topics and the groups that lag most first."""

    condition: Condition
    per_second: Mapping[str, float]
    topics: list[TopicRate] = field(default_factory=list)
    groups: list[GroupRate] = field(default_factory=list)
    topics_left_out: int = 0


COUNTERS = ("produced_messages", "produced_bytes", "pulled_messages", "pulled_bytes", "produces", "pulls")


def between(before: Sample, after: Sample) -> Rates:
    """The rates from one sample to the next. A broker that was started anew meanwhile began to count at 0."""
    seconds = max(after.at - before.at, 1e-9)
    restarted = before.condition.info.get("pid") != after.condition.info.get("pid")

    def rate(now: float, then: float) -> float:
        return max(0.0, now - (0 if restarted else then)) / seconds

    per_second = {
        name: rate(after.condition.number(name) or 0, before.condition.number(name) or 0) for name in COUNTERS
    }
    per_second["errors"] = rate(sum(after.condition.errors.values()), sum(before.condition.errors.values()))
    topics = [
        TopicRate(name, max(0, end - before.ends.get(name, end)) / seconds, after.held[name])
        for name, end in after.ends.items()
    ]
    topics.sort(key=lambda topic: (-topic.produced_per_second, -topic.messages, topic.topic))
    groups = [
        GroupRate(group, topic, max(0, committed - before.groups.get((group, topic), (committed, 0))[0]) / seconds, lag)
        for (group, topic), (committed, lag) in after.groups.items()
    ]
    groups.sort(key=lambda row: (-row.lag, row.group, row.topic))
    return Rates(after.condition, per_second, topics, groups, after.topics_left_out)


def rates_row(rates: Rates) -> dict[str, Any]:
    """The rates under their JSON names."""
    condition, per_second = rates.condition, rates.per_second
    return {
        "time": datetime.now(UTC),
        **{f"{name}_per_second": round(value, 1) for name, value in per_second.items()},
        "flush_p50_seconds": condition.flush_p50_seconds,
        "flush_p99_seconds": condition.flush_p99_seconds,
        "flush_behind_bytes": condition.flush_behind_bytes,
        "reput_behind_bytes": condition.reput_behind_bytes,
        "index_behind_bytes": condition.index_behind_bytes,
        "disk_free_bytes": condition.number("disk_free_bytes"),
        "disk_runway_seconds": None if condition.disk_runway_seconds is None else round(condition.disk_runway_seconds),
        "lag": sum(group.lag for group in rates.groups),
        "topics": [
            {"topic": row.topic, "produced_per_second": round(row.produced_per_second, 1), "messages": row.messages}
            for row in rates.topics
        ],
        "groups": [
            {
                "group": row.group,
                "topic": row.topic,
                "committed_per_second": round(row.committed_per_second, 1),
                "lag": row.lag,
            }
            for row in rates.groups
        ],
    }
