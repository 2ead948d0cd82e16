"""Pulling from one queue: one request, or as many as it takes to find a tag."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .batch import Batch
from .operations import Plan, pull
from .tags import parse_tags


def pull_found(
    topic: str,
    queue: int,
    offset: int,
    max_count: int,
    max_bytes: int,
    wait_ms: int,
    tags: str | Iterable[str] | None,
    deadline: float,
    clock: Callable[[], float],
) -> Plan[Batch]:
    """The plan of a consumer's ``pull``. Where the broker looked through much without finding a wanted tag it goes on,
    until ``deadline`` (monotonic seconds, as ``clock`` has them)."""
    wanted = parse_tags(tags)
    operation = pull(topic, queue, offset, max_count, max_bytes, wait_ms, wanted)
    held_until = clock() + operation.hold_seconds
    while True:
        batch: Batch = (yield [operation])[0]
        if batch or not wanted.wanted or batch.next_offset >= batch.max_offset:
            return batch
        # What the broker looked through so far has no such tag: go on behind it.
        if batch.next_offset <= offset or clock() >= deadline:
            return batch
        left_ms = max(0, int((held_until - clock()) * 1000))
        operation = pull(topic, queue, batch.next_offset, max_count, max_bytes, left_ms, wanted)
        offset = batch.next_offset
