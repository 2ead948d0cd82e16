"""Filters that Spark pushes down, as bounds on the pull."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..arrow import bounds
from ..arrow.bounds import Bounds, ColumnCondition
from ..core.consume.tags import TagFilter
from .offsets import QueueRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from .offsets import TopicSubscription


def push(filters: Sequence[Filter], tags: TagFilter) -> tuple[Bounds, TagFilter, list[Filter]]:
    """Return the filters' bounds, the remaining tags to pull, and the filters that Spark still has to apply.

    ``tags``: the options' filter.
    """
    found, tags, left = bounds.push([_condition(each) for each in filters], tags)
    return found, tags, [each for each, is_left in zip(filters, left, strict=True) if is_left]


def _condition(each: Filter) -> ColumnCondition:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else ""
    return ColumnCondition(column, type(each).__name__, getattr(each, "value", None))


def within(found: Bounds, ranges: Sequence[QueueRange], subscription: TopicSubscription) -> list[QueueRange]:
    """Return the ranges narrowed to the bounds; asks the brokers for the offsets of times."""
    narrowed = []
    for queue, start, end in ranges:
        if found.wants_topic(queue.topic):
            part = found.narrowed(queue.queue, start, end, partial(subscription.offset_at, queue))
            if part is not None:
                narrowed.append(QueueRange(queue, *part))
    return narrowed
