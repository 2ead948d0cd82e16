"""Recalls of timed messages: a recalled message never comes, all others do."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from flintmq.broker.delivery.scheduled.worker import delayed_counts
from flintmq.protocol.storage.delivery import PARKED_TOPIC, TIMER_TOPIC
from flintmq.protocol.storage.record import Record, encode_properties
from tests.delay_tools import DAY_MS, HOUR_MS, START_MS, DelayedStore
from tests.store_tools import BORN_HOST, HOST

DUE_MS = START_MS + 5_000


def test_a_recalled_message_never_comes_and_its_neighbours_do(delayed: DelayedStore) -> None:
    for name in ("a", "b", "c"):
        delayed.send("t", [name.encode()], TIMER_DELIVER_MS=DUE_MS, UNIQ_KEY=name)
    delayed.send("u", [b"b of u"], TIMER_DELIVER_MS=DUE_MS, UNIQ_KEY="b")
    delayed.send("t", [b"later b"], TIMER_DELIVER_MS=DUE_MS + 1_000, UNIQ_KEY="b")
    delayed.send("t", [b"no key"], TIMER_DELIVER_MS=DUE_MS)
    delayed.recall("t", "b", DUE_MS)
    delayed.run(DUE_MS + DAY_MS)
    assert sorted(delayed.bodies("t")) == [b"a", b"c", b"later b", b"no key"]
    assert delayed.bodies("u") == [b"b of u"]
    assert delayed.bodies(PARKED_TOPIC) == []
    assert (delayed.delays.deliverer.parked, delayed.delays.deliverer.unreadable) == (0, 0)


def test_a_recall_that_comes_before_its_message_and_one_of_none_are_delivered_to_nobody(delayed: DelayedStore) -> None:
    delayed.recall("t", "a", DUE_MS)
    delayed.recall("t", "nobody", DUE_MS)
    delayed.send("t", [b"a"], TIMER_DELIVER_MS=DUE_MS, UNIQ_KEY="a")
    delayed.run(DUE_MS)
    assert delayed.bodies("t") == delayed.bodies(PARKED_TOPIC) == []


def test_a_second_with_more_messages_than_a_step_leaves_out_all_that_are_recalled(delayed: DelayedStore) -> None:
    for number in range(2_500):
        delayed.send("t", [b"%d" % number], TIMER_DELIVER_MS=DUE_MS, UNIQ_KEY=f"{number}")
    for number in range(0, 2_500, 2):
        delayed.recall("t", f"{number}", DUE_MS)
    delayed.run(DUE_MS)
    assert delayed.bodies("t") == [b"%d" % number for number in range(1, 2_500, 2)]


@pytest.mark.parametrize("restarted", [False, True])
def test_no_message_is_delivered_before_the_index_has_what_was_in_the_log_when_its_second_began(
    delayed: DelayedStore, restarted: bool
) -> None:
    delayed.send("t", [b"a"], TIMER_DELIVER_MS=DUE_MS, UNIQ_KEY="a")
    delayed.run(DUE_MS - 1_000)
    if restarted:
        delayed.restart()
    delayed.recall("t", "a", DUE_MS)
    delayed.now_ms = DUE_MS
    assert not delayed.step(), "the recall is not dispatched yet"
    assert delayed.delays.timers.next_due_ms() == 0, "nothing else may wake the worker"
    delayed.run()
    assert delayed.bodies("t") == []


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_recall_holds_after_restarts_and_crashes(delayed: DelayedStore, index: str) -> None:
    for name in ("a", "b", "c"):
        delayed.send("t", [name.encode()], TIMER_DELIVER_MS=DUE_MS + HOUR_MS, UNIQ_KEY=name)
    delayed.run()
    delayed.recall("t", "a", DUE_MS + HOUR_MS)
    delayed.run()
    delayed.restart()
    delayed.recall("t", "b", DUE_MS + HOUR_MS)
    delayed.dispatch()
    delayed.store.flush()
    delayed.store.close()  # without the progress, as after a crash
    delayed.loop.close()
    if index == "lost":
        (delayed.path / "flintmq" / "timers" / "cursor.json").unlink()
        (delayed.path / "flintmq" / "timers" / "cursor.json.bak").unlink(missing_ok=True)
    delayed.open()
    delayed.run(DUE_MS + 2 * HOUR_MS)
    assert delayed.bodies("t") == [b"c"]
    delayed.restart()
    delayed.run(DUE_MS + 3 * HOUR_MS)
    assert delayed.bodies("t") == [b"c"]


def test_a_recall_holds_if_its_message_is_appended_again_for_retention(delayed: DelayedStore) -> None:
    delayed.send("t", [b"a"], TIMER_DELIVER_MS=START_MS + DAY_MS, UNIQ_KEY="a")
    delayed.send("t", [b"b"], TIMER_DELIVER_MS=START_MS + DAY_MS, UNIQ_KEY="b")
    delayed.run()
    delayed.recall("t", "a", START_MS + DAY_MS)
    below = delayed.store.write_offset
    delayed.run()
    delayed.delays.roll_below(below)
    delayed.run()
    assert delayed.delays.oldest_timed() is None or delayed.delays.timers.state.records == 3
    delayed.restart()
    delayed.run()
    assert (delayed.delays.timers.state.pending, delayed.delays.timers.state.records) == (2, 3)
    delayed.run(START_MS + DAY_MS)
    assert delayed.bodies("t") == [b"b"]


def test_a_recalled_message_counts_as_waiting_until_its_time_and_its_recall_never(delayed: DelayedStore) -> None:
    delayed.send("t", [b"a"], TIMER_DELIVER_MS=DUE_MS, UNIQ_KEY="a")
    delayed.recall("t", "a", DUE_MS)
    delayed.recall("t", "nobody", DUE_MS + HOUR_MS)
    delayed.run()
    counts = delayed_counts(delayed.delays, hot=True)
    assert (counts.timed, [row[1] for row in counts.by_hour], delayed.delays.pending_of("t")) == (1, [1], 1)
    delayed.run(DUE_MS + 2 * HOUR_MS)
    counts = delayed_counts(delayed.delays, hot=True)
    assert (counts.timed, delayed.delays.pending_of("t"), delayed.delays.timers.state.records) == (0, 0, 0)
    assert delayed.delays.timers.figures.delivered == 0


def test_the_recall_that_rocketmq_wrote_is_obeyed(delayed: DelayedStore) -> None:
    out_ms = DUE_MS - 1_000
    properties = {
        "UNIQ_KEY": "a",
        "TIMER_DELIVER_MS": str(out_ms + 1),
        "TIMER_DEL_UNIQKEY": "t+a",
        "TRACE_CONTEXT": "",
        "REAL_TOPIC": "t",
        "TIMER_OUT_MS": str(out_ms),
        "TAGS": "_RECALL_TAG_",
        "REAL_QID": "0",
    }
    recall = Record(TIMER_TOPIC.encode(), b"0", encode_properties(properties), born_host=BORN_HOST, store_host=HOST)
    delayed.send("t", [b"a"], TIMER_DELIVER_MS=DUE_MS, UNIQ_KEY="a")
    delayed.append([recall])
    delayed.run(DUE_MS)
    assert delayed.bodies("t") == []


def test_rocketmq_gets_the_recalls_of_the_messages_that_wait_at_a_clean_stop(tmp_path: Path) -> None:
    delayed = DelayedStore(tmp_path / "store")
    delayed.send("t", [b"first"], TIMER_DELIVER_MS=START_MS + DAY_MS, UNIQ_KEY="first")
    delayed.send("t", [b"gone"], TIMER_DELIVER_MS=START_MS + 1_000)
    delayed.recall("t", "first", START_MS + DAY_MS)
    delayed.run(START_MS + 5_000)
    recall = delayed.records(TIMER_TOPIC)[2]
    delayed.stop()
    (log,) = (tmp_path / "store" / "timerlog").iterdir()
    units = [struct.unpack_from(">iqiqiqiiq", log.read_bytes(), 52 * number) for number in range(3)]
    assert [unit[2] for unit in units] == [1, 1 | 4, 1]
    assert units[1][5:7] == (recall.physical_offset, len(recall.encode()))
    assert units[1][1] == 0, "in the slot of its message"
