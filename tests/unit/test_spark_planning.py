"""The offsets that a query reads, with its partitions and limits; and filters as bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.client.core.consume.batch import EVERYTHING, parse_tags
from flintmq.client.spark.offsets import (
    Queue,
    QueueRange,
    TopicSubscription,
    limited,
    offsets_behind_latest,
    push,
    split,
    together,
)
from flintmq.client.spark.options import read_options
from flintmq.protocol.commands import TopicInfo

QUEUES = [Queue("orders", number, "h:1") for number in range(6)]
lengths = st.lists(st.integers(0, 1000), min_size=1, max_size=6)


def ranges_of(counts: list[int]) -> list[QueueRange]:
    return [QueueRange(queue, 10, 10 + count) for queue, count in zip(QUEUES, counts, strict=False)]


@given(lengths, st.none() | st.integers(1, 40))
def test_a_split_range_is_read_once_in_at_least_so_many_parts(counts: list[int], wanted: int | None) -> None:
    ranges = ranges_of(counts)
    pieces = split(ranges, wanted)
    offsets = [(piece.queue, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert offsets == [(each.queue, offset) for each in ranges for offset in range(each.start, each.end)]
    assert all(piece.start < piece.end for piece in pieces)
    filled = sum(count > 0 for count in counts)
    assert len(pieces) >= min(wanted or 0, sum(counts))
    assert len(pieces) <= max(filled, (wanted or 0) + filled)


def test_without_a_number_each_queue_is_one_part() -> None:
    assert split(ranges_of([5, 0, 7]), None) == [QueueRange(QUEUES[0], 10, 15), QueueRange(QUEUES[2], 10, 17)]


@given(lengths, st.integers(0, 2000))
def test_ranges_that_share_a_task_are_short_in_all_and_keep_their_order(counts: list[int], rows_max: int) -> None:
    ranges = [each for each in ranges_of(counts) if each.end > each.start]
    groups = together(ranges, rows_max)
    assert [each for group in groups for each in group] == ranges
    assert all(groups)
    for group in groups:
        assert len(group) == 1 or sum(each.end - each.start for each in group) <= rows_max
    assert len(groups) == len(ranges) or rows_max


@given(lengths, st.integers(1, 5000))
def test_a_limit_is_used_up_and_shared_by_length(counts: list[int], rows_max: int) -> None:
    starts = dict.fromkeys(QUEUES[: len(counts)], 10)
    ends = {queue: 10 + count for queue, count in zip(QUEUES, counts, strict=False)}
    found = limited(starts, ends, rows_max)
    taken = {queue: found[queue] - starts[queue] for queue in found}
    filled = sum(count > 0 for count in counts)
    assert sum(taken.values()) == min(max(rows_max, filled), sum(counts))
    for queue, count in zip(QUEUES, counts, strict=False):
        # One of each, and the rest in proportion to what is left.
        left = max(0, min(rows_max, sum(counts)) - filled)
        share = min(count, 1) + (count - min(count, 1)) * left / max(1, sum(counts) - filled)
        assert share - 1 < taken[queue] < share + 1
        assert min(count, 1) <= taken[queue] <= count


def test_no_queue_with_messages_starves_behind_long_ones() -> None:
    starts = dict.fromkeys(QUEUES[:3], 0)
    assert list(limited(starts, dict(zip(QUEUES, (101, 11, 1), strict=False)), 10).values()) == [7, 2, 1]
    assert list(limited(starts, dict(zip(QUEUES, (1 << 40, 0, 1), strict=False)), 1).values()) == [1, 0, 1]


@pytest.mark.parametrize(
    ("reached", "latest", "behind"),
    [
        ('{"t/0": 4, "t/1": 7}', '{"t/0": 10, "t/1": 7, "t/2": 3}', (0, 6, 3.0)),  # a new queue begins at 0
        ('{"t/0": 10}', '{"t/0": 4}', (0, 0, 0.0)),  # the ends were asked for before the batch ended
        (None, '{"t/0": 4}', None),
        ('{"t/0": 4}', None, None),
        ("17", "18", None),  # of another source
    ],
)
def test_the_lag_of_a_source_is_that_of_its_queues(
    reached: str | None, latest: str | None, behind: tuple[float, ...] | None
) -> None:
    names = ("minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest")
    found = offsets_behind_latest(SimpleNamespace(endOffset=reached, latestOffset=latest))
    assert found == (dict(zip(names, behind, strict=True)) if behind else {})


def test_a_limited_stream_reaches_the_end_of_every_queue() -> None:
    position = dict.fromkeys(QUEUES, 0)
    ends = dict(zip(QUEUES, (1, 0, 1000, 3, 50, 7), strict=True))
    for _ in range(-(-1061 // 7)):
        position = limited(position, ends, 7)
    assert position == ends


def test_a_pattern_takes_readable_topics_that_are_not_the_brokers_own() -> None:
    topics = {
        info.topic: info
        for info in (
            TopicInfo("orders", 4, 4),
            TopicInfo("orders-2", 4, 4, perm=4),
            TopicInfo("orders-closed", 4, 4, perm=2),
            TopicInfo("SCHEDULE_TOPIC_XXXX", 18, 18, system=True),
        )
    }
    everything = TopicSubscription(read_options({"bootstrap": "h:1", "subscribePattern": ".*"}))
    assert everything.matching(topics) == ["orders", "orders-2"]
    named = TopicSubscription(read_options({"bootstrap": "h:1", "subscribe": "SCHEDULE_TOPIC_XXXX,nowhere,orders"}))
    assert named.matching(topics) == ["SCHEDULE_TOPIC_XXXX", "orders"]


# ---- filters ----


def filters() -> Any:
    return pytest.importorskip("pyspark.sql.datasource")


def test_filters_become_bounds_and_only_times_stay_with_spark() -> None:
    spark = filters()
    since = datetime(2026, 11, 21, 8, 0, 0, 1500, tzinfo=UTC)
    by_time = spark.GreaterThanOrEqual(("stored_at",), since)
    bounds, tags, left = push(
        [
            spark.EqualTo(("topic",), "orders"),
            spark.In(("queue",), (1, 2, None)),
            spark.GreaterThan(("queue_offset",), 9),
            spark.LessThanOrEqual(("queue_offset",), 20),
            spark.IsNotNull(("queue_offset",)),
            spark.In(("tags",), ("eu", "us")),
            by_time,
        ],
        parse_tags("us || asia"),
    )
    assert (bounds.topics, bounds.queues) == (frozenset(["orders"]), frozenset([1, 2]))
    assert (bounds.first, bounds.end) == (10, 21)
    assert bounds.since_ms == 1795248000001  # messages of that millisecond may pass
    assert tags.wanted == {"us"}
    assert left == [by_time]


@pytest.mark.parametrize(
    ("make", "bounded"),
    [
        (lambda spark, at: spark.GreaterThan(("stored_at",), at), (5, None)),
        (lambda spark, at: spark.GreaterThanOrEqual(("stored_at",), at), (5, None)),
        (lambda spark, at: spark.LessThan(("stored_at",), at), (None, 6)),
        (lambda spark, at: spark.LessThanOrEqual(("stored_at",), at), (None, 6)),
        (lambda spark, at: spark.EqualTo(("stored_at",), at), (5, 6)),
    ],
)
def test_a_time_bound_never_excludes_rows_that_pass_the_filter(make: Any, bounded: tuple[Any, Any]) -> None:
    bounds, _, left = push([make(filters(), datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=UTC))], EVERYTHING)
    assert (bounds.since_ms, bounds.until_ms) == bounded
    assert len(left) == 1


def test_filters_that_no_pull_can_express_stay_with_spark() -> None:
    spark = filters()
    given_ = [
        spark.StringStartsWith(("topic",), "o"),
        spark.Not(spark.EqualTo(("queue",), 1)),
        spark.EqualTo(("tags",), "a || b"),
        spark.EqualTo(("tags",), "*"),
        spark.EqualTo(("tags",), " a"),
        spark.IsNull(("tags",)),
        spark.EqualTo(("body",), b"x"),
        spark.EqualTo(("properties", "a"), "x"),
        spark.EqualNullSafe(("queue",), None),
    ]
    bounds, tags, left = push(given_, EVERYTHING)
    assert left == given_
    assert tags is EVERYTHING
    assert (bounds.topics, bounds.queues, bounds.first) == (None, None, 0)


def test_tags_that_exclude_each_other_leave_nothing() -> None:
    spark = filters()
    bounds, _, left = push([spark.EqualTo(("tags",), "eu")], parse_tags("us"))
    assert not left
    assert not bounds.wants_topic("orders")
