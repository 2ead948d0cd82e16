"""Damage of a ConsumeQueue: its files are rebuilt as they were."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path

import pytest

from flintmq.protocol.storage.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES, PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tests.fault.derived_files import (
    QUEUE,
    Damage,
    End,
    Filled,
    a_queue_gone,
    all_queues_gone,
    assert_rebuilt,
    both_ends,
    close,
)
from tests.store_tools import SMALL, append, assert_holds, kill, open_store, overwrite, plain, put, reopen

FIRST, SECOND = f"{0:020d}", f"{SMALL.consumequeue_file_bytes:020d}"
SOURCE = random.Random(5)


def a_topic_gone(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "orders")


def last_queue_file(path: Path) -> Path:
    return sorted((path / QUEUE).iterdir())[-1]


def first_file_gone(path: Path) -> None:
    (path / QUEUE / FIRST).unlink()


def second_file_gone(path: Path) -> None:
    (path / QUEUE / SECOND).unlink()


def last_file_gone(path: Path) -> None:
    last_queue_file(path).unlink()


def only_the_last_file_left(path: Path) -> None:
    for file in sorted((path / QUEUE).iterdir())[:-1]:
        file.unlink()


def file_cut_short(path: Path) -> None:
    with (path / QUEUE / SECOND).open("r+b") as file:
        file.truncate(333)


def last_file_cut_to_nothing(path: Path) -> None:
    last_queue_file(path).write_bytes(b"")


def file_too_long(path: Path) -> None:
    with (path / QUEUE / FIRST).open("ab") as file:
        file.write(b"x")


def file_zeroed(path: Path) -> None:
    (path / QUEUE / SECOND).write_bytes(bytes(SMALL.consumequeue_file_bytes))


def last_file_zeroed(path: Path) -> None:
    last_queue_file(path).write_bytes(bytes(SMALL.consumequeue_file_bytes))


def queue_zeroed(path: Path) -> None:
    for file in (path / QUEUE).iterdir():
        file.write_bytes(bytes(SMALL.consumequeue_file_bytes))


def file_of_random_bytes(path: Path) -> None:
    (path / QUEUE / SECOND).write_bytes(SOURCE.randbytes(SMALL.consumequeue_file_bytes))


def every_file_random(path: Path) -> None:
    for file in (path / "consumequeue").rglob("0*"):
        if file.is_file():
            file.write_bytes(SOURCE.randbytes(SMALL.consumequeue_file_bytes))


def files_of_another_queue(path: Path) -> None:
    """As if two folders had been mixed up."""
    shutil.rmtree(path / QUEUE)
    shutil.copytree(path / "consumequeue" / "orders" / "3", path / QUEUE)


def a_unit_of_ones(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, b"\xff" * 20)


def a_unit_beyond_the_log(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, UNIT.pack(1 << 60, 200, 0))


def a_unit_gone(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, bytes(20))


def a_unit_that_fills(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, UNIT.pack(0, PRE_BLANK_SIZE, 0))


def two_units_changed_places(path: Path) -> None:
    held = (path / QUEUE / FIRST).read_bytes()
    overwrite(path / QUEUE / FIRST, 140, held[160:180] + held[140:160])


@both_ends
@pytest.mark.parametrize(
    "damage",
    [
        all_queues_gone,
        a_topic_gone,
        a_queue_gone,
        first_file_gone,
        second_file_gone,
        last_file_gone,
        only_the_last_file_left,
        file_cut_short,
        last_file_cut_to_nothing,
        file_too_long,
        file_zeroed,
        last_file_zeroed,
        queue_zeroed,
        file_of_random_bytes,
        every_file_random,
        files_of_another_queue,
        a_unit_of_ones,
        a_unit_beyond_the_log,
        a_unit_gone,
        a_unit_that_fills,
        two_units_changed_places,
    ],
)
def test_a_damaged_consumequeue_is_rebuilt(filled: Filled, tmp_path: Path, end: End, damage: Damage) -> None:
    # Killed before anything was synced, recovery fills all queues again: there is no damage to report.
    assert_rebuilt(filled(end), tmp_path, damage, reported=end is not kill)


@pytest.mark.parametrize("byte", range(20))
def test_a_flipped_bit_anywhere_in_a_unit_is_noticed(filled: Filled, tmp_path: Path, byte: int) -> None:
    def flip(path: Path) -> None:
        at = SOURCE.randrange(50) * 20 + byte
        held = (path / QUEUE / FIRST).read_bytes()[at]
        overwrite(path / QUEUE / FIRST, at, bytes([held ^ 1 << SOURCE.randrange(8)]))

    assert_rebuilt(filled(close), tmp_path, flip)


def test_units_lost_below_the_checked_part_are_refilled_once_a_later_record_shows_it(tmp_path: Path) -> None:
    settings = dataclasses.replace(SMALL, verify_at_start_bytes=0)
    store = open_store(tmp_path / "store", settings)
    sent = put(store, "orders", 1, plain(30))
    store.sync_derived()
    sent += append(store, "orders", 1, plain(3, first=30))
    store.flush()
    kill(store)
    overwrite(store.path / QUEUE / FIRST, 20 * UNIT_BYTES, bytes(10 * UNIT_BYTES))
    for name in ("state.json", "state.json.bak"):  # they say where the queue ended
        (store.path / "flintmq" / name).unlink(missing_ok=True)
    store, report = reopen(store.path, settings)
    assert report.rebuilt == ["consumequeue orders/1: it ends at 20"]
    assert_holds(store, sent)
    store.close()


def test_units_that_rocketmq_had_not_flushed_are_added_however_new_other_queues_are(tmp_path: Path) -> None:
    """It flushes the log more often than the queues, so its checkpoint names an older time for these."""
    settings = dataclasses.replace(SMALL, verify_at_start_bytes=0)
    store = open_store(tmp_path / "store", settings)
    sent = put(store, "orders", 1, plain(30))
    while store.write_offset < SMALL.commitlog_file_bytes:
        put(store, "bills", 0, plain(10, size=50_000))
    kill(store)
    shutil.rmtree(store.path / "flintmq")
    overwrite(store.path / QUEUE / FIRST, 20 * UNIT_BYTES, bytes(10 * UNIT_BYTES))
    # A start checks the newest file of the log only: the others are known to be flushed.
    times = CHECKPOINT.pack(sent[-1].store_ms + 3_600_000, sent[0].store_ms, sent[0].store_ms, 0, 0)
    (store.path / "checkpoint").write_bytes(times.ljust(CHECKPOINT_FILE_BYTES, b"\0"))
    store, report = reopen(store.path, settings)
    assert not report.clean
    assert report.messages_checked < 30
    assert_holds(store, sent)
    store.close()
