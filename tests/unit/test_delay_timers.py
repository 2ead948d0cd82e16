"""Timed messages: due in their second, even after restarts and retention; recalls; and RocketMQ at the same store."""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from pathlib import Path

import pytest

from flintmq.broker.background.services import CleanCommitLogService, Disk, Verdict
from flintmq.broker.config import RetentionSection
from flintmq.broker.delivery.scheduled.worker import delayed_counts
from flintmq.broker.store.timers import FILES_A_ROUND, HOUR_SECONDS
from flintmq.broker.tools.plan_clean import plan_clean
from flintmq.protocol.errors import ServiceNotAvailable
from flintmq.protocol.storage.delivery import PARKED_TOPIC, TIMER_TOPIC
from flintmq.protocol.storage.layout import RECORD
from flintmq.protocol.storage.record import Record, encode_properties
from tests.delay_tools import DAY_MS, HOUR_MS, START_MS, DelayedStore
from tests.store_tools import BORN_HOST, HOST, MIB, overwrite


def test_a_message_is_delivered_when_the_second_has_come_that_holds_its_time(delayed: DelayedStore) -> None:
    delayed.send("t", [b"a"], TIMER_DELIVER_MS=START_MS + 5_001)
    delayed.send("t", [b"b"], TIMER_DELIVER_MS=START_MS + 5_000)
    delayed.run(START_MS + 4_999)
    assert delayed.bodies("t") == []
    assert delayed.delays.timers.next_due_ms() == START_MS + 5_000
    delayed.run(START_MS + 5_000)
    assert delayed.bodies("t") == [b"b"]
    delayed.run(START_MS + 5_999)
    assert delayed.bodies("t") == [b"b"]
    assert delayed.delays.timers.next_due_ms() == START_MS + 6_000
    delayed.run(START_MS + 6_000)
    assert delayed.bodies("t") == [b"b", b"a"]
    assert delayed.delays.timers.next_due_ms() is None


