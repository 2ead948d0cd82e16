"""Pulling from one queue: one request, or as many as it takes to find a message that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .batch import Batch
from .operations import Plan, pull
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
    """The plan of a consumer's ``pull``. Where the broker looked through much without finding a wanted message it goes
    on, until ``deadline`` (monotonic seconds, as ``clock`` has them)."""
    wanted = parse_tags(tags)
    sought = check_filter(condition)
    operation = pull(topic, queue, offset, max_count, max_bytes, wait_ms, wanted, sought)
    held_until = clock() + operation.hold_seconds
    while True:
        batch: Batch = (yield [operation])[0]
        if batch or not (wanted.wanted or sought) or batch.next_offset >= batch.max_offset:
            return batch
        # Nothing of what the broker looked through so far is wanted: go on behind it.
        if batch.next_offset <= offset or clock() >= deadline:
            return batch
        left_ms = max(0, int((held_until - clock()) * 1000))
        operation = pull(topic, queue, batch.next_offset, max_count, max_bytes, left_ms, wanted, sought)
        offset = batch.next_offset
