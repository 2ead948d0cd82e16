"""Timed messages of a store that RocketMQ opens next, or has opened meanwhile."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from flintmq.protocol.storage.delivery import TIMER_TOPIC
from tests.delay_tools import DAY_MS, HOUR_MS, START_MS, DelayedStore
from tests.store_tools import MIB, overwrite


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
