"""Data of ``flintmq top``: samples of the broker's figures, and the rates between two samples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ...protocol.errors import UnknownCommand
from ..operator.condition import Condition
from ..operator.lags import Lag, lag_in, read_rows
from ..operator.names import is_own
from ..sync.admin import Admin
from .topics import all_topics_stats


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures at one time. ``ends``: sum of the max offsets by topic; ``held``: number of messages by topic;
    ``groups``: (sum of committed offsets, lag) by (group, topic)."""

    at: float
    condition: Condition
    ends: Mapping[str, int]
    held: Mapping[str, int]
    groups: Mapping[tuple[str, str], tuple[int, Lag]]


def take(admin: Admin, *, system: bool = False) -> Sample:
    """Request all figures from the broker; ``system``: include the topics that it created for itself and for groups."""
    condition = Condition(admin.status())
    topics = [totals for name, totals in all_topics_stats(admin).items() if system or not is_own(name)]
    ends = {totals.topic: totals.max_offsets for totals in topics}
    held = {totals.topic: totals.messages for totals in topics}
    return Sample(time.monotonic(), condition, ends, held, _groups(admin))


def _groups(admin: Admin) -> dict[tuple[str, str], tuple[int, Lag]]:
    groups: dict[tuple[str, str], tuple[int, Lag]] = {}
    try:
        rows = admin.consume_stats(uncommitted=True)
    except UnknownCommand:  # an older broker
        return groups
    for row in read_rows(rows):
        committed, lag = groups.get((row.group, row.topic), (0, Lag()))
        groups[row.group, row.topic] = (committed + max(row.committed, 0), lag + lag_in(row))
    return groups


@dataclass(frozen=True, slots=True)
class TopicRate:
    """Rate of messages produced to a topic, and the number of messages that it holds."""

    topic: str
    produced_per_second: float
    messages: int


@dataclass(frozen=True, slots=True)
class GroupRate:
    """Rate of messages that a group commits in a topic, and its lag there; None: unknown."""

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


COUNTERS = ("produced_messages", "produced_bytes", "pulled_messages", "pulled_bytes", "produces", "pulls")


def between(before: Sample, after: Sample) -> Rates:
    """Return the rates between two samples. A broker that was restarted in between has counted from 0."""
    seconds = max(after.at - before.at, 1e-9)
    restarted = before.condition.info.get("pid") != after.condition.info.get("pid")

    def rate(now: float, then: float) -> float:
        # In a container the new process may have the same id, but no counter decreases without a restart.
        return max(0.0, now - (0 if restarted or now < then else then)) / seconds

    per_second: dict[str, float | None] = {}
    for name in COUNTERS:
        now = after.condition.number(name)
        per_second[name] = None if now is None else rate(now, before.condition.number(name) or 0)
    errors = rate(sum(after.condition.errors.values()), sum(before.condition.errors.values()))
    per_second["errors"] = None if after.condition.withheld else errors
    topics = [
        TopicRate(name, max(0, end - before.ends.get(name, end)) / seconds, after.held[name])
        for name, end in after.ends.items()
    ]
    topics.sort(key=lambda topic: (-topic.produced_per_second, -topic.messages, topic.topic))
    groups = [
        GroupRate(
            group, topic, max(0, committed - before.groups.get((group, topic), (committed,))[0]) / seconds, lag.known
        )
        for (group, topic), (committed, lag) in after.groups.items()
    ]
    groups.sort(key=lambda row: (row.lag is not None, -(row.lag or 0), row.group, row.topic))
    return Rates(after.condition, per_second, topics, groups)


def rates_row(rates: Rates) -> dict[str, Any]:
    """Return the rates under their JSON names."""
    condition, per_second = rates.condition, rates.per_second
    return {
        "time": datetime.now(UTC),
        **{f"{name}_per_second": None if value is None else round(value, 1) for name, value in per_second.items()},
        "flush_p50_seconds": condition.flush_p50_seconds,
        "flush_p99_seconds": condition.flush_p99_seconds,
        "flush_behind_bytes": condition.flush_behind_bytes,
        "reput_behind_bytes": condition.reput_behind_bytes,
        "index_behind_bytes": condition.index_behind_bytes,
        "disk_free_bytes": condition.number("disk_free_bytes"),
        "disk_runway_seconds": None if condition.disk_runway_seconds is None else round(condition.disk_runway_seconds),
        "lag": sum(group.lag or 0 for group in rates.groups),
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
