"""Conditions on columns, as bounds on what is pulled: topics, queues, offsets, times and tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ...protocol.fields import I64_MAX
from ..core.consume.batch import TAG_SEPARATOR, TagFilter, parse_tags

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class ColumnCondition(NamedTuple):
    """A condition on one column. ``kind``: the name that Spark gives it, such as ``EqualTo``, ``In``, ``LessThan``."""

    column: str
    kind: str
    value: Any = None


@dataclass
class Bounds:
    """Bounds of a read after the conditions: offsets ``[first, end)``, store times ``[since_ms, until_ms)``."""

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

    def narrowed(self, queue: int, start: int, end: int, offset_at: Callable[[int], int]) -> tuple[int, int] | None:
        """Return the part of a queue's offsets ``[start, end)`` that can pass, or None. ``offset_at`` finds the offset
        of a store time."""
        if self.nothing or (self.queues is not None and queue not in self.queues):
            return None
        start, end = max(start, self.first), min(end, self.end)
        if start < end and self.since_ms is not None:
            start = max(start, offset_at(self.since_ms))
        if start < end and self.until_ms is not None:
            end = min(end, offset_at(self.until_ms))
        return (start, end) if start < end else None

    def rows(self, queues: Any, offsets: Any) -> Any:
        """Return which records can pass, by their queues and offsets (NumPy arrays). Their times are not looked at."""
        rows = (offsets >= self.first) & (offsets < self.end)
        if self.queues is not None:
            for queue in {*queues.tolist()} - self.queues:
                rows &= queues != queue
        return rows

    # ---- adding one condition ----

    def _one_of(self, name: str, values: frozenset[Any]) -> None:
        mine = getattr(self, name)
        setattr(self, name, values if mine is None else mine & values)

    def _offsets(self, first: int, end: int) -> None:
        self.first, self.end = max(self.first, first), min(self.end, end)

    def limit_times(self, since_ms: int | None, until_ms: int | None) -> None:
        """Add bounds of the store time, ms since 1970 UTC: the first one included, the second one excluded."""
        if since_ms is not None:
            self.since_ms = max(since_ms, self.since_ms or 0)
        if until_ms is not None:
            until_ms = max(0, until_ms)
            self.until_ms = until_ms if self.until_ms is None else min(until_ms, self.until_ms)


def push(conditions: Sequence[ColumnCondition], tags: TagFilter) -> tuple[Bounds, TagFilter, list[bool]]:
    """Return the bounds of the conditions, the remaining tags to pull, and which of the conditions the reader still has
    to apply to what it gets.

    ``tags``: the reader's own filter. Conditions on time are always among those to apply: as bounds they only say
    where a read begins and ends.
    """
    bounds = Bounds()
    left = []
    for column, kind, value in conditions:
        if column == "tags" and (wanted := _tags(kind, value)) is not None:
            tags = _both(tags, wanted, bounds)
            left.append(False)
        else:
            left.append(not (column in _PUSHERS and _PUSHERS[column](bounds, kind, value)))
    return bounds, tags, left


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
    """Narrow the times, and leave the condition to the reader too: store times need not grow within a queue."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.astimezone()
        at_ms = max(0, (moment - _EPOCH) // _MILLISECOND)  # messages have whole milliseconds
        if kind in ("EqualTo", "EqualNullSafe"):
            bounds.limit_times(at_ms, at_ms + 1)
        elif kind in ("GreaterThan", "GreaterThanOrEqual"):
            bounds.limit_times(at_ms, None)
        elif kind in ("LessThan", "LessThanOrEqual"):
            bounds.limit_times(None, at_ms + 1)
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
