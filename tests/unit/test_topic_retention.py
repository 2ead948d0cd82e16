"""Retention by topic in the store: rules hide messages by age and size, and keep files whose messages must stay."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore, PullSelection
from flintmq.broker.store.retention import HOUR_MS, UNITS_A_STEP, TopicRetention
from flintmq.broker.store.tables.topic_table import RETENTION_FOREVER
from flintmq.protocol.errors import MessageNotFound, OffsetOutOfRange
from tests.store_tools import MIB, Sent, assert_found, assert_holds, find, make_topic, open_store, plain, put, reopen


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "store")
    yield store
    store.close()


def rule(store: MessageStore, topic: str, *, hours: int = 0, size: int = 0) -> None:
    config = make_topic(store, topic)
    store.topics.put(dataclasses.replace(config, retention_hours=hours, retention_bytes=size))


def put_later(store: MessageStore, topic: str, queue: int, count: int, first: int) -> list[Sent]:
    """Put messages whose store time is later than that of every earlier message."""
    before = store.commitlog.last_store_ms
    while time.time_ns() // 1_000_000 <= before:
        pass  # the next millisecond
    return put(store, topic, queue, plain(count, first=first))


def readable(store: MessageStore, topic: str) -> list[tuple[int, int, int]]:
    """Return (physical offset, size, queue) of the messages that readers find, in the order of the log."""
    units = []
    for queue_id, queue in store.queues.by_topic.get(topic, {}).items():
        for offset in range(store.queue_reads.min_offset(topic, queue_id, hot=False), queue.max_offset):
            physical_offset, size, _ = queue.unit(offset, hot=False)
            units.append((physical_offset, size, queue_id))
    return sorted(units)


def newest_within(units: list[tuple[int, int, int]], size: int) -> list[tuple[int, int, int]]:
    """Return the newest of these units whose records together have at most ``size`` bytes."""
    kept: list[tuple[int, int, int]] = []
    for unit in reversed(units):
        size -= unit[1]
        if size < 0:
            break
        kept.append(unit)
    return kept[::-1]


def test_no_read_finds_messages_older_than_the_rule(store: MessageStore) -> None:
    make_topic(store, "orders")
    old = put(store, "orders", 0, plain(5)) + put(store, "orders", 1, plain(3, first=5))
    young = put_later(store, "orders", 0, 4, 8)
    others = put(store, "bills", 0, plain(3))
    rule(store, "orders", hours=24)
    young_from = young[0].store_ms

    store.topic_retention.step(old[0].store_ms + 24 * HOUR_MS)
    assert store.queue_reads.min_offset("orders", 0, hot=False) == 0
    store.topic_retention.step(young_from + 24 * HOUR_MS)
    assert store.queue_reads.min_offset("orders", 0, hot=False) == young[0].queue_offset
    assert store.queue_reads.min_offset("orders", 1, hot=False) == store.queue_reads.max_offset("orders", 1)
    assert_found(store, young)
    with pytest.raises(OffsetOutOfRange) as caught:
        store.pulls.pull("orders", 0, 0, PullSelection(10, MIB), hot=False)
    assert caught.value.min_offset == young[0].queue_offset
    assert find(store, "orders", old[0].message.keys[0]) == []
    with pytest.raises(MessageNotFound):
        store.view(old[0].message.keys[0], "orders", False)
    assert_holds(store, others)
    store.topic_retention.step(young[-1].store_ms + 24 * HOUR_MS + 1)
    assert readable(store, "orders") == []
    again = put(store, "orders", 1, plain(1, first=100))
    assert_found(store, again)


def test_a_rule_that_goes_away_shows_again_all_that_is_in_the_log(store: MessageStore) -> None:
    sent = put(store, "orders", 0, plain(5))
    everything = readable(store, "orders")
    rule(store, "orders", hours=1)
    store.topic_retention.step(sent[-1].store_ms + HOUR_MS + 1)
    assert readable(store, "orders") == []
    rule(store, "orders", hours=2)
    store.topic_retention.step(sent[-1].store_ms + HOUR_MS + 1)
    assert readable(store, "orders") == everything
    store.topic_retention.step(sent[-1].store_ms + 2 * HOUR_MS + 1)
    assert readable(store, "orders") == []
    rule(store, "orders")
    store.topic_retention.step(sent[-1].store_ms + 3 * HOUR_MS)
    assert readable(store, "orders") == everything
    assert_holds(store, sent)


@pytest.mark.parametrize("seed", range(5))
def test_a_topic_keeps_its_newest_bytes_in_the_order_of_the_log(store: MessageStore, seed: int) -> None:
    chance = random.Random(seed)
    limit = 30_000
    everything: list[tuple[int, int, int]] = []
    rule(store, "orders", size=limit)
    for first in range(0, 600, 10):
        count, size = chance.randint(1, 10), chance.randint(1, 2_000)
        put(store, "orders", chance.randrange(3), plain(count, size=size, first=first))
        put(store, "bills", 0, plain(1, first=first))
        if chance.random() < 0.5:
            everything = all_units(store, "orders")
            store.topic_retention.step(1)
            assert readable(store, "orders") == newest_within(everything, limit)
    fresh = TopicRetention(store.queues, store.queue_reads, store.log_reads, store.topics, store.state)
    before = dict(store.state.floors)
    store.state.floors.clear()
    for queue in store.queues.by_topic["orders"].values():
        queue.min_hint = queue.start_offset
    fresh.step(1)
    assert readable(store, "orders") == newest_within(all_units(store, "orders"), limit)
    assert store.state.floors.keys() == before.keys() == {"orders"}


def all_units(store: MessageStore, topic: str) -> list[tuple[int, int, int]]:
    """Return the same as ``readable`` without any rule."""
    floor = store.state.floors.pop(topic, None)
    hints = [(queue, queue.min_hint) for queue in store.queues.by_topic[topic].values()]
    for queue, _ in hints:
        queue.min_hint = queue.start_offset
    units = readable(store, topic)
    if floor is not None:
        store.state.floors[topic] = floor
    for queue, hint in hints:
        queue.min_hint = hint
    return units


def test_more_units_than_one_look_takes_are_left_out_step_by_step(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flintmq.broker.store.retention.UNITS_A_STEP", 7)
    assert UNITS_A_STEP > 7
    for first in range(0, 300, 3):
        put(store, "orders", first % 4, plain(1 + first % 3, size=100 + first, first=first))
    everything = all_units(store, "orders")
    for limit in (40_000, 20_000, 600, 1):
        rule(store, "orders", size=limit)
        store.topic_retention.step(1)
        assert readable(store, "orders") == newest_within(everything, limit)


def test_bytes_are_counted_again_after_files_went(store: MessageStore) -> None:
    number = 0
    limit = 6 * MIB
    rule(store, "orders", size=limit)
    while len(store.commitlog.queue.files) < 4:
        put(store, "orders", number % 2, plain(8, size=60_000, first=8 * number))
        number += 1
    store.topic_retention.step(1)
    kept = readable(store, "orders")
    assert 5 * MIB < sum(size for _, size, _ in kept) <= limit
    store.expire(3)
    left = readable(store, "orders")
    store.topic_retention.step(1)
    assert readable(store, "orders") == left
    for more in range(number, number + 10):
        put(store, "orders", 0, plain(8, size=60_000, first=8 * more))
    everything = all_units(store, "orders")
    store.topic_retention.step(1)
    assert readable(store, "orders") == newest_within(everything, limit)


def test_rules_outlive_a_restart_in_rocketmqs_attributes(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(5))
    rule(store, "orders", hours=24, size=10_000_000)
    store.close()
    row = json.loads((tmp_path / "store" / "config" / "topics.json").read_text())["topicConfigTable"]["orders"]
    assert row["attributes"] == {"flintmq.retention.hours": "24", "flintmq.retention.bytes": "10000000"}
    store, _ = reopen(tmp_path / "store")
    config = store.topics.get("orders")
    assert config is not None
    assert (config.retention_hours, config.retention_bytes) == (24, 10_000_000)
    assert_holds(store, sent)
    store.topic_retention.step(sent[-1].store_ms + 24 * HOUR_MS + 1)
    assert readable(store, "orders") == []
    rule(store, "orders")
    store.close()
    row = json.loads((tmp_path / "store" / "config" / "topics.json").read_text())["topicConfigTable"]["orders"]
    assert row["attributes"] == {}


def test_a_deleted_topic_takes_its_floor_along(store: MessageStore) -> None:
    sent = put(store, "orders", 0, plain(5))
    rule(store, "orders", hours=1)
    store.topic_retention.step(sent[-1].store_ms + HOUR_MS + 1)
    store.topics.remove("orders")
    store.delete_topic("orders")
    store.topic_retention.step(sent[-1].store_ms + HOUR_MS + 1)
    assert store.state.floors == {}
    again = put(store, "orders", 0, plain(3, first=10))
    store.topic_retention.step(sent[-1].store_ms + 2 * HOUR_MS)
    assert_found(store, again)


class TestFilesThatStay:
    def fill(self, store: MessageStore) -> list[Sent]:
        """Put a message of ``kept`` in the first file, then fill files with ``orders``."""
        sent = put(store, "kept", 0, plain(1))
        number = 0
        while len(store.commitlog.queue.files) < 4:
            put(store, "orders", 0, plain(8, size=60_000, first=8 * number))
            number += 1
        return sent

    def kept_for(self, store: MessageStore, now_ms: int) -> list[str]:
        return [file.kept_for for file in store.expiry.old_files(now_ms, 72)]

    def test_a_topic_that_is_kept_for_ever_holds_its_files_back(self, store: MessageStore) -> None:
        sent = self.fill(store)
        far = sent[0].store_ms + 10_000 * HOUR_MS
        assert self.kept_for(store, far) == ["", "", ""]
        rule(store, "kept", hours=RETENTION_FOREVER)
        assert self.kept_for(store, far)[0] == "messages of topic kept, which keeps them for ever"

    def test_a_topic_that_is_kept_longer_than_the_log_holds_its_files_back_for_so_long(
        self, store: MessageStore
    ) -> None:
        sent = self.fill(store)
        rule(store, "kept", hours=100)
        assert "keeps them for 100 h" in self.kept_for(store, sent[0].store_ms + 99 * HOUR_MS)[0]
        assert self.kept_for(store, sent[0].store_ms + 100 * HOUR_MS + 1) == ["", "", ""]
        rule(store, "kept", hours=71)
        assert self.kept_for(store, sent[0].store_ms + HOUR_MS) == ["", "", ""]
