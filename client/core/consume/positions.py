"""Start and end of reading a topic: ``from_`` and ``until`` as offsets by queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from ....protocol.commands import QueueStats
from ....protocol.errors import OffsetOutOfRange
from ...errors import InvalidArgument, InvalidArgumentType
from ..rpc.operation import Plan
from ..times import to_millis
from ..topics import topic_stats
from .requests import TimeBound, pull, time_bound

End: TypeAlias = Literal["earliest", "latest", "first", "last"]
"""An end of a queue; ``"first"`` is a synonym of ``"earliest"``, and ``"last"`` of ``"latest"``."""
Position: TypeAlias = End | datetime | int | Mapping[int, int] | Sequence[int]
"""An end, an aware datetime, −n (the last n messages of the topic), or an offset for each queue."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
ENDS: Mapping[str, Literal["earliest", "latest"]] = {
    EARLIEST: EARLIEST,
    "first": EARLIEST,
    LATEST: LATEST,
    "last": LATEST,
}
"""The canonical word for each word that means an end."""
_PULL_COUNT = 4096
_PULL_BYTES = 1 << 20


@dataclass(slots=True)
class Span:
    """The part of a topic to read: from ``starts`` to ``ends`` (None: without end).

    ``explicit``: the caller gave the start offsets, so an expired one is an error. ``from_ms``, ``until_ms``: reading
    begins and ends before the messages of these times (ms since 1970 UTC), which the broker's clock has not reached;
    ``until_left_ms``: ms after which it will have reached the second one.
    """

    starts: dict[int, int]
    ends: dict[int, int] | None
    explicit: bool
    from_ms: int | None = None
    until_ms: int | None = None
    until_left_ms: int = 0


def resolve_span(topic: str, from_: Position, until: Position | None) -> Plan[Span]:
    """Resolve ``from_`` and ``until`` to offsets.

    Raises ``InvalidArgument`` for an invalid position, ``OffsetOutOfRange`` for a start that is not in the queue.
    """
    check_position("from_", from_)
    if until is not None:
        check_position("until", until)
    stats: list[QueueStats] = (yield [topic_stats(topic)])[0]
    explicit = isinstance(from_, Mapping | Sequence) and not isinstance(from_, str)
    span = Span({}, None, explicit)
    if isinstance(from_, datetime):
        span.starts, left_ms = yield from offsets_at(topic, to_millis("from_", from_), stats)
        span.from_ms = to_millis("from_", from_) if left_ms else None
    elif explicit:
        span.starts = _given_starts(topic, _by_queue("from_", from_, stats), stats)
    else:
        span.starts = yield from _offsets(topic, from_, stats)
    if isinstance(until, datetime):
        span.ends, span.until_left_ms = yield from offsets_at(topic, to_millis("until", until), stats)
        if span.until_left_ms:
            span.ends, span.until_ms = None, to_millis("until", until)
    elif isinstance(until, Mapping | Sequence) and not isinstance(until, str):
        span.ends = {queue.queue: queue.max_offset for queue in stats} | _by_queue("until", until, stats)
    elif until is not None:
        span.ends = yield from _offsets(topic, until, stats)
    return span


def ends_at(topic: str, timestamp_ms: int) -> Plan[tuple[dict[int, int], int]]:
    """Do what ``offsets_at`` does, with the queues that the topic has now."""
    stats: list[QueueStats] = (yield [topic_stats(topic)])[0]
    return (yield from offsets_at(topic, timestamp_ms, stats))


def check_position(what: str, position: Any) -> None:
    """Raise if ``position`` is not a valid position; ``what``: the argument's name."""
    if isinstance(position, datetime):
        to_millis(what, position)
    elif isinstance(position, str):
        if position not in ENDS:
            raise InvalidArgument(
                f"{what} is {position!r}; a str must be 'earliest' (or 'first') or 'latest' (or 'last')"
            )
    elif type(position) is int:
        if position >= 0:
            raise InvalidArgument(
                f"{what} is {position}; a number must be negative (-10: the last ten messages of the topic). "
                f"To pass offsets, give one for each queue: {what}={{0: {position}, …}}"
            )
    elif isinstance(position, Mapping):
        _check_offsets(what, position.items())
    elif isinstance(position, Sequence) and not isinstance(position, bytes | bytearray):
        _check_offsets(what, enumerate(position))
    else:
        raise InvalidArgumentType(
            f"{what} must be 'earliest', 'latest', a datetime, −n or offsets by queue, not {type(position).__name__}"
        )


