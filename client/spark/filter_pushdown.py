"""Filters that Spark pushes down, as bounds on the pull: topics, queues, offsets, times and tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ...protocol.fields import I64_MAX
from ..core.consume.tags import TAG_SEPARATOR, TagFilter, parse_tags
from .offsets import QueueRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from .offsets import TopicSubscription

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass
class Bounds:
    """Bounds of a read after the filters: offsets ``[first, end)``, store times ``[since_ms, until_ms)``."""

    topics: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    first: int = 0
    end: int = I64_MAX
    since_ms: int | None = None
    until_ms: int | None = None
    nothing: bool = False

    def wants_topic(self, topic: str) -> bool:
        """Return whether any message of a topic can pass."""
        return not self.nothing and (self.topics is None or topic in self.topics)

    def within(self, ranges: Sequence[QueueRange], subscription: TopicSubscription) -> list[QueueRange]:
        """Return the ranges narrowed to the bounds; asks the brokers for the offsets of times."""
        return [
            narrowed
            for each in ranges
            if self.wants_topic(each.queue.topic) and (self.queues is None or each.queue.queue in self.queues)
            for narrowed in self._narrowed(each, subscription)
        ]

    def _narrowed(self, each: QueueRange, subscription: TopicSubscription) -> list[QueueRange]:
        start, end = max(each.start, self.first), min(each.end, self.end)
        if start < end and self.since_ms is not None:
            start = max(start, subscription.offset_at(each.queue, self.since_ms))
        if start < end and self.until_ms is not None:
            end = min(end, subscription.offset_at(each.queue, self.until_ms))
        return [QueueRange(each.queue, start, end)] if start < end else []

    # ---- adding one filter ----

    def _one_of(self, name: str, values: frozenset[Any]) -> None:
        mine = getattr(self, name)
        setattr(self, name, values if mine is None else mine & values)

    def _offsets(self, first: int, end: int) -> None:
        self.first, self.end = max(self.first, first), min(self.end, end)

    def _times(self, since_ms: int | None, until_ms: int | None) -> None:
        if since_ms is not None:
            self.since_ms = max(since_ms, self.since_ms or 0)
        if until_ms is not None:
            until_ms = max(0, until_ms)
            self.until_ms = until_ms if self.until_ms is None else min(until_ms, self.until_ms)


def push(filters: Sequence[Filter], tags: TagFilter) -> tuple[Bounds, TagFilter, list[Filter]]:
    """Return the filters' bounds, the remaining tags to pull, and the filters that Spark still has to apply.

    ``tags``: the options' filter. Spark also applies bounds on time: they only say where a read begins and ends.
    """
    bounds = Bounds()
    left = []
    for each in filters:
        column, kind, value = _parts(each)
        if column == "tags" and (wanted := _tags(kind, value)) is not None:
            tags = _both(tags, wanted, bounds)
        elif not (column in _PUSHERS and _PUSHERS[column](bounds, kind, value)):
            left.append(each)
    return bounds, tags, left


def _parts(each: Filter) -> tuple[str, str, Any]:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else ""
    return column, type(each).__name__, getattr(each, "value", None)


def _values(kind: str, value: Any) -> frozenset[Any] | None:
    """Return the values that ``=`` and ``IN`` accept; a null in a list matches nothing."""
    if kind in ("EqualTo", "EqualNullSafe") and value is not None:
        return frozenset([value])
    if kind == "In":
        return frozenset(each for each in value if each is not None)
    return None


def _push_topic(bounds: Bounds, kind: str, value: Any) -> bool:
    return _push_choice(bounds, "topics", kind, value)


def _push_queue(bounds: Bounds, kind: str, value: Any) -> bool:
    return _push_choice(bounds, "queues", kind, value)


def _push_choice(bounds: Bounds, name: str, kind: str, value: Any) -> bool:
    values = _values(kind, value)
    if values is None:
        return kind == "IsNotNull"  # these columns are never null
    bounds._one_of(name, values)
    return True


def _push_offset(bounds: Bounds, kind: str, value: Any) -> bool:
    if kind == "IsNotNull":
        return True
    if type(value) is not int:
        return False
    if kind in ("EqualTo", "EqualNullSafe"):
        bounds._offsets(value, value + 1)
    elif kind == "GreaterThan":
        bounds._offsets(value + 1, I64_MAX)
    elif kind == "GreaterThanOrEqual":
        bounds._offsets(value, I64_MAX)
    elif kind == "LessThan":
        bounds._offsets(0, value)
    elif kind == "LessThanOrEqual":
        bounds._offsets(0, value + 1)
    else:
        return False
    return True


def _push_time(bounds: Bounds, kind: str, value: Any) -> bool:
    """Narrow the times, and leave the filter to Spark too: store times need not grow within a queue."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.astimezone()
        at_ms = max(0, (moment - _EPOCH) // _MILLISECOND)  # messages have whole milliseconds
        if kind in ("EqualTo", "EqualNullSafe"):
            bounds._times(at_ms, at_ms + 1)
        elif kind in ("GreaterThan", "GreaterThanOrEqual"):
            bounds._times(at_ms, None)
        elif kind in ("LessThan", "LessThanOrEqual"):
            bounds._times(None, at_ms + 1)
    return False


_PUSHERS = {"topic": _push_topic, "queue": _push_queue, "queue_offset": _push_offset, "stored_at": _push_time}


def _tags(kind: str, value: Any) -> frozenset[str] | None:
    values = _values(kind, value)
    if values is None or any(
        not tag.strip() or tag != tag.strip() or tag == "*" or TAG_SEPARATOR in tag for tag in values
    ):
        return None  # a pull's tag expression cannot express such a tag
    return values


def _both(tags: TagFilter, wanted: frozenset[str], bounds: Bounds) -> TagFilter:
    common = tags.wanted & wanted if tags.wanted else wanted
    if not common:
        bounds.nothing = True
        return tags
    return parse_tags(sorted(common))