def test_messages_of_any_times_come_in_the_order_of_their_seconds_each_once_also_through_clean_restarts(
    delayed: DelayedStore,
) -> None:
    chance = random.Random(5)
    expected: dict[int, list[bytes]] = {}
    number = 0
    for _ in range(60):
        due_ms = delayed.now_ms + chance.choice([1, 999, 1000, 5_500, HOUR_MS, 3 * HOUR_MS, 39 * DAY_MS])
        bodies = [b"%06d" % (number + k) for k in range(chance.choice([1, 3]))]
        number += len(bodies)
        expected.setdefault(-(-due_ms // 1000), []).extend(bodies)
        delayed.send("t", bodies, TIMER_DELIVER_MS=due_ms)
        if not chance.randrange(3):
            delayed.run(delayed.now_ms + chance.choice([0, 300, 2_000, HOUR_MS // 2]))
        if not chance.randrange(8):
            delayed.restart()
    delayed.restart()
    assert delayed.delays.pending_of("t") == 0  # not known before the store is opened
    delayed.run()
    waiting = [body for second in sorted(expected) if second * 1000 > delayed.now_ms for body in expected[second]]
    assert delayed.delays.pending_of("t") == delayed.delays.timers.state.pending == len(waiting) > 0
    delayed.run(delayed.now_ms + 40 * DAY_MS)
    bodies = delayed.bodies("t")
    assert bodies[-len(waiting) :] == waiting
    assert sorted(bodies) == [b"%06d" % k for k in range(number)]
    assert delayed.delays.pending_of("t") == delayed.delays.timers.state.pending == 0


def test_memory_holds_one_hour_and_the_files_of_hours_that_are_over_go(delayed: DelayedStore) -> None:
    for hour in range(1, 6):
        delayed.send("t", [b"%d" % hour] * 3, TIMER_DELIVER_MS=START_MS + hour * HOUR_MS)
    delayed.run()
    delayed.delays.persist()
    folder = delayed.path / "flintmq" / "timers"
    assert len(list(folder.glob("[0-9]*"))) == 5
    delayed.run(START_MS + 3 * HOUR_MS)
    assert sum(map(len, delayed.delays.timers._seconds.values())) <= 3 * 12
    delayed.delays.persist()
    assert len(list(folder.glob("[0-9]*"))) == 3  # including the file of the present hour
    assert delayed.delays.timers.state.pending == 6


@pytest.mark.parametrize("seed", range(10))
def test_wherever_the_clock_goes_each_message_comes_once_and_when_its_time_has_come_unless_it_was_recalled(
    delayed: DelayedStore, seed: int
) -> None:
    rng = random.Random(seed)
    due: dict[bytes, int] = {}
    over: set[bytes] = set()
    recalled: set[bytes] = set()
    for number in range(60):
        for k in range(rng.randrange(4)):
            body = b"%03d.%d" % (number, k)
            due[body] = delayed.now_ms + rng.choice((1, 500, 20_000, 3_000_000, 9_000_000)) + rng.randrange(1_000)
            delayed.send("t", [body], TIMER_DELIVER_MS=due[body], UNIQ_KEY=body.decode())
        for body in rng.sample(sorted(due.keys() - over), k=min(len(due.keys() - over), rng.randrange(3))):
            if (due[body] - 1) // 1000 * 1000 + 1 > delayed.now_ms:  # the broker accepts no later recall
                recalled.add(body)
                delayed.recall("t", body.decode(), due[body])
        chance = rng.random()
        if chance < 0.15:
            delayed.restart()
        elif chance < 0.3:
            delayed.dispatch()
            delayed.delays.roll_below(delayed.store.write_offset)
            for _ in range(rng.randrange(8)):
                delayed.step()
                delayed.dispatch()
        if rng.random() < 0.3:
            delayed.now_ms -= rng.randrange(3 * HOUR_MS)
        delayed.run(delayed.now_ms + rng.choice((100, 1_000, 30_000, HOUR_MS)))
        second = delayed.now_ms // 1000
        over |= {body for body, due_ms in due.items() if (due_ms - 1) // 1000 + 1 <= second}
        assert delayed.counted("t", 1) == Counter(over - recalled), number
        assert delayed.delays.pending_of("t") == delayed.delays.timers.state.pending == len(due) - len(over)
    delayed.run(max(due.values()) + 1000)
    assert len(recalled) > 10
    assert delayed.counted("t", 1) == Counter(due.keys() - recalled)
    delayed.restart()
    assert delayed.delays.timers.next_due_ms() is None
    delayed.run()
    assert delayed.counted("t", 1) == Counter(due.keys() - recalled)


def test_an_index_rebuilt_after_the_clock_went_back_omits_nothing(delayed: DelayedStore) -> None:
    delayed.run(START_MS + HOUR_MS)
    delayed.send("t", [b"first"], TIMER_DELAY_MS=1)
    delayed.run(START_MS + HOUR_MS + 2_000)
    delayed.run(START_MS)
    delayed.send("t", [b"second"], TIMER_DELAY_MS=600_000)
    delayed.run(START_MS + 10_000)
    delayed.stop()
    (delayed.path / "flintmq" / "timers" / "cursor.json").write_text("{")
    (delayed.path / "flintmq" / "timers" / "cursor.json.bak").unlink(missing_ok=True)
    delayed.open()
    delayed.run(START_MS + 20_000)
    assert delayed.bodies("t") == [b"first"]
    delayed.run(START_MS + 601_000)
    assert delayed.bodies("t") == [b"first", b"second"]


def test_a_delivered_record_is_the_waiting_one_except_its_place(delayed: DelayedStore) -> None:
    properties = {"UNIQ_KEY": "0" * 32, "REAL_TOPIC": "t", "REAL_QID": "3", "TIMER_OUT_MS": str(START_MS), "TAGS": "x"}
    waiting = Record(
        TIMER_TOPIC.encode(),
        b"body",
        encode_properties(properties) + b"__CRC32#\x011234567890\x02",
        flag=7,
        sys_flag=0x108,
        born_timestamp=5,
        born_host=BORN_HOST,
        reconsume_times=3,
        prepared_transaction_offset=9,
        store_host=HOST,
    )
    delayed.send("t", [b"first"], queue=3)
    delayed.append([waiting])
    delayed.run(START_MS + 1_000)
    _, record = delayed.records("t", 3)
    assert (record.body, record.flag, record.sys_flag, record.born_timestamp, record.born_host) == (
        b"body",
        7,
        0x108,
        5,
        BORN_HOST,
    )
    assert (record.reconsume_times, record.prepared_transaction_offset, record.queue_offset) == (3, 0, 1)
    assert record.properties == encode_properties(properties)


POISON = {
    "no topic": {"REAL_QID": "0", "TIMER_OUT_MS": str(START_MS)},
    "no queue": {"REAL_TOPIC": "t", "TIMER_OUT_MS": str(START_MS)},
    "a queue that is not a number": {"REAL_TOPIC": "t", "REAL_QID": "x", "TIMER_OUT_MS": str(START_MS)},
    "a queue that is not there": {"REAL_TOPIC": "t", "REAL_QID": "4", "TIMER_OUT_MS": str(START_MS)},
    "a topic that is not there": {"REAL_TOPIC": "gone", "REAL_QID": "0", "TIMER_OUT_MS": str(START_MS)},
    "a topic of the broker's": {"REAL_TOPIC": TIMER_TOPIC, "REAL_QID": "0", "TIMER_OUT_MS": str(START_MS)},
    "no time": {"REAL_TOPIC": "t", "REAL_QID": "0"},
    "a time that is not a number": {"REAL_TOPIC": "t", "REAL_QID": "0", "TIMER_OUT_MS": "soon"},
}


def test_an_undeliverable_message_is_parked_and_logged_and_stalls_no_other(
    delayed: DelayedStore, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.send("t", [b"first"], TIMER_DELIVER_MS=START_MS + 1_000)
    poison = [
        Record(TIMER_TOPIC.encode(), name.encode(), encode_properties(properties), born_host=BORN_HOST, store_host=HOST)
        for name, properties in POISON.items()
    ]
    delayed.append(poison)
    delayed.send("t", [b"last"], TIMER_DELIVER_MS=START_MS + 1_000)
    delayed.run(START_MS + 1_000)
    assert delayed.bodies("t") == [b"first", b"last"]
    assert delayed.bodies(PARKED_TOPIC) == [name.encode() for name in POISON]
    assert delayed.delays.deliverer.parked == len(POISON)
    assert "for topic 'gone', which does not exist" in caplog.text
    assert "for queue 4 of topic t, which has only 4 queues" in caplog.text
    assert delayed.delays.pending_of("t") == delayed.delays.timers.state.pending == 0


def fill(delayed: DelayedStore, files: int) -> None:
    """Fill ``files`` CommitLog files with other messages."""
    target = len(delayed.store.commitlog.queue.files) + files
    while len(delayed.store.commitlog.queue.files) < target:
        delayed.send("other", [b"x" * 100_000] * 4)
    delayed.dispatch()


def test_retention_deletes_files_whose_timed_messages_are_rewritten_and_loses_none(tmp_path: Path) -> None:
    delayed = DelayedStore(tmp_path / "store")
    rolled_ends: list[int] = []

    def roll(end_offset: int) -> None:
        rolled_ends.append(end_offset)
        delayed.delays.roll_below(end_offset)

    settings = RetentionSection(file_reserved_hours=1, delete_when=";".join(f"{hour:02d}" for hour in range(24)))
    service = CleanCommitLogService(
        delayed.store,
        settings,
        lambda *call: None,
        lambda name, error: None,
        clock=lambda: delayed.store.commitlog.last_store_ms / 1000 + 2 * HOUR_SECONDS,
        disk=lambda path: Disk(1, 1 << 40),
    )
    service.roll = roll
    expected: Counter[bytes] = Counter()
    for turn in range(4):
        for days in (1, 20, 39):
            bodies = [b"%d-%d-%d" % (turn, days, k) for k in range(50)]
            expected.update(bodies)
            delayed.send("t", bodies, queue=turn, TIMER_DELIVER_MS=START_MS + days * DAY_MS)
        fill(delayed, 2)
        delayed.run()
        delayed.delays.persist()
        while service.do_once() or delayed.step():
            delayed.dispatch()
            delayed.delays.persist()
        if turn == 1:
            delayed.restart()
            service._store = delayed.store
    assert rolled_ends
    assert delayed.store.min_physical_offset >= 5 * 4 * MIB
    assert delayed.delays.timers.state.pending == delayed.delays.pending_of("t") == sum(expected.values())
    assert delayed.store.queue_reads.first_offset(delayed.store.queues.by_topic[TIMER_TOPIC][0]) > 0
    delayed.run(START_MS + 20 * DAY_MS)
    delayed.restart()
    delayed.run(START_MS + 40 * DAY_MS)
    assert delayed.counted("t") == expected
    delayed.stop()


def test_the_plan_of_a_stopped_store_knows_rewritten_messages(tmp_path: Path) -> None:
    delayed = DelayedStore(tmp_path / "store")
    delayed.send("t", [b"a"], TIMER_DELIVER_MS=START_MS + 30 * DAY_MS)
    fill(delayed, 2)
    delayed.run()
    in_a_week = delayed.store.commitlog.last_store_ms / 1000 + 7 * 24 * HOUR_SECONDS

    def verdict() -> Verdict:
        delayed.stop()
        settings = RetentionSection(delete_when=";".join(f"{hour:02d}" for hour in range(24)))
        plan = plan_clean(delayed.path, settings, now=in_a_week, disk=Disk(1, 1 << 40))
        delayed.open()
        return plan.verdicts[0]

    assert (verdict().goes, verdict().rolls) == (False, True)
    delayed.delays.roll_below(delayed.store.commitlog.queue.files[0].end_offset)
    delayed.run()
    assert (verdict().goes, verdict().rolls) == (True, False)
    delayed.run(START_MS + 30 * DAY_MS)
    assert delayed.bodies("t") == [b"a"]
    delayed.stop()


def test_delivery_continues_after_damage_to_all_messages_to_be_indexed(tmp_path: Path) -> None:
    delayed = DelayedStore(tmp_path / "store")
    delayed.send("t", [b"lost"], TIMER_DELIVER_MS=START_MS + 5_000)
    delayed.dispatch()
    (record,) = delayed.records(TIMER_TOPIC)
    delayed.stop()
    overwrite(tmp_path / "store" / "commitlog" / f"{0:020d}", record.physical_offset + RECORD.size, b"!")
    delayed.open()
    delayed.run(START_MS)
    delayed.send("t", [b"kept"], TIMER_DELIVER_MS=START_MS + 5_000)
    delayed.run(START_MS + 5_000)
    assert delayed.bodies("t") == [b"kept"]
    delayed.stop()


@pytest.mark.parametrize("damage", ["no cursor", "broken cursor", "short file", "no folder"])
def test_a_lost_index_is_rebuilt_from_the_queue(tmp_path: Path, damage: str) -> None:
    delayed = DelayedStore(tmp_path / "store")
    delayed.send("t", [b"early"], TIMER_DELIVER_MS=START_MS + 1_000)
    delayed.send("t", [b"just now"], TIMER_DELIVER_MS=START_MS + HOUR_MS)
    delayed.send("t", [b"late"], TIMER_DELIVER_MS=START_MS + DAY_MS)
    delayed.run(START_MS + 10_000)
    delayed.send("t", [b"later"], TIMER_DELIVER_MS=START_MS + 2 * DAY_MS)
    delayed.run(START_MS + HOUR_MS)
    delayed.stop()
    folder = tmp_path / "store" / "flintmq" / "timers"
    for path in list(folder.iterdir()):
        if damage == "no folder" or (damage == "no cursor" and path.name.startswith("cursor")):
            path.unlink()
        elif damage == "broken cursor" and path.name.startswith("cursor"):
            path.write_bytes(b"{")
        elif damage == "short file" and path.name.isdigit():
            path.write_bytes(path.read_bytes()[:-1])
    delayed.open()
    delayed.run(START_MS + HOUR_MS)
    assert delayed.delays.timers.state.pending == 2
    delayed.run(START_MS + 3 * DAY_MS)
    counted = delayed.counted("t")
    assert counted.pop(b"just now") in (1, 2)  # messages delivered in the last minute may be delivered again
    assert counted == {b"early": 1, b"late": 1, b"later": 1}
    delayed.stop()


def test_while_nothing_may_be_written_messages_wait_and_come_once_when_it_may(delayed: DelayedStore) -> None:
    delayed.send("t", [b"timed"], TIMER_DELIVER_MS=START_MS + 1_000)
    delayed.send("t", [b"level"], DELAY=1)
    delayed.run()
    delayed.store.refusal = lambda: ServiceNotAvailable("the disk is full")
    delayed.now_ms = START_MS + 2 * DAY_MS
    for work in (delayed.delays.levels, delayed.delays.timers):
        for _ in range(3):
            with pytest.raises(ServiceNotAvailable):
                delayed.loop.run_until_complete(work.step(delayed.now_ms))
    delayed.store.refusal = None
    delayed.run()
    assert delayed.counted("t") == {b"timed": 1, b"level": 1}


def test_messages_for_many_hours_are_put_on_disk_together(delayed: DelayedStore) -> None:
    hours = range(2, FILES_A_ROUND + 10)
    for hour in hours:
        delayed.send("t", [b"%d" % hour], TIMER_DELIVER_MS=START_MS + hour * HOUR_MS)
    delayed.run()
    folder = delayed.path / "flintmq" / "timers"
    delayed.delays.timers.timer_files._synced_at = time.monotonic()
    delayed.delays.persist()
    assert not list(folder.iterdir())
    delayed.restart()
    assert len(list(folder.glob("[0-9]*"))) == len(hours)
    delayed.run(START_MS + 40 * DAY_MS)
    assert delayed.bodies("t") == [b"%d" % hour for hour in hours]


# ---- Timed messages of a store that RocketMQ opens next, or has opened meanwhile


def test_a_clean_stop_leaves_rocketmq_the_waiting_messages_only(tmp_path: Path) -> None:
    delayed = DelayedStore(tmp_path / "store")
    delayed.send("t", [b"a", b"b"], TIMER_DELIVER_MS=START_MS + 1_000)
    delayed.send("t", [b"c", b"d"], TIMER_DELIVER_MS=START_MS + DAY_MS)
    delayed.send("t", [b"e"], TIMER_DELIVER_MS=START_MS + 3 * DAY_MS)
    delayed.send("t", [b"f"], TIMER_DELIVER_MS=START_MS + 2_000)
    delayed.send("t", [b"g"], TIMER_DELIVER_MS=START_MS + DAY_MS - 1)
    delayed.send("t", [b"h"], TIMER_DELIVER_MS=START_MS + 2_000)
    (tmp_path / "store" / "timerwheel").write_bytes(b"another's")
    (tmp_path / "store" / "timerlog").mkdir()
    (tmp_path / "store" / "timerlog" / f"{MIB:020d}").write_bytes(b"another's".ljust(MIB, b"\0"))
    delayed.run(START_MS + 5_000)
    waiting = {record.body: record for record in delayed.records(TIMER_TOPIC)}
    delayed.stop()

    read_ms, flushed, *offsets = struct.unpack_from(
        ">qqqq", (tmp_path / "store" / "config" / "timercheck").read_bytes()
    )
    assert (read_ms, flushed, offsets) == (START_MS + 4_000, 0, [8, 8])
    assert not (tmp_path / "store" / "timerwheel").exists()
    (log,) = (tmp_path / "store" / "timerlog").iterdir()
    blob = log.read_bytes()
    assert (log.name, len(blob)) == (f"{0:020d}", MIB)
    units = [struct.unpack_from(">iqiqiqiiq", blob, 52 * number) for number in range(6)]
    assert units[5] == (0,) * 9
    # A message that is due later than that waits in steps of two days.
    day, three_days = START_MS + DAY_MS - 1000, START_MS + 4_000 + 2 * DAY_MS
    for unit, body, slot_ms, magic, previous in zip(
        units,
        (b"c", b"d", b"e", b"g", b"h"),
        (day, day, three_days, day, START_MS + 4_000 - HOUR_MS),
        (1, 1, 3, 1, 1),
        (-1, 0, -1, 52, -1),
        strict=False,
    ):
        assert unit[:3] == (52, previous, magic), body
        assert unit[3] + unit[4] == slot_ms, body
        assert unit[5] == waiting[body].physical_offset, body


def test_rocketmq_continues_at_the_first_of_only_waiting_messages(tmp_path: Path) -> None:
    delayed = DelayedStore(tmp_path / "store")
    delayed.send("t", [b"a", b"b"], TIMER_DELIVER_MS=START_MS + 1_000)
    delayed.send("t", [b"c", b"d"], TIMER_DELIVER_MS=START_MS + DAY_MS)
    delayed.run(START_MS + 5_000)
    delayed.stop()
    check = tmp_path / "store" / "config" / "timercheck"
    assert struct.unpack_from(">qqqq", check.read_bytes())[2:] == (2, 2)
    assert not (tmp_path / "store" / "timerlog").exists()
    delayed.open()
    delayed.run(START_MS + 2 * DAY_MS)
    delayed.stop()
    assert struct.unpack_from(">qqqq", check.read_bytes())[2:] == (4, 4)


def test_a_stop_with_a_damaged_index_leaves_rocketmq_the_known_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    delayed = DelayedStore(tmp_path / "store")
    delayed.send("t", [b"a"], TIMER_DELIVER_MS=START_MS + 1_000)
    delayed.send("t", [b"b"], TIMER_DELIVER_MS=START_MS + DAY_MS)
    delayed.send("t", [b"c"], TIMER_DELIVER_MS=START_MS + 1_000)
    delayed.run(START_MS + 5_000)
    delayed.restart()
    delayed.run()
    (rows,) = (
        path
        for path in (tmp_path / "store" / "flintmq" / "timers").iterdir()
        if path.name.isdigit() and int(path.name) > START_MS // 1000 + 3600
    )
    overwrite(rows, 0, b"\xff")
    delayed.stop()
    assert "may repeat timed messages" in caplog.text
    check = tmp_path / "store" / "config" / "timercheck"
    assert struct.unpack_from(">qqqq", check.read_bytes())[2:] == (1, 1)


def test_messages_delivered_by_rocketmq_meanwhile_are_not_delivered_again(tmp_path: Path) -> None:
    delayed = DelayedStore(tmp_path / "store")
    delayed.send("t", [b"by the first"], TIMER_DELIVER_MS=START_MS + 1_000)
    delayed.send("t", [b"by RocketMQ"], TIMER_DELIVER_MS=START_MS + 20_000)
    delayed.send("t", [b"an hour"], TIMER_DELIVER_MS=START_MS + HOUR_MS)
    delayed.run(START_MS + 5_000)
    delayed.send("t", [b"sent there, and read"], TIMER_DELIVER_MS=START_MS + 21_000)
    delayed.send("t", [b"sent there, and not read"], TIMER_DELIVER_MS=START_MS + 21_000)
    delayed.dispatch()
    delayed.stop()
    check = tmp_path / "store" / "config" / "timercheck"
    check.write_bytes(struct.pack(">qqqq", START_MS + 60_000, 0, 4, 4).ljust(4096, b"\0"))
    delayed.open()
    delayed.run(START_MS + 70_000)
    assert delayed.bodies("t") == [b"by the first", b"sent there, and not read"]
    delayed.restart()
    delayed.run(START_MS + HOUR_MS)
    assert delayed.bodies("t") == [b"by the first", b"sent there, and not read", b"an hour"]
    delayed.stop()


# ---- Recalls of timed messages: a recalled message never comes, all others do

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
