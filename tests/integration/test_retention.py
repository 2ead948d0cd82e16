"""Retention in a running broker: old files are deleted, readers move on, and writes stop before the disk is full."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Message, OffsetOutOfRange, Producer, PushConsumer, ServiceNotAvailable
from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, RunningBroker
from tests.overload_tools import soon
from tests.tools_runs import tool

EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))
SOON = {
    "retention.file_reserved_hours": 0,
    "retention.delete_when": EVERY_HOUR,
    "background.services:RETENTION_CHECK_S": 0.02,
}
LONG_S = 120.0
HOUR_MS = 3_600_000
NO_DISK_RULE = {"retention.headroom_bytes": 0}
"""The use of the machine's disk does not count."""


def fill(running: RunningBroker, megabytes: int) -> int:
    """Send messages to a topic with one queue; return their number."""
    count = megabytes * 10
    with Admin(running.address) as admin:
        admin.create_topic("orders", queues=1)
    with Producer(running.address, compress_over=None) as producer:
        producer.send_bulk("orders", [b"%08d" % number + bytes(100_000) for number in range(count)])
    return count


def wait_for_min_offset(running: RunningBroker, above: int) -> int:
    deadline = time.monotonic() + LONG_S
    with Consumer(running.address) as consumer:
        while time.monotonic() < deadline:
            found = consumer.min_offset("orders", 0)
            if found > above:
                return found
            consumer.pull("orders", 0, consumer.max_offset("orders", 0), wait_ms=20)
    raise AssertionError(f"the queue still begins at {found}; the log: {running.log}")


def test_old_files_go_and_consumers_get_the_new_minimum(broker: BrokerFactory) -> None:
    running = broker(settings={**SOON, "store.commitlog_file_bytes": 4 * 1024 * 1024})
    count = fill(running, 24)
    first = wait_for_min_offset(running, count - 41)
    assert len(list((running.store / "commitlog").iterdir())) == 1
    with Consumer(running.address) as consumer:
        with pytest.raises(OffsetOutOfRange) as caught:
            consumer.pull("orders", 0, 0)
        assert caught.value.min_offset == first
        bodies = [message.body[:8] for message in consumer.iter("orders", from_="earliest", until="latest")]
    assert bodies == [b"%08d" % number for number in range(first, count)]
    soon(lambda: "retention removed" in running.log)  # the broker logs it after the deletion
    assert running.stop() == 0
    again = broker(store=running.store)
    with Consumer(again.address) as consumer:
        assert consumer.min_offset("orders", 0) == first
        assert consumer.max_offset("orders", 0) == count


def test_plan_clean_lists_files_to_delete_while_a_broker_runs(broker: BrokerFactory) -> None:
    running = broker(settings={"store.commitlog_file_bytes": 4 * 1024 * 1024})
    fill(running, 12)
    kept = tool("plan-clean", running.store)
    assert kept.code == 0, kept.errors
    assert any(re.match(r"0 of [34] CommitLog files would go, 0 MB$", line) for line in kept.output), kept.output
    settings = ("--set", "retention.file_reserved_hours=0", "--set", f"retention.delete_when={EVERY_HOUR}")
    going = tool("plan-clean", running.store, *settings)
    assert going.code == 0, going.errors
    assert any(re.match(r"[23] of [34] CommitLog files would go, ", line) for line in going.output), going.output
    assert running.stop() == 0


