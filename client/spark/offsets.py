"""The queues that a query reads, and their first and last offsets.

An offset of the source maps ``topic/queue`` (``topic/queue@broker`` if several brokers are read) to the next queue
offset to read. Spark's checkpoint stores it in this form.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...protocol.commands import QueueStats, TopicInfo
from ...protocol.errors import NoPermission, TopicNotExist
from ...protocol.names import name_fault
from ..arrow import bounds
from ..arrow.bounds import Bounds, ColumnCondition
from ..core.consume import requests
from ..core.consume.batch import TagFilter
from . import brokers
from .brokers import BrokerAddress
from .errors import DataLoss, InvalidOption
from .options import EARLIEST_MARK, LATEST_MARK, Offsets, ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

PERM_READ = 4
"""The bit of a topic's ``perm`` that lets it be read."""


class Queue(NamedTuple):
    """One queue; its sort order is the order of its fields."""

    topic: str
    queue: int
    broker: str

    def __str__(self) -> str:
        return f"queue {self.queue} of topic {self.topic!r} of the broker {self.broker}"


class SourceProgress(Protocol):
    """What ``pyspark.sql.streaming.listener.SourceProgress`` says of offsets: JSON, or null."""

    @property
    def endOffset(self) -> str | None:  # noqa: N802 - Spark's names
        ...

    @property
    def latestOffset(self) -> str | None:  # noqa: N802
        ...


class QueueRange(NamedTuple):
    """Queue offsets ``[start, end)`` of one queue."""

    queue: Queue
    start: int
    end: int


Stats = dict[Queue, QueueStats]


