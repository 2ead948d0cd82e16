"""The 18 delay levels: each waits its delay, also over restarts and in RocketMQ's stores; retention keeps their
records.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.store import StoreSettings
from flintmq.protocol.storage.delivery import SCHEDULE_TOPIC
from flintmq.protocol.storage.record import Record
from tests.delay_tools import DelayedStore
from tests.store_tools import HOST, find, kill, make_topic, unpack_rocketmq

LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def store_ms_of(delayed: DelayedStore) -> int:
    """Return the store time of the last appended message; due times are counted from it."""
    return delayed.store.commitlog.last_store_ms


def test_each_level_is_delivered_after_its_delay_and_not_before(delayed: DelayedStore) -> None:
    due: dict[int, int] = {}
    for level in range(1, 19):
        delayed.send("t", [b"%d" % level], DELAY=level)
        due[level] = store_ms_of(delayed) + 1000 * LEVELS_S[level - 1]
    delayed.run(store_ms_of(delayed))
    assert delayed.delays.levels.next_due_ms() == due[1]
    assert delayed.delays.pending_of("t") == 18
    for level in range(1, 19):
        delayed.run(due[level] - 1)
        assert delayed.bodies("t") == [b"%d" % each for each in range(1, level)]
        delayed.run(due[level])
        assert delayed.bodies("t") == [b"%d" % each for each in range(1, level + 1)]
    assert delayed.delays.levels.next_due_ms() is None
    assert delayed.delays.pending_of("t") == 0


def test_messages_of_many_topics_and_queues_come_in_their_order_and_are_found_there(delayed: DelayedStore) -> None:
    for number in range(300):
        delayed.send(f"t{number % 7}", [b"%04d" % number], queue=number % 3, DELAY=1)
    delayed.run(store_ms_of(delayed) + 1000)
    for topic in range(7):
        for queue in range(3):
            expected = [b"%04d" % number for number in range(300) if (number % 7, number % 3) == (topic, queue)]
            assert delayed.bodies(f"t{topic}", queue) == expected
    record = find(delayed.store, "t3", "0003")[0]
    assert (record.topic, record.queue_id, record.body) == (b"t3", 0, b"0003")


def test_a_clean_restart_repeats_nothing_and_the_file_is_rocketmqs(delayed: DelayedStore) -> None:
    delayed.send("t", [b"a", b"b"], DELAY=1)
    delayed.send("t", [b"c"], DELAY=2)
    now_ms = store_ms_of(delayed)
    delayed.run(now_ms + 1000)
    delayed.restart()
    table = json.loads((delayed.path / "config" / "delayOffset.json").read_text())
    assert table["offsetTable"] == {"1": 2}
    delayed.run(now_ms + 2000)
    assert delayed.delays.pending_of("t") == 1  # counted again at the start
    delayed.run(now_ms + 5000)
    assert delayed.bodies("t") == [b"a", b"b", b"c"]


def test_a_kill_leaves_nothing_out(delayed: DelayedStore) -> None:
    delayed.send("t", [b"a", b"b"], DELAY=1)
    now_ms = store_ms_of(delayed)
    delayed.run(now_ms + 1000)
    kill(delayed.store)
    delayed.loop.close()
    delayed.open()
    delayed.send("t", [b"c"], DELAY=1)
    delayed.run(now_ms + 60_000)
    assert delayed.bodies("t") == [b"a", b"b", b"a", b"b", b"c"]


def waiting_record(body: bytes, **properties: str) -> Record:
    """Return the record of a message for which another broker chose a delay of one second."""
    own = {"UNIQ_KEY": body.decode(), "REAL_TOPIC": "t", "REAL_QID": "0", "DELAY": "1", **properties}
    blob = "".join(f"{name}\x01{value}\x02" for name, value in own.items()).encode()
    return Record(SCHEDULE_TOPIC.encode(), body, blob, born_timestamp=1, born_host=HOST)


def delivered_record(waiting: Record) -> Record:
    """Return the record that is delivered for ``waiting``."""
    return replace(waiting, topic=b"t", properties=waiting.properties.replace(b"DELAY\x011\x02", b""))


def crashed(delayed: DelayedStore) -> None:
    """Simulate a broker that ended before it saved its progress; another one opens the store a minute later."""
    kill(delayed.store)
    delayed.loop.close()
    delayed.open()
    delayed.run(store_ms_of(delayed) + 60_000)


def test_messages_delivered_before_a_crash_are_known_by_their_copies_in_the_log(delayed: DelayedStore) -> None:
    first, second, third = (waiting_record(body) for body in (b"first", b"second", b"third"))
    delayed.append([first, second, third])
    delayed.append([delivered_record(first), delivered_record(second)])
    delayed.dispatch()
    crashed(delayed)
    assert delayed.bodies("t") == [b"first", b"second", b"third"]
    assert delayed.delays.pending_of("t") == 0
    crashed(delayed)
    assert delayed.bodies("t") == [b"first", b"second", b"third"]


@pytest.mark.parametrize("first", ["parked", "of a deleted topic", "without a unique key", "damaged"])
def test_a_message_without_a_copy_does_not_bring_back_those_behind_it(delayed: DelayedStore, first: str) -> None:
    topic = "gone" if first in ("parked", "of a deleted topic") else "t"
    other = waiting_record(b"first", REAL_TOPIC=topic)
    if first == "without a unique key":
        other = replace(other, properties=other.properties.replace(b"UNIQ_KEY\x01first\x02", b""))
    records = [waiting_record(b"%03d" % number) for number in range(150)]
    for name in {"t"} if first == "parked" else {"t", topic}:
        make_topic(delayed.store, name)
    delayed.append([other, *records[:100]])
    delayed.run(store_ms_of(delayed) + 60_000)
    delayed.append(records[100:])
    delayed.dispatch()
    if first == "of a deleted topic":
        delayed.store.topics.remove("gone")
        delayed.store.delete_topic("gone")
    if first == "damaged":
        with (delayed.path / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(other.physical_offset + 90)
            file.write(b"\xff" * 5)
    crashed(delayed)
    delivered = delayed.counted("t")
    del delivered[b"first"]  # what has no copy may come again
    assert delivered == dict.fromkeys((record.body for record in records), 1)
    assert delayed.delays.pending_of("t") == delayed.delays.pending_of("gone") == 0
    assert delayed.delays.levels.backlog() == 0


def test_a_copy_counts_for_one_waiting_message(delayed: DelayedStore) -> None:
    record = waiting_record(b"twice")
    delayed.append([record, replace(record)])
    delayed.append([delivered_record(record)])
    delayed.dispatch()
    crashed(delayed)
    assert delayed.bodies("t") == [b"twice", b"twice"]


@pytest.mark.parametrize(
    "other",
    [
        {"reconsume_times": 1},
        {"born_timestamp": 2},
        {"body": b"another"},
        {"queue_id": 1},
        {"flag": 7},
        {"properties": b"UNIQ_KEY\x01once\x02"},
        {"properties": b"UNIQ_KEY\x01other\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_message_that_is_not_its_copy_does_not_keep_one_from_being_delivered(
    delayed: DelayedStore, other: dict[str, Any]
) -> None:
    record = waiting_record(b"once")
    delayed.append([replace(delivered_record(record))])  # before it: of an earlier message
    delayed.append([record])
    delayed.append([replace(delivered_record(record), **other)])
    delayed.dispatch()
    before = delayed.counted("t")
    crashed(delayed)
    assert delayed.counted("t") - before == {b"once": 1}


def test_without_a_crash_nothing_is_looked_for(delayed: DelayedStore) -> None:
    record = waiting_record(b"again")
    delayed.append([record])
    delayed.append([delivered_record(record)])
    delayed.restart()
    delayed.run(store_ms_of(delayed) + 60_000)
    assert delayed.bodies("t") == [b"again", b"again"]


def test_a_message_that_is_larger_than_a_step_is_delivered_alone(delayed: DelayedStore) -> None:
    bodies = [b"x" * size for size in (10, 500_000, 10, 500_000, 10)]
    delayed.send("t", bodies, DELAY=1)
    delayed.run(store_ms_of(delayed) + 1000)
    assert delayed.bodies("t") == bodies


def test_copies_continue_in_the_next_file(delayed: DelayedStore) -> None:
    bodies = [b"%06d" % number + b"x" * 3000 for number in range(900)]
    for at in range(0, 900, 300):
        delayed.send("t", bodies[at : at + 300], DELAY=1)
    delayed.run(store_ms_of(delayed) + 1000)
    assert len(delayed.store.commitlog.queue.files) > 1
    assert delayed.bodies("t") == bodies
    delayed.restart()
    assert delayed.bodies("t") == bodies


def test_retention_keeps_a_file_whose_delayed_message_waits(delayed: DelayedStore) -> None:
    delayed.send("t", [b"a"], DELAY=18)
    now_ms = store_ms_of(delayed)
    while len(delayed.store.commitlog.queue.files) < 3:
        delayed.send("other", [b"x" * 100_000] * 4)
    delayed.run(now_ms)
    assert [file.kept_for for file in delayed.store.expiry.old_files()] == ["a message that is delayed (level 18)"] * 2
    delayed.run(now_ms + 7_200_000)
    delayed.dispatch()
    delayed.delays.persist()
    assert next(file.kept_for for file in delayed.store.expiry.old_files()) == ""


def test_messages_left_undelivered_by_rocketmq_are_delivered_as_it_would(tmp_path: Path) -> None:
    path = unpack_rocketmq(tmp_path) / "store-pristine"
    (path / "config" / "delayOffset.json").write_text('{"dataVersion":{"counter":0},"offsetTable":{1:10}}')
    (path / "config" / "delayOffset.json.bak").unlink()
    delayed = DelayedStore(path, settings=StoreSettings())
    before = {queue: delayed.records("CompatTopic", queue) for queue in range(4)}
    delayed.run()
    waiting = delayed.store.queues.by_topic[SCHEDULE_TOPIC][0]
    pulled = [delayed.store.log_reads.record_at(*waiting.unit(offset, hot=False)[:2]) for offset in range(10, 17)]
    again = [record for queue in range(4) for record in delayed.records("CompatTopic", queue)[len(before[queue]) :]]
    originals = {
        record.property_map()["UNIQ_KEY"]: record
        for queue in range(4)
        for record in before[queue]
        if "REAL_TOPIC" in record.property_map()
    }
    assert len(again) == len(pulled) == 7
    for record in again:
        original = originals[record.property_map()["UNIQ_KEY"]]
        assert what_stays(record) == what_stays(original)
        assert record.store_host == HOST
    delayed.stop()


def what_stays(record: Record) -> tuple[object, ...]:
    """Return the parts of a record that do not depend on where and when it is stored."""
    return (
        record.topic,
        record.queue_id,
        record.body,
        record.properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.body_crc,
    )