def test_the_broker_says_which_file_goes_next_and_when(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker(
        settings={"store.commitlog_file_bytes": 4 * 1024 * 1024, "retention.delete_when": EVERY_HOUR, **NO_DISK_RULE}
    )
    with Admin(running.address) as admin:
        assert (admin.status()["expiry_next_file"], admin.status()["expiry_next_ms"]) == ("", -1)
        fill(running, 12)
        soon(lambda: admin.status()["expiry_next_file"] != "")
        info = admin.status()
        first = min(path.name for path in (running.store / "commitlog").iterdir())
        assert info["expiry_next_file"] == first
        with Consumer(running.address) as consumer:
            newest = max(
                message.stored_at for message in consumer.pull("orders", 0, 0, 100) if message.physical_offset < 4 << 20
            )
        assert abs(info["expiry_next_ms"] - (newest.timestamp() * 1000 + 72 * HOUR_MS)) < 1000
        planned = tool("plan-clean", running.store, "--set", f"retention.delete_when={EVERY_HOUR}")
        assert any(first in line and "of 72 h old" in line for line in planned.output)
        assert "of 72 h old" in info["expiry_next_reason"]
        shown = Cli(tmp_path / "home", running.address).run("status", "-o", "table").out
        assert re.search(rf"goes next +{first}, \d{{4}}-", shown)


def test_a_follower_that_lost_messages_gets_an_error_and_continues_at_the_new_minimum(broker: BrokerFactory) -> None:
    running = broker(settings={**SOON, "store.commitlog_file_bytes": 4 * 1024 * 1024})
    fill(running, 2)
    with Consumer(running.address) as consumer:
        follower = consumer.iter("orders", from_="earliest")
        assert next(follower).queue_offset == 0
        count = 20 + fill(running, 60)
        first = wait_for_min_offset(running, count - 41)
        seen: list[int] = []
        with pytest.raises(OffsetOutOfRange) as caught:
            seen.extend(message.queue_offset for message in follower)
        assert seen == list(range(1, len(seen) + 1)), "what it had already, in order"
        assert caught.value.min_offset == first
        again = consumer.iter("orders", from_={0: first}, until="latest")
        assert [message.queue_offset for message in again] == list(range(first, count))


def test_messages_are_refused_on_a_full_disk_and_reads_continue(broker: BrokerFactory) -> None:
    running = broker()
    fill(running, 1)
    assert running.stop() == 0
    # Any machine's disk is fuller than this, and has less free space than this.
    full = {
        "retention.disk_refuse_percent": 1,
        "retention.headroom_bytes": 2**60,
        "background.services:RETENTION_CHECK_S": 0.02,
    }
    again = broker(store=running.store, settings={**full, "retention.disk_force_percent": 100})
    with Producer(again.address, delivery_timeout=0.5) as producer:
        refused = None
        deadline = time.monotonic() + LONG_S
        while refused is None and time.monotonic() < deadline:  # the broker may not have looked at the disk yet
            refused = producer.send_async(Message("orders", b"x")).exception()
    assert isinstance(refused, ServiceNotAvailable)
    assert "retention.disk_refuse_percent is 1" in str(refused)
    assert str(again.store) in str(refused)
    with Consumer(again.address) as consumer:
        assert len(list(consumer.iter("orders", until="latest"))) >= 10


def test_a_topic_keeps_its_newest_bytes_and_a_group_is_moved_on(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker(settings={"background.services:RETENTION_CHECK_S": 0.02})
    with Admin(running.address) as admin, Producer(running.address, compress_over=None) as producer:
        admin.create_topic("orders", queues=1)
        admin.create_topic("limited", queues=1, retention_bytes=100_000)
        for topic in ("orders", "limited"):
            producer.send_bulk(topic, [b"%03d" % number + bytes(1_000) for number in range(500)])
        found = admin.topics()
        assert (found["limited"].retention_bytes, found["orders"].retention_bytes) == (100_000, 0)
    with Consumer(running.address) as consumer:
        deadline = time.monotonic() + LONG_S
        while consumer.min_offset("limited") < 400:
            assert time.monotonic() < deadline
        first = consumer.min_offset("limited")
        assert 85 <= 500 - first <= 99
        with pytest.raises(OffsetOutOfRange):
            consumer.pull("limited", 0, first - 1)
        bodies = [message.body[:3] for message in consumer.iter("limited", until="latest")]
        assert bodies == [b"%03d" % number for number in range(first, 500)]
        shown = consumer.browse("limited", newest_first=False, count=200)
        assert [row.queue_offset for row in shown] == list(range(first, 500))
        assert (shown.messages, shown.max_offsets) == (500 - first, 500)
        assert not consumer.browse("limited", physical=shown[0].physical_offset)
        assert consumer.min_offset("orders") == 0
    got: list[int] = []
    with Consumer(running.address) as consumer:
        consumer.commit("late", "limited", {0: 0})
    with PushConsumer(running.address, group="late", topics="limited", listener=lambda m: got.append(m.queue_offset)):
        soon(lambda: len(got) >= 500 - first)
    assert min(got) >= first
    assert running.stop() == 0
    again = broker(store=running.store)
    with Consumer(again.address) as consumer:
        assert consumer.min_offset("limited") == first
    with Cli(tmp_path / "home", again.address) as cli:
        done = cli.run("topic", "update", "limited", "--retention-bytes", "none", "--retention", "7d", "-o", "json")
        assert [(row["retention_hours"], row["retention_bytes"]) for row in done.rows] == [(168, 0)]
        changed = cli.run("topic", "update", "limited", "--queues", "2", "-o", "json")
        assert changed.rows[0]["retention_hours"] == 168  # unchanged
        assert cli.run("topic", "update", "limited", "--retention", "1.5h").code == 2
        made = cli.run("topic", "create", "ever", "--retention", "forever", "-o", "json")
        assert made.rows[0]["retention_hours"] == -1
        refused = cli.run("topic", "create", "%RETRY%late", "--retention", "1h")
        assert "still has to receive again" in refused.err
    with Consumer(again.address) as consumer:
        soon(lambda: consumer.min_offset("limited") == 0)