class TopicSubscription:
    """The topics that the options name, at their brokers. Asks the brokers every time; caches nothing."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.brokers: dict[str, BrokerAddress] = {broker.name: broker for broker in options.bootstrap}
        self._several = len(self.brokers) > 1

    # ---- topics and queues ----

    def check(self) -> None:
        """Raise if a broker is unreachable, or if no broker has one of the topics."""
        self._missing(
            {
                broker.name: self.matching(brokers.greet(broker, self._options.timeout))
                for broker in self._options.bootstrap
            }
        )

    def topics(self, *, begun: bool = False) -> dict[str, list[str]]:
        """Return the topics to read, by broker. Raises ``TopicNotExist`` for one that no broker has, unless the query
        has ``begun``: then a missing topic is lost data."""
        found = {
            broker.name: self.matching(brokers.topics_of(broker, self._options.timeout))
            for broker in self._options.bootstrap
        }
        if not begun:
            self._missing(found)
        return found

    def matching(self, topics: Mapping[str, TopicInfo]) -> list[str]:
        """Return the selected ones of a broker's topics. Raises ``NoPermission`` for a named one that is unreadable."""
        pattern = self._options.subscribe_pattern
        if pattern is not None:
            readable = [info for info in topics.values() if info.perm & PERM_READ and not info.system]
            return [info.topic for info in readable if pattern.fullmatch(info.topic)]
        named = [topics[topic] for topic in self._options.subscribe if topic in topics]
        for info in named:
            if not info.perm & PERM_READ:
                raise NoPermission(
                    f"option 'subscribe': topic {info.topic!r} cannot be read (perm {info.perm}); change it with its "
                    f"perm + {PERM_READ}, or leave it out"
                )
        return [info.topic for info in named]

    def _missing(self, found: Mapping[str, list[str]]) -> None:
        there = {topic for topics in found.values() for topic in topics}
        for topic in self._options.subscribe:
            if topic not in there:
                fault = name_fault("topic", topic)
                advice = f"its name {fault}" if fault else "create it first, or correct the name"
                raise TopicNotExist(
                    f"option 'subscribe': topic {topic!r} does not exist at {', '.join(found)}; {advice}"
                )

    def stats(self, topics: Mapping[str, list[str]]) -> Stats:
        """Return the stats of every queue of these topics; a topic that was deleted meanwhile is left out."""
        found: Stats = {}
        for name, names in topics.items():
            for topic in names:
                try:
                    rows = brokers.topic_stats(self.brokers[name], topic, self._options.timeout)
                except TopicNotExist:
                    continue
                found.update((Queue(topic, row.queue, name), row) for row in rows)
        return found

    # ---- keys ----

    def key(self, queue: Queue) -> str:
        """Return a queue's name in Spark's checkpoint."""
        return f"{queue.topic}/{queue.queue}" + (f"@{queue.broker}" if self._several else "")

    def to_json(self, offsets: Mapping[Queue, int]) -> dict[str, int]:
        """Convert offsets to the checkpoint's form. Sorted, because Spark compares their text."""
        return {self.key(queue): offsets[queue] for queue in sorted(offsets)}

    def from_json(self, offsets: Mapping[str, int]) -> dict[Queue, int]:
        """Convert offsets from the checkpoint's form. Raises ``InvalidOption`` for a broker not in ``bootstrap``."""
        return {self._queue_of(key): offset for key, offset in offsets.items()}

    def _queue_of(self, key: str) -> Queue:
        place, _, broker = key.partition("@")
        topic, _, queue = place.rpartition("/")
        # A query that began with one broker continues with it as the first of several.
        name = broker or self._options.bootstrap[0].name
        if name not in self.brokers:
            raise InvalidOption(
                f"the checkpoint has offsets of the broker {name!r} ({key}), which option 'bootstrap' does not name; "
                f"add it, as '{name}=host:port' if its address has changed"
            )
        return Queue(topic, int(queue), name)

    # ---- first and last offsets ----

    def starts(self, stats: Stats, default: str) -> dict[Queue, int]:
        """Return the first offset of each queue by the options; ``default``: ``earliest`` or ``latest``."""
        if self._options.starting_ms is not None:
            _refuse_future(self._options.starting_ms)
            return self._offsets_at(self._options.starting_ms, stats)
        offsets = default if self._options.starting_offsets is None else self._options.starting_offsets
        if isinstance(offsets, str):
            return {queue: row.min_offset if offsets == "earliest" else row.max_offset for queue, row in stats.items()}
        given = self._given("startingOffsets", offsets, stats)
        return {queue: self._checked_start(queue, given[queue], row) for queue, row in stats.items()}

    def ends(self, stats: Stats, starts: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return the end offset of each queue of a batch. Raises ``InvalidOption`` for an end before its start."""
        if self._options.ending_ms is not None:
            return self._offsets_at(self._options.ending_ms, stats)
        offsets = self._options.ending_offsets
        if offsets is None or isinstance(offsets, str):
            return {queue: row.max_offset for queue, row in stats.items()}
        given = self._given("endingOffsets", offsets, stats)
        return {queue: _checked_end(queue, given[queue], row, starts[queue]) for queue, row in stats.items()}

    def _offsets_at(self, timestamp_ms: int, stats: Stats) -> dict[Queue, int]:
        return {
            queue: min(max(self.offset_at(queue, timestamp_ms), row.min_offset), row.max_offset)
            for queue, row in stats.items()
        }

    def offset_at(self, queue: Queue, timestamp_ms: int) -> int:
        """Return the offset of a queue's first message that was stored at or after a time."""
        operation = requests.offset_at_ms(queue.topic, queue.queue, timestamp_ms)
        return brokers.call(self.brokers[queue.broker], operation, self._options.timeout)

    def _given(self, option: str, offsets: Offsets, stats: Stats) -> dict[Queue, int]:
        """Return an option's offsets by queue. Raises ``InvalidOption`` for one too many or too few."""
        found = {}
        for name, queues in offsets.items():
            topic, _, broker = name.partition("@")
            homes = sorted({queue.broker for queue in stats if queue.topic == topic and broker in ("", queue.broker)})
            if not homes:
                topics = ", ".join(sorted({queue.topic for queue in stats})) or "no topic"
                raise InvalidOption(f"option {option!r} names {name!r}, which is not read; read are {topics}")
            if len(homes) > 1:
                raise InvalidOption(
                    f"option {option!r} names {topic!r}, which several brokers have: name each with its own offsets, "
                    f"as {', '.join(repr(f'{topic}@{home}') for home in homes)}"
                )
            for number, offset in queues.items():
                queue = Queue(topic, number, homes[0])
                if queue not in stats:
                    count = sum(other.topic == topic and other.broker == homes[0] for other in stats)
                    raise InvalidOption(f"option {option!r} names {queue}, which has the queues 0 to {count - 1}")
                found[queue] = offset
        if missing := sorted(stats.keys() - found.keys()):
            raise InvalidOption(
                f"option {option!r} does not name {missing[0]}"
                + (f" and {len(missing) - 1} others" if len(missing) > 1 else "")
                + f": it must name each queue that is read, with {EARLIEST_MARK} for its beginning, {LATEST_MARK} for "
                "its end"
            )
        return found

    def _checked_start(self, queue: Queue, offset: int, row: QueueStats) -> int:
        if offset == EARLIEST_MARK:
            return row.min_offset
        if offset == LATEST_MARK:
            return row.max_offset
        if offset > row.max_offset:
            raise InvalidOption(
                f"option 'startingOffsets' begins {queue} at {offset}, beyond its end: it holds "
                f"[{row.min_offset}, {row.max_offset})"
            )
        if offset < row.min_offset:
            self.lost(queue, offset, row.min_offset, "option 'startingOffsets' asks for them")
        return max(offset, row.min_offset)

    def lost(self, queue: Queue, start: int, end: int, why: str) -> None:
        """Raise ``DataLoss`` for offsets that are gone, unless the options accept the loss."""
        if self._options.fail_on_data_loss:
            raise data_loss(queue, start, end, why)


def data_loss(queue: Queue, start: int, end: int, why: str) -> DataLoss:
    """Return the error for offsets ``[start, end)`` that are gone."""
    return DataLoss(
        f"the messages [{start}, {end}) of {queue} are not there any more ({why}): retention took them, or the topic "
        'or the store was created again. option("failOnDataLoss", "false") continues after them'
    )


def damage_loss(queue: Queue, queue_offset: int, count: int, why: str) -> DataLoss:
    """Return the error for ``count`` messages from ``queue_offset`` on that are lost to damage of the log."""
    what = (
        f"message {queue_offset} of {queue} is"
        if count == 1
        else f"{count} messages of {queue} from {queue_offset} on are"
    )
    return DataLoss(f'{what} lost to damage ({why}). option("failOnDataLoss", "false") continues after them')


def _refuse_future(starting_ms: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    if starting_ms > now_ms:
        raise InvalidOption(
            f"option 'startingTimestamp' is {starting_ms}, {(starting_ms - now_ms) / 1000:.1f} s in the future by this "
            "machine's clock: no message was stored then; give a time that has passed, or leave it out"
        )


def _checked_end(queue: Queue, offset: int, row: QueueStats, start: int) -> int:
    if offset == LATEST_MARK:
        return row.max_offset
    if offset == EARLIEST_MARK:
        raise InvalidOption(f"option 'endingOffsets' ends {queue} at -2 (earliest): nothing of it would be read")
    if offset > row.max_offset:
        raise InvalidOption(
            f"option 'endingOffsets' ends {queue} at {offset}, beyond its end: it holds "
            f"[{row.min_offset}, {row.max_offset})"
        )
    if offset < start:
        raise InvalidOption(f"option 'endingOffsets' ends {queue} at {offset}, before {start}, where it begins")
    return offset


# ---- lag ----


def offsets_behind_latest(source: SourceProgress) -> dict[str, float]:
    """Return how far a source was behind the ends of its queues at the end of a micro-batch, in offsets.

    ``source``: one of the ``sources`` of a query's progress. The names are those of the metrics of Spark's Kafka
    source: ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest``, ``avgOffsetsBehindLatest``, the last over all
    queues. Empty before the first micro-batch, and for a source that is not FlintMQ's.
    """
    reached, latest = (json.loads(text or "null") for text in (source.endOffset, source.latestOffset))
    if not isinstance(reached, dict) or not isinstance(latest, dict):
        return {}
    behind = [max(0, end - reached.get(queue, 0)) for queue, end in latest.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }


# ---- splitting the work ----


def split(ranges: Iterable[QueueRange], min_partitions: int | None) -> list[QueueRange]:
    """Return the non-empty ranges, cut into about ``min_partitions`` pieces of about equal length."""
    filled = [each for each in ranges if each.end > each.start]
    if not min_partitions or min_partitions <= len(filled):
        return filled
    total = sum(each.end - each.start for each in filled)
    pieces = []
    for each in filled:
        length = each.end - each.start
        count = min(length, max(1, -(-length * min_partitions // total)))
        cuts = [each.start + length * k // count for k in range(count + 1)]
        pieces += [QueueRange(each.queue, start, end) for start, end in itertools.pairwise(cuts)]
    return pieces


def together(ranges: Iterable[QueueRange], rows_max: int) -> list[list[QueueRange]]:
    """Group the ranges by at most ``rows_max`` offsets; a longer range is a group of its own."""
    groups: list[list[QueueRange]] = []
    room = 0
    for each in ranges:
        length = each.end - each.start
        if length > room:
            groups.append([])
            room = rows_max
        groups[-1].append(each)
        room -= length
    return groups


def limited(starts: Mapping[Queue, int], ends: Mapping[Queue, int], rows_max: int) -> dict[Queue, int]:
    """Return ends ``rows_max`` offsets after the starts in total, shared in proportion to each queue's backlog.

    Each queue with messages gets at least one, so that none starves behind long ones; if there are more such queues
    than ``rows_max``, the total is their number. Spark's Kafka source has the same rule.
    """
    backlogs = {queue: end - starts[queue] for queue, end in ends.items()}
    if sum(backlogs.values()) <= rows_max:
        return dict(ends)
    first = {queue: min(1, backlog) for queue, backlog in backlogs.items()}
    total = sum(backlogs.values()) - sum(first.values())
    left = max(0, rows_max - sum(first.values()))
    shares = {queue: divmod((backlogs[queue] - first[queue]) * left, max(1, total)) for queue in backlogs}
    rest = left - sum(whole for whole, _ in shares.values())
    # Queues that lost most by rounding down get the remaining offsets.
    favoured = set(sorted(shares, key=lambda queue: (-shares[queue][1], queue))[:rest])
    return {queue: starts[queue] + first[queue] + whole + (queue in favoured) for queue, (whole, _) in shares.items()}


# ---- Filters that Spark pushes down, as bounds on the pull.


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
