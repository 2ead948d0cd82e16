"""Pulling from one queue: as many requests as it takes to find a wanted message."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ....protocol.times import duration_millis
from ..rpc.operation import Plan
from .batch import Batch
from .requests import pull
from .tags import check_filter, parse_tags


def pull_found(
    topic: str,
    queue: int,
    offset: int,
    max_count: int,
    max_bytes: int,
    wait_ms: int,
    tags: str | Iterable[str] | None,
    condition: str | None,
    deadline: float,
    clock: Callable[[], float],
) -> Plan[Batch]:
    """Return the plan of a consumer's ``pull``. If the broker searched a long range without finding a wanted message,
    the plan continues after it, until ``deadline`` (monotonic seconds, on ``clock``)."""
    wanted = parse_tags(tags)
    sought = check_filter(condition)
    operation = pull(topic, queue, offset, max_count, max_bytes, wait_ms, wanted, sought)
    held_until = clock() + operation.hold_seconds
    while True:
        batch: Batch = (yield [operation])[0]
        if batch or not (wanted.wanted or sought) or batch.next_offset >= batch.max_offset:
            return batch
        # No message in the range that the broker searched is wanted: continue after it.
        if batch.next_offset <= offset or clock() >= deadline:
            return batch
        left_ms = max(0, duration_millis(held_until - clock()))
        operation = pull(topic, queue, batch.next_offset, max_count, max_bytes, left_ms, wanted, sought)
        offset = batch.next_offset