def _check_offsets(what: str, offsets: Any) -> None:
    for queue, offset in offsets:
        if type(queue) is not int or type(offset) is not int or offset < 0:
            raise InvalidArgument(f"{what} has {queue!r}: {offset!r}; it must map queues to offsets of at least 0")


def _by_queue(what: str, position: Any, stats: list[QueueStats]) -> dict[int, int]:
    offsets = dict(position) if isinstance(position, Mapping) else dict(enumerate(position))
    known = {queue.queue for queue in stats}
    unknown = sorted(offsets.keys() - known)
    if unknown:
        raise InvalidArgument(f"{what} names queue {unknown[0]}; the topic has the queues {sorted(known)}")
    return offsets


def _given_starts(topic: str, offsets: dict[int, int], stats: list[QueueStats]) -> dict[int, int]:
    starts = {}
    for queue in stats:
        offset = starts[queue.queue] = offsets.get(queue.queue, queue.min_offset)
        if not queue.min_offset <= offset <= queue.max_offset:
            raise OffsetOutOfRange(
                f"from_ begins at offset {offset} of queue {queue.queue} of topic {topic!r}, which has the offsets "
                f"{queue.min_offset} to {queue.max_offset}",
                min_offset=queue.min_offset,
                max_offset=queue.max_offset,
            )
    return starts


def _offsets(topic: str, position: Any, stats: list[QueueStats]) -> Plan[dict[int, int]]:
    end = ENDS.get(position) if isinstance(position, str) else None
    if end == EARLIEST:
        return {queue.queue: queue.min_offset for queue in stats}
    if end == LATEST:
        return {queue.queue: queue.max_offset for queue in stats}
    return (yield from _last(topic, -position, stats))


def offsets_at(topic: str, timestamp_ms: int, stats: list[QueueStats]) -> Plan[tuple[dict[int, int], int]]:
    """Find, for each queue, the offset of the first message stored at or after ``timestamp_ms``, and the ms after which
    the time has come by the broker's clock (0: it has)."""
    # A message that comes between the two requests is not known to the first one.
    found: list[TimeBound] = yield [time_bound(topic, queue.queue, timestamp_ms) for queue in stats]
    offsets = {row.queue: max(bound.offset, row.min_offset) for row, bound in zip(stats, found, strict=True)}
    return offsets, max((bound.left_ms for bound in found), default=0)


def _last(topic: str, count: int, stats: list[QueueStats]) -> Plan[dict[int, int]]:
    """Find where, in each queue, the last ``count`` messages of the topic begin, in the order of the CommitLog."""
    if sum(queue.count for queue in stats) <= count:
        return {queue.queue: queue.min_offset for queue in stats}
    # Search the latest millisecond from which on at least `count` messages were stored: first doubling, then halving.
    newest = max(queue.last_stored_ms for queue in stats)
    low, high, back = newest, newest + 1, 1
    starts = yield from _held_at(topic, low, stats)
    while _count_from(starts, stats) < count:
        high, low = low, max(0, newest - back)
        back *= 2
        starts = yield from _held_at(topic, low, stats)
    while high - low > 1:
        middle = (low + high) // 2
        offsets = yield from _held_at(topic, middle, stats)
        if _count_from(offsets, stats) >= count:
            low, starts = middle, offsets
        else:
            high = middle
    following = yield from _held_at(topic, low + 1, stats)
    surplus = _count_from(starts, stats) - count
    if surplus:
        stored_then: list[tuple[int, int]] = []
        for queue, offset in starts.items():
            stored_then += yield from _physical_offsets(topic, queue, offset, following[queue])
        for _, queue in sorted(stored_then)[:surplus]:
            starts[queue] += 1
    return starts


def _held_at(topic: str, timestamp_ms: int, stats: list[QueueStats]) -> Plan[dict[int, int]]:
    offsets, _ = yield from offsets_at(topic, timestamp_ms, stats)
    return {queue.queue: min(offsets[queue.queue], queue.max_offset) for queue in stats}


def _count_from(offsets: dict[int, int], stats: list[QueueStats]) -> int:
    return sum(queue.max_offset - offsets[queue.queue] for queue in stats)


def _physical_offsets(topic: str, queue: int, offset: int, end: int) -> Plan[list[tuple[int, int]]]:
    """Return ``(physical offset, queue)`` of the queue's messages in ``[offset, end)``."""
    found: list[tuple[int, int]] = []
    while offset < end:
        batch = (yield [pull(topic, queue, offset, min(_PULL_COUNT, end - offset), _PULL_BYTES, 0)])[0]
        found += [(message.physical_offset, queue) for message in batch.messages]
        if batch.next_offset <= offset:
            break
        offset = batch.next_offset
    return found
